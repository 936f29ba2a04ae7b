"""Hyper-parameter search whose fits share one compiled program."""

from __future__ import annotations

import contextlib
import warnings
from concurrent.futures import wait
from numbers import Integral
from typing import Any

import numpy as np
from joblib import effective_n_jobs, parallel_config
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.model_selection._search import BaseSearchCV
from sklearn.utils._param_validation import Interval, StrOptions

from ..engines import LOCAL
from ..engines.numpy import one_blas_thread
from ..population import AT_ONCE, bar_of_fits, is_batched
from ..settings import is_ours
from .base import NetworkEstimator, keep
from .fits import Refit, SharedRows, Threads

__all__ = ["PopulationSearchCV"]

SHARED = 2**20  # bytes; from there on joblib's processes share rows that nobody may write into, too
FEW = 2**20  # numbers in X; products of so few are done before a second thread of BLAS is awake


class PopulationSearchCV(BaseSearchCV):
    """scikit-learn's `GridSearchCV` and `RandomizedSearchCV` for estimators of this library, much faster.

    All fits of the search, every candidate on every fold, share one compiled program: on CPU they run on threads, with
    exactly the scores of fitting one by one; on GPU they are trained together as one batched program. Candidates that
    differ in what a program depends on (layers, batch size) form groups. What cannot be batched (L-BFGS, scikit-learn's own
    estimators) is fitted by itself, with the same result.

    Parameters
    ----------
    estimator : estimator
        One of this library, or a pipeline that ends with one; any other works too.
    param_grid : dict or list of dicts, optional
        All combinations are tried, as by `GridSearchCV`.
    param_distributions : dict or list of dicts, optional
        `n_iter` combinations are drawn, as by `RandomizedSearchCV`. Give this or `param_grid`.
    n_iter, random_state
        For `param_distributions`.
    scoring, refit, cv, verbose, error_score, return_train_score
        As in scikit-learn.
    n_jobs : int, optional
        Threads on CPU; by default one for every core.
    how : "auto", "threads" or "batched"
        "auto": batched on a GPU, threads otherwise.
    progress : bool
        Show how many fits are done where there is a terminal.

    Attributes
    ----------
    cv_results_, best_params_, best_score_, best_index_, best_estimator_, refit_time_, scorer_, n_splits_, multimetric_
        As in scikit-learn. Fits run at the same time, so the times in `cv_results_` overlap.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from pellucid import Linear, NetworkClassifier, Tanh
    >>> X, y = load_iris(return_X_y=True)
    >>> model = NetworkClassifier(Linear(8) >> Tanh(), epochs=20, random_state=0)
    >>> search = PopulationSearchCV(model, {"optimizer__learning_rate": [1e-5, 0.03]}, cv=3).fit(X, y)
    >>> search.best_params_
    {'optimizer__learning_rate': 0.03}
    """

    pre_dispatch = "all"

    _parameter_constraints: dict = {
        **BaseSearchCV._parameter_constraints,
        "param_grid": [dict, list, None],
        "param_distributions": [dict, list, tuple, None],
        "n_iter": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "how": [StrOptions({"auto", "threads", "batched"})],
        "progress": ["boolean"],
    }
    del _parameter_constraints["pre_dispatch"]

    def __init__(
        self,
        estimator: Any,
        param_grid: Any = None,
        *,
        param_distributions: Any = None,
        n_iter: int = 10,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: Any = True,
        cv: Any = None,
        verbose: int = 0,
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
        how: str = "auto",
        progress: bool = True,
    ) -> None:
        keep(self, locals())

    def fit(self, X: Any, y: Any = None, **params: Any) -> PopulationSearchCV:
        """Try all candidates on all folds, then fit the best one on all rows, as scikit-learn's searches do."""
        if (self.param_grid is None) == (self.param_distributions is None):
            raise ValueError("PopulationSearchCV needs param_grid= (all combinations) or param_distributions= (n_iter draws), one of them.")
        batched, around = is_batched(self.how), LOCAL.wrap
        plain = leaves_rows_alone(self.estimator, self.scoring)
        least = 0 if plain else SHARED
        X, y = (SharedRows(a) if type(a) is np.ndarray and a.nbytes > least else a for a in (X, y))
        self._shared = [a for a in (X, y) if isinstance(a, SharedRows)]
        watched = params or self.verbose > 1 or any(getattr(one, "_skl_callbacks", None) for one in (self, self.estimator))
        alike = plain and len(self._shared) == 2 and not watched
        self._threads = Threads(AT_ONCE if batched else effective_n_jobs(self.n_jobs or -1), batched, alike, self._shared)
        try:
            # scikit-learn sets the warnings' filters in every thread, and the last one to end may leave them as another had them
            with contextlib.ExitStack() as self._searching, warnings.catch_warnings():
                self._searching.enter_context(one_blas_thread(not batched or (isinstance(X, np.ndarray) and X.size <= FEW)))
                self._searching.enter_context(parallel_config(backend=self._threads))
                return super().fit(X, y, **params)
        finally:
            LOCAL.wrap = around
            del self._threads, self._shared, self._searching

    def _run_search(self, evaluate_candidates: Any, *, callback_ctx: Any = None) -> None:
        def evaluate(candidates: Any, **options: Any) -> Any:
            candidates = list(candidates)
            for rows in self._shared:
                rows.cut = {}
            try:
                fits, refits = len(candidates) * self.n_splits_, self._foreseen(candidates)
                with bar_of_fits(self.progress, fits + bool(refits)) as advance:
                    self._threads.meet(fits, refits, advance)
                    found = evaluate_candidates(candidates, **options)
                    wait([refit.future for refit in refits[:1]])  # the host of the others
                    self._threads.meeting.foreseen = [request for refit in refits if (request := refit.request or refit.guests.request)]
                    return found
            finally:
                for rows in self._shared:
                    rows.cut = None

        search = GridSearchCV if self.param_distributions is None else RandomizedSearchCV
        search._run_search(self, evaluate, **({} if callback_ctx is None else {"callback_ctx": callback_ctx}))
        self._searching.close()  # the refit has all cores to itself, and what it runs in parallel is no fit of the search
        if self._threads.meeting.foreseen:
            LOCAL.wrap = self._threads.meeting.recall

    def _foreseen(self, candidates: list[dict[str, Any]]) -> list[Refit]:
        """The refit of every candidate, where all can be trained beside each other: on a GPU that is faster than one, later."""
        together = self.refit and self._threads.alike and self._threads.batched and not LOCAL.wrap
        if not together or len(candidates) * (self.n_splits_ + 1) > AT_ONCE:
            return []
        among = [shared.whole for shared in self._shared], len(candidates), 1 - 1 / self.n_splits_, self._threads.start
        refits = [Refit(clone(self.estimator), settings, *among) for settings in candidates]
        return refits if refits[0].like and all(refit.like == refits[0].like for refit in refits) else []


def leaves_rows_alone(estimator: Any, scoring: Any) -> bool:
    """Whether it is known that nobody writes into the rows of a fold: nothing of a user's own sees them."""
    ours = isinstance(estimator, NetworkEstimator) and is_ours(estimator)
    names = scoring.values() if isinstance(scoring, dict) else scoring if isinstance(scoring, list | tuple | set) else [scoring]
    return ours and not estimator.callbacks and all(isinstance(name, str | None) for name in names)
