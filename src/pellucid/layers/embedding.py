"""Symbols as vectors, and their places in a sequence."""

from __future__ import annotations

import math

import numpy as np

from ..initializers import Glorot, Initializer
from .base import Layer, ShapeError

__all__ = ["Embedding", "Positions"]


class Embedding(Layer):
    """A learned vector for every symbol.

    Forward   y = W[id]: row id of W
    Backward  dW[id] = Σ dy over all places where id stands;   an id has no gradient

    X holds the ids 0, 1, … as numbers; every other number is refused. (float32 holds whole numbers exactly
    below 2²⁴, so there can be no more symbols than that.)

    Parameters
    ----------
    symbols : int
        Number of different ids.
    units : int
        Length of each vector.
    init : Initializer
        How W begins.

    Input (batch, …) of ids, output (batch, …, units).
    """

    symbols: int
    units: int
    init: Initializer = Glorot("normal")

    def check(self):
        self.require(1 <= self.symbols <= 2**24, "symbols", "between 1 and 2**24")
        self.require(self.units >= 1, "units", "at least 1")

    def build(self, rng, shape):
        return {"W": self.init(rng, (self.symbols, self.units), self.symbols, self.units)}, (*shape, self.units)

    def check_input(self, x):
        bad = (x != np.round(x)) | (x < 0) | (x >= self.symbols)
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ValueError(
                f"{self!r} expects ids that are whole numbers from 0 to {self.symbols - 1}, got {x[place]:g} at row {place[0]}"
                + (f", position {', '.join(map(str, place[1:]))}" if place[1:] else "")
                + ". Number the symbols 0, 1, … or give Embedding more of them."
            )

    def forward(self, ops, p, x):
        ids = ops.xp.round(x).astype(ops.xp.int32)
        there = (ids >= 0) & (ids < self.symbols)  # ids that other layers compute are not checked on the host: they show as nan
        ids = ids * there
        return ops.xp.where(there[..., None], ops.take(p["W"], ids), math.nan), (ids, x)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        ids, x = cache
        dW = ops.add_rows(dy.reshape(-1, self.units), ids.reshape(-1), self.symbols)
        return (ops.xp.zeros_like(x) if wrt_input else None), {"W": dW}

    def formulas(self):  # e: in each column a 1 at its id
        return ["y = W e"], ["dW = dy eᵀ"]

    def quantities(self, call, inner):
        return {"e": np.eye(self.symbols)[np.ravel(call.x).astype(int)].T}


class Positions(Layer):
    """Adds waves that tell a position from the others (Vaswani et al., 2017).

    Forward   y = x + s,   s[t, 2i] = sin(t / base^(2i/n)),   s[t, 2i + 1] = cos(t / base^(2i/n))
    Backward  dx = dy

    Input and output (batch, T, n).
    """

    base: float = 10000.0

    def check(self):
        self.require(self.base > 0, "base", "positive")

    def build(self, rng, shape):
        if len(shape) != 2:
            raise ShapeError(self, "(batch, T, n)", f"(batch, {', '.join(map(str, shape))})", "Positions are those of a sequence.")
        return {}, shape

    def forward(self, ops, p, x):
        return x + ops.xp.asarray(self.waves(*x.shape[1:]), dtype=x.dtype), None

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return dy, {}

    def formulas(self):  # s: the waves
        return ["y = x + s"], ["dx = dy"]

    def quantities(self, call, inner):
        return {"s": self.waves(*call.x.shape[1:]).T[:, None].repeat(len(call.x), 1).reshape(call.x.shape[-1], -1)}

    def waves(self, T: int, n: int) -> np.ndarray:
        angle = np.arange(T)[:, None] / self.base ** (2 * (np.arange(n) // 2) / n)
        return np.where(np.arange(n) % 2, np.cos(angle), np.sin(angle))
