"""Network: an expression of the algebra with its parameters."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .engines import get_engine
from .layers.activations import LogSoftmax, Sigmoid, Softmax
from .layers.base import Layer, Shape, parameter_count, require_layer
from .losses import BinaryCrossEntropy, CrossEntropy, Loss, SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError, get_loss
from .optimizers import LBFGS, Optimizer, get_optimizer
from .proof import GradientCheck, check_gradients
from .settings import did_you_mean, friendly
from .training.callbacks import EarlyStopping, History, as_callbacks
from .training.data import as_inputs, class_factors, class_numbers, make_batch, row_weights, select, split
from .training.loop import Job, evaluate, train
from .training.prime import prime
from .training.sequences import as_sequences, check_streams, every_step, is_list, rows_at_once, sequence_shape, unpad
from .training.step import Batch
from .tree import flatten, map_leaves, unflatten

__all__ = ["Network"]

ORDERS = ("shuffled", "given", "drawn")
PRECISIONS = (None, "float32", "tensorfloat32", "bfloat16")


class Network:
    """An expression with its parameters: fit, predict, look inside.

    Parameters
    ----------
    net : Layer
        Any expression, such as ``Linear(64) >> ReLU() >> Linear(10)``.
    input_shape : tuple of int, optional
        The shape of one row of X; (None, 12) are sequences of any length. Left out, the first `fit` takes it from X.
    loss : str or Loss
        "auto" follows the last layer: Softmax() takes CrossEntropy(), Sigmoid() takes BinaryCrossEntropy(),
        anything else SquaredError() (N25).
    seed : int
        Decides initial weights, the order of mini-batches and dropout.
    dtype : "float32" or "float64"

    Examples
    --------
    >>> import numpy as np, pellucid as pc
    >>> X = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]); y = np.array([0, 1, 1, 0])
    >>> model = pc.Network(pc.Linear(8) >> pc.Tanh() >> pc.Linear(2), (2,), "softmax_cross_entropy")
    >>> history = model.fit(X, y, epochs=300, optimizer=pc.Adam(0.05), engine="numpy")
    >>> model.predict(X)
    array([0, 1, 1, 0])
    """

    @friendly
    def __init__(
        self,
        net: Layer,
        input_shape: int | Iterable[int | None] | None = None,
        loss: str | Loss = "auto",
        *,
        seed: int = 0,
        dtype: Literal["float32", "float64"] = "float32",
    ) -> None:
        require_layer("net", net)
        if str(np.dtype(dtype)) not in ("float32", "float64"):
            raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}.")
        if isinstance(seed, bool) or not hasattr(seed, "__index__") or seed < 0:
            raise ValueError(f"seed must be a whole number, 0 or more, got {seed!r}.")
        self.net, self.seed, self.dtype = net, int(seed), np.dtype(dtype)
        self.loss = default_loss(net) if isinstance(loss, str) and loss == "auto" else get_loss(loss)
        warn_applied_twice(net, self.loss)
        self.history = History()
        self.input_shape: Shape | None = None
        self.output_shape: Shape = ()
        self.params: Any = None
        if input_shape is not None:
            self.build(input_shape)

    def build(self, input_shape: int | Iterable[int | None]) -> Network:
        """Make fresh parameters for rows of `input_shape` (N48)."""
        sizes: list[Any] = list(input_shape) if isinstance(input_shape, Iterable) else [input_shape]
        known = sizes[1:] if sizes and sizes[0] is None else sizes
        if any(isinstance(n, bool) or not hasattr(n, "__index__") or n < 1 for n in known):
            raise ValueError(
                "input_shape must be the sizes of one row, such as (64,), without the batch, or (None, 12) for sequences of any "
                f"length; got {input_shape!r}."
            )
        shape = tuple(None if n is None else int(n) for n in sizes)
        params, self.output_shape = self.net.build(np.random.default_rng(self.seed), shape)
        self.params, self.input_shape = map_leaves(lambda a: np.asarray(a, self.dtype), params), shape
        return self

    # ---------------------------------------------------------------- learning
    @friendly
    def fit(
        self,
        X: Any,
        y: Any,
        *,
        epochs: int = 20,
        batch_size: int | None = None,
        optimizer: str | Optimizer = "adam",
        engine: Literal["auto", "numpy", "jax"] = "auto",
        validation: float | tuple[Any, ...] | None = None,
        sample_weight: Any = None,
        lengths: Any = None,
        class_weight: Any = None,
        early_stopping: bool | int | EarlyStopping | None = None,
        callbacks: Any = None,
        metrics: dict[str, Callable[[Any, Any], float]] | None = None,
        order: Literal["shuffled", "given", "drawn"] = "shuffled",
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
        precision: Literal["float32", "tensorfloat32", "bfloat16"] | None = None,
        progress: bool = True,
    ) -> History:
        """Learn from rows X and targets y, starting from the present weights.

        Parameters
        ----------
        X, y : array, list or frame
            One row per example. Class targets are numbers 0, 1, … or one-hot rows. Sequences of different length are a
            list of arrays (steps, features), and so are their targets where the network has an output at every step.
        epochs : int
            Passes over the data.
        batch_size : int, optional
            Rows per step; by default 32, or all rows for GradientDescent and LBFGS.
        optimizer : str or Optimizer
            ``pc.Adam(1e-3)``, ``pc.SGD(pc.InverseTime(0.1), momentum=0.9)``, …
        engine : "auto", "numpy" or "jax"
            "auto" takes the one predicted to be done first; ``history.engine`` says which and why.
        validation : float or (X, y) or (X, y, sample_weight) or (X, y, sample_weight, lengths), optional
            A fraction of the rows (classes keep their shares), or other data, to measure after every epoch.
        sample_weight : array, optional
            A weight per row: 2 counts as two equal rows, 0 as none.
        lengths : array, optional
            For sequences that are padded already: how many steps of each row are real.
        class_weight : "balanced" or dict, optional
            Weights by class, multiplied with `sample_weight`.
        early_stopping : bool, int (patience) or EarlyStopping, optional
            When to stop; the best weights are restored.
        callbacks : function of run, Callback, or a list of them
        metrics : dict of name: f(target, output), optional
            Measured on the validation data after every epoch.
        order : "shuffled", "given" or "drawn"
            Every row once in random order; in the order given; or drawn with replacement (N41).
        checkpoint, resume : path and bool
            Write everything needed to go on after each epoch; with `resume`, go on from there. k epochs, then
            resumed to N, give bit for bit the weights of N epochs.
        precision : "float32", "tensorfloat32" or "bfloat16", optional
            Of matrix products in the JAX engine. By default as the device likes: full on CPU, TF32 on an NVIDIA GPU. With
            "bfloat16", Linear, convolution, recurrent and attention layers compute in 16 bits; weights, updates, loss and all
            other layers stay in float32.
        progress : bool
            Show a progress bar where there is a terminal.

        Returns
        -------
        History
            Also kept as ``model.history``.
        """
        optimizer = get_optimizer(optimizer)
        whole("epochs", epochs, 1)
        if batch_size is not None:
            whole("batch_size", batch_size, 1)
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(map(repr, ORDERS))}, got {order!r}.{did_you_mean(order, ORDERS)}")
        if engine not in ("auto", "numpy", "jax"):
            get_engine(engine)
        if precision not in PRECISIONS:
            close = did_you_mean(precision, PRECISIONS[1:])
            raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}.{close}")
        if precision and (engine == "numpy" or self.dtype != np.float32):
            raise ValueError(f"precision={precision!r} needs engine='jax' and a float32 network, got {engine!r} and {self.dtype}.")
        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint=: the file to go on from.")
        if checkpoint is not None and isinstance(optimizer, LBFGS):
            raise ValueError("LBFGS cannot be checkpointed: SciPy keeps its memory to itself. Use another optimizer, or no checkpoint.")
        if checkpoint is not None and not Path(checkpoint).absolute().parent.is_dir():
            raise FileNotFoundError(f"checkpoint: the folder {Path(checkpoint).absolute().parent} does not exist.")
        data = self.as_batch(X, y, sample_weight, lengths, build=True)
        rows = len(data.x)
        data, origin, held = self.divide(data, class_weight, validation)
        self.params = prime(self.net, self.params, data, self.seed)
        size = min(batch_size or optimizer.batch_size or len(data.x), len(data.x))
        check_streams(self.net, rows, origin, size, order)
        job = Job(
            data, origin, held, optimizer, epochs, size, order, engine, as_callbacks(callbacks), dict(metrics or {}),
            as_stopping(early_stopping), Path(checkpoint) if checkpoint is not None else None, resume, progress, precision,
        )  # fmt: skip
        return train(self, job)

    def divide(self, data: Batch, class_weight: Any, validation: Any) -> tuple[Batch, np.ndarray, Batch | None]:
        """Weights applied, rows of weight 0 left out, the validation part set aside."""
        labels = class_numbers(data.target, self.loss)
        if labels is not None and len(labels) > 1 and labels.min() == labels.max():
            warnings.warn(f"all {len(labels)} rows are of class {labels[0]}: there is nothing to tell apart.", UserWarning, stacklevel=4)
        if class_weight is not None:
            factors = class_factors(class_weight, labels, max(2, self.output_shape[-1]))
            data = data._replace(weight=row_weights(data.weight * factors, len(data.x), self.dtype))
        origin = np.flatnonzero(data.weight)
        data = select(data, origin)
        if validation is None:
            return data, origin, None
        if isinstance(validation, tuple | list):
            if len(validation) not in (2, 3, 4):
                raise ValueError(
                    "validation must be a fraction, (X, y), (X, y, sample_weight) or (X, y, sample_weight, lengths), "
                    f"got a tuple of {len(validation)}."
                )
            held = self.as_batch(*validation)
            return data, origin, select(held, np.flatnonzero(held.weight))
        if isinstance(validation, bool) or not isinstance(validation, int | float | np.number) or not 0 < validation < 1:
            raise ValueError(f"validation must be a fraction between 0 and 1, (X, y) or (X, y, sample_weight), got {validation!r}.")
        mine, theirs = split(len(data.x), float(validation), None if labels is None else labels[origin], self.seed)
        return select(data, mine), origin[mine], select(data, theirs)

    # ---------------------------------------------------------------- using it
    @friendly
    def __call__(self, X: Any, *, lengths: Any = None) -> Any:
        """The network's outputs for rows X, as they are.

        For an output at every step of a list of sequences, a list of arrays; of a padded array, zero beyond `lengths`.
        """
        return self.apply(X, lengths, lambda ops, y: y)

    def apply(self, X: Any, lengths: Any, read: Callable[[Any, Any], Any]) -> Any:
        """The outputs for rows X as `read` reads them."""
        self.require_built()
        padded, lengths = as_sequences(X, lengths, self.input_shape, self.net)
        x = as_inputs(padded, self.input_shape, self.dtype)
        self.net.check_input(x)
        y, as_list = read(get_engine("numpy").NumpyOps(), self.outputs(x, lengths=lengths)), is_list(X, self.input_shape)
        return unpad(y, lengths, as_list) if every_step(self.output_shape, x) and (as_list or lengths is not None) else y

    def outputs(self, x: np.ndarray, params: Any = None, lengths: Any = None, size: int = 8192) -> np.ndarray:
        """Outputs for checked rows, with these weights or its own, in batches that keep memory small."""
        engine, weight, params = get_engine("numpy"), np.ones(len(x), self.dtype), self.params if params is None else params
        size = rows_at_once(self.net, x, 256 if engine.is_shared(self.net, x) else size)

        def block(c: slice) -> np.ndarray:
            return engine.forward(self.net, params, x[c], weight[c], None if lengths is None else lengths[c])

        parts = engine.of_blocks(self.net, x, block, [slice(i, i + size) for i in range(0, len(x), size)])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @friendly
    def predict(self, X: Any, *, lengths: Any = None) -> Any:
        """Class numbers for a classification loss, the outputs themselves otherwise."""
        return self.apply(X, lengths, self.loss.decide)

    @friendly
    def predict_proba(self, X: Any, *, lengths: Any = None) -> Any:
        """Class probabilities, for a classification loss."""
        return self.apply(X, lengths, self.loss.probabilities)

    @friendly
    def evaluate(self, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None) -> dict[str, float]:
        """Mean loss and scores on rows X with targets y."""
        batch = self.as_batch(X, y, sample_weight, lengths)
        return evaluate(get_engine("numpy"), self.net, self.loss, self.params, batch, batch)

    # ---------------------------------------------------------------- looking inside
    @friendly
    def gradients(self, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None) -> tuple[float, dict[str, np.ndarray]]:
        """The mean loss over the rows and its gradient by every parameter, by name."""
        batch = self.as_batch(X, y, sample_weight, lengths)
        value, grads = get_engine("numpy").value_and_gradients(self.net, self.loss, self.params, batch, np.uint32(self.seed))
        return float(value), flatten(grads, self.net)

    @friendly
    def check_gradients(
        self, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None, tolerance: float = 1e-6, entries: int = 100
    ) -> GradientCheck:
        """Compare our gradients with central differences and automatic differentiation, in float64.

        At most `entries` entries of each parameter are tried. The result prints as a table and is true when all agree.
        """
        batch = self.as_batch(X, y, sample_weight, lengths, dtype=np.dtype("float64"))
        params = map_leaves(lambda a: np.asarray(a, np.float64), self.params)
        return check_gradients(self.net, self.loss, params, batch, seed=self.seed, tolerance=tolerance, entries=entries)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this network to one file that ``pellucid.load`` reads; no pickle is involved."""
        from .files import save

        self.require_built()
        save(self, path)

    @friendly
    def trace(self, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None, step: int = 0) -> Any:
        """One pass as data: every input, output, flow and gradient by a readable path, as training step `step` has them.

        ``trace["0"]`` is a layer, ``trace["0.dW"]`` an array, ``trace.per_sample("0.W")`` one gradient per row.
        """
        from .glass.trace import trace

        return trace(self, X, y, sample_weight, lengths, step)

    @friendly
    def explain(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        lengths: Any = None,
        optimizer: Any = None,
        show: Iterable[str] = (),
        check: bool = True,
    ) -> Any:
        """One pass and one update as a textbook page: every formula, with this batch's numbers, and its result.

        `optimizer` is the one whose update is shown (by default ``SGD(0.1)``), `show` names entries to single out, such
        as ``"0.W[3, 1]"``. The page prints as text; ``.html()``, ``.latex()`` and ``.save(path)`` give the other forms.
        """
        from .glass.explain import explain

        return explain(self, X, y, sample_weight, lengths, optimizer, show, check)

    @friendly
    def diagnose(self, X: Any, y: Any, *, sample_weight: Any = None, lengths: Any = None, optimizer: Any = "adam") -> Any:
        """Look at the network as it is, and at the history of its last fit, for what keeps it from learning."""
        from .glass.doctor import diagnose

        return diagnose(self, X, y, sample_weight, lengths, optimizer)

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """All parameters and buffers by name, such as ``"0.W"``."""
        self.require_built()
        return flatten(self.params, self.net)

    def set_parameters(self, values: dict[str, Any]) -> None:
        """Replace parameters by name; those not named stay as they are."""
        mine = self.parameters
        for name, value in values.items():
            if name not in mine:
                raise ValueError(f"no parameter {name!r}.{did_you_mean(name, mine)} There are: {', '.join(mine)}.")
            if np.shape(value) != mine[name].shape:
                raise ValueError(f"parameter {name!r} must have shape {mine[name].shape}, got {np.shape(value)}.")
            mine[name] = np.array(value, self.dtype)
        self.params = unflatten(self.params, mine, self.net)

    @property
    def count(self) -> int:
        """The number of weights and biases (N02)."""
        self.require_built()
        return parameter_count(self.params)

    def summary(self) -> str:
        """A table of layers, shapes and parameter counts."""
        self.require_built()
        return self.net.summary(self.input_shape or ())

    def __repr__(self) -> str:
        return f"Network({self.net!r}, input_shape={self.input_shape}, loss={self.loss!r}, seed={self.seed}, dtype={str(self.dtype)!r})"

    # ---------------------------------------------------------------- helpers
    def as_batch(self, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None, build: bool = False, dtype: Any = None) -> Batch:
        if self.params is None and build:
            self.build(sequence_shape(X, lengths) or as_inputs(X, None, self.dtype).shape[1:])
        self.require_built()
        shapes = self.input_shape, self.output_shape
        batch = make_batch(X, y, sample_weight, lengths, self.loss, self.net, *shapes, dtype or self.dtype)
        self.net.check_input(batch.x)
        return batch

    def require_built(self) -> None:
        if self.params is None:
            raise ValueError("This network has no parameters yet: give input_shape=, or call fit first.")


def whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")


def as_stopping(early_stopping: Any) -> EarlyStopping | None:
    if early_stopping is None or early_stopping is False:
        return None
    if isinstance(early_stopping, EarlyStopping):
        return early_stopping
    return EarlyStopping() if early_stopping is True else EarlyStopping(patience=early_stopping)


def last_layer(net: Layer) -> Layer:
    from .layers.combine import Chain
    from .layers.wrap import Wrapper

    return last_layer(net.children[-1]) if isinstance(net, Chain | Wrapper) else net


def default_loss(net: Layer) -> Loss:
    """Which loss goes with which output (N25)."""
    last = last_layer(net)
    if isinstance(last, Softmax):
        return CrossEntropy()
    return BinaryCrossEntropy() if isinstance(last, Sigmoid) else SquaredError()


def warn_applied_twice(net: Layer, loss: Loss) -> None:
    last = last_layer(net)
    pairs: list[tuple[Any, type, str]] = [
        ((Softmax, LogSoftmax), SoftmaxCrossEntropy, "CrossEntropy()"),
        (Sigmoid, SigmoidCrossEntropy, "BinaryCrossEntropy()"),
    ]
    for layers, fused, instead in pairs:
        if isinstance(last, layers) and isinstance(loss, fused):
            warnings.warn(
                f"{loss!r} works on logits, but the network ends with {last!r}: leave that out, or use {instead}.",
                UserWarning,
                stacklevel=4,
            )
