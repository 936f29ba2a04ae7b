"""What all estimators share: rows in, outputs out, nested settings, scikit-learn's callbacks, the HTML page."""

from __future__ import annotations

import contextlib
import copy
import functools
import html
import marshal
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import estimator_html_repr, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from ..engines import LOCAL
from ..engines.numpy import NumpyOps
from ..layers.combine import Combinator
from ..optimizers import NAMED as OPTIMIZERS
from ..optimizers import Optimizer, get_optimizer
from ..settings import Settings, is_ours
from ..training.callbacks import Callback
from ..training.data import is_finite

try:  # scikit-learn 1.9 and later
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stands in where scikit-learn has no callbacks yet."""

    def with_callbacks(method: Any) -> Any:
        return method


__all__ = ["NetworkEstimator", "SparseRows", "with_callbacks"]


class SparseRows:
    """A sparse matrix as the training loop and a first Linear layer see rows; it is never made dense."""

    ndim = 2

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix.tocsr()
        self.shape, self.dtype, self.values, self.nbytes = matrix.shape, matrix.dtype, self.matrix.data, self.matrix.data.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> SparseRows:
        return SparseRows(self.matrix[rows])

    def take(self, rows: Any, axis: int = 0, out: Any = None, mode: str = "raise") -> SparseRows:
        """What ``numpy.take`` calls."""
        return self[rows]

    def astype(self, dtype: Any) -> SparseRows:
        return SparseRows(self.matrix.astype(dtype))

    def reshape(self, *shape: int) -> SparseRows:
        """As (rows, features), which they are."""
        return self

    @property
    def T(self) -> Any:
        return self.matrix.T

    def __matmul__(self, W: Any) -> np.ndarray:
        return self.matrix @ W


class Like(NamedTuple):
    """A fit among others that differ from it in numbers of their optimizer alone."""

    common: Any  # all else it depends on, beside its rows
    optimizer: Optimizer
    epochs: int
    steps: int  # in an epoch


class NetworkEstimator(CallbackSupportMixin, BaseEstimator):
    """Base of all estimators: a fitted one holds a Network in ``network_``."""

    network_: Any
    n_features_in_: int

    # ---------------------------------------------------------------- settings inside settings
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with `deep`, also those inside optimizers, losses and layers: ``optimizer__learning_rate``."""
        params = {name: getattr(self, name) for name in self._get_param_names()}
        if deep:
            for name, value in list(params.items()):
                if name == "optimizer" and isinstance(value, str) and value in OPTIMIZERS:
                    value = get_optimizer(value)
                params.update({f"{name}__{key}": v for key, v in inside(value).items()})
        return params

    def set_params(self, **params: Any) -> Any:
        """Set parameters, also nested ones: the settings inside are replaced, never changed in place."""
        own, inside = by_depth(params)
        try:
            for name in params:
                if name.partition("__")[0] not in self._get_param_names():
                    raise KeyError(name)
            for name, value in own.items():
                setattr(self, name, value)
            for name, changes in inside.items():
                held = getattr(self, name)
                setattr(self, name, with_settings(get_optimizer(held) if name == "optimizer" else held, changes, f"{name}__"))
        except KeyError as error:
            known = ", ".join(sorted(self.get_params(deep=True)))
            raise ValueError(f"{type(self).__name__} has no parameter {error.args[0]!r}. It has: {known}.") from None
        return self

    def __sklearn_clone__(self) -> Any:
        """As scikit-learn's; settings that nobody can change are not copied one by one: a search makes a clone for every fit."""
        params = vars(self)
        if is_ours(self) and params.keys() == set(self._get_param_names()) and all(map(is_fixed, params.values())):
            made: Any = object.__new__(type(self))  # whose __init__ would only store them
            vars(made).update(params)
            return made
        return super().__sklearn_clone__()

    @classmethod
    @functools.cache
    def _get_param_names(cls) -> list[str]:
        return super()._get_param_names()

    def _validate_params(self) -> None:
        """Equal parameters are looked at once: a search makes many estimators that differ in one or two."""
        params, given = self.get_params(deep=False), None
        with contextlib.suppress(ValueError):  # other things than numbers, words and lists of them
            given = type(self), *map(type, params.values()), marshal.dumps(params, 2)
        if given not in VALID:
            super()._validate_params()
            if len(VALID) >= 1024:
                VALID.clear()
            if given:
                VALID.add(given)

    # ---------------------------------------------------------------- one of many
    def _like(self, rows: int) -> Like | None:
        """What a fit on so many rows shares with others; None if it depends on what happens after an epoch, or on a drawn seed."""
        return None

    def _last_epoch(self, losses: np.ndarray) -> int | None:
        """The epoch with which a fit with these losses would have ended by itself."""
        return None

    def _scores(self, outputs: np.ndarray, y: Any) -> list[float] | None:
        """The scores of many networks with these outputs (networks, rows, …), each as `score` would tell it; None where only that can."""
        return None

    def _warn_of(self, stopped: str) -> None:
        """Say so where a fit ended otherwise than it should."""

    # ---------------------------------------------------------------- rows in, outputs out
    def _learned_from(self, X: Any, y: Any, first: bool, **options: Any) -> tuple[Any, Any]:
        """X and y of a fit, validated."""
        if first and plain_rows(X) and plain_targets(y) and len(X) == len(y):
            self._seen(X)
            return X, y
        return validate_data(
            self, X, y, accept_sparse=["csr", "csc"], multi_output=True, dtype=(np.float64, np.float32), reset=first, **options
        )  # fmt: skip

    def _seen(self, X: np.ndarray) -> None:
        """Remember what rows look like."""
        self.n_features_in_ = X.shape[1]
        self.__dict__.pop("feature_names_in_", None)

    def _rows(self, X: Any) -> Any:
        """X, validated."""
        if not hasattr(self, "feature_names_in_") and plain_rows(X) and X.shape[1] == self.n_features_in_:
            return X
        sparse = ["csr", "csc"] if get_tags(self).input_tags.sparse else False
        X = validate_data(self, X, accept_sparse=sparse, reset=False, dtype=(np.float64, np.float32))
        return SparseRows(X) if hasattr(X, "toarray") else X

    def _outputs(self, X: Any) -> np.ndarray:
        if not hasattr(self, "network_"):
            check_is_fitted(self)  # raises, in scikit-learn's words
        rows, network = self._rows(X), self.network_
        if rows.dtype != network.dtype:
            rows = Cast(rows, network.dtype)
        return network.outputs(rows, size=BLOCK)

    def _probabilities(self, X: Any) -> np.ndarray:
        outputs = self._outputs(X)
        return self.network_.loss.probabilities(OPS, outputs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this estimator to one file that ``pellucid.load`` reads; no pickle is involved."""
        from ..files import save

        save(self, path)

    # ---------------------------------------------------------------- looking at it
    def _html_repr(self) -> str:
        page = estimator_html_repr(self)
        if not hasattr(self, "network_"):
            return page
        text = f"{self.network_.net!r}\n\n{self.network_.summary()}"
        return f"{page}<details open><summary>network</summary><pre>{html.escape(text)}</pre></details>"


VALID = set[tuple[Any, ...]]()  # parameters that were looked at
OPS = NumpyOps()
BLOCK = 16384  # rows predicted at a time: bounded memory, and few matrix products, because each may wait for its threads


class Classifier(ClassifierMixin):
    """scikit-learn's classifier, whose score asks no questions about plain labels."""

    network_: Any
    _decide: Callable[[np.ndarray], np.ndarray]  # the classes that outputs mean

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The part of the rows whose class (or all of whose labels) is predicted."""
        if sample_weight is None and plain_labels(y):
            predicted = self.predict(X)
            if plain_labels(predicted) and len(predicted) == len(y):
                return float((predicted == y).mean())
        return super().score(X, y, sample_weight)

    def _scores(self, outputs: np.ndarray, y: Any) -> list[float] | None:
        if not (plain_labels(y) and is_ours(self.network_.loss)):  # which decides row by row
            return None
        predicted: Any = self._decide(outputs.reshape(-1, *outputs.shape[2:]))
        if not (plain_labels(predicted) and len(predicted) == len(outputs) * len(y)):
            return None
        return (predicted.reshape(len(outputs), -1) == y).mean(1).tolist()


# -------------------------------------------------------------------- arrays that need none of scikit-learn's many questions
def plain_rows(X: Any) -> bool:
    """Whether X is a table of finite numbers."""
    return type(X) is np.ndarray and X.ndim == 2 and X.size > 0 and finite(X)


def plain_targets(y: Any) -> bool:
    """Whether y has one finite number for every row."""
    return plain_labels(y) or (type(y) is np.ndarray and y.ndim == 1 and finite(y))


def plain_labels(y: Any) -> bool:
    """Whether y has one whole number for every row."""
    return type(y) is np.ndarray and y.dtype.kind in "biu" and y.ndim == 1 and y.size > 0


def finite(a: np.ndarray) -> bool:
    """Whether these are finite numbers as we compute with."""
    return a.dtype in (np.float32, np.float64) and is_finite(a)


def binarizer_of(y: Any) -> LabelBinarizer:
    """A binarizer fitted to y."""
    if not plain_labels(y):
        return LabelBinarizer().fit(y)
    made = LabelBinarizer()
    made.classes_, made.sparse_input_ = LOCAL.once(y, np.unique, np.unique), False
    made.y_type_ = "multiclass" if len(made.classes_) > 2 else "binary"
    return made


class Cast:
    """Rows in another precision, converted block by block as they are asked for."""

    ndim = 2

    def __init__(self, rows: Any, dtype: Any) -> None:
        self.rows, self.dtype = rows, dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.rows[rows].astype(self.dtype)


def inside(value: Any, prefix: str = "") -> dict[str, Any]:
    """The fields of settings by path, such as ``{"learning_rate": 0.001}``; children of a chain by place or name: ``{"0__units": 8}``."""
    found: dict[str, Any] = {}
    for key, held in parts(value).items():
        found |= {f"{prefix}{key}": held, **inside(held, f"{prefix}{key}__")}
    return found


def parts(value: Any) -> dict[str, Any]:
    """What settings are made of: the layers of a combinator, the fields of everything else."""
    if isinstance(value, Combinator):
        return {layer.name or str(i): layer for i, layer in enumerate(value.layers)}
    if not isinstance(value, Settings):
        return {}
    return {name: getattr(value, name) for name in value._declared() if name != "name"}


def with_settings(value: Any, changes: dict[str, Any], prefix: str = "") -> Any:
    """`value` with the settings at these paths replaced; children of a chain are called by the places they have before that."""
    held, (own, inside) = parts(value), by_depth(changes)
    for key in own:
        if key not in held:
            raise KeyError(f"{prefix}{key}")
    held |= own
    for key, more in inside.items():
        held[key] = with_settings(held.get(key), more, f"{prefix}{key}__")  # of what is not there, nothing is known
    if isinstance(value, Combinator):
        return type(value)(*held.values(), name=value.name)
    return value.replace(**{key: held[key] for key in (*own, *inside)})


def by_depth(changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What is to be replaced, and what inside of what: ``{"net": a, "net__0__units": 8}`` is ``{"net": a}, {"net": {"0__units": 8}}``."""
    own, inside = dict[str, Any](), dict[str, dict[str, Any]]()
    for path, new in changes.items():
        key, deeper, rest = path.partition("__")
        if deeper:
            inside.setdefault(key, {})[rest] = new
        else:
            own[key] = new
    return own, inside


class Told(Callback):
    """Tells scikit-learn's callbacks (1.9 and later) about every epoch, and stops when one of them asks for it."""

    def __init__(self, estimator: Any, X: Any, y: Any, epochs: int) -> None:
        self.estimator, self.data = estimator, {"estimator": estimator, "X": X, "y": y}
        self.context = estimator._init_callback_context(max_subtasks=epochs)
        self.context.call_on_fit_task_begin(**self.data)
        self.task: Any = None

    def now(self, run: Any) -> dict[str, Any]:
        """What makes the estimator as if the fit had ended here."""
        network = copy.copy(run.model)
        network.params = run.params
        return {"network_": network}

    def begin(self, run: Any) -> None:
        self.task = self.context.subcontext(task_name="epoch")
        self.task.call_on_fit_task_begin(**self.data)

    fit_begin = begin

    def epoch_end(self, run: Any) -> None:
        if self.task.call_on_fit_task_end(**self.data, reconstruction_attributes=self.now(run)):
            run.stop("a scikit-learn callback asked for it")
        self.task = None
        if run.epoch < run.epochs and not run.stopping:
            self.begin(run)

    def fit_end(self, run: Any) -> None:
        if self.task is not None:  # begun, then not run: L-BFGS converged
            self.task.call_on_fit_task_end(estimator=self.estimator)
        self.context.call_on_fit_task_end(**self.data, reconstruction_attributes=self.now(run))


def told(estimator: Any, X: Any, y: Any, epochs: int) -> list[Callback]:
    """The bridge to scikit-learn's callbacks, where any are set: here or around (a search hands down its context always)."""
    above = getattr(estimator, "_parent_callback_ctx", None)
    anyone = getattr(estimator, "_skl_callbacks", None) or getattr(above, "_callbacks", None)
    return [Told(estimator, X, y, epochs)] if anyone else []


def is_fixed(value: Any) -> bool:
    """Whether nobody can change this value."""
    return value is None or type(value) in (bool, int, float, str) or (type(value) is tuple and all(map(is_fixed, value)))


def keep(estimator: Any, given: dict[str, Any]) -> None:
    """Store constructor parameters as they are, as scikit-learn asks of `__init__`."""
    for name, value in given.items():
        if name not in ("self", "__class__"):
            setattr(estimator, name, value)
