"""Activation functions with their derivatives (N17), softmax and its logarithm (N23, N24)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from .base import Array, Layer, ShapeError

__all__ = [
    "ELU",
    "Activation",
    "Elementwise",
    "GELU",
    "Identity",
    "LeakyReLU",
    "LogSoftmax",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Sign",
    "Softmax",
    "Softplus",
    "Step",
    "Tanh",
]


class Activation(Layer):
    """A function applied to every entry.

    Forward   y = g(z)
    Backward  dz = dy ⊙ g′(z)

    A subclass writes `g(xp, z)` and `derivative(xp, z, y)`; `xp` is the array namespace (NumPy or
    jax.numpy). Many derivatives are shortest in terms of the output y = g(z).
    """

    def g(self, xp: Any, z: Array) -> Array:
        raise NotImplementedError

    def derivative(self, xp: Any, z: Array, y: Array) -> Array:
        raise NotImplementedError

    #: g(z) and g′ as pages show them and compute them; those who leave it out are shown with the equations of their docstring
    shown: ClassVar[tuple[str, str]] = ("g(z)", "g′(z)")

    def formulas(self):
        g, slope = self.shown
        ahead, back = super().formulas() if self.shown is Activation.shown else ([], [])
        return [f"y = {g}", *ahead, *back], [f"dz = dy ⊙ {slope}"]

    def forward(self, ops, p, z):
        y = self.g(ops.xp, z)
        return y, (z, y)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return (dy * self.derivative(ops.xp, *cache) if wrt_input else None), {}


def logistic(xp: Any, z: Array) -> Array:
    """σ(z) = 1/(1 + e⁻ᶻ), written so that no z overflows."""
    return 0.5 * xp.tanh(0.5 * z) + 0.5


class Sigmoid(Activation):
    """Logistic function.   σ(z) = 1/(1 + e⁻ᶻ),   σ′ = y (1 − y)."""

    shown = ("σ(z)", "y ⊙ (1 − y)")

    def g(self, xp, z):
        return logistic(xp, z)

    def derivative(self, xp, z, y):
        return y * (1 - y)


class Tanh(Activation):
    """Hyperbolic tangent.   g(z) = tanh z,   g′ = 1 − y²."""

    shown = ("tanh(z)", "(1 − y ⊙ y)")

    def g(self, xp, z):
        return xp.tanh(z)

    def derivative(self, xp, z, y):
        return 1 - y * y


class ReLU(Activation):
    """Rectified linear unit.   g(z) = max(0, z),   g′ = 1 where z > 0, else 0 (at z = 0 too)."""

    shown = ("max(0, z)", "[z > 0]")

    def g(self, xp, z):
        return xp.maximum(z, 0)

    def derivative(self, xp, z, y):
        return (y > 0).astype(y.dtype)


class LeakyReLU(Activation):
    """ReLU with a slope on the left.   g(z) = z where z > 0, else slope·z."""

    slope: float = 0.01

    shown = ("max(0, z) + slope min(0, z)", "([z > 0] + slope [z ≤ 0])")

    def g(self, xp, z):
        return xp.where(z > 0, z, self.slope * z)

    def derivative(self, xp, z, y):
        return xp.where(z > 0, xp.ones_like(z), self.slope)


class ELU(Activation):
    """Exponential linear unit.   g(z) = z where z > 0, else α(eᶻ − 1);   g′ = 1, else y + α."""

    alpha: float = 1.0

    shown = ("max(0, z) + α (exp(min(0, z)) − 1)", "([z > 0] + [z ≤ 0] ⊙ (y + α))")

    def g(self, xp, z):
        return xp.where(z > 0, z, self.alpha * xp.expm1(xp.minimum(z, 0)))

    def derivative(self, xp, z, y):
        return xp.where(z > 0, xp.ones_like(z), y + self.alpha)


class GELU(Layer):
    """Gaussian error linear unit.   g(z) = z Φ(z),   g′ = Φ(z) + z φ(z), Φ the normal distribution, φ its density."""

    def forward(self, ops, p, z):
        Phi = 0.5 * (1 + ops.erf(z * math.sqrt(0.5)))
        return z * Phi, (z, Phi)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        z, Phi = cache
        density = ops.xp.exp(-0.5 * z * z) * (1 / math.sqrt(2 * math.pi))
        return (dy * (Phi + z * density) if wrt_input else None), {}

    def formulas(self):
        return ["y = z ⊙ Φ(z)"], ["dz = dy ⊙ (Φ(z) + z ⊙ φ(z))"]


class SiLU(Activation):
    """Sigmoid linear unit.   g(z) = z σ(z),   g′ = σ(z) + y (1 − σ(z))."""

    shown = ("z ⊙ σ(z)", "(σ(z) + y ⊙ (1 − σ(z)))")

    def g(self, xp, z):
        return z * logistic(xp, z)

    def derivative(self, xp, z, y):
        s = logistic(xp, z)
        return s + y * (1 - s)


class Softplus(Activation):
    """Smooth ReLU.   g(z) = log(1 + eᶻ),   g′ = σ(z)."""

    shown = ("log(1 + exp(z))", "σ(z)")

    def g(self, xp, z):
        return xp.maximum(z, 0) + xp.log1p(xp.exp(-xp.abs(z)))

    def derivative(self, xp, z, y):
        return logistic(xp, z)


class Identity(Layer):
    """Linear activation.   y = x,   dx = dy."""

    def forward(self, ops, p, x):
        return x, None

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return dy, {}


class Elementwise(Activation):
    """Any function the user gives, with its derivative (N17).

    Forward   y = function(xp, z)
    Backward  dz = dy ⊙ slope(xp, z)

    Both are functions defined at the top of a module; `xp` is numpy or jax.numpy.
    """

    function: Callable[..., Any]
    slope: Callable[..., Any]

    def g(self, xp, z):
        return self.function(xp, z)

    def derivative(self, xp, z, y):
        return self.slope(xp, z)

    def formulas(self):
        return [f"y = {self.function.__name__}(z)"], [f"dz = dy ⊙ {self.slope.__name__}(z)"]


class Threshold(Activation):
    """A jump at zero. Its derivative is zero wherever it exists, so nothing can be learned through it.

    `surrogate` says what takes the derivative's place in the backward pass:
    "identity" (1, straight through), "clip" (1 for |z| ≤ 1, else 0) or "logistic" (σ′(z)).
    """

    surrogate: Literal["identity", "clip", "logistic"] | None = None

    def derivative(self, xp, z, y):
        if self.surrogate == "identity":
            return xp.ones_like(z)
        if self.surrogate == "clip":
            return (xp.abs(z) <= 1).astype(z.dtype)
        s = logistic(xp, z)
        return s * (1 - s)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        if wrt_input and self.surrogate is None:
            raise ValueError(
                f"{self!r} has no useful gradient: it is flat on both sides of its jump, so layers before it cannot "
                f"learn. Choose {type(self).__name__}(surrogate='clip') (or 'identity', 'logistic') to train through it."
            )
        return super().backward(ops, p, cache, dy, wrt_input)

    def formulas(self):
        slopes = {None: "0", "identity": "1", "clip": "[|z| ≤ 1]", "logistic": "σ(z) ⊙ (1 − σ(z))"}
        return [f"y = {self.shown[0]}"], [f"dz = dy ⊙ {slopes[self.surrogate]}"]


class Sign(Threshold):
    """Sign unit.   g(z) = 1 where z ≥ 0, else −1."""

    shown = ("sign(z)", "0")

    def g(self, xp, z):
        return xp.where(z >= 0, xp.ones_like(z), -1)


class Step(Threshold):
    """Step unit (perceptron).   g(z) = 1 where z ≥ 0, else 0."""

    shown = ("[z ≥ 0]", "0")

    def g(self, xp, z):
        return (z >= 0).astype(z.dtype)


class Softmax(Layer):
    """Softmax over the last axis.

    Forward   y = eᶻ / Σ eᶻ                                   (largest z subtracted first: no overflow)
    Backward  dz = (diag(y) − y yᵀ) dy = y ⊙ (dy − yᵀdy)        (N23)
    """

    def build(self, rng, shape):
        return over_last_axis(self, shape)

    def forward(self, ops, p, z):
        y = ops.xp.exp(z - z.max(-1, keepdims=True))
        y /= y.sum(-1, keepdims=True)  # y is new: no copy is needed
        return y, y

    def backward(self, ops, p, y, dy, wrt_input=True):
        return (y * (dy - (dy * y).sum(-1, keepdims=True)) if wrt_input else None), {}

    def formulas(self):
        return ["y = exp(z) / Σᵢ exp(z)"], ["dz = y ⊙ (dy − Σᵢ y ⊙ dy)"]


class LogSoftmax(Layer):
    """Logarithm of softmax over the last axis.

    Forward   y = z − log Σ eᶻ
    Backward  dz = dy − p Σ dy,   p = eʸ: ∂y_j/∂z_r = δ_rj − p_r      (N24)
    """

    def build(self, rng, shape):
        return over_last_axis(self, shape)

    def forward(self, ops, p, z):
        y = log_softmax(ops.xp, z)
        return y, y

    def backward(self, ops, p, y, dy, wrt_input=True):
        return (dy - ops.xp.exp(y) * dy.sum(-1, keepdims=True) if wrt_input else None), {}

    def formulas(self):
        return ["y = z − log(Σᵢ exp(z))"], ["dz = dy − exp(y) ⊙ Σᵢ dy"]


def log_softmax(xp: Any, z: Array) -> Array:
    """z − log Σ eᶻ over the last axis, the largest z subtracted first."""
    z = z - z.max(-1, keepdims=True)
    return z - xp.log(xp.exp(z).sum(-1, keepdims=True))


def over_last_axis(layer: Layer, shape: tuple[int, ...]) -> tuple[dict, tuple[int, ...]]:
    if not shape:
        raise ShapeError(layer, "at least one feature axis", "(batch,)")
    return {}, shape
