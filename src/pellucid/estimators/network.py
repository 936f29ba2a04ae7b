"""Any expression as an estimator: the output layer, the loss and the score follow from y."""

from __future__ import annotations

import math
import warnings
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, validate_data

from ..layers import Chain, Flatten, Layer, Linear, ReLU, Sigmoid, Softmax
from ..layers.base import require_layer
from ..losses import BinaryCrossEntropy, Brier, CrossEntropy, Loss, SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError, get_loss
from ..network import Network, last_layer
from ..optimizers import LBFGS, get_optimizer
from ..training.callbacks import as_callbacks
from ..training.data import check_finite
from .base import OPS, Classifier, Like, NetworkEstimator, binarizer_of, keep, plain_labels, plain_rows, told, with_callbacks

__all__ = ["NetworkClassifier", "NetworkRegressor"]

PARAMETERS = """
    Parameters
    ----------
    net : Layer, optional
        The embedding: any expression, such as ``Linear(64) >> ReLU()``; by default ``Linear(100) >> ReLU()``.
    head : "auto", Layer or None
        What follows the embedding. "auto": Flatten() where it is needed and Linear with as many units as y asks for.
        None: the embedding is the whole network.
    loss : "auto", str or Loss
        By default squared error for numbers, softmax cross-entropy for one class of several, sigmoid cross-entropy for
        two classes or several labels.
    optimizer : str or Optimizer
        Its settings can be searched: ``optimizer__learning_rate``; so can those of layers: ``net__0__units``.
    epochs : int
    batch_size : int or "auto"
        "auto" is 200, or all rows where there are fewer.
    validation : float, optional
        The part of the rows to measure after every epoch; 0.1 if `early_stopping` is wanted.
    early_stopping : bool, int (patience) or EarlyStopping
    callbacks : function of run, Callback, or a list of them
    engine : "auto", "numpy" or "jax"
    random_state : int, RandomState or None
    dtype : "auto", "float32" or "float64"
        "auto": float32 for float32 X, float64 otherwise.
    warm_start : bool
        Whether `fit` goes on from the weights of the last one.
    progress : bool
        Show a progress bar where there is a terminal.
"""


