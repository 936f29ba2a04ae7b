"""The JAX engine: hundreds of training steps as one compiled program."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from ..layers.base import Layer
from ..layers.recurrent import is_recurrent
from ..training.step import Batch, Plan, State, all_finite, evaluation_step, gradients, training_step
from . import jax_conv, jax_parts
from . import stack as stacks
from .again import in_turns
from .choose import convolves, count, rows_of_half, starts_apart
from .jax_conv import on_cpu
from .jax_kernel import scan_rows
from .jax_whole import refused, run_steps, with_kernels
from .ops import Ops
from .programs import KNOWN, kept
from .stack import apart, is_stacked, unwrapped

__all__ = ["JaxOps"]

name = "jax"
waits = True  # for a device, which work can be prepared for meanwhile
fills = True  # plans up to a length that follows from shapes alone: one program serves fits of any number of epochs
settings: Any = jax.config


def options() -> dict[str, Any] | None:
    """What XLA is told when it compiles a training chunk, if it knows these words; one that has not been tried is asked.

    On CPU it would copy weights that are read by the backward pass before they are updated, in every step.
    """
    wanted = {"xla_cpu_copy_insertion_use_region_analysis": True}
    try:
        known = on_cpu() and (KNOWN or jax.jit(lambda x: x, compiler_options=wanted).lower(0.0).compile())
        return wanted if known else None
    except jax.errors.JaxRuntimeError:  # it does not
        return None


OPTIONS = options()

# On a GPU: training steps in a loop of fixed length; in one turn of it, if there are so many of so few layers; steps of a scan in one turn
BLOCK, UNROLL, MANY, FEW, SCAN = 32, 4, 256, 8, 16
LARGE = 512  # rows and columns of a large matrix


class JaxOps(Ops):
    """Operations on JAX arrays."""

    xp = jnp
    derived = False  # whether JAX derives what is computed here

    def forward(self, layer, p, x, key):
        p, x = halved(layer := in_turns(layer), p, x)
        if type(layer).backward is not Layer.backward:
            return super().forward(layer, p, x, key)
        run, outer, self.derived = super().forward, self.derived, True  # a user's layer without backward: JAX derives it
        try:
            return jax.vjp(lambda p, x: run(layer, p, x, key)[0], p, x)
        finally:
            self.derived = outer

    def backward(self, layer, p, cache, dy, key, wrt_input=True):
        if type(layer).backward is Layer.backward:
            grads, dx = cache(dy)
            return dx, grads
        low, dy = halved(layer := in_turns(layer), p, dy)
        dx, grads = super().backward(layer, low, cache, dy, key, wrt_input)
        return dx, grads if low is p else {name: g.astype(p[name].dtype) for name, g in grads.items()}

    def matmul(self, a, b):
        return in_rows(held(a) @ b) if matrix_units_wait(a, b.shape) else a @ b

    def crossprod(self, a, b):
        """Measured on CPU in a loop, with 1 to 50,000 rows, 3 to 1,568 columns of a and 3 to 1,024 of b.

        XLA's product of a transposed matrix is slow there where b has few columns (128 rows, 256 and 10 columns: 53 µs, this
        way 7) or there is little work (64 rows, 256 and 64 columns: 37 µs, with a transposed first 25).
        """
        (rows, n), m = a.shape, b.shape[1]
        if on_cpu():
            if is_narrow(n, m):
                return lax.optimization_barrier(held(b.T) @ a).T
            return (held(a.T) if rows * n * m <= 1.3e6 else a.T) @ b
        return in_rows(held(a.T) @ held(b.T).T) if matrix_units_wait(a.T, b.shape) else a.T @ b

    def transposed(self, a):
        return held(a.T)

    def erf(self, x):
        return jax.scipy.special.erf(x)

    def take(self, x, rows):
        return jnp.take(x, rows, axis=0, mode="clip")

    def loop(self, function, carry, xs, reverse, by_rows):
        if by_rows and not (on_cpu() or self.derived) and (found := scan_rows(function, carry, xs, reverse)):
            return found
        steps = len(jax.tree.leaves(xs)[0])  # four turns at least: XLA writes a single one out, and takes four times as long for it
        return lax.scan(function, carry, xs, reverse=reverse, unroll=1 if on_cpu() else max(1, min(SCAN, steps // 4)))

    def add_rows(self, values, rows, count):
        return jnp.zeros((count, *values.shape[1:]), values.dtype).at[rows].add(values)

    conv = staticmethod(jax_conv.conv)
    conv_input_gradient = staticmethod(jax_conv.conv_input_gradient)
    conv_weight_gradient = staticmethod(jax_conv.conv_weight_gradient)
    overlap_add = staticmethod(jax_conv.overlap_add)


class Predicting(JaxOps):
    """A forward pass that nobody goes back."""

    remembers = False


@contextlib.contextmanager
def precision(dtype: Any, products: str | None = None) -> Iterator[None]:
    """A context in which arrays of `dtype` keep their precision; `products` is that of matrix products (None: as the device likes)."""
    with jax.enable_x64(np.dtype(dtype) == np.float64), jax.default_matmul_precision(products):
        yield


def halved(layer: Layer, p: Any, x: Any) -> tuple[Any, Any]:
    """Parameters and input (or flow) as the layer computes: where bfloat16 is asked for, in it or in full precision."""
    if layer.children or settings.jax_default_matmul_precision != "bfloat16":
        return p, x
    if layer.half:
        return jax.tree.map(lambda a: a.astype(jnp.bfloat16), (p, x))
    return p, x.astype(jnp.result_type(*p.values())) if p else x


def matrix_units_wait(a: Any, shape: tuple[int, ...]) -> bool:
    """Whether a product is one of large float32 matrices on a GPU, which computes it in TF32.

    Its matrix units take those faster where the axis that is summed over has no gaps in memory: on an H200, xᵀ dz of 1,024
    rows, 4096 × 4096, takes 87 µs instead of 136.
    """
    fast = settings.jax_default_matmul_precision in (None, "tensorfloat32") and a.dtype == jnp.float32
    return fast and not on_cpu() and a.ndim == 2 and min(*a.shape, *shape) >= LARGE


def in_rows(a: Any) -> Any:
    """The matrix, row after row in memory, where a program is being made."""
    return with_layout_constraint(a, Layout(major_to_minor=(0, 1))) if isinstance(a, jax.core.Tracer) else a


def is_narrow(*shape: int) -> bool:
    """Whether a matrix of weights has so few columns that XLA's CPU works faster on its rows, turned round."""
    return len(shape) == 2 and shape[1] <= 32 and 2 * shape[1] <= shape[0]


