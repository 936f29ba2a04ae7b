"""Long runs of equal blocks as one layer that scans over them: a deep network compiles as fast as a shallow one.

A fit stacks its state once, on the host, and `get` takes it apart. Inside the compiled program, joining and cutting
hundreds of arrays would take longer to compile than the layers that are saved.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import ShapeDtypeStruct

from ..layers.base import Layer
from ..layers.combine import Chain, Concat, Product, Sum
from ..optimizers import Optimizer
from ..settings import is_ours
from ..tree import at, leaves
from .again import has_backward, refuse_other_lengths, run_blocks
from .choose import DEEP, count, longest
from .jax_conv import on_cpu
from .late import equations, scan_apart

__all__ = ["apart", "is_stacked", "stack", "unwrapped"]

LEAST = 8  # blocks in a run
COMBINATORS = Chain, Concat, Product, Sum
# Operations that XLA takes apart on a CPU. What it has in between lies where another half's may lie, which would wait for it then.
HIDDEN = {"reduce_max", "reduce_min", "argmax", "argmin", "sort", "gather", "scatter-add", "cumsum"}


class Stack(Chain, init=False):
    """A chain, `times` times over; the parameters of all of them lie along the first axis of this one's."""

    times: int

    def __init__(self, *layers: Layer, times: int) -> None:
        object.__setattr__(self, "times", times)
        super().__init__(*layers)

    def forward(self, ops, p, x):
        """What blocks keep, charge and draw, each does at its own place in the network."""
        *parents, first = ops.path

        def places(path: list[Any]) -> list[Any]:
            inner, *rest = path[len(parents) + 1 :]
            return [[*parents, first + k * len(self.layers) + inner, *rest] for k in range(self.times)]

        def block(x: Any, one: Any) -> Any:
            running, p = one
            ops.places = lambda path: (places(path), running)
            return Chain.forward(self, ops, p, x)

        y, caches, kept, charges = run_blocks(ops, block, x, (np.arange(self.times), p))
        ops.places = None
        ops.kept.update(kept)
        ops.charges.extend(charges)
        return y, (caches, y.dtype)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        caches, dtype = cache
        return scan_apart(ops, lambda dy, one: Chain.backward(self, ops, one[0], one[1], dy), dy.astype(dtype), (p, caches), reverse=True)


class Gone(Layer):
    """Stands for a layer that is in a stack: so all others keep their places, and with them their random numbers."""

    def forward(self, ops, p, x):
        return x, None

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return dy, {}


@functools.partial(jax.tree_util.register_dataclass, data_fields=["tree"], meta_fields=["net", "rows"])
@dataclass
class Stacked:
    """Parameters, or the optimizer's memory of them, as `net` has them: the network with stacks in it.

    `rows` of a mini-batch go through it at once, beside others; 0 where all do.
    """

    tree: Any
    net: Any
    rows: int


def stack(Ops: Any, net: Layer, optimizer: Any, state: Any, batch: Any, rows: int = 0, aside: bool = False) -> Any:
    """The state, stacked where a chain holds a long run of equal blocks; `batch` are the shapes of a mini-batch.

    So many rows, if any, are to go through the network at once. With `aside` they are halves of a batch, which can go side by side through
    some stacks only: if there are none, all rows go at once.
    """
    if not optimizer.entrywise or type(optimizer).penalise is not Optimizer.penalise:
        return state  # it may look at whole arrays, or at places

    def stacked(many: int, aside: bool = False) -> Layer:
        if not repeats(net, state.params, many):
            return net
        params, tree = jax.tree.flatten(state.params)
        shapes = tuple(ShapeDtypeStruct(a.shape, a.dtype) for a in params)
        settings: Any = jax.config
        return with_stacks(Ops, net, tree, shapes, batch, many, aside, settings.jax_default_matmul_precision)

    new = stacked(0, aside) if rows and aside else net
    if new == net or written_out(new) > DEEP:
        new, rows = stacked(longest(state.params, not on_cpu())), 0 if aside else rows
    return state if new == net else state._replace(params=join(new, state.params, rows), slots=join(new, state.slots, rows))


