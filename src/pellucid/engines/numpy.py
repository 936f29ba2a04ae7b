"""The NumPy engine: one step after the other, every number there to be looked at."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np

from ..layers.activations import ReLU
from ..layers.linear import Linear
from ..training.step import Batch, all_finite, evaluation_step, gradients, training_step
from ..tree import leaves, map_leaves
from . import numpy_conv
from .ops import Ops

__all__ = ["NumpyOps"]

name = "numpy"
waits = False  # it computes itself
fills = False  # plans up to a fixed length: nothing is compiled for it


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
    """A forward pass that nobody goes back: a ReLU writes over the output of the Linear layer called just before it.

    Any other call in between means that somebody else may see that output, too; then it stays as it is.
    """

    fresh: Any = None

    def forward(self, layer, p, x, key):
        if type(layer) is ReLU and x is self.fresh:
            return np.maximum(x, 0, out=x), None
        self.fresh = None
        y, cache = super().forward(layer, p, x, key)
        self.fresh = y if type(layer) is Linear else None
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


def stack(net: Any, optimizer: Any, state: Any, data: Batch, size: int) -> Any:
    """The state as `train` takes it: as it is."""
    return state


def train(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, plan: Any) -> tuple[Any, np.ndarray, bool]:
    """Run the plan's training steps; returns the new state, one row of sums per step, and whether all is finite."""
    keep_freed_memory()
    rows_of_sums = []
    with np.errstate(all="ignore"):  # values that are not finite are found and explained by the loop
        for rows, size, rate in zip(plan.rows[: plan.count], plan.sizes, plan.rates, strict=False):
            batch = gather(data, rows[:size])
            state, row = training_step(NumpyOps, net, loss, optimizer, state, batch, rate)
            rows_of_sums.append(row)
        sums = np.array(rows_of_sums)
        return state, sums, all_finite(np, sums, state.params)


@functools.cache  # once in a process: the threshold never falls again, and more free memory at the heap's end is given back
def keep_freed_memory() -> None:
    """Let the C library hand out the memory of freed arrays again instead of returning it to the system.

    Every step makes and drops arrays as large as the parameters. glibc returns blocks above a threshold to the
    system, and every fresh page costs a page fault (Adam on 784-512-256-10: up to 1,200 a step). The threshold grows
    to the largest block ever freed, 32 MiB at most, so one untouched block of that size, made and dropped, ends this.
    """
    np.empty(2**25 - 2**16, np.uint8)


def one_blas_thread() -> Any:
    """A context in which NumPy's products wake no second thread: it goes on spinning and takes a core from whoever else computes."""
    return blas().limit(limits=1, user_api="blas")


@functools.cache
def blas() -> Any:
    """The libraries that NumPy's products run in; finding them takes a moment."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def evaluate(net: Any, loss: Any, params: Any, data: Batch, plan: Any) -> np.ndarray:
    """Run the plan's batches forward; returns one row of sums per batch."""
    with np.errstate(all="ignore"):
        return np.array(
            [
                evaluation_step(NumpyOps, net, loss, params, gather(data, rows[:size]))
                for rows, size in zip(plan.rows[: plan.count], plan.sizes, strict=False)
            ]
        )


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
