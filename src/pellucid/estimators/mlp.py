"""Drop-in multi-layer perceptrons: scikit-learn's parameters, attributes and methods, trained by pellucid."""

from __future__ import annotations

import copy
import functools
import marshal
import math
import warnings
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, check_scoring, r2_score
from sklearn.model_selection import train_test_split
from sklearn.utils import column_or_1d, compute_sample_weight
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target, unique_labels

from ..engines import LOCAL
from ..engines import numpy as engine
from ..layers import Chain, Dropout, Identity, Layer, Linear, ReLU, Sigmoid, Tanh
from ..losses import HalfSquaredError, Loss, Poisson, SigmoidCrossEntropy, SoftmaxCrossEntropy
from ..network import Network
from ..optimizers import Optimizer
from ..training.callbacks import as_callbacks
from ..training.data import row_weights
from ..training.finite import NonFiniteError
from ..training.loop import Job, train
from ..training.step import Batch
from .base import OPS, Classifier, Like, NetworkEstimator, SparseRows, binarizer_of, keep, plain_labels, told, with_callbacks
from .path import MLPLBFGS, MLPSGD, Books, Draws, Held, MLPAdam, Order, counted

__all__ = ["MLPClassifier", "MLPRegressor"]

NUMBERS = "learning_rate_init", "alpha", "beta_1", "beta_2", "epsilon", "momentum"  # of the optimizer, and nothing else
ACTIVATIONS: dict[str, Layer] = {"identity": Identity(), "logistic": Sigmoid(), "tanh": Tanh(), "relu": ReLU()}

PARAMETERS = """
    Parameters of scikit-learn's class, with the same meaning and the same defaults; and beyond them:

    activation : str, Layer, or a list with one for every hidden layer
    engine : "auto", "numpy" or "jax"
        Who computes; "auto" takes the one predicted to be done first.
    alpha_scale : "data" or "batch"
        "data": the penalty is α/(2n) Σ W² with n the number of rows, whatever the batch size. "batch": n is the size of
        each mini-batch, as in scikit-learn, which makes α stronger the smaller the batches are.
    dropout : float
        The part of every hidden layer's outputs that is set to zero while training.
    scoring : str or callable, optional
        What early stopping watches; by default accuracy, or R² for a regressor.
    callbacks : function of run, Callback, or a list of them
    progress : bool
        Show a progress bar where there is a terminal.
"""