def held(a: Any) -> Any:
    """The matrix, row after row in memory, as an array of its own: XLA would fold a mere transposition into the product."""
    return lax.optimization_barrier(in_rows(a))


def put(tree: Any) -> Any:
    """Copy data to the device. On a CPU a plan or a state stays as it is: the program takes it faster than it would get there."""
    if not isinstance(tree, Plan | State):
        return jax.device_put(tree)
    tree = jax.tree.map(lambda a: np.asarray(a, a.dtype.newbyteorder("=")), tree)  # programs and GPUs know no other order
    return tree if on_cpu() else jax.device_put(tree)


def settle(tree: Any) -> None:
    """Wait until data are where they were put."""
    jax.block_until_ready(tree)


def room() -> float:
    """Bytes of memory on the device; a CPU's has no limit of its own."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)


def get(tree: Any) -> Any:
    """Copy data back to the host, in its usual form."""
    return apart(jax.tree.map(np.array, tree if on_cpu() else jax.device_get(tree)))


def stack(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, size: int) -> Any:
    """The state as `train` takes it for batches of `size` rows of the data: long runs of equal blocks are stacked (see stack.py)."""
    rows = rows_of_part(net, loss, optimizer, state.params, data, size)
    dense = not (is_recurrent(net) or convolves(net))
    aside = on_cpu() and not rows and dense and jax_parts.can_be_cut(net, loss, optimizer)
    rows = rows_of_half(net, state.params, size, data) if aside else rows
    batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct((size, *a.shape[1:]), a.dtype), data)
    return stacks.stack(JaxOps, net, optimizer, state, batch, rows, aside)


def rows_of_part(net: Any, loss: Any, optimizer: Any, params: Any, data: Batch, size: int) -> int:
    """How many rows of a batch of `size` go through the network at once, beside others; 0 where all do."""
    return jax_parts.rows_of_part(net, loss, optimizer, params, data, size) if on_cpu() else 0


def batch_of(data: Batch, plan: Any, i: Any, first: Any = 0, size: int | None = None, known: Batch | None = None) -> Batch:
    """The i-th mini-batch of the plan, or `size` rows of it from the `first` on; rows that it does not have get weight zero."""
    rows = lax.dynamic_index_in_dim(plan.rows, i, keepdims=False)
    places = jnp.arange(size or rows.shape[0], dtype=jnp.int32)
    if size is not None:
        places = places + first
        rows = jnp.take(rows, places, mode="clip")
    batch: Batch = jax.tree.map(lambda a: jnp.take(a, rows, axis=0, mode="clip"), data)
    if known is None:
        return batch._replace(weight=jnp.where(places < plan.sizes[i], batch.weight, 0))
    if known.target is None:
        batch = batch._replace(target=lax.optimization_barrier(batch.target))  # or every kernel that needs it gathers it again
    there = (None if a is None else lax.dynamic_index_in_dim(a, i, keepdims=False) for a in known)
    return Batch(*(own if one is None else one for own, one in zip(batch, there, strict=True)))


def known_before(data: Batch, plan: Any) -> Batch | None:
    """Of what rows have one number (a weight, a class, a length): all the plan's mini-batches. On a GPU that saves kernels in each step."""
    if on_cpu():
        return None
    there = jnp.arange(plan.rows.shape[1], dtype=jnp.int32) < plan.sizes[:, None]
    known: Batch = jax.tree.map(lambda a: jnp.take(a, plan.rows, axis=0, mode="clip") if a.ndim == 1 else None, data)
    return known._replace(weight=jnp.where(there, known.weight, 0))


