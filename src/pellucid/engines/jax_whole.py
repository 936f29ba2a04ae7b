"""Training steps of a small network on a GPU as one kernel, written in Pallas.

XLA starts a dozen kernels for every step, each of which takes longer to start than to run. Here one block of the GPU takes a
network through all steps of a chunk: its weights and the optimizer's memory never leave the registers. What a step does is
`training_step` itself, traced into the kernel: no formula is written again. Of many networks in a batch each has its block.

A kernel knows powers of two only. So every axis is filled up to the next one, with anything: where entries are added up or
compared, those that are not there are left out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..training.step import Batch, Plan, State
from . import LOCAL
from .jax_kernel import ENTRYWISE, ON_TRUTH, Unknown, evaluate, pallas_for_gpu
from .late import equations

__all__ = ["run_steps", "with_kernels"]

# Measured on an H200: more weights, or more of them and the optimizer's memory, no longer fit into the registers
WEIGHTS, LARGE = 24_000, 2**16
WARPS = {8: 6000, 4: 2**11, 2: 0}  # of a block, from so many numbers in a state on
# kilobytes that a block has for the factors of its products, by the GPU's generation (CUDA C++ Programming Guide, compute capabilities)
MEMORY = {"8.0": 163, "8.6": 99, "8.7": 163, "8.9": 99, "9.0": 227, "10.0": 227, "12.0": 99}
SIMPLE = ENTRYWISE | ON_TRUTH | {"log1p", "expm1", "rsqrt", "pow", "ne", "and", "or", "not", "xor", "shift_right_logical"}
PRECISIONS = (None, *((p, p) for p in lax.Precision))
NEUTRAL = {"reduce_sum": 0, "reduce_max": -math.inf, "reduce_min": math.inf, "argmax": -math.inf}  # but for sums, of float32 alone

refused = set[Any]()  # networks, losses and optimizers whose kernel could not be compiled


def run_steps(step: Callable[..., Any], state: State, data: Batch, known: Batch, plan: Plan, interpret: bool = False) -> Any:
    """The state after all steps of a plan, and their sums; None where no kernel can be made of them.

    `step` takes a state, a mini-batch and a rate; what is `known` of all mini-batches is not gathered in each step.
    """
    (steps, size), (before, form) = plan.rows.shape, jax.tree.flatten(state)
    numbers, weights = (sum(math.prod(widened(a.shape)) for a in jax.tree.leaves(tree)) for tree in (state, state.params))
    small = weights <= WEIGHTS and numbers <= LARGE and all(a is None or a.ndim <= 2 for a in data)
    if not (small and (tools := pallas_for_gpu())):
        return None
    pallas, triton = tools
    batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct((size, *a.shape[1:]), a.dtype), data)
    traced, (_, sums) = jax.make_jaxpr(step, return_shape=True)(state, batch, plan.rates[0])
    program, fixed = traced.jaxpr, traced.consts
    generation = getattr(jax.local_devices()[0], "compute_capability", "")
    if any(hasattr(v, "val") for v in program.outvars) or not (interpret or fits(program, generation)):
        return None
    changing = [k for k, v in enumerate(program.outvars[: len(before)]) if v is not program.invars[k]]
    given = [(a if table is None else table, table is not None) for a, table in zip(data, known, strict=True) if a is not None]

    def kernel(*refs: Any) -> None:
        left = iter(refs)
        count, rates, rows = (next(left) for _ in range(3))
        constants, first = ([next(left)[... if a.ndim else 0] for a in many] for many in (fixed, before))
        sources, end = ([next(left) for _ in many] for many in (given, changing))
        table = next(left)

        def at(i: Any) -> list[Any]:
            which = rows[i, :]
            return [ref[i, :] if is_known else ref[which, :] for ref, (_, is_known) in zip(sources, given, strict=True)]

        def body(i: Any, now: Any) -> Any:
            (changed, mini_batch), following = now, at(jnp.minimum(i + 1, steps - 1))  # on its way while this step is computed
            values = dict(enumerate(first)) | dict(zip(changing, changed, strict=True))
            after = evaluate(program, [*constants, *values.values(), *mini_batch, rates[i]], operation)
            for k, value in enumerate(after[len(before) :]):
                table[i, k] = value
            return [after[k] for k in changing], following

        after, _ = lax.fori_loop(0, count[0], body, ([first[k] for k in changing], at(0)))
        for ref, value in zip(end, after, strict=True):
            ref[... if value.ndim else 0] = value

    arguments = [fill(plan.count), plan.rates, fill(plan.rows, 1), *map(fill, (*fixed, *before)), *(fill(a, 1) for a, _ in given)]
    if any(a.size * LOCAL.members >= 2**31 for a in arguments):
        return None  # a kernel counts places in 32 bits
    results = [(widened(before[k].shape) or (1,), before[k].dtype) for k in changing] + [((steps, len(sums)), plan.rates.dtype)]
    call = pallas.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(*result) for result in results],
        compiler_params=triton.CompilerParams(num_warps=next(n for n, least in WARPS.items() if numbers >= least), num_stages=1),
        interpret=interpret,
    )
    try:
        *after, table = call(*arguments)
    except Exception:  # the program itself is right: it was traced before
        return None
    LOCAL.kernels += 1
    for k, value in zip(changing, after, strict=True):
        before[k] = value[tuple(map(slice, before[k].shape))] if before[k].ndim else value[0]
    return jax.tree.unflatten(form, before), jnp.where(jnp.arange(steps)[:, None] < plan.count, table, 0)


def with_kernels(program: Any, *args: Any) -> Any:
    """Run a program of a network, a loss, an optimizer; if its kernel cannot be compiled, without one, now and later."""
    made, static = LOCAL.kernels, args[:3]
    try:
        return program(*args)
    except Exception as error:
        if LOCAL.kernels == made:  # it was not a new kernel
            raise
        refusal = error
    refused.add(static)
    program.clear_cache()
    try:
        found = program(*args)
    except Exception:
        refused.discard(static)
        raise
    warnings.warn(f"{static[0]!r} trains slower: this GPU's compiler refused the kernel for it: {refusal}", stacklevel=2)
    return found


def fits(program: Any, generation: str) -> bool:
    """Whether a block of such a GPU has room for the factors of all products at once, and no array is too large for its registers.

    It may need that much for the factors; more it never did.
    """
    where, factors, largest = dict[Any, Any](), dict[Any, int](), 0
    for equation in equations(program.eqns):
        largest = max([largest, *(math.prod(widened(v.aval.shape)) for v in (*equation.invars, *equation.outvars))])
        if equation.primitive.name == "transpose":
            where[equation.outvars[0]] = where.get(equation.invars[0], equation.invars[0])
        if equation.primitive.name == "dot_general":
            factors |= {where.get(v, v): 4 * math.prod(widened(v.aval.shape)) for v in equation.invars if not hasattr(v, "val")}
    return largest <= LARGE and 0 < sum(factors.values()) <= 1000 * MEMORY.get(generation, 0)


def widened(shape: tuple[int, ...]) -> tuple[int, ...]:
    """How long axes get; matrix units want sixteen at least."""
    return tuple(1 if n == 1 else max(16, 1 << (n - 1).bit_length()) for n in shape)


def fill(a: Any, first: int = 0) -> Any:
    """The array with zeros behind every axis from the first one on; a number as an array of one."""
    wide = (*a.shape[:first], *widened(a.shape[first:]))
    return jnp.pad(a, [(0, n - m) for n, m in zip(wide, a.shape, strict=True)]) if a.ndim else jnp.reshape(a, 1)


def operation(equation: Any, values: list[Any], **settings: Any) -> list[Any]:
    """One operation of a program, on arrays that are filled up."""
    name, shapes, outcome = equation.primitive.name, [v.aval.shape for v in equation.invars], equation.outvars[0].aval
    if name == "jit" and not settings["jaxpr"].consts:
        return evaluate(settings["jaxpr"].jaxpr, values, operation)
    if any(v.aval.dtype not in (bool, jnp.float32, jnp.int32, jnp.uint32) for v in (*equation.invars, *equation.outvars)):
        raise Unknown("other numbers")
    values = [v if isinstance(v, Row) else jnp.asarray(v, known.aval.dtype) for v, known in zip(values, equation.invars, strict=True)]
    if name == "dot_general" and not any(settings["dimension_numbers"][1]):
        return [product(values, shapes, settings)]
    if any(isinstance(v, Row) for v in values):
        raise Unknown("entries in a row")
    shape, numbers = widened(outcome.shape), {v.dtype for v in values} <= {jnp.dtype("float32")}
    if name in SIMPLE and (numbers or name not in ("max", "min")) and len(values) <= 3:
        values = [jnp.full(shape, v) if shape and not v.ndim else v for v in values]
        found = equation.primitive.bind(*values, **settings)
        if name in ("max", "min"):  # a kernel's leave out what is not a number
            for v in values:
                found = jnp.where(v != v, v, found)
        return [found]
    if name == "broadcast_in_dim":
        return [lax.broadcast_in_dim(values[0], shape, settings["broadcast_dimensions"])]
    if name == "iota":
        return [lax.broadcasted_iota(settings["dtype"], shape, settings["dimension"])]
    if name == "transpose":
        return [lax.transpose(values[0], settings["permutation"])]
    if name in NEUTRAL and (numbers or name == "reduce_sum"):
        return [equation.primitive.bind(only(values[0], shapes[0], settings["axes"], NEUTRAL[name]), **settings)]
    if name in ("reshape", "squeeze") and [n for n in shapes[0] if n > 1] == [n for n in outcome.shape if n > 1]:
        return [values[0].reshape(shape)]
    if name == "reshape" and outcome.ndim == 1:
        return [Row(only(values[0], shapes[0], range(len(shapes[0])), 0), shapes[0])]
    raise Unknown(name)


class Row:
    """All entries of an array in a row, and zeros among them: good for a product with another one from such a shape, which is a number."""

    def __init__(self, entries: Any, shape: tuple[int, ...]) -> None:
        self.entries, self.shape = entries, shape


def only(value: Any, shape: tuple[int, ...], axes: Any, neutral: float) -> Any:
    """The array with a neutral number where it has no entries along some axes."""
    for axis in axes:
        if shape[axis] < value.shape[axis]:
            value = jnp.where(lax.broadcasted_iota(jnp.int32, value.shape, axis) < shape[axis], value, jnp.asarray(neutral, value.dtype))
    return value


def product(values: list[Any], shapes: list[tuple[int, ...]], settings: dict[str, Any]) -> Any:
    """The product of two matrices of those shapes, or of two rows."""
    (a, b), (of_a, of_b) = values, shapes
    if isinstance(a, Row) and isinstance(b, Row) and a.shape == b.shape:
        return (a.entries * b.entries).sum()
    if len(of_a) != 2 or len(of_b) != 2 or a.dtype != jnp.float32 or settings["precision"] not in PRECISIONS:
        raise Unknown("a product")
    (i,), (j,) = settings["dimension_numbers"][0]
    a, b = only(a, of_a, [i], 0), only(b, of_b, [j], 0)
    a, b = a if i == 1 else a.T, b if j == 0 else b.T
    if a.shape[1] == 1:
        return a * b
    if a.shape[0] == 1:
        return (a.T * b).sum(0)[None]
    if b.shape[1] == 1:
        return (a * b.T).sum(1)[:, None]
    return lax.dot(a, b, precision=settings["precision"], preferred_element_type=jnp.float32)
