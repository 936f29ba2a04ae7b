"""A layer repeated many times with the same weights as a loop: written out, 64 times take half a minute to compile on a CPU."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import numpy as np

from ..layers.base import Layer
from ..layers.wrap import Repeat
from ..tree import map_leaves
from .jax_conv import on_cpu

__all__ = ["has_backward", "in_turns", "refuse_other_lengths", "run_blocks"]

# Times at most that are written out; of more, so many in each turn of a loop. A GPU takes several turns at once.
CPU, GPU = (16, 4), (64, 1)


class Again(Repeat):
    """A layer so many times over that they go in turns: the first few are written out, and the rest is a loop."""

    @functools.cached_property
    def parts(self) -> tuple[Repeat, Repeat, int]:
        """What comes before the loop, what is in it, and its turns."""
        each = limits()[1]
        turns = (self.times - 1) // each
        return Repeat(self.layer, self.times - each * turns), Repeat(self.layer, each), turns

    def forward(self, ops, p, x):
        """Where a loop does not do what they do one by one, they are written out. It is tried, with shapes in place of numbers."""

        def run(p: Any, x: Any) -> Any:
            new = type(ops)(training=ops.training, weight=ops.weight, lengths=ops.lengths)
            y, cache = self.loop(new, p, x)
            refuse_other_lengths(new, ops.lengths)
            return y, self.backward(new, p, cache, y) if ops.remembers else ()

        try:
            tried = has_backward(self.layer) and jax.eval_shape(run, p, x)
        except Exception:
            tried = False
        return self.loop(ops, p, x) if tried else super().forward(ops, p, x)

    def loop(self, ops, p, x):
        before, several, turns = self.parts
        x, first = before.forward(ops, p, x)
        y, caches, kept, charges = run_blocks(ops, lambda x, _: several.forward(ops, p, x), x, np.arange(turns))
        ops.kept.update((path, values[-1]) for path, values in kept.items())
        ops.charges.extend((path, gradients.sum(0)) for path, gradients in charges)
        return y, (first, caches)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        if isinstance(cache, list):
            return super().backward(ops, p, cache, dy, wrt_input)
        before, several, _ = self.parts
        first, caches = cache
        one = jax.tree.map(lambda a: a[0], caches)
        dx, grads = jax.eval_shape(lambda dy: several.backward(ops, p, one, dy), dy)

        def turn(carry: Any, caches: Any) -> Any:
            dx, grads = several.backward(ops, p, caches, carry[0])
            return (dx, map_leaves(operator.add, carry[1], grads)), None

        none = map_leaves(lambda g: ops.xp.zeros(g.shape, g.dtype), grads)
        (dy, total), _ = ops.scan(turn, (dy.astype(dx.dtype), none), caches, reverse=True)
        dx, grads = before.backward(ops, p, first, dy, wrt_input)
        return dx, map_leaves(operator.add, total, grads)


def in_turns(layer: Layer) -> Layer:
    """The layer as a program runs it."""
    return Again(layer.layer, layer.times, name=layer.name) if type(layer) is Repeat and layer.times > limits()[0] else layer


def limits() -> tuple[int, int]:
    return CPU if on_cpu() else GPU


def run_blocks(ops: Any, block: Any, x: Any, xs: Any) -> tuple[Any, Any, dict[Any, Any], list[Any]]:
    """``x, cache = block(x, one)`` for each of `xs`, in a loop.

    Returns the last x, the caches, and what was kept and charged for, each along a first axis; penalties are added up.
    """
    outer = ops.kept, ops.charges, ops.penalty
    paths: list[list[Any]] = [[], []]

    def one(x: Any, this: Any) -> Any:
        ops.kept, ops.charges, ops.penalty = {}, [], 0.0
        y, cache = block(x, this)
        paths[:] = [*ops.kept], [path for path, _ in ops.charges]
        charged = [gradient for _, gradient in ops.charges]
        return y, (cache if ops.remembers else (), [*ops.kept.values()], charged, ops.penalty if charged else ())

    y, (caches, kept, charged, penalty) = ops.loop(one, x, xs, reverse=False, by_rows=False)
    ops.kept, ops.charges, ops.penalty = outer
    ops.penalty += penalty.sum() if charged else 0.0
    return y, caches, dict(zip(paths[0], kept, strict=True)), list(zip(paths[1], charged, strict=True))


def refuse_other_lengths(ops: Any, lengths: Any) -> None:
    if any(n is not lengths for n in (*ops.entered.values(), ops.lengths)):
        raise ValueError("A layer that changes lengths cannot be in a loop.")


def has_backward(layer: Layer) -> bool:
    return type(layer).backward is not Layer.backward and all(map(has_backward, layer.children))
