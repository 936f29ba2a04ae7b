"""A scan on a GPU as one kernel, written in Pallas.

XLA starts several kernels for every step of a scan, each of which takes longer to start than to run. Here a block of the
GPU takes some rows of the batch through all steps, and the state never leaves it. What a step does is the layer's own
function, traced into the kernel: no formula is written again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["scan_rows"]

ROWS, WARPS, STAGES = 16, 4, 3  # of a block; 16 is the least that matrix units take
LARGEST = 2**14  # numbers that a step shares with all others (its weights): these fit into a block
# operations that Pallas has for a GPU
# fmt: off
KNOWN = {
    "add", "sub", "mul", "div", "neg", "max", "min", "abs", "exp", "log", "tanh", "logistic", "sqrt", "sign", "square",
    "integer_pow", "select_n", "gt", "lt", "ge", "le", "eq", "dot_general", "transpose", "broadcast_in_dim",
    "convert_element_type", "jit",
}
# fmt: on


def scan_rows(function: Callable[[Any, Any], Any], carry: Any, xs: Any, reverse: bool, interpret: bool = False) -> Any:
    """As `lax.scan`, for a function that treats every row by itself; None where no kernel can be made of it.

    Rows are the first axis of what is carried, and the second of `xs` (behind the steps).
    """
    steps = len(jax.tree.leaves(xs)[0])
    before, one = jax.tree.map(lambda a: a[:ROWS], carry), jax.tree.map(lambda a: a[0, :ROWS], xs)
    step, shared = jax.closure_convert(function, before, one)
    jaxpr = jax.make_jaxpr(step)(before, one, *shared)
    if not all(map(is_fine, jax.tree.leaves((carry, one)))) or not is_known(jaxpr, shared):
        return None
    try:
        from jax.experimental import pallas
        from jax.experimental.pallas import triton
    except ImportError:  # JAX 0.11 says that a later version will not have it
        return None
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    shapes = jax.eval_shape(step, before, one, *shared)[1]
    rows = len(jax.tree.leaves(carry)[0])
    inputs, states, place = jax.tree.leaves(xs), jax.tree.leaves(carry), jax.tree.structure((carry, one))
    outputs, form = jax.tree.flatten(shapes)

    def kernel(*refs: Any) -> None:
        read = iter(refs)
        take = lambda many: [next(read) for _ in many]  # noqa: E731
        weights, start, x, end, y = take(shared), take(states), take(inputs), take(states), take(outputs)
        weights = [w[...] for w in weights]

        def body(i: Any, h: Any) -> Any:
            t = steps - 1 - i if reverse else i
            h, values = step(*jax.tree.unflatten(place, [*h, *(a[t] for a in x)]), *weights)
            for ref, value in zip(y, jax.tree.leaves(values), strict=True):
                ref[t] = value
            return jax.tree.leaves(h)

        for ref, value in zip(end, lax.fori_loop(0, steps, body, [h[...] for h in start]), strict=True):
            ref[...] = value

    def block(axis: int, shape: tuple[int, ...]) -> Any:  # all of an array but for the axis of the rows
        at = lambda i: tuple(i if k == axis else 0 for k in range(len(shape)))  # noqa: E731
        return pallas.BlockSpec(tuple(ROWS if k == axis else n for k, n in enumerate(shape)), at)

    results = [(0, jax.ShapeDtypeStruct(a.shape, a.dtype)) for a in states]
    results += [(1, jax.ShapeDtypeStruct((steps, rows, *a.shape[1:]), a.dtype)) for a in outputs]
    arguments = [*((-1, a) for a in shared), *((0, a) for a in states), *((1, a) for a in inputs)]
    found = pallas.pallas_call(
        kernel,
        grid=(rows // ROWS,),
        in_specs=[block(axis, a.shape) for axis, a in arguments],
        out_specs=[block(axis, a.shape) for axis, a in results],
        out_shape=[a for _, a in results],
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=interpret,
    )(*(a for _, a in arguments))
    return jax.tree.unflatten(jax.tree.structure(carry), found[: len(states)]), jax.tree.unflatten(form, found[len(states) :])


def is_fine(a: Any) -> bool:
    """Whether a block can take rows of this array: whole blocks of them, of a power of two numbers each."""
    return a.dtype == jnp.float32 and len(a) % ROWS == 0 and a.ndim == 2 and a.shape[1] >= ROWS and a.shape[1].bit_count() == 1


def is_known(jaxpr: Any, shared: list[Any]) -> bool:
    """Whether all that a step does can be done in a kernel, and what all steps share fits into a block."""
    fits = sum(math.prod(a.shape) for a in shared) <= LARGEST and all(n.bit_count() == 1 for a in shared for n in a.shape)
    return fits and not jaxpr.consts and all(name in KNOWN for name in operations(jaxpr.jaxpr))


def operations(jaxpr: Any) -> Iterator[str]:
    """The names of all operations, also of those inside of others."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        if "jaxpr" in equation.params:
            yield from operations(equation.params["jaxpr"].jaxpr)
