"""Layers around a layer: keep it as it is, use it again, or charge for its weights."""

from __future__ import annotations

import operator
from typing import Any

from ..tree import is_buffer, leaves, map_leaves
from .base import Layer, ShapeError

__all__ = ["Frozen", "Penalty", "Repeat"]


class Wrapper(Layer):
    """A layer around one other; its parameters are child 0 of this one's."""

    layer: Layer

    @property
    def children(self):
        return (self.layer,)

    def build(self, rng, shape):
        try:
            p, out = self.layer.build(rng, shape)
        except ShapeError as error:
            error.path.insert(0, self.layer.name or "0")
            raise
        return (p,), out

    def check_input(self, x):
        self.layer.check_input(x)

    def forward(self, ops, p, x):
        return ops.forward(self.layer, p[0], x, 0)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        dx, grads = ops.backward(self.layer, p[0], cache, dy, 0, wrt_input)
        return dx, (grads,)


class Frozen(Wrapper):
    """A layer as it is: nothing in it is learned, running statistics stand still, dropout is off.

    Forward   y = layer(x), as when not training
    Backward  dx is the layer's;   no gradients
    """

    def build(self, rng, shape):
        (p,), out = super().build(rng, shape)
        return {"_frozen": p}, out

    def forward(self, ops, p, x):
        training, ops.training = ops.training, False
        try:
            return ops.forward(self.layer, p["_frozen"], x, "_frozen")
        finally:
            ops.training = training

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return (ops.backward(self.layer, p["_frozen"], cache, dy, "_frozen")[0] if wrt_input else None), {}

    def formulas(self):
        return ["as when not training; nothing in it is learned"], []


class Repeat(Wrapper):
    """The same layer `times` times over, with the same weights.

    Forward   x₁ = layer(x),   x₂ = layer(x₁),   …
    Backward  the flow passes through the copies in reverse order, and their gradients are summed

    Dropout in it drops the same entries each time, and running statistics are those of the last time.
    """

    times: int

    def check(self):
        self.require(self.times >= 1, "times", "at least 1")

    def build(self, rng, shape):
        p, out = super().build(rng, shape)
        if out != shape:
            raise ShapeError(self, f"a layer that gives {shape} again", out, "Its output is its next input.")
        return p, out

    def forward(self, ops, p, x):
        caches = []
        for _ in range(self.times):
            x, cache = super().forward(ops, p, x)
            caches.append(cache)
        return x, caches

    def backward(self, ops, p, caches, dy, wrt_input=True):
        total: Any = None
        for i in reversed(range(self.times)):
            dy, grads = super().backward(ops, p, caches[i], dy, wrt_input or i > 0)
            total = grads if total is None else map_leaves(operator.add, total, grads)
        return dy, total


class Penalty(Wrapper):
    """Adds a charge for large weights to the training loss.

    Forward   y = layer(x),   L ← L + l1 Σ|w| + l2/2 Σw²
    Backward  the layer's;    ∂L/∂w ← ∂L/∂w + l1 sign w + l2 w in the training step

    The sums run over the weights of the layer (and of the layers in it): all learned arrays with two or more
    axes, so not over biases. The loss is a mean over rows, so the charge does not depend on the batch size.
    It is part of the training loss; validation and `evaluate` report the loss without it.

    Examples
    --------
    >>> from pellucid import Linear
    >>> Penalty(Linear(8), l2=0.01)
    Penalty(Linear(8), l2=0.01)
    """

    l1: float = 0.0
    l2: float = 0.0

    def check(self):
        self.require(self.l1 >= 0, "l1", "at least 0")
        self.require(self.l2 >= 0, "l2", "at least 0")

    def forward(self, ops, p, x):
        if ops.training:
            for path, w in leaves(p):
                if w.ndim > 1 and not is_buffer(path):
                    value = self.l1 * ops.xp.abs(w).sum() + 0.5 * self.l2 * (w * w).sum()
                    ops.charge(path, value, self.l1 * ops.xp.sign(w) + self.l2 * w)
        return super().forward(ops, p, x)

    def formulas(self):
        return ["L ← L + l1 Σ|w| + l2/2 Σw²"], ["∂L/∂w ← ∂L/∂w + l1 sign w + l2 w"]