def written_out(net: Layer) -> int:
    """How many layers the program of a network with stacks holds."""
    return 0 if type(net) is Gone else sum(map(written_out, net.children)) if net.children else count(net)


@functools.lru_cache(256)
def with_stacks(Ops: Any, net: Layer, tree: Any, shapes: tuple[Any, ...], batch: Any, many: int, aside: bool, precision: Any) -> Layer:
    """The network with stacks of so many layers and more in it; `aside`: of those that halves of a mini-batch can go through side by side.

    It depends on no more than this: later fits need not try again.
    """

    @functools.cache
    def output(kind: Any, x: Any) -> Any:
        def run(p: Any, x: Any, weight: Any, lengths: Any) -> Any:
            return Ops(training=True, weight=weight, lengths=lengths).forward(kind.layer, p, x, 0)[0]

        return jax.eval_shape(run, jax.tree.unflatten(kind.tree, kind.shapes), x, batch.weight, batch.lengths)

    @functools.cache
    def tried(block: Any, x: Any) -> Trial:
        return try_stack(Ops, block, x, batch)

    def stacks(block: Any, x: Any) -> bool:
        trial = tried(block, x)
        return trial.works and (trial.aside or not aside)

    def walk(net: Any, p: Any, x: Any) -> Any:
        if type(net) not in COMBINATORS:
            return net
        layers: list[Layer] = []
        kinds = kinds_of(net, p)
        runs = runs_of(kinds, many) if type(net) is Chain else [(0, 0)] * len(kinds)
        while (i := len(layers)) < len(kinds):
            width, times = runs[i]
            if times and stacks(block := tuple(kinds[i : i + width]), x):
                layers += [Stack(*(kind.layer for kind in block), times=times), *[Gone()] * (times * width - 1)]
            else:
                layers.append(walk(net.layers[i], p[i], x))
                x = output(kinds[i], x) if type(net) is Chain else x
        return type(net)(*layers, name=net.name)

    try:
        return walk(net, jax.tree.unflatten(tree, shapes), batch.x)
    except Exception:  # a mistake in a layer: training without stacks will say where
        return net


class Trial(NamedTuple):
    """Whether a stack of blocks does what they do one by one, and whether halves of a mini-batch can go through it side by side."""

    works: bool
    aside: bool = False


class Kind(NamedTuple):
    """What the layers in a stack have in common: all settings but the name of ours, and the shapes of their parameters."""

    layer: Layer
    tree: Any
    shapes: tuple[Any, ...]


def kinds_of(net: Any, params: Any) -> list[Kind]:
    kinds = []
    for layer, p in zip(net.layers, params, strict=True):
        arrays, tree = jax.tree.flatten(p)
        shapes = tuple(ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)
        kinds.append(Kind(layer.replace(name=None) if layer.name and is_ours(layer) else layer, tree, shapes))
    return kinds