def train(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, plan: Any) -> tuple[Any, Any, Any]:
    """Run the plan's training steps; returns the new state, one row of sums per step, and whether all is finite."""
    params, finite = state.params, None
    rows = params.rows if is_stacked(params) else rows_of_part(net, loss, optimizer, params, data, plan.rows.shape[1])
    if not rows and on_cpu() and is_stacked(params):
        from . import jax_loop

        state, sums = jax_loop.train(net, loss, optimizer, state, data, plan)
    elif not rows:
        state, sums, finite = with_kernels(chunk, net, loss, optimizer, state, data, plan, not on_cpu())
    elif is_recurrent(net) and (2 * rows < plan.rows.shape[1] or is_stacked(params) or starts_apart(net)):
        state, sums = jax_parts.train(net, loss, optimizer, state, data, plan, rows)
    else:
        from . import jax_cut

        state, sums = jax_cut.train(net, loss, optimizer, state, data, plan, rows)
    return state, sums, Finite(sums, state.params) if finite is None else finite


class Finite:
    """Whether all is finite, found on the host by who makes an array of this: XLA takes 0.08 s to compile that for a CPU."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        sums, *params = map(np.asarray, jax.tree.leaves(self.parts))
        with np.errstate(all="ignore"):
            return np.array(all_finite(np, sums, tuple(params)), dtype)


@kept("net", "loss", "optimizer", "checks", compiler_options=OPTIONS)
def chunk(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, plan: Any, checks: bool = True) -> tuple[Any, Any, Any]:
    """The plan's training steps as one program; with `checks` it also finds out whether all is finite.

    The number of steps is data, not shape: a short last chunk runs in the program of the full ones.
    """
    form = jax.tree.structure(state)
    net, state = unwrapped(net, state)
    # the loop carries narrow matrices turned round, as their gradients come; of single rows they come as they are
    turned = jax.tree.map(lambda a: on_cpu() and plan.rows.shape[1] > 1 and is_narrow(*a.shape), state)

    def turn(state: Any, place: Any = lambda a: a) -> Any:
        return jax.tree.map(lambda a, is_turned: place(a.T) if is_turned else a, state, turned)

    def step(i: Any, carry: Any) -> Any:
        state, sums = turn(carry[0]), carry[1]
        batch = batch_of(data, plan, i, known=known)
        state, row = training_step(JaxOps, net, loss, optimizer, state, batch, plan.rates[i])
        return turn(state, in_rows), lax.dynamic_update_index_in_dim(sums, jnp.stack(row), i, 0)

    known, sums = known_before(data, plan), jnp.zeros((plan.rows.shape[0], 2 + len(loss.scores)), dtype=data.weight.dtype)
    whole = functools.partial(training_step, JaxOps, net, loss, optimizer)
    if known and (net, loss, optimizer) not in refused and (found := run_steps(whole, state, data, known, plan)):
        state, sums = found
    else:
        # a turn of one step compiles sooner, and long steps take no more time in it
        several = UNROLL if len(plan.rows) >= MANY and count(net) <= FEW and not is_recurrent(net) else 1
        state, sums = repeat(plan.count, step, (turn(state, in_rows), sums), several)
        state = turn(state)
    return jax.tree.unflatten(form, jax.tree.leaves(state)), sums, all_finite(jnp, sums, state.params) if checks else None


# As `train`, but the new state takes the place of the old one, which is gone then
train_in_place = jax.jit(
    chunk.__wrapped__,
    static_argnames=("net", "loss", "optimizer"),
    donate_argnames="state",
    compiler_options=OPTIONS,
)


@kept("net", "loss")
def evaluate(net: Any, loss: Any, params: Any, data: Batch, plan: Any) -> Any:
    """Run the plan's batches forward; returns one row of sums per batch."""
    if is_stacked(params):
        net, params = params.net, params.tree

    def step(i: Any, sums: Any) -> Any:
        row = evaluation_step(Predicting, net, loss, params, batch_of(data, plan, i, known=known))
        return lax.dynamic_update_index_in_dim(sums, jnp.stack(row), i, 0)

    known, sums = known_before(data, plan), jnp.zeros((plan.rows.shape[0], 2 + len(loss.scores)), dtype=data.weight.dtype)
    return repeat(plan.count, step, sums)


