"""Losses (N20 – N28): a value and a flow δ = ∂L/∂y for every row.

No weights and no 1/n here: those are applied once, in the training step. Outputs are (batch, …, k);
a loss sums over the last axis, as the notes do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .layers.activations import Softmax, log_softmax, logistic
from .settings import Settings, did_you_mean

__all__ = [
    "AbsoluteError",
    "BinaryCrossEntropy",
    "Brier",
    "CrossEntropy",
    "HalfSquaredError",
    "Huber",
    "LogCosh",
    "Loss",
    "Poisson",
    "ResidualLoss",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "SquaredError",
    "cross_entropy_bits",
    "entropy_bits",
    "get_loss",
    "information_bits",
]


class Loss(Settings):
    """Base of all losses.

    A subclass writes ``__call__(ops, y, target) -> values, delta``: the loss of each row, shape
    ``y.shape[:-1]``, and its derivative by the outputs, shape ``y.shape``.
    """

    #: further values per row that training reports, by name: f(ops, y, target)
    scores: ClassVar[dict[str, Callable[..., Any]]] = {}
    #: whether targets are classes ("one" per row, or "many" that are on or off)
    classes: ClassVar[str | None] = None

    def __call__(self, ops: Any, y: Any, target: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def prepare(self, target: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Check a whole target array against outputs of `shape` (without batch axis) and return it as trained on."""
        target = numbers(target)
        if (*target.shape[1:], 1) == shape:
            target = target[..., None]
        if target.shape[1:] != shape:
            raise ValueError(
                f"{self!r}: the network gives {as_batch(shape)}, so y must have that shape, got {as_batch(target.shape[1:])}."
                + (" Give the last layer 1 unit, or y a column per output." if target.ndim == 1 else "")
            )
        return np.ascontiguousarray(target, dtype=dtype)

    def probabilities(self, ops: Any, y: Any) -> Any:
        """What the outputs say about classes, as probabilities."""
        raise TypeError(f"{self!r} is no classification loss: there are no probabilities.")

    def decide(self, ops: Any, y: Any) -> Any:
        """What `predict` returns: the outputs themselves, or the class they speak for."""
        return y


# -------------------------------------------------------------------- regression
class Residual(Loss):
    """A sum over residuals (N20).   L = Σ ψ(ε),   ε = d − y,   ∂L/∂y = −ψ′(ε)."""

    def psi(self, xp: Any, e: Any) -> Any:
        raise NotImplementedError

    def slope(self, xp: Any, e: Any) -> Any:
        raise NotImplementedError

    def __call__(self, ops, y, d):
        same_shape(self, y, d)
        e = d - y
        return self.psi(ops.xp, e).sum(-1), -self.slope(ops.xp, e)


class SquaredError(Residual):
    """Quadratic loss.   L = Σ (d − y)²,   ∂L/∂y = −2 (d − y).   On Sigmoid() or Softmax() outputs too (N21, N22)."""

    def psi(self, xp, e):
        return e * e

    def slope(self, xp, e):
        return 2 * e


class HalfSquaredError(Residual):
    """Half the quadratic loss, as scikit-learn has it.   ψ = ε²/2,   ∂L/∂y = −ε."""

    def psi(self, xp, e):
        return 0.5 * (e * e)

    def slope(self, xp, e):
        return e


class AbsoluteError(Residual):
    """Absolute loss.   ψ = |ε|,   ψ′ = sign ε."""

    def psi(self, xp, e):
        return xp.abs(e)

    def slope(self, xp, e):
        return xp.sign(e)


class Huber(Residual):
    """Quadratic near zero, linear beyond δ.   ψ = ε²/2 for |ε| ≤ δ, else δ(|ε| − δ/2);   ψ′ = ε cut off at ±δ."""

    delta: float = 1.0

    def check(self):
        self.require(self.delta > 0, "delta", "positive")

    def psi(self, xp, e):
        c = self.slope(xp, e)
        return c * (e - 0.5 * c)

    def slope(self, xp, e):
        return xp.clip(e, -self.delta, self.delta)


class LogCosh(Residual):
    """Smooth between the two.   ψ = log cosh ε = |ε| + log(1 + e^−2|ε|) − log 2 (no overflow),   ψ′ = tanh ε."""

    def psi(self, xp, e):
        a = xp.abs(e)
        return a + xp.log1p(xp.exp(-2 * a)) - math.log(2)

    def slope(self, xp, e):
        return xp.tanh(e)


class ResidualLoss(Residual):
    """Any ψ the user gives, with its derivative.

    Parameters
    ----------
    psi, slope : function
        ψ and ψ′ as functions ``f(xp, e)`` defined at the top of a module; `xp` is numpy or jax.numpy.
    """

    psi: Callable[..., Any]
    slope: Callable[..., Any]


