"""The NumPy engine: one step after the other, every number there to be looked at."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..layers.activations import ReLU
from ..layers.base import Layer
from ..layers.combine import Chain
from ..layers.linear import Linear
from ..layers.recurrent import is_recurrent
from ..training.step import Batch, all_finite, evaluation_step, gradients, training_step
from ..tree import at, is_buffer, leaves, map_leaves, with_parts
from . import cores, numpy_conv
from .ops import Ops

__all__ = ["NumpyOps"]

name = "numpy"
waits = False  # it computes itself
fills = False  # plans up to a fixed length: nothing is compiled for it
JOINED = 8  # steps of a chunk: with fewer, making one vector of all parameters takes longer than it saves


class NumpyOps(Ops):
    """Operations on NumPy arrays."""

    xp = np

    def erf(self, x):
        from scipy.special import erf

        return erf(x)

    def take(self, x, rows):
        return np.take(x, rows, axis=0)

    def loop(self, function, carry, xs, reverse, by_rows):
        steps = next(len(a) for _, a in leaves(xs) if a is not None)
        ys: list[Any] = [None] * steps
        for t in reversed(range(steps)) if reverse else range(steps):
            carry, ys[t] = function(carry, map_leaves(lambda a, t=t: a if a is None else a[t], xs))
        return carry, map_leaves(lambda *y: None if y[0] is None else np.stack(y), *ys)

    def add_rows(self, values, rows, count):
        from scipy.sparse import csr_array

        n = len(rows)
        if n and not 0 <= rows.min() <= rows.max() < count:  # SciPy does not look, and would write beyond the array
            raise IndexError(f"add_rows: rows must be from 0 to {count - 1}, got {rows.min()} to {rows.max()}.")
        return csr_array((np.ones(n, values.dtype), rows, np.arange(n + 1)), shape=(n, count)).T @ values  # (count, n) @ (n, …)

    conv = staticmethod(numpy_conv.conv)
    conv_input_gradient = staticmethod(numpy_conv.conv_input_gradient)
    conv_weight_gradient = staticmethod(numpy_conv.conv_weight_gradient)
    overlap_add = staticmethod(numpy_conv.overlap_add)


class Predicting(NumpyOps):
    """A forward pass that nobody goes back: in a chain, a ReLU writes over the output of the Linear layer just before it.

    Any other layer that calls the two may go on to use that output; then it stays as it is.
    """

    remembers = False
    around: Any = None  # the layer that calls others
    fresh: Any = None  # what a Linear layer gave to the ReLU that a chain calls next

    def forward(self, layer, p, x, key):
        if type(layer) is ReLU and x is self.fresh:
            return np.maximum(x, 0, out=x), None
        around, self.around, self.fresh = self.around, layer, None
        y, cache = super().forward(layer, p, x, key)
        self.around = around
        self.fresh = y if type(layer) is Linear and type(around) is Chain else None
        return y, cache


def precision(dtype: Any, products: str | None = None) -> Any:
    """NumPy computes in the precision of its arrays."""
    return contextlib.nullcontext()


def put(tree: Any) -> Any:
    """Hand data to the engine: nothing to do."""
    return tree


get = put


def settle(tree: Any) -> None:
    """Wait until data are where they were put: they are."""


def room() -> float:
    """Bytes of memory on the device: data lie where they are."""
    return np.inf


def stack(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, size: int) -> Any:
    """The state as `train` takes it: as it is."""
    return state


def train(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, plan: Any) -> tuple[Any, np.ndarray, bool]:
    """Run the plan's training steps; returns the new state, one row of sums per step, and whether all is finite."""
    keep_freed_memory()
    rows_of_sums = []
    joined = Joined(optimizer, state) if plan.count >= JOINED and is_joined(optimizer, state.params) else None
    with np.errstate(all="ignore"):  # values that are not finite are found and explained by the loop
        for rows, size, rate in zip(plan.rows[: plan.count], plan.sizes, plan.rates, strict=False):
            batch = gather(data, rows[:size])
            state, row = training_step(NumpyOps, net, loss, joined or optimizer, state, batch, rate)
            rows_of_sums.append(row)
        state = joined.end(state) if joined else state
        sums = np.array(rows_of_sums)
        return state, sums, all_finite(np, sums, state.params)


