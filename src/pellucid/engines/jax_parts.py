"""Training steps on several cores: parts of a mini-batch go through a recurrent network side by side.

XLA shares out the work of one large operation. A recurrent layer is hundreds of small ones, each waiting for the one
before it, which keep a single core busy. But rows do not wait for each other: here a mini-batch is cut into parts, each core
takes some of them forward and backward, and a step ends with the sum of their gradients. Programs that one thread starts
run one after the other, so each core has a thread that starts its own; none of them waits, results are handed on before they are there.

How a batch is cut depends on shapes alone: on any number of cores, and in a population, the same numbers are added up in
the same order.
"""

from __future__ import annotations

import functools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..layers.base import Layer
from ..layers.normalise import BatchNorm
from ..layers.recurrent import Recurrent
from ..optimizers import Optimizer
from ..settings import is_ours
from ..training.step import Batch, gradients, sums, updated
from . import LOCAL, cores, started
from . import jax as engine
from .choose import predict_work
from .stack import is_stacked, unwrapped

__all__ = ["can_be_cut", "rows_of_part", "train"]


def rows_of_part(net: Layer, loss: Any, optimizer: Any, params: Any, data: Batch, size: int) -> int:
    """How many rows of a batch of `size` each part has; 0 where it is not cut."""
    if not can_be_cut(net, loss, optimizer):
        return 0
    parts = predict_work(net, params, size, data).parts
    return math.ceil(size / parts) if parts > 1 else 0


def can_be_cut(net: Layer, loss: Any, optimizer: Any) -> bool:
    """Whether the gradients of a batch are known to be those of its parts, added up."""
    plain = type(optimizer).penalise is Optimizer.penalise or is_ours(optimizer)
    return plain and is_ours(loss) and is_by_rows(net)


@functools.lru_cache(256)
def is_by_rows(net: Layer) -> bool:
    """Whether it is known that every row goes through the network by itself: of a user's own layer it is not."""
    if isinstance(net, Recurrent):  # also a user's own that has but a cell: a cell takes every row by itself
        return not net.streams and (type(net).forward, type(net).backward) == (Recurrent.forward, Recurrent.backward)
    return is_ours(net) and not isinstance(net, BatchNorm) and all(map(is_by_rows, net.children))


def train(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, plan: Any, rows: int) -> tuple[Any, Any]:
    """As the engine's `train`, with `rows` rows in a part; whether all is finite, nobody has looked."""
    context = functools.partial(engine.precision, data.weight.dtype, engine.settings.jax_default_matmul_precision)
    sizes, table = np.asarray(plan.sizes), jnp.zeros((len(plan.rows), 2 + len(loss.scores)), data.weight.dtype)
    lanes = starters() if LOCAL.fits == 1 else []  # one of many fits has a core already

    def one(state: Any, i: int, k: int) -> Any:
        with context():
            return part(net, loss, rows, state.params, state.seed, state.step, data, plan, np.array([i, k], np.int32))

    for i in range(int(plan.count)):
        places = range(math.ceil(int(sizes[i]) / rows))
        shares = [started(lanes[k % len(lanes)], one, state, i, k) for k in places] if lanes else []
        parts = [share.result() for share in shares] or [one(state, i, k) for k in places]
        state, table = joined(optimizer, state, parts, data._replace(x=None, target=None), plan, np.int32(i), table)
    return state, table


@functools.cache
def starters() -> list[ThreadPoolExecutor]:
    """A thread for every core that starts its programs."""
    return [ThreadPoolExecutor(1, "pellucid-part") for _ in range(cores())]


@functools.partial(jax.jit, static_argnames=("net", "loss", "rows"))
def part(net: Any, loss: Any, rows: int, params: Any, seed: Any, step: Any, data: Batch, plan: Any, place: Any) -> tuple[Any, Any]:
    """The mean gradients of one part of a mini-batch, and its row of sums. Its place: which step, which part."""
    i, k = place
    net, params = (params.net, params.tree) if is_stacked(params) else (net, params)
    return mean_gradients(engine.JaxOps(seed=seed, step=step), net, loss, params, engine.batch_of(data, plan, i, k * rows, rows), k * rows)


def mean_gradients(ops: Any, net: Any, loss: Any, params: Any, batch: Batch, first: Any) -> tuple[Any, Any]:
    """The mean gradients of rows of a mini-batch, of which the `first` is at that place, and their row of sums."""
    ops.training, ops.weight, ops.lengths, ops.first = True, batch.weight, batch.lengths, first
    g = gradients(ops, net, loss, params, batch)
    row = jnp.stack(sums(ops, loss, g.loss * g.weight.sum(), g.weight, g.y, batch.target))
    there = row[0] > 0  # rows too short for a strided layer have no position with a weight, and no mean
    return jax.tree.map(lambda a: jnp.where(there, a, 0), g.params), jnp.where(there, row, 0)


@functools.partial(jax.jit, static_argnames=("optimizer",))
def joined(optimizer: Any, state: Any, parts: list[Any], data: Batch, plan: Any, i: Any, table: Any) -> tuple[Any, Any]:
    """The update that ends a step, from the gradients of all parts and the weights of all rows."""
    form, (_, state) = jax.tree.structure(state), unwrapped(None, state)
    row = sum(row for _, row in parts)
    shares = [one[0] / row[0] for _, one in parts]
    grads = jax.tree.map(lambda *g: sum(a * share for a, share in zip(g, shares, strict=True)), *(g for g, _ in parts))
    batch = engine.batch_of(data, plan, i)
    ops = engine.JaxOps(training=True, seed=state.seed, step=state.step, weight=batch.weight, lengths=batch.lengths)
    state, value = updated(ops, optimizer, state, row[1] / row[0], grads, plan.rates[i])
    table = lax.dynamic_update_index_in_dim(table, row.at[1].set(value * row[0]), i, 0)
    return jax.tree.unflatten(form, jax.tree.leaves(state)), table