class Poisson(Loss):
    """Half the Poisson deviance of counts d ≥ 0; the output z is the logarithm of the predicted mean.

    L = Σ d log(d / eᶻ) − d + eᶻ,   ∂L/∂z = eᶻ − d
    """

    def prepare(self, target, shape, dtype):
        target = super().prepare(target, shape, dtype)
        if (target < 0).any():
            raise ValueError(f"{self!r}: targets must not be negative, got {target.min()}.")
        return target

    def __call__(self, ops, z, d):
        same_shape(self, z, d)
        xp = ops.xp
        mean, log_d = xp.exp(z), xp.log(xp.where(d > 0, d, xp.ones_like(d)))  # 0·log 0 = 0
        return (d * (log_d - z) - d + mean).sum(-1), mean - d

    def decide(self, ops, y):
        return ops.xp.exp(y)


# -------------------------------------------------------------------- classes, one of many
def right_class(ops: Any, y: Any, d: Any) -> Any:
    truth = d if d.ndim < y.ndim else d.argmax(-1)
    return (y.argmax(-1) == truth).astype(y.dtype)


class OneOfMany(Loss):
    """Targets are class numbers (batch, …), or one-hot or smooth distributions (batch, …, k) (N28)."""

    classes = "one"
    scores = {"accuracy": right_class}

    def distribution(self, ops: Any, y: Any, target: Any) -> Any:
        """The target as a distribution d with Σd = 1: class numbers become one-hot rows."""
        if target.ndim == y.ndim:
            same_shape(self, y, target)
            return target
        if target.shape != y.shape[:-1]:
            raise ValueError(f"{self!r}: outputs {y.shape} need class numbers {y.shape[:-1]}, got {target.shape}.")
        return (target[..., None] == ops.xp.arange(y.shape[-1], dtype=target.dtype)).astype(y.dtype)

    def prepare(self, target, shape, dtype):
        k = shape[-1]
        if k < 2:
            raise ValueError(f"{self!r} needs 2 outputs or more, the network has {k}. For one output use SigmoidCrossEntropy().")
        target = numbers(target)
        if target.shape[1:] == shape:
            if (target < 0).any() or not np.allclose(target.sum(-1), 1, atol=1e-4):
                raise ValueError(f"{self!r}: each row of y must be a distribution: entries ≥ 0 that sum to 1.")
            return np.ascontiguousarray(target, dtype=dtype)
        if target.shape[1:] != shape[:-1]:
            raise ValueError(
                f"{self!r}: the network gives {as_batch(shape)}, so y must be class numbers {as_batch(shape[:-1])} or one-hot "
                f"rows {as_batch(shape)}, got {as_batch(target.shape[1:])}."
                + (" Use y.ravel()." if target.shape[1:] == (*shape[:-1], 1) else "")
            )
        labels = target.astype(np.int32)
        if (labels != target).any() or labels.min() < 0 or labels.max() >= k:
            bad = target[(labels != target) | (labels < 0) | (labels >= k)].flat[0]
            raise ValueError(
                f"{self!r}: class numbers must be whole and from 0 to {k - 1} (the network has {k} outputs), got {bad}."
                + (f" Give the last layer {int(labels.max()) + 1} units." if (labels == target).all() and labels.min() >= 0 else "")
            )
        return labels

    def decide(self, ops, y):
        return y.argmax(-1)


class SoftmaxCrossEntropy(OneOfMany):
    """Cross-entropy of softmax outputs, computed from the logits z.

    L = −Σ d log softmax(z),   ∂L/∂z = softmax(z) − d          (N22; stable for any z)
    """

    def __call__(self, ops, z, target):
        d = self.distribution(ops, z, target)
        log_p = log_softmax(ops.xp, z)
        return -(d * log_p).sum(-1), ops.xp.exp(log_p) - d

    def probabilities(self, ops, y):
        return Softmax().forward(ops, {}, y)[0]


class CrossEntropy(OneOfMany):
    """Cross-entropy of outputs that are probabilities already.   L = −Σ d log y,   ∂L/∂y = −d/y.

    0 where y is sure and right, ∞ where it is sure and wrong (N22). On logits use SoftmaxCrossEntropy.
    """

    def __call__(self, ops, y, target):
        d = self.distribution(ops, y, target)
        q = ops.xp.where(d > 0, y, ops.xp.ones_like(y))  # 0·log 0 = 0
        return -(d * ops.xp.log(q)).sum(-1), -d / q

    def probabilities(self, ops, y):
        return y


class Brier(OneOfMany):
    """Quadratic loss on class probabilities.   L = Σ (d − y)²,   ∂L/∂y = −2(d − y)          (N22)"""

    def __call__(self, ops, y, target):
        e = self.distribution(ops, y, target) - y
        return (e * e).sum(-1), -2 * e

    def probabilities(self, ops, y):
        return y


# -------------------------------------------------------------------- classes, each on or off
class OnOrOff(Loss):
    """Targets are 0, 1 or a probability between, one per output (N21)."""

    classes = "many"

    def prepare(self, target, shape, dtype):
        target = super().prepare(target, shape, dtype)
        if (target < 0).any() or (target > 1).any():
            raise ValueError(
                f"{self!r}: targets must be 0, 1 or between, got {target[(target < 0) | (target > 1)].flat[0]}. "
                "Write labels −1/1 as 0/1; for several classes use SoftmaxCrossEntropy()."
            )
        return target


