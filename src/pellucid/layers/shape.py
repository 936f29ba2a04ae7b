"""Layers that rearrange, and dropout."""

from __future__ import annotations

import math
from typing import Any

from .base import Layer, Shape, ShapeError

__all__ = ["Dropout", "Flatten", "Reshape"]


def known_size(layer: Layer, shape: Shape) -> None:
    """Refuse sequences of any length where the length is needed."""
    if None in shape:
        raise ShapeError(
            layer, "rows of a fixed size", shape, "Give the length in input_shape, or let a recurrent layer with outputs='last' come first."
        )


class Reshape(Layer):
    """The same numbers in another shape (the batch axis stays).

    Forward   y = x as (batch, *shape)
    Backward  dx = dy in the shape of x

    One entry of `shape` may be −1: what is left over.
    """

    shape: tuple[int, ...]

    def build(self, rng, shape):
        known_size(self, shape)
        size, known = math.prod(shape), math.prod(n for n in self.shape if n != -1)
        new = tuple(size // max(known, 1) if n == -1 else n for n in self.shape)
        if math.prod(new) != size or min(new, default=1) < 1:
            raise ShapeError(self, f"{' × '.join(map(str, self.shape)) or '1'} numbers", f"{shape} with {size}")
        return {}, new

    def forward(self, ops, p, x):
        return x.reshape(x.shape[0], *self.shape), x.shape

    def backward(self, ops, p, shape, dy, wrt_input=True):
        return dy.reshape(shape), {}

    def formulas(self):
        return ["y[b,k] = x[b,k]"], ["dx[b,k] = dy[b,k]"]

    def quantities(self, call, inner):
        return in_order(call)


class Flatten(Layer):
    """All axes but the batch's made one.

    Forward   y = x as (batch, n)
    Backward  dx = dy in the shape of x
    """

    def build(self, rng, shape):
        known_size(self, shape)
        return {}, (math.prod(shape),)

    def forward(self, ops, p, x):
        return x.reshape(x.shape[0], math.prod(x.shape[1:])), x.shape

    def backward(self, ops, p, shape, dy, wrt_input=True):
        return dy.reshape(shape), {}

    def formulas(self):
        return ["y[b,k] = x[b,k]"], ["dx[b,k] = dy[b,k]"]

    def quantities(self, call, inner):
        return in_order(call)


class Dropout(Layer):
    """Sets each entry to zero with probability `rate` while training, and scales the others up.

    Forward   y = x ⊙ m,   m = 0 with probability rate, else 1/(1 − rate)
    Backward  dx = dy ⊙ m

    When not training, y = x. The mask depends on seed, step, place in the network and position alone,
    so both engines drop the same entries.
    """

    rate: float = 0.5

    def check(self):
        self.require(0 <= self.rate < 1, "rate", "at least 0 and less than 1")

    def forward(self, ops, p, x):
        if not ops.training or self.rate == 0:
            return x, None
        m = (ops.uniform(x.shape) >= self.rate).astype(x.dtype) * (1 / (1 - self.rate))
        return x * m, m

    def backward(self, ops, p, m, dy, wrt_input=True):
        return (dy if m is None else dy * m), {}

    def formulas(self):
        return ["y = m ⊙ x"], ["dx = m ⊙ dy"]

    def quantities(self, call, inner):
        kept = (call.y != 0) if call.dx is None else (call.y != 0) | (call.dx != 0)
        off = self.rate == 0 or (call.y == call.x).all()  # not training
        return {"m": (kept | off).reshape(-1, call.x.shape[-1]).T / (1 if off else 1 - self.rate)}


def in_order(call: Any) -> dict[str, Any]:
    """The arrays of a call with all entries of an example in one row."""
    return {name: a.reshape(len(a), -1) for name in ("x", "y", "dx", "dy") if (a := getattr(call, name)) is not None}