class BaseNetworkEstimator(NetworkEstimator):
    """What the classifier and the regressor share."""

    class_weight: Any = None

    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None) -> Any:
        """Learn from rows X and targets y.

        Parameters
        ----------
        X : array, frame, or list of arrays
            A table (n_samples, n_features), images (n_samples, height, width, channels), sequences (n_samples, positions,
            features), or a list of arrays (positions, features) of different length.
        y : array of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array of shape (n_samples,), optional
        X_val, y_val : optional
            Your own validation data, measured after every epoch.
        """
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val and y_val belong together: give both or neither.")
        go_on = self.warm_start and hasattr(self, "network_")
        x = self._inputs(X, reset=not go_on)
        y = self._validated(y, go_on)
        check_consistent_length(x, y)
        if not go_on:
            self.network_ = self._network(x, y, sample_weight)
        validation: Any
        if X_val is not None:
            validation = self._inputs(X_val, reset=False), self._numbers(self._validated(y_val, True))
        else:
            validation = self.validation or (0.1 if self.early_stopping else None)
        self.history_ = self.network_.fit(
            x,
            self._numbers(y),
            epochs=self.epochs,
            batch_size=self._batch_size(len(x)),
            optimizer=get_optimizer(self.optimizer),
            engine=self.engine,
            validation=validation,
            sample_weight=sample_weight,
            class_weight=self._by_number(),
            early_stopping=self.early_stopping,
            callbacks=as_callbacks(self.callbacks) + told(self, X, y, self.epochs),
            progress=self.progress,
        )
        self.n_iter_, self.loss_curve_ = len(self.history_), self.history_["loss"]
        return self

    def _like(self, rows: int) -> Like | None:
        optimizer, size = get_optimizer(self.optimizer), self._batch_size(rows)
        more = self.validation, self.class_weight, self.callbacks, self.progress, self.warm_start
        if any(more) or not (self.early_stopping is None or self.early_stopping is False) or isinstance(optimizer, LBFGS):
            return None
        if not isinstance(self.random_state, Integral) or type(optimizer.learning_rate) is not float:
            return None
        common = self.net, self.head, self.loss, optimizer.kind(), self.epochs, size, self.engine, self.random_state, self.dtype
        common = *common, *map(type, common)  # True is no number of epochs
        return Like(common, optimizer, int(self.epochs), math.ceil(rows / min(size, rows)))

    def _batch_size(self, rows: int) -> int:
        return min(200, rows) if self.batch_size == "auto" else self.batch_size

    # ---------------------------------------------------------------- rows
    def _inputs(self, X: Any, reset: bool) -> Any:
        """X, checked as scikit-learn does; a list of sequences is left to the network."""
        if plain_rows(X) and reset:
            self._seen(X)
            return X
        sequences = sequences_in(X)
        if sequences is None:
            return validate_data(self, X, allow_nd=True, dtype=(np.float64, np.float32), reset=reset)
        if reset:
            self.n_features_in_ = sequences[0].shape[1]
        return sequences

    def _outputs(self, X: Any) -> np.ndarray:
        if hasattr(self, "network_"):
            sequences = X if isinstance(X, np.ndarray) and X.ndim > 2 else sequences_in(X)
            if sequences is not None:
                return self.network_(sequences)
        return super()._outputs(X)

    # ---------------------------------------------------------------- the network that y asks for
    def _embedding(self) -> Layer:
        if self.net is not None:
            require_layer("net", self.net)
        return self.net if self.net is not None else Linear(100) >> ReLU()

    def _network(self, x: Any, y: Any, sample_weight: Any) -> Network:
        net = self._embedding()
        seed = self.random_state
        seed = int(seed) if isinstance(seed, int | np.integer) else check_random_state(seed).randint(2**31 - 1)
        dtype: Any = np.result_type(*x) if isinstance(x, list) else x.dtype
        dtype = ("float32" if dtype == np.float32 else "float64") if self.dtype == "auto" else self.dtype
        shape: Any = (None, x[0].shape[1]) if isinstance(x, list) else x.shape[1:]
        loss, units = self._wanted(y)
        if isinstance(self.head, Layer):
            net = net >> self.head
        elif self.head == "auto":
            _, out = net.build(np.random.default_rng(seed), shape)
            if None in out:
                raise ValueError(
                    f"{net!r} gives {out} for every sequence, one row for each position. End the embedding with a layer that "
                    "keeps one row of a sequence of any length, or pass head=None and a y for each position."
                )
            warn_output_twice(net, units)
            net = Chain(net, *([Flatten()] if len(out) > 1 else []), Linear(units), *after(loss))
        elif self.head is not None:
            raise ValueError(f"head must be 'auto', a Layer or None, got {self.head!r}.")
        return Network(net, shape, loss, seed=seed, dtype=dtype)

    def _by_number(self) -> Any:
        return None

    # supplied by the classifier and the regressor
    def _validated(self, y: Any, go_on: bool) -> np.ndarray:
        raise NotImplementedError

    def _numbers(self, y: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _wanted(self, y: np.ndarray) -> tuple[Loss, int]:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


class NetworkClassifier(Classifier, BaseNetworkEstimator):
    """A classifier around any expression."""

    __doc__ = (
        f"{__doc__}\n{PARAMETERS}"
        + """    class_weight : "balanced" or dict, optional
        Weights by class label, multiplied with `sample_weight`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from pellucid import Adam, Linear, Tanh
    >>> X, y = load_iris(return_X_y=True)
    >>> net = Linear(16) | (Linear(16) >> Tanh())
    >>> NetworkClassifier(net, optimizer=Adam(0.02), random_state=0).fit(X, y).score(X, y) > 0.95
    True
    """
    )

    def __init__(
        self,
        net: Layer | None = None,
        *,
        head: Any = "auto",
        loss: Any = "auto",
        optimizer: Any = "adam",
        epochs: int = 100,
        batch_size: Any = "auto",
        validation: float | None = None,
        early_stopping: Any = False,
        class_weight: Any = None,
        callbacks: Any = None,
        engine: str = "auto",
        random_state: Any = None,
        dtype: str = "auto",
        warm_start: bool = False,
        progress: bool = False,
    ) -> None:
        keep(self, locals())

    def _validated(self, y: Any, go_on: bool) -> np.ndarray:
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        if not plain_labels(y):
            check_classification_targets(y)
            if type_of_target(y) == "multiclass-multioutput":
                raise ValueError("y has several columns of several classes; fit one classifier for each (MultiOutputClassifier does).")
            y = np.asarray(y) if not hasattr(y, "toarray") else y.toarray()
            y = column_or_1d(y, warn=True) if y.ndim == 1 or y.shape[1] == 1 else y
        if not go_on:
            self._labels = binarizer_of(y)
            self.classes_ = self._labels.classes_
        elif y.ndim == 1 and len(np.setdiff1d(y, self.classes_)):
            raise ValueError(f"warm_start: y has classes that the last fit did not know: {np.setdiff1d(y, self.classes_)}.")
        return y

    def _several(self) -> bool:
        """Whether rows may have several labels."""
        return self._labels.y_type_.startswith("multilabel")

    def _wanted(self, y: np.ndarray) -> tuple[Loss, int]:
        fitting: Loss = SigmoidCrossEntropy() if self._several() or len(self.classes_) <= 2 else SoftmaxCrossEntropy()
        loss = fitting if isinstance(self.loss, str) and self.loss == "auto" else get_loss(self.loss)
        if loss.classes == "one":
            if self._several():
                raise ValueError(f"{loss!r} takes one class per row, but rows of y have several labels. Use SigmoidCrossEntropy().")
            return loss, max(2, len(self.classes_))
        return loss, 1 if len(self.classes_) <= 2 and not self._several() else len(self.classes_)

    def _numbers(self, y: np.ndarray) -> np.ndarray:
        columns = self._several() or (self.network_.loss.classes != "one" and len(self.classes_) > 2)
        return self._labels.transform(y) if columns else np.searchsorted(self.classes_, y)

    def _by_number(self) -> Any:
        if not isinstance(self.class_weight, dict):
            return self.class_weight
        unknown = [label for label in self.class_weight if label not in self.classes_]
        if unknown:
            raise ValueError(f"class_weight names {unknown[0]!r}; the classes are {self.classes_.tolist()}.")
        return {i: self.class_weight.get(label, 1.0) for i, label in enumerate(self.classes_.tolist())}

    def predict(self, X: Any) -> np.ndarray:
        """The class of every row (0 or 1 for every label, for several labels)."""
        return self._decide(self._outputs(X))

    def _decide(self, outputs: np.ndarray) -> np.ndarray:
        decided = self.network_.loss.decide(OPS, outputs)
        if self._several():
            return decided
        decided = decided if decided.ndim == 1 else (decided[:, 0] if decided.shape[1] == 1 else decided.argmax(1))
        return self.classes_[np.minimum(decided, len(self.classes_) - 1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, in the order of ``classes_``."""
        p = self._probabilities(X)
        return np.hstack([1 - p, p]) if p.shape[1] == 1 else p

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class NetworkRegressor(RegressorMixin, BaseNetworkEstimator):
    """A regressor around any expression, for one output or several."""

    __doc__ = (
        f"{__doc__}\n{PARAMETERS}"
        + """
    Examples
    --------
    >>> import numpy as np
    >>> from pellucid import LBFGS, Linear, Tanh
    >>> x = np.linspace(-3, 3, 200)[:, None]
    >>> model = NetworkRegressor(Linear(20) >> Tanh(), optimizer=LBFGS(), random_state=0).fit(x, np.sin(x[:, 0]))
    >>> model.score(x, np.sin(x[:, 0])) > 0.99
    True
    """
    )

    def __init__(
        self,
        net: Layer | None = None,
        *,
        head: Any = "auto",
        loss: Any = "auto",
        optimizer: Any = "adam",
        epochs: int = 100,
        batch_size: Any = "auto",
        validation: float | None = None,
        early_stopping: Any = False,
        callbacks: Any = None,
        engine: str = "auto",
        random_state: Any = None,
        dtype: str = "auto",
        warm_start: bool = False,
        progress: bool = False,
    ) -> None:
        keep(self, locals())

    def _validated(self, y: Any, go_on: bool) -> np.ndarray:
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        y = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
        y = column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y
        y = y.astype(np.float64) if y.dtype.kind == "O" else y
        check_finite("Input y", y)
        return y

    def _wanted(self, y: np.ndarray) -> tuple[Loss, int]:
        loss = SquaredError() if isinstance(self.loss, str) and self.loss == "auto" else get_loss(self.loss)
        if loss.classes is not None:
            raise ValueError(f"{loss!r} is a loss for classes; a regressor needs one for numbers, such as SquaredError() or Huber().")
        return loss, 1 if y.ndim == 1 else y.shape[1]

    def _numbers(self, y: np.ndarray) -> np.ndarray:
        return y

    def predict(self, X: Any) -> np.ndarray:
        """The predicted value (or values) for every row."""
        outputs = self._outputs(X)
        outputs = self.network_.loss.decide(OPS, outputs)
        return outputs.ravel() if outputs.shape[1:] == (1,) else outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def warn_output_twice(net: Layer, units: int) -> None:
    """Say so where the embedding seems to have an output layer of its own."""
    last = last_layer(net)
    if isinstance(last, Softmax) or (isinstance(last, Linear) and last.units == units):
        warnings.warn(
            f"{last!r} ends the embedding, and the output layer Linear({units}) follows it. If it is meant as the output, "
            "leave it out, or pass head=None.",
            UserWarning,
            stacklevel=5,
        )


def after(loss: Loss) -> list[Layer]:
    """What brings outputs to where a loss on probabilities needs them."""
    if isinstance(loss, CrossEntropy | Brier):
        return [Softmax()]
    return [Sigmoid()] if isinstance(loss, BinaryCrossEntropy) else []


def sequences_in(X: Any) -> list[np.ndarray] | None:
    """X as a list of arrays (positions, features), if that is what a list or an array of objects holds."""
    if not isinstance(X, list | tuple) and not (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1):
        return None
    if len(X) == 0 or not all(isinstance(row, list | tuple | np.ndarray) for row in X):
        return None
    try:
        rows = [row if isinstance(row, np.ndarray) else np.array(row, np.float64) for row in X]
    except (ValueError, TypeError):
        return None
    if all(row.ndim == 2 for row in rows):
        return rows
    if all(row.ndim == 1 for row in rows) and len({len(row) for row in rows}) > 1:
        raise ValueError(
            "X holds sequences of different length with one axis each; expected arrays (positions, features). "
            "Where each position is one number, pass [np.reshape(row, (-1, 1)) for row in X]."
        )
    return None