class Joined:
    """An optimizer to which all that is learned is one vector: an operation of its rule is one call, not one for every array.

    The network's arrays are parts of that vector, and change with it.
    """

    def __init__(self, optimizer: Any, state: Any) -> None:
        self.optimizer, self.penalise, self.slots = optimizer, optimizer.penalise, state.slots
        self.vector: Any = None

    def update(self, ops: Any, params: Any, grads: Any, slots: Any, numbers: Any, rate: Any, step: Any) -> tuple[Any, Any]:
        learned = dict(leaves(grads))
        if not learned:
            return params, slots
        if self.vector is None:
            self.shapes = {path: g.shape for path, g in learned.items()}
            self.vector = join(at(params, path) for path in learned)
            params = with_parts(params, self.parts(self.vector))
            slots = tuple(map(join, zip(*(at(slots, path) for path in learned), strict=True)))
        (new,), (slots,) = self.optimizer.update(ops, (self.vector,), (join(learned.values()),), (slots,), numbers, rate, step)
        self.vector[...] = new
        return params, slots

    def parts(self, vector: np.ndarray) -> dict[tuple[str | int, ...], np.ndarray]:
        """The vector's share of every array."""
        shares = np.split(vector, np.cumsum([math.prod(shape) for shape in self.shapes.values()])[:-1])
        return {path: share.reshape(shape) for (path, shape), share in zip(self.shapes.items(), shares, strict=True)}

    def end(self, state: Any) -> Any:
        """The state as everybody else knows it."""
        if self.vector is None:
            return state
        memory = [self.parts(vector) for vector in state.slots]
        return state._replace(slots=with_parts(self.slots, {path: tuple(m[path] for m in memory) for path in self.shapes}))


def join(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """All entries, one after the other."""
    return np.concatenate([a.ravel() for a in arrays])


def is_joined(optimizer: Any, params: Any) -> bool:
    """Whether a rule is faster on one vector: where it calls NumPy often, and calling takes longer than computing.

    Measured with 2 to 6 arrays: Adam on 30-64-64-4 takes 143 µs a step instead of 172, on 100-256-256-10 as long as before.
    """
    learned = [a for path, a in leaves(params) if not is_buffer(path)]
    small = sum(a.nbytes for a in learned) <= 2**17 and len({a.dtype for a in learned}) == 1
    return small and optimizer.entrywise and optimizer.memory > 1 and not optimizer.clip_norm  # a norm is that of all arrays


@functools.cache  # once in a process: the threshold never falls again, and more free memory at the heap's end is given back
def keep_freed_memory() -> None:
    """Let the C library hand out the memory of freed arrays again instead of returning it to the system.

    Every step makes and drops arrays as large as the parameters. glibc returns blocks above a threshold to the
    system, and every fresh page costs a page fault (Adam on 784-512-256-10: up to 1,200 a step). The threshold grows
    to the largest block ever freed, 32 MiB at most, so one untouched block of that size, made and dropped, ends this.
    """
    np.empty(2**25 - 2**16, np.uint8)


@contextlib.contextmanager
def one_blas_thread(wanted: bool = True) -> Iterator[None]:
    """A context in which NumPy's products wake no second thread: it goes on spinning and takes a core from whoever else computes.

    The limit holds for the process: the first one in sets it, the last one out takes it back.
    """
    if not wanted:
        yield
        return
    with LIMIT.lock:
        if LIMIT.users == 0:
            LIMIT.held = blas().limit(limits=1, user_api="blas")
        LIMIT.users += 1
    try:
        yield
    finally:
        with LIMIT.lock:
            LIMIT.users -= 1
            if LIMIT.users == 0:
                LIMIT.held.restore_original_limits()


LIMIT = SimpleNamespace(lock=threading.Lock(), users=0, held=None)
MOST = 8  # blocks at a time: each takes memory


def is_shared(net: Layer, x: Any) -> bool:
    """Whether blocks of the rows x are worth a thread each: of images and sequences, where products, which BLAS shares out, are not all."""
    return x.ndim > 2 or is_recurrent(net)


def of_blocks(net: Layer, x: Any, function: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """The function of every item, each of which stands for a block of the rows x; on several cores where that is worth it.

    Only for the main thread: others are several themselves, and the limit on BLAS is no matter of theirs alone.
    """
    threads = min(cores(), len(items), MOST) if threading.current_thread() is threading.main_thread() else 1
    if threads == 1 or not is_shared(net, x):
        return list(map(function, items))
    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


@functools.cache
def blas() -> Any:
    """The libraries that NumPy's products run in; finding them takes a moment."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def evaluate(net: Any, loss: Any, params: Any, data: Batch, plan: Any) -> np.ndarray:
    """Run the plan's batches forward; returns one row of sums per batch."""

    def batch(i: int) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            return evaluation_step(Predicting, net, loss, params, gather(data, plan.rows[i, : plan.sizes[i]]))

    return np.array(of_blocks(net, data.x, batch, list(range(plan.count))))


def gather(data: Batch, rows: np.ndarray) -> Batch:
    """The rows of a mini-batch."""
    return Batch(*(a if a is None else a.take(rows, axis=0) for a in data))


def forward(net: Any, params: Any, x: np.ndarray, weight: Any = None, lengths: Any = None) -> np.ndarray:
    """The network's output."""
    keep_freed_memory()
    with np.errstate(all="ignore"):
        return Predicting(weight=weight, lengths=lengths).forward(net, params, x, "net")[0]


def value_and_gradients(net: Any, loss: Any, params: Any, batch: Batch, seed: Any) -> tuple[Any, Any]:
    """Mean loss over all rows and its gradients."""
    ops = NumpyOps(training=True, seed=seed, weight=batch.weight, lengths=batch.lengths)
    g = gradients(ops, net, loss, params, batch)
    return g.loss, g.params