class SigmoidCrossEntropy(OnOrOff):
    """Binary cross-entropy of logistic outputs, computed from the logits z.

    L = −Σ d log σ(z) + (1 − d) log(1 − σ(z)) = Σ max(z, 0) − z d + log(1 + e^−|z|),   ∂L/∂z = σ(z) − d
    """

    scores = {"accuracy": lambda ops, z, d: ((z > 0) == (d > 0.5)).astype(z.dtype).mean(-1)}

    def __call__(self, ops, z, d):
        same_shape(self, z, d)
        xp = ops.xp
        return (xp.maximum(z, 0) - z * d + xp.log1p(xp.exp(-xp.abs(z)))).sum(-1), logistic(xp, z) - d

    def probabilities(self, ops, y):
        return logistic(ops.xp, y)

    def decide(self, ops, y):
        return (y > 0).astype(np.int64)


class BinaryCrossEntropy(OnOrOff):
    """Binary cross-entropy of outputs that are probabilities already.

    L = −Σ d log y + (1 − d) log(1 − y),   ∂L/∂y = (y − d) / (y (1 − y))          (N21)
    """

    scores = {"accuracy": lambda ops, y, d: ((y > 0.5) == (d > 0.5)).astype(y.dtype).mean(-1)}

    def __call__(self, ops, y, d):
        same_shape(self, y, d)
        xp = ops.xp
        on, off = xp.where(d > 0, y, xp.ones_like(y)), xp.where(d < 1, 1 - y, xp.ones_like(y))  # 0·log 0 = 0
        return -(d * xp.log(on) + (1 - d) * xp.log(off)).sum(-1), (1 - d) / off - d / on

    def probabilities(self, ops, y):
        return y

    def decide(self, ops, y):
        return (y > 0.5).astype(np.int64)


# -------------------------------------------------------------------- information, in bits (N27)
def information_bits(p: Any) -> np.ndarray:
    """Information content of an event of probability p.   IC = −log₂ p."""
    p = distribution_checked(p, total=False)
    with np.errstate(divide="ignore"):
        return -np.log2(p)


def entropy_bits(p: Any) -> np.ndarray:
    """Expected information of a distribution.   H(p) = −Σ p log₂ p, over the last axis."""
    return cross_entropy_bits(p, p)


def cross_entropy_bits(p: Any, q: Any) -> np.ndarray:
    """Expected information when q is believed and p is true.   H(p, q) = −Σ p log₂ q, over the last axis."""
    p, q = distribution_checked(p), distribution_checked(q)
    return np.where(p > 0, p * information_bits(np.where(p > 0, q, 1.0)), 0.0).sum(-1)


def distribution_checked(p: Any, total: bool = True) -> np.ndarray:
    p = np.asarray(p, dtype=float)
    if not ((p >= 0) & (p <= 1)).all() or (total and not np.allclose(p.sum(-1), 1)):
        raise ValueError(f"expected probabilities between 0 and 1{' that sum to 1' if total else ''}, got {p}.")
    return p


# -------------------------------------------------------------------- helpers
NAMED: dict[str, Loss] = {
    "squared_error": SquaredError(),
    "half_squared_error": HalfSquaredError(),
    "absolute_error": AbsoluteError(),
    "huber": Huber(),
    "log_cosh": LogCosh(),
    "poisson": Poisson(),
    "cross_entropy": CrossEntropy(),
    "softmax_cross_entropy": SoftmaxCrossEntropy(),
    "binary_cross_entropy": BinaryCrossEntropy(),
    "sigmoid_cross_entropy": SigmoidCrossEntropy(),
    "brier": Brier(),
}


def get_loss(loss: str | Loss) -> Loss:
    """Return the loss of that name, or the loss itself."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str) and loss in NAMED:
        return NAMED[loss]
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise TypeError(f"loss got the class {loss.__name__}; write {loss.__name__}() to make one.")
    raise ValueError(f"loss must be a Loss or one of {', '.join(map(repr, NAMED))}, got {loss!r}.{did_you_mean(loss, NAMED)}")


def same_shape(loss: Loss, y: Any, d: Any) -> None:
    if y.shape != d.shape:
        raise ValueError(f"{loss!r}: outputs {y.shape} and targets {d.shape} must have the same shape; nothing is broadcast.")


def numbers(target: np.ndarray) -> np.ndarray:
    if target.dtype.kind not in "biuf":
        raise TypeError(
            f"y must be numbers, got {target.dtype}. Encode class names as 0, 1, 2, … (numpy.unique with return_inverse does it)."
        )
    return target


def as_batch(shape: tuple[int, ...]) -> str:
    return f"({', '.join(['batch', *map(str, shape)])}{',' if not shape else ''})"
