"""Self-attention."""

from __future__ import annotations

import functools
import math
from typing import Any

from .base import Array, Layer, ShapeError
from .linear import Linear

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(Layer):
    """Every position looks at the others and takes what it finds alike (Vaswani et al., 2017).

    Forward   q, k, v = x Wq + bq, x Wk + bk, x Wv + bv, each cut into `heads` parts of c = units/heads features
              P = softmax(q kᵀ/√c),   a = P v,   y = [a₁ … a_heads] Wo + bo
    Backward  dv = Pᵀ da,   dP = da vᵀ,   dS = P ⊙ (dP − Σ P ⊙ dP),   dq = dS k/√c,   dk = dSᵀ q/√c,
              and through the four linear layers

    Padding is never looked at.

    Parameters
    ----------
    units : int
        Features of the output; `heads` must divide it.
    heads : int
        Number of heads.
    causal : bool
        Whether a position sees only itself and those before it.
    bias : bool
        Whether the four linear layers have biases.

    Input (batch, T, n), output (batch, T, units).
    """

    units: int
    heads: int = 1
    causal: bool = False
    bias: bool = True

    def check(self):
        self.require(self.units >= 1, "units", "at least 1")
        self.require(self.heads >= 1 and self.units % self.heads == 0, "heads", f"a divisor of units = {self.units}")

    @functools.cached_property
    def children(self):
        return tuple(Linear(self.units, bias=self.bias, name=name) for name in ("query", "key", "value", "output"))

    def build(self, rng, shape):
        if len(shape) != 2:
            raise ShapeError(self, "(batch, T, n)", f"(batch, {', '.join(map(str, shape))})", "Attention works on sequences.")
        shapes = [shape, shape, shape, (shape[0], self.units)]
        return tuple(layer.build(rng, s)[0] for layer, s in zip(self.children, shapes, strict=True)), shapes[3]

    def forward(self, ops, p, x):
        layers = self.children
        passes = [ops.forward(layers[i], p[i], x, i) for i in range(3)]
        q, k, v = (self.split(z) for z, _ in passes)  # (batch, heads, T, c)
        S = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(self.units // self.heads))  # (…, T, c) @ (…, c, T)
        seen = self.seen(ops, x.shape[1])
        if seen is not None:
            S = ops.xp.where(seen, S, -math.inf)
        e = ops.xp.exp(S - S.max(-1, keepdims=True))
        P = ops.note("attention", e / e.sum(-1, keepdims=True))
        y, out = ops.forward(layers[3], p[3], self.merge(P @ v), 3)  # (…, T, T) @ (…, T, c)
        return y, (q, k, v, P, [cache for _, cache in passes], out)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        q, k, v, P, caches, out = cache
        layers, scale = self.children, 1 / math.sqrt(self.units // self.heads)
        da, gradient = ops.backward(layers[3], p[3], out, dy, 3)
        da = self.split(da)
        dP = da @ v.swapaxes(-1, -2)  # (…, T, c) @ (…, c, T)
        dS = P * (dP - (P * dP).sum(-1, keepdims=True)) * scale
        flows = dS @ k, dS.swapaxes(-1, -2) @ q, P.swapaxes(-1, -2) @ da  # (…, T, T) @ (…, T, c)
        back = [ops.backward(layers[i], p[i], caches[i], self.merge(flows[i]), i, wrt_input) for i in range(3)]
        dx = back[0][0] + back[1][0] + back[2][0] if wrt_input else None
        return dx, (*(g for _, g in back), gradient)

    def formulas(self):  # of one example and head: a column for each position that looks
        S = "seen(kᵀ q / √c)" if self.causal else "kᵀ q / √c"
        back = ["dv = da Pᵀ", "dP = vᵀ da", "dS = P ⊙ (dP − Σᵢ P ⊙ dP)", "dq = k dS / √c", "dk = q dSᵀ / √c"]
        which = "q, k, v: query, key and value of the first example" + ", first head" * (self.heads > 1)
        return [which, f"S = {S}", "P = exp(S) / Σᵢ exp(S)", "a = v P"], back

    def quantities(self, call, inner):
        first = lambda z: z[0, :, : self.units // self.heads].T  # noqa: E731
        known = {name: first(c.y) for name, c in zip("qkv", inner, strict=False)} | {"a": first(inner[3].x)}
        if call.dy is not None:
            known |= {f"d{name}": first(c.dy) for name, c in zip("qkv", inner, strict=False)} | {"da": first(inner[3].dx)}
        return {**known, "P": call.notes["attention"][0][0, 0].T, "c": self.units // self.heads}

    def seen(self, ops: Any, T: int) -> Array | None:
        """Which positions each one may look at: shape (batch or 1, 1, T or 1, T), or None for all."""
        t = ops.xp.arange(T)
        before = (t[:, None] >= t)[None, None] if self.causal else None
        if ops.lengths is None:
            return before
        real = (ops.mask(T) > 0)[:, None, None]
        return real if before is None else real & before

    def split(self, z: Array) -> Array:
        """(batch, T, units) as (batch, heads, T, c)."""
        return z.reshape(*z.shape[:2], self.heads, -1).swapaxes(1, 2)

    def merge(self, z: Array) -> Array:
        """(batch, heads, T, c) as (batch, T, units)."""
        return z.swapaxes(1, 2).reshape(z.shape[0], z.shape[2], self.units)