def repeat(count: Any, step: Any, carry: Any, unroll: int = 1) -> Any:
    """``carry = step(i, carry)`` for each i below `count`, which is data.

    After each turn of such a loop a GPU waits for the host (13 µs on an H200), so there it goes on in blocks of fixed length,
    `unroll` steps in a turn of theirs.
    """
    done = 0
    if not on_cpu():

        def block(j: Any, carry: Any) -> Any:
            return lax.fori_loop(0, BLOCK, lambda i, carry: step(j * BLOCK + i, carry), carry, unroll=unroll)

        carry, done = lax.fori_loop(0, count // BLOCK, block, carry), count // BLOCK * BLOCK
    return lax.fori_loop(done, count, step, carry)


@functools.partial(jax.jit, static_argnames=("net",))
def forward(net: Any, params: Any, x: Any, weight: Any = None, lengths: Any = None) -> Any:
    """The network's output."""
    return Predicting(weight=weight, lengths=lengths).forward(net, params, x, "net")[0]


@functools.partial(jax.jit, static_argnames=("net", "loss"))
def value_and_gradients(net: Any, loss: Any, params: Any, batch: Batch, seed: Any) -> tuple[Any, Any]:
    """Mean loss over all rows and its gradients."""
    ops = JaxOps(training=True, seed=seed, weight=batch.weight, lengths=batch.lengths)
    g = gradients(ops, net, loss, params, batch)
    return g.loss, g.params