class BaseMLP(NetworkEstimator):
    """What the classifier and the regressor share."""

    _parameter_constraints: dict = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(ACTIVATIONS)), Layer, list, tuple],
        "solver": [StrOptions({"lbfgs", "sgd", "adam"})],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "learning_rate": [StrOptions({"constant", "invscaling", "adaptive"})],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "power_t": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "verbose": ["verbose"],
        "warm_start": ["boolean"],
        "momentum": [Interval(Real, 0, 1, closed="both")],
        "nesterovs_momentum": ["boolean"],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "beta_1": [Interval(Real, 0, 1, closed="left")],
        "beta_2": [Interval(Real, 0, 1, closed="left")],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), Options(Real, {np.inf})],
        "max_fun": [Interval(Integral, 1, None, closed="left")],
        "engine": [StrOptions({"auto", "numpy", "jax"})],
        "alpha_scale": [StrOptions({"data", "batch"})],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "scoring": [str, callable, None],
        "callbacks": "no_validation",
        "progress": ["boolean"],
    }

    # ---------------------------------------------------------------- what was learned, under scikit-learn's names
    @property
    def coefs_(self) -> list[np.ndarray]:
        """The weight matrix of every layer."""
        return [p["W"] for p in self.network_.params if "W" in p]

    @coefs_.setter
    def coefs_(self, values: Any) -> None:
        self._set("W", values)

    @property
    def intercepts_(self) -> list[np.ndarray]:
        """The bias vector of every layer."""
        return [p["b"] for p in self.network_.params if "b" in p]

    @intercepts_.setter
    def intercepts_(self, values: Any) -> None:
        self._set("b", values)

    def _set(self, key: str, values: Any) -> None:
        new = iter(values)
        self.network_.params = tuple({**p, key: np.array(next(new), self.network_.dtype)} if p else p for p in self.network_.params)

    # ---------------------------------------------------------------- fit
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None) -> Any:
        """Learn from rows X and targets y.

        Parameters
        ----------
        X : array, frame or sparse matrix of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array of shape (n_samples,), optional
        X_val, y_val : optional
            Your own validation rows: measured after every epoch (`validation_scores_`, `validation_loss_curve_`), and used
            by ``early_stopping=True`` in place of a part of X.
        """
        return self._fit(X, y, sample_weight, X_val, y_val)

    def _fit(self, X: Any, y: Any, sample_weight: Any, X_val: Any = None, y_val: Any = None, incremental: bool = False) -> Any:
        self._validate_params()
        first = not hasattr(self, "network_") or not (self.warm_start or incremental)
        if self.early_stopping and incremental:
            raise ValueError("partial_fit does not support early_stopping=True")
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val belong together: give both or neither.")
        X, y = self._validated(X, y, first, incremental)
        X = X if first else X.astype(self.network_.dtype, copy=False)
        target = self._targets(y, X.dtype)
        weight = self._weights(y, sample_weight, X)
        draws = Draws(self.random_state)
        if first:
            self._initialise(X, target, draws)
        data = Batch(SparseRows(X) if hasattr(X, "toarray") else X, target, weight)
        data, held, score = self._hold_out(data, y, X_val, y_val, draws)
        rows = len(data.x)
        size = rows if self.solver == "lbfgs" else self._batch_size(rows)
        memory, rate = (getattr(self, "_memory", None) if incremental else None) or (None, float(self.learning_rate_init))
        books = Books(self, rows, rate, score)
        epochs = 1 if incremental else self.max_iter
        callbacks = [books] if self.solver != "lbfgs" else []
        callbacks += as_callbacks(self.callbacks) + told(self, X, y, epochs)
        sparse = any(isinstance(batch.x, SparseRows) for batch in (data, held) if batch)
        job = Job(
            data, np.arange(rows), held, self._optimizer_of(books, float(data.weight.sum())), epochs, size,
            Order(rows, self.shuffle, draws), "numpy" if sparse else self.engine,
            callbacks, {}, None, None, False, self.progress, memory=memory,
        )  # fmt: skip
        self._run(job, incremental)
        return self

    def _run(self, job: Job, incremental: bool) -> None:
        self.n_iter_ = 0
        try:
            history = train(self.network_, job)
        except NonFiniteError as error:
            raise ValueError(f"Solver produced non-finite parameter weights. {error}") from error
        if self.solver == "lbfgs":
            self.n_iter_ = len(history)
            self.loss_ = history["loss"][-1] if len(history) else self._objective(job)
        if self.early_stopping and self.solver != "lbfgs" and self._best_params is not None:
            self.network_.params = self._best_params
        if not incremental or history.stopped.startswith("interrupted"):
            self._warn_of(history.stopped)

    def _warn_of(self, stopped: str) -> None:
        if stopped.startswith("interrupted"):
            warnings.warn("Training interrupted by user.", stacklevel=5)
        elif stopped.startswith("given up") or stopped == "all epochs done":
            text = f"Stochastic Optimizer: Maximum iterations ({self.max_iter}) reached and the optimization hasn't converged yet."
            if self.solver == "lbfgs":
                why = stopped.removeprefix("given up: ")
                text = f"lbfgs failed to converge after {self.n_iter_} iteration(s): {why}. Increase max_iter, or scale the data."
            warnings.warn(text, ConvergenceWarning, stacklevel=5)

    def _objective(self, job: Job) -> float:
        """Loss and penalty now."""
        network, optimizer = self.network_, job.optimizer
        value, grads = engine.value_and_gradients(network.net, network.loss, network.params, job.data, np.uint32(network.seed))
        return float(optimizer.penalise(engine.NumpyOps(weight=job.data.weight), network.params, value, grads, optimizer.numbers(float))[0])

    # ---------------------------------------------------------------- what a fit needs
    def _initialise(self, X: Any, target: np.ndarray, draws: Draws) -> None:
        """A new network, its weights drawn exactly as scikit-learn draws them."""
        sizes = np.atleast_1d(np.asarray(self.hidden_layer_sizes, dtype=object)).tolist()
        if any(not isinstance(n, Integral) or n <= 0 for n in sizes):
            raise ValueError(f"hidden_layer_sizes must be > 0, got {sizes}.")
        names = list(self.activation) if isinstance(self.activation, list | tuple) else [self.activation] * len(sizes)
        if len(names) != len(sizes) or any(a not in ACTIVATIONS for a in names if not isinstance(a, Layer)):
            choices = ", ".join(map(repr, sorted(ACTIVATIONS)))
            raise ValueError(f"activation must be one of {choices} or a Layer, or one for each of {sizes}, got {self.activation!r}.")
        loss, self.n_outputs_, self.out_activation_ = self._output(target)
        params: list[dict[str, np.ndarray]] = []
        units = X.shape[1], *map(int, sizes), self.n_outputs_
        make: Any = chain_of if all(isinstance(a, str) for a in names) else chain_of.__wrapped__
        net = make(units[1:], tuple(names), float(self.dropout))
        for i, (fan_in, fan_out) in enumerate(pairwise(units)):
            name = names[min(i, len(names) - 1)] if names else self.activation
            bound = float(np.sqrt((2.0 if name == "logistic" else 6.0) / (fan_in + fan_out)))
            W, b = (draws.draw("uniform", -bound, bound, shape).astype(X.dtype) for shape in ((fan_in, fan_out), fan_out))
            params += [{"W": W, "b": b}]
            if i < len(sizes):
                params += [{}, {}] if self.dropout else [{}]
        seed = draws.draw("randint", 2**31 - 1) if self.dropout else 0
        network = Network(net, None, loss, seed=seed, dtype=X.dtype)
        network.params, network.input_shape, network.output_shape = tuple(params), (X.shape[1],), (self.n_outputs_,)
        self.network_, self.n_layers_, self.n_iter_, self.t_ = network, len(units), 0, 0
        self._memory, self._best_params, self._no_improvement_count = None, None, 0
        if self.solver != "lbfgs":
            self.loss_curve_: list[float] = []
            self.best_loss_ = None if self.early_stopping else np.inf
            self.validation_scores_: Any = [] if self.early_stopping else None
            self.validation_loss_curve_: Any = [] if self.early_stopping else None
            self.best_validation_score_ = -np.inf if self.early_stopping else None

    def _optimizer_of(self, books: Books, total: float) -> Optimizer:
        alpha: dict[str, Any] = {"alpha": self.alpha, "scale": total if self.alpha_scale == "data" else 0.0}
        if self.solver == "lbfgs":
            return MLPLBFGS(tolerance=self.tol, calls=self.max_fun, **alpha)
        if self.solver == "sgd":
            rate = books.rate if self.learning_rate == "constant" else Held(books)
            return MLPSGD(rate, momentum=self.momentum, nesterov=self.nesterovs_momentum, **alpha)
        return MLPAdam(books.rate, beta1=self.beta_1, beta2=self.beta_2, epsilon=self.epsilon, **alpha)

    def _like(self, rows: int) -> Like | None:
        self._validate_params()
        params = self.get_params(deep=False)
        more = (params.pop(name, None) for name in ("early_stopping", "warm_start", "class_weight", "callbacks", "verbose", "progress"))
        if any(more) or self.solver == "lbfgs" or (self.solver == "sgd" and self.learning_rate != "constant"):
            return None
        whole = isinstance(self.batch_size, str) or self.batch_size <= rows
        if not whole or not isinstance(self.random_state, Integral) or rows >= 2**24:  # float32 counts no further
            return None
        optimizer = self._optimizer_of(Books(self, rows, float(self.learning_rate_init)), float(rows))
        common = marshal.dumps({name: value for name, value in params.items() if name not in NUMBERS}, 2), optimizer.kind()
        return Like(common, optimizer, self.max_iter, math.ceil(rows / self._batch_size(rows)))

    def _last_epoch(self, losses: np.ndarray) -> int | None:
        count, best = 0, np.inf
        for epoch, now in enumerate(losses.tolist(), 1):
            count, best = counted(count, best, now, self.tol)
            if count > self.n_iter_no_change:
                return epoch
        return None

    def _batch_size(self, rows: int) -> int:
        if isinstance(self.batch_size, str):
            return min(200, rows)
        if self.batch_size > rows:
            warnings.warn("Got `batch_size` less than 1 or larger than sample size. It is going to be clipped", stacklevel=5)
        return int(min(self.batch_size, rows))

    def _hold_out(self, data: Batch, y: Any, X_val: Any, y_val: Any, draws: Draws) -> tuple[Batch, Batch | None, Any]:
        """Leave out rows of weight 0, set the validation rows aside, and say how they are scored."""
        there = np.flatnonzero(data.weight)
        if len(there) < len(data.weight):
            data, y = pick(data, there), y[there]
        if self.solver == "lbfgs" or not (self.early_stopping or X_val is not None):
            return data, None, None
        if X_val is not None:
            x = self._rows(X_val)
            x = x if x.dtype == data.weight.dtype else x.astype(data.weight.dtype)
            held_y = np.asarray(y_val)
            self._refuse_unknown(held_y)
            held = Batch(x, self._targets(held_y, data.weight.dtype), np.ones(len(x), data.weight.dtype))
        else:
            mine, theirs = train_test_split(
                np.arange(len(y)), random_state=draws.random_state, test_size=self.validation_fraction, stratify=self._strata(y)
            )
            if len(theirs) < 2:
                raise ValueError("The validation set is too small. Increase 'validation_fraction' or the size of your dataset.")
            data, held, held_y = pick(data, mine), pick(data, theirs), y[theirs]
        if self.validation_scores_ is None:
            self.validation_scores_, self.validation_loss_curve_ = [], []
        return data, held, self._scorer(held, held_y)

    def _scorer(self, held: Batch, y: Any) -> Any:
        weight = None if (held.weight == 1).all() else held.weight
        if self.scoring is not None:
            scorer = check_scoring(self, self.scoring)
            x = held.x.matrix if isinstance(held.x, SparseRows) else held.x
            twin = copy.copy(self)
            twin.network_ = copy.copy(self.network_)
            twin.__dict__.pop("feature_names_in_", None)  # these rows are an array

            def score(params: Any) -> float:
                twin.network_.params = params
                return float(scorer(twin, x, y, **({} if weight is None else {"sample_weight": weight})))

            return score

        def plain(params: Any) -> float:
            predicted = self._decide(self.network_.outputs(held.x, params))
            if predicted.dtype.kind == "f" and not np.isfinite(predicted).all():
                return float("nan")
            return float(self._measure(y, predicted, sample_weight=weight))

        return plain

    def _check_solver(self) -> bool:
        if self.solver == "lbfgs":
            raise AttributeError(f"partial_fit is only available for stochastic optimizers. {self.solver} is not stochastic.")
        return True

    def _weights(self, y: Any, sample_weight: Any, X: Any) -> np.ndarray:
        if sample_weight is not None:
            return row_weights(sample_weight, X.shape[0], X.dtype)
        return LOCAL.once(X, np.ones, lambda X: np.ones(X.shape[0], X.dtype))

    def _strata(self, y: Any) -> Any:
        return None

    def _refuse_unknown(self, y: Any) -> None:
        """Validation targets must be of the kind that was learned."""

    # supplied by the classifier and the regressor
    def _validated(self, X: Any, y: Any, first: bool, incremental: bool) -> tuple[Any, Any]:
        raise NotImplementedError

    def _targets(self, y: Any, dtype: Any) -> np.ndarray:
        raise NotImplementedError

    def _output(self, target: np.ndarray) -> tuple[Loss, int, str]:
        raise NotImplementedError

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class MLPClassifier(Classifier, BaseMLP):
    """Multi-layer perceptron classifier: scikit-learn's, by another engine."""

    __doc__ = (
        f"{__doc__}\n{PARAMETERS}"
        + """    class_weight : "balanced" or dict, optional
        Weights by class label, multiplied with `sample_weight`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> MLPClassifier(solver="lbfgs", random_state=0, max_iter=1000).fit(X, y).score(X, y) > 0.95
    True
    """
    )

    _parameter_constraints: dict = {**BaseMLP._parameter_constraints, "class_weight": [StrOptions({"balanced"}), dict, None]}
    _measure = staticmethod(accuracy_score)
    classes_: Any

    def __init__(
        self,
        hidden_layer_sizes: Any = (100,),
        activation: Any = "relu",
        *,
        solver: str = "adam",
        alpha: float = 0.0001,
        batch_size: Any = "auto",
        learning_rate: str = "constant",
        learning_rate_init: float = 0.001,
        power_t: float = 0.5,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: Any = False,
        warm_start: bool = False,
        momentum: float = 0.9,
        nesterovs_momentum: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        n_iter_no_change: Any = 10,
        max_fun: int = 15000,
        engine: str = "auto",
        alpha_scale: str = "data",
        dropout: float = 0.0,
        class_weight: Any = None,
        scoring: Any = None,
        callbacks: Any = None,
        progress: bool = False,
    ) -> None:
        keep(self, locals())

    @available_if(lambda self: self._check_solver())
    @with_callbacks
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None) -> Any:
        """Learn from these rows for one epoch, going on from what is there.

        `classes` lists all labels that will ever come; the first call needs it.
        """
        if classes is not None:
            classes = unique_labels(classes)
            if hasattr(self, "classes_") and not np.array_equal(classes, self.classes_):
                raise ValueError(f"`classes={classes!r}` is not the same as on last call to partial_fit, was: {self.classes_!r}")
        elif not hasattr(self, "classes_"):
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if not hasattr(self, "classes_"):
            self._label_binarizer = binarizer_of(y if type_of_target(y).startswith("multilabel") else classes)
            self.classes_ = classes
        return self._fit(X, y, sample_weight, incremental=True)

    def _validated(self, X: Any, y: Any, first: bool, incremental: bool) -> tuple[Any, Any]:
        X, y = self._learned_from(X, y, first)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        if not hasattr(self, "classes_") or not (self.warm_start or incremental):
            self._label_binarizer = binarizer_of(y)
            self.classes_ = self._label_binarizer.classes_
            return X, y
        classes = unique_labels(y)
        if self.warm_start and set(classes) != set(self.classes_):
            raise ValueError(
                "warm_start can only be used where `y` has the same classes as in the previous call to fit. "
                f"Previously got {self.classes_}, `y` has {classes}"
            )
        if len(np.setdiff1d(classes, self.classes_, assume_unique=True)):
            raise ValueError(f"`y` has classes not in `self.classes_`. `self.classes_` has {self.classes_}. 'y' has {classes}.")
        return X, y

    def _targets(self, y: Any, dtype: Any) -> np.ndarray:
        if self._label_binarizer.y_type_.startswith("multilabel"):
            return self._label_binarizer.transform(y).astype(dtype)
        several, classes = self._label_binarizer.y_type_ == "multiclass", self.classes_

        def numbers(y: Any) -> np.ndarray:
            found = np.searchsorted(classes, y)
            return found.astype(np.int32) if several else found[:, None].astype(dtype)

        return LOCAL.once(y, ("classes", several, dtype, classes.tobytes()), numbers) if plain_labels(y) else numbers(y)

    def _weights(self, y: Any, sample_weight: Any, X: Any) -> np.ndarray:
        weight = super()._weights(y, sample_weight, X)
        return weight if self.class_weight is None else (weight * compute_sample_weight(self.class_weight, y)).astype(X.dtype)

    def _output(self, target: np.ndarray) -> tuple[Loss, int, str]:
        if self._label_binarizer.y_type_ == "multiclass":
            return SoftmaxCrossEntropy(), len(self.classes_), "softmax"
        return SigmoidCrossEntropy(), target.shape[1], "logistic"

    def _refuse_unknown(self, y: Any) -> None:
        unknown: Any = [] if y.ndim > 1 else np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y_val has classes that y does not have: {unknown}.")

    def _strata(self, y: Any) -> Any:
        """Classes keep their shares, unless rows have several labels or a class has a single row."""
        if y.ndim > 1:
            return None
        _, counts = np.unique(y, return_counts=True)
        return y if counts.min() > 1 or len(counts) == 2 else None

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        if self.out_activation_ == "softmax":
            return self.classes_[outputs.argmax(1)]
        on = outputs > 0
        if self.n_outputs_ > 1 or self._label_binarizer.y_type_.startswith("multilabel"):
            return on.astype(int)
        return self.classes_[np.minimum(on[:, 0], len(self.classes_) - 1).astype(int)]

    def predict(self, X: Any) -> np.ndarray:
        """The class of every row (0 or 1 for every label, for several labels)."""
        return self._decide(self._outputs(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, in the order of ``classes_``."""
        p = self._probabilities(X)
        return np.hstack([1 - p, p]) if self.n_outputs_ == 1 else p

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of `predict_proba`."""
        p = self.predict_proba(X)
        return np.log(p, out=p)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class MLPRegressor(RegressorMixin, BaseMLP):
    """Multi-layer perceptron regressor: scikit-learn's, by another engine."""

    __doc__ = (
        f"{__doc__}\n{PARAMETERS}"
        + """
    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> X, y = make_regression(200, 20, random_state=1)
    >>> MLPRegressor(solver="lbfgs", random_state=1, max_iter=500).fit(X, y).score(X, y) > 0.9
    True
    """
    )

    _parameter_constraints: dict = {**BaseMLP._parameter_constraints, "loss": [StrOptions({"squared_error", "poisson"})]}
    _measure = staticmethod(r2_score)

    def __init__(
        self,
        loss: str = "squared_error",
        hidden_layer_sizes: Any = (100,),
        activation: Any = "relu",
        *,
        solver: str = "adam",
        alpha: float = 0.0001,
        batch_size: Any = "auto",
        learning_rate: str = "constant",
        learning_rate_init: float = 0.001,
        power_t: float = 0.5,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: Any = False,
        warm_start: bool = False,
        momentum: float = 0.9,
        nesterovs_momentum: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        n_iter_no_change: Any = 10,
        max_fun: int = 15000,
        engine: str = "auto",
        alpha_scale: str = "data",
        dropout: float = 0.0,
        scoring: Any = None,
        callbacks: Any = None,
        progress: bool = False,
    ) -> None:
        keep(self, locals())

    @available_if(lambda self: self._check_solver())
    @with_callbacks
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Learn from these rows for one epoch, going on from what is there."""
        return self._fit(X, y, sample_weight, incremental=True)

    def _validated(self, X: Any, y: Any, first: bool, incremental: bool) -> tuple[Any, Any]:
        X, y = self._learned_from(X, y, first, y_numeric=True)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        return X, y

    def _targets(self, y: Any, dtype: Any) -> np.ndarray:
        target = np.ascontiguousarray(y.reshape(len(y), -1), dtype=dtype)
        if self.loss == "poisson" and (target < 0).any():
            raise ValueError(f"loss='poisson' needs y >= 0, got {target.min()}.")
        return target

    def _output(self, target: np.ndarray) -> tuple[Loss, int, str]:
        k = target.shape[1]
        return (Poisson(), k, "exp") if self.loss == "poisson" else (HalfSquaredError(), k, "identity")

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        outputs = self.network_.loss.decide(OPS, outputs)
        return outputs.ravel() if outputs.shape[1] == 1 else outputs

    def predict(self, X: Any) -> np.ndarray:
        """The predicted value (or values) for every row."""
        return self._decide(self._outputs(X))


@functools.lru_cache(64)
def chain_of(units: tuple[int, ...], activations: tuple[str | Layer, ...], dropout: float) -> Chain:
    """Linear layers of so many units, all but the last with an activation."""
    layers: list[Layer] = []
    for n, activation in zip(units, activations, strict=False):
        layers += [Linear(n), activation if isinstance(activation, Layer) else ACTIVATIONS[activation]]
        layers += [Dropout(dropout)] if dropout else []
    return Chain(*layers, Linear(units[-1]))


def pick(batch: Batch, rows: np.ndarray) -> Batch:
    """Some rows of a batch."""
    return Batch(batch.x[rows], batch.target[rows], batch.weight[rows])