def runs_of(kinds: list[Kind], many: int) -> list[tuple[int, int]]:
    """For every layer: of how many layers is the block that, over and over, goes furthest from there, and how many times.

    (0, 0) where these are fewer than `many` layers, or have no parameters.
    """
    numbers: dict[Kind, int] = {}
    codes = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds])
    best = [(0, 0)] * len(kinds)
    for width in range(1, len(kinds) // LEAST + 1):
        ends = np.append(np.flatnonzero(codes[width:] != codes[:-width]), len(kinds) - width)  # here a block is not the one before
        places = np.arange(ends[-1])
        times = 1 + (ends[np.searchsorted(ends, places)] - places) // width
        for i in np.flatnonzero(times >= LEAST):
            block, enough = kinds[i : i + width], times[i] * width > math.prod(best[i])
            if enough and any(kind.shapes for kind in block) and times[i] * sum(count(kind.layer) for kind in block) >= many:
                best[i] = width, int(times[i])
    return best


def repeats(net: Any, p: Any, many: int) -> bool:
    """Whether there is a run to try; this looks at settings and shapes alone."""
    if type(net) not in COMBINATORS:
        return False
    kinds = kinds_of(net, p) if type(net) is Chain and len(net.layers) >= LEAST else []
    return any(map(any, runs_of(kinds, many))) or any(repeats(layer, part, many) for layer, part in zip(net.layers, p, strict=True))


def try_stack(Ops: Any, block: tuple[Kind, ...], x: Any, batch: Any) -> Trial:
    """Try it, with shapes in place of numbers. A scan refuses what comes out in another shape or precision than it went in."""
    net = Stack(*(kind.layer for kind in block), times=2)
    p = tuple(jax.tree.unflatten(kind.tree, [ShapeDtypeStruct((2, *a.shape), a.dtype) for a in kind.shapes]) for kind in block)

    def run(p: Any, x: Any, weight: Any, lengths: Any) -> Any:
        ops = Ops(training=True, weight=weight, lengths=lengths)
        y, cache = ops.forward(net, p, x, 0)
        refuse_other_lengths(ops, lengths)
        _, grads = ops.backward(net, p, cache, y, 0)
        if any(value.shape != at(p, path).shape for path, value in (*leaves(grads), *ops.charges, *ops.kept.items())):
            raise ValueError("What has another shape than its parameter cannot be in a stack: it would be spread along another axis.")
        asked = Ops(weight=weight, lengths=lengths)
        asked.remembers = False
        return asked.forward(net, p, x, 0)[0]

    if not has_backward(net):
        return Trial(False)
    try:
        program = jax.make_jaxpr(run)(p, x, batch.weight, batch.lengths)
    except Exception:
        return Trial(False)
    return Trial(True, HIDDEN.isdisjoint(operations(program.eqns)))


def operations(all_of: Iterable[Any]) -> Iterator[str]:
    """The names of all operations, those in loops too."""
    for one in equations(all_of):
        yield from operations(one.params["jaxpr"].eqns) if one.primitive.name == "scan" else [one.primitive.name]


def join(net: Any, tree: Any, rows: int = 0) -> Stacked:
    """A tree of parameters, or of the optimizer's memory, as the network with stacks has it."""

    def walk(net: Any, tree: Any) -> Any:
        if type(net) not in COMBINATORS:
            return tree
        parts: list[Any] = []
        for i, layer in enumerate(net.layers):
            if type(layer) is Stack:
                width = len(layer.layers)
                blocks = [tree[j : j + width] for j in range(i, i + layer.times * width, width)]
                parts.append(jax.tree.map(lambda *arrays: jax.device_put(np.stack(arrays)), *blocks))
            else:
                parts.append({} if type(layer) is Gone else walk(layer, tree[i]))
        return tuple(parts)

    return Stacked(walk(net, tree), net, rows)


def split(net: Any, tree: Any) -> Any:
    """The opposite of `join`."""
    if type(net) not in COMBINATORS:
        return tree
    parts: list[Any] = []
    for layer, part in zip(net.layers, tree, strict=True):
        if type(layer) is Stack:
            for i in range(layer.times):
                parts += jax.tree.map(lambda a, i=i: a[i], part)
        elif type(layer) is not Gone:
            parts.append(split(layer, part))
    return tuple(parts)


def is_stacked(tree: Any) -> bool:
    return isinstance(tree, Stacked)


def unwrapped(net: Any, state: Any) -> tuple[Any, Any]:
    """The network and the state as a program computes with them."""
    if not is_stacked(state.params):
        return net, state
    return state.params.net, state._replace(params=state.params.tree, slots=state.slots.tree)


def apart(tree: Any) -> Any:
    """The tree with all that is stacked in it taken apart."""
    return jax.tree.map(lambda t: split(t.net, t.tree) if is_stacked(t) else t, tree, is_leaf=is_stacked)
