"""Layers that bring their inputs to mean 0 and variance 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Array, Layer, ShapeError

__all__ = ["BatchNorm", "LayerNorm", "shares"]


class Normalise(Layer):
    """x̂ = (x − mean) / √(variance + ε), then a learned scale and shift for each of the n features."""

    epsilon: float = 1e-5

    def check(self):
        self.require(self.epsilon > 0, "epsilon", "positive")

    def build(self, rng, shape):
        if not shape:
            raise ShapeError(self, "at least one feature axis", "(batch,)", "Give input_shape=(1,) for single numbers.")
        return {"scale": np.ones(shape[-1]), "shift": np.zeros(shape[-1])}, shape


class BatchNorm(Normalise):
    """Batch normalisation of each feature (Ioffe and Szegedy, 2015).

    Forward   x̂ = (x − m) r,   m = Σ ωx,   r = 1/√(Σ ω(x − m)² + ε),   y = x̂ ⊙ scale + shift
    Backward  g = dy ⊙ scale,   dx = r (g − ω(Σg + x̂ Σ g x̂)),   dscale = Σ dy x̂,   dshift = Σ dy

    The sums run over all rows and positions; ω is their share of the weight (1/N if all weigh the same), so a
    row of weight 2 is two rows, and one of weight 0 (where x̂ = 0), or padding, is none. While training, running means of m and
    of the variance are kept (both plain, the variance without n/(n − 1)); otherwise these stand in place of the
    batch's, and dx = r g.

    Parameters
    ----------
    epsilon : float
        ε, so that a constant feature does no harm.
    momentum : float
        How far the running values move towards each new batch's.

    Input and output (batch, …, n).
    """

    momentum: float = 0.1

    def check(self):
        super().check()
        self.require(0 < self.momentum <= 1, "momentum", "more than 0 and at most 1")

    def build(self, rng, shape):
        p, out = super().build(rng, shape)
        return {**p, "_mean": np.zeros(shape[-1]), "_var": np.ones(shape[-1])}, out

    def forward(self, ops, p, x):
        mean, var, share = p["_mean"], p["_var"], None
        if ops.training:
            share, axes = shares(ops, x), tuple(range(x.ndim - 1))
            mean = ops.note("m", (share * x).sum(axes))
            var = (share * (x - mean) ** 2).sum(axes)
            for name, now in (("_mean", mean), ("_var", var)):
                ops.keep(name, (1 - self.momentum) * p[name] + self.momentum * now)
        r = 1 / ops.xp.sqrt(var + self.epsilon)
        x_hat = (x - mean) * r
        if ops.training and ops.weight is not None:  # a row that is not there would grow from layer to layer where the others are alike
            x_hat = ops.xp.where(ops.weight.reshape(-1, *(1,) * (x.ndim - 1)) > 0, x_hat, 0)
        return ops.note("x̂", x_hat) * p["scale"] + p["shift"], (x_hat, r, share)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        x_hat, r, share = cache
        axes = tuple(range(dy.ndim - 1))
        grads = {"scale": (dy * x_hat).sum(axes), "shift": dy.sum(axes)}
        if not wrt_input:
            return None, grads
        g = dy * p["scale"]
        if share is not None:
            g = g - share * (g.sum(axes) + x_hat * (g * x_hat).sum(axes))
        return r * g, grads

    def formulas(self):
        first = ["m = Σ ω ⊙ x", "v = Σ ω ⊙ (x − m)²"]  # ω: the share of each column
        back = ["g = scale ⊙ dy", "dscale = Σ dy ⊙ x̂", "dshift = Σ dy", "dx = r ⊙ (g − ω ⊙ (Σ g + x̂ ⊙ Σ g ⊙ x̂))"]
        return [*first, "r = 1 / √(v + ε)", "x̂ = r ⊙ (x − m)", "y = scale ⊙ x̂ + shift"], back

    def quantities(self, call, inner):
        p, x_hat = call.params, call.notes["x̂"][0]
        if "m" not in call.notes:  # not training
            given = dict.fromkeys(("m", "v"), "kept from before, not of this batch")
            return {"m": p["_mean"][:, None], "v": p["_var"][:, None], "ω": np.zeros((1, 1)), "given": given}
        if ((x_hat != 0) | np.isclose(call.x, call.notes["m"][0])).all():  # no row of weight 0
            return {}
        return {"x̂": x_hat.reshape(-1, x_hat.shape[-1]).T, "given": {"x̂": "x less its mean, times r; 0 for a row of weight 0"}}


class LayerNorm(Normalise):
    """Normalisation of each row (or position) over its n features (Ba et al., 2016).

    Forward   x̂ = (x − mean x) r,   r = 1/√(var x + ε),   y = x̂ ⊙ scale + shift
    Backward  g = dy ⊙ scale,   dx = r (g − mean g − x̂ mean(g x̂)),   dscale = Σ dy x̂,   dshift = Σ dy

    Parameters
    ----------
    epsilon : float
        ε, so that a constant row does no harm.

    Input and output (batch, …, n).
    """

    def forward(self, ops, p, x):
        c = x - x.mean(-1, keepdims=True)
        r = 1 / ops.xp.sqrt((c * c).mean(-1, keepdims=True) + self.epsilon)
        x_hat = c * r
        return x_hat * p["scale"] + p["shift"], (x_hat, r)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        x_hat, r = cache
        axes = tuple(range(dy.ndim - 1))
        grads = {"scale": (dy * x_hat).sum(axes), "shift": dy.sum(axes)}
        g = dy * p["scale"]
        dx = r * (g - g.mean(-1, keepdims=True) - x_hat * (g * x_hat).mean(-1, keepdims=True))
        return dx if wrt_input else None, grads

    def formulas(self):
        first = ["m = mean(x)", "v = mean((x − m)²)"]
        back = ["g = scale ⊙ dy", "dscale = Σ dy ⊙ x̂", "dshift = Σ dy", "dx = r ⊙ (g − mean(g) − x̂ ⊙ mean(g ⊙ x̂))"]
        return [*first, "r = 1 / √(v + ε)", "x̂ = r ⊙ (x − m)", "y = scale ⊙ x̂ + shift"], back


def shares(ops: Any, x: Array) -> Array:
    """Each position's share of the total weight: (batch, …, 1), padding 0, all together 1."""
    lead = (len(x), *(1,) * (x.ndim - 1))
    w = ops.xp.ones(lead, dtype=x.dtype) if ops.weight is None else ops.weight.reshape(lead).astype(x.dtype)
    if ops.lengths is not None and x.ndim > 2:
        w = w * ops.mask(x.shape[1]).reshape(*x.shape[:2], *lead[2:]).astype(x.dtype)
    w = ops.xp.broadcast_to(w, (*x.shape[:-1], 1))
    return w / w.sum()
