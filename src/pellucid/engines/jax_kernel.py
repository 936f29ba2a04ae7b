"""A scan on a GPU as one kernel, written in Pallas.

XLA starts several kernels for every step of a scan, each of which takes longer to start than to run. Here a block of the
GPU takes one row of the batch through all steps: the state never leaves it, and neither do the weights, which lie in its
registers. What a step does is the layer's own function, traced into the kernel: no formula is written again.

A kernel can neither cut an array nor join two, and knows powers of two only. So each array goes through it as a list of
pieces as wide as the state (one for every gate, say), which zeros fill up to the next power of two.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..layers.recurrent import shift
from . import LOCAL

__all__ = ["scan_rows"]

SMALL, LARGE, WIDEST, MANY = 2**14, 50_000, 256, 256  # weights of several blocks fit into a multiprocessor, of one; units; rows
WARPS = {8: SMALL + 1, 4: 2**13, 2: 2**12, 1: 0}  # of a block, from so many weights on
# operations on single entries that Pallas has for a GPU: on numbers, and on truth values
# fmt: off
ENTRYWISE = {
    "add", "sub", "mul", "div", "neg", "max", "min", "abs", "exp", "log", "tanh", "logistic", "sqrt", "sign", "square",
    "integer_pow", "gt", "lt", "ge", "le", "eq",
}
# fmt: on
ON_TRUTH = {"select_n", "convert_element_type"}


def scan_rows(function: Callable[[Any, Any], Any], carry: Any, xs: Any, reverse: bool, interpret: bool = False) -> Any:
    """As `lax.scan`, for a function that treats every row by itself; None where no kernel can be made of it.

    Rows are the first axis of what is carried, and the second of `xs` (behind the steps).
    """
    states, inputs = jax.tree.leaves(carry), jax.tree.leaves(xs)
    if not (states and inputs) or any(np.ndim(a) != n or not np.size(a) for many, n in ((states, 2), (inputs, 3)) for a in many):
        return None
    if not (tools := pallas_for_gpu()):
        return None
    pallas, triton = tools
    (steps, rows), cut = inputs[0].shape[:2], Pieces(states[0].shape[-1])
    some = jax.tree.map(lambda a: a[:2], carry), jax.tree.map(lambda a: a[0, :2], xs)  # two rows tell what has rows from what has not
    traced, (_, shapes) = jax.make_jaxpr(function, return_shape=True)(*some)
    program, weights, (outputs, form) = traced.jaxpr, traced.consts, jax.tree.flatten(shapes)
    fine = [cut.fits(a) for a in states] + [cut.fits(a) and a.ndim == 2 and len(a) == min(2, rows) for a in outputs]
    fine += [cut.fits(a) or (a.shape[2] == 1 and a.dtype in (bool, jnp.float32)) for a in inputs]
    fine += [a.ndim in (1, 2) and cut.fits(a) and cut.fits(a.T) for a in weights]
    if cut.width == 1 or not all(fine):
        return None
    weights = [cut.fill(cut.fill(a).T).T if a.ndim > 1 else cut.fill(a) for a in weights]
    size = sum(a.size for a in weights)
    if cut.wide > WIDEST or size > LARGE or (size > SMALL and rows * LOCAL.members > MANY):
        return None
    # what is never read need not be there, and what comes out beside the states can be computed from them afterwards
    read = {v for vs in (*(equation.invars for equation in program.eqns), program.outvars) for v in vs if not hasattr(v, "val")}
    used = [i for i, v in enumerate(program.invars[len(states) :]) if v in read]
    ends, values = program.outvars[: len(states)], program.outvars[len(states) :]
    stored = [values.index(v) for v in ends] if all(v in values for v in ends) else range(len(values))

    def place(i: Any) -> Any:
        return steps - 1 - i if reverse else i

    def kernel(*refs: Any) -> None:
        left = iter(refs)
        shared, start, given, end, y = ([next(left) for _ in many] for many in (weights, states, used, states, stored))
        shared = [cut.read(ref) for ref in shared]

        def at(t: Any) -> dict[int, Any]:
            found = {i: cut.read(ref, t, 0) for i, ref in zip(used, given, strict=True)}
            return {i: x != 0 if inputs[i].dtype == bool else x for i, x in found.items()}

        def body(i: Any, now: Any) -> Any:
            (h, x), following = now, at(place(jnp.minimum(i + 1, steps - 1)))  # on its way while this step is computed
            found = evaluate(program, [*shared, *h, *(x.get(k) for k in range(len(inputs)))], cut.operation)
            if not all(isinstance(value, list) for value in found):
                raise Unknown("a number for all units")
            for ref, k in zip(y, stored, strict=True):
                cut.write(ref, found[len(states) + k], place(i), 0)
            return found[: len(states)], following

        h, _ = lax.fori_loop(0, steps, body, ([cut.read(ref, 0) for ref in start], at(place(0))))
        for ref, value in zip(end, h, strict=True):
            cut.write(ref, value, 0)

    def block(shape: tuple[int, ...], axis: int) -> Any:  # all of an array, but one row
        at = lambda i: tuple(i if k == axis else 0 for k in range(len(shape)))  # noqa: E731
        return pallas.BlockSpec(tuple(1 if k == axis else n for k, n in enumerate(shape)), at)

    arguments = [*((a, -1) for a in weights), *((cut.fill(a), 0) for a in states), *((cut.fill(inputs[i]), 1) for i in used)]
    results = [((rows, cut.filled(a)), 0) for a in states] + [((steps, rows, cut.filled(outputs[k])), 1) for k in stored]
    if any(math.prod(shape) >= 2**31 for shape in (*(a.shape for a, _ in arguments), *(shape for shape, _ in results))):
        return None  # a kernel counts places in 32 bits
    call = pallas.pallas_call(
        kernel,
        grid=(rows,),
        in_specs=[block(a.shape, axis) for a, axis in arguments],
        out_specs=[block(shape, axis) for shape, axis in results],
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in results],
        compiler_params=triton.CompilerParams(num_warps=next(n for n, least in WARPS.items() if size >= least), num_stages=1),
        interpret=interpret,
    )
    try:
        found = [cut.strip(a) for a in call(*(a for a, _ in arguments))]
    except Unknown:
        return None
    end, kept = found[: len(states)], dict(zip(stored, found[len(states) :], strict=True))
    if len(kept) < len(values):
        before = [shift(jnp, start, kept[k], reverse) for start, k in zip(states, stored, strict=True)]
        before = jax.tree.unflatten(jax.tree.structure(carry), before)
        kept = dict(enumerate(jax.tree.leaves(jax.vmap(function)(before, xs)[1]))) | kept
    return jax.tree.unflatten(jax.tree.structure(carry), end), jax.tree.unflatten(form, [kept[k] for k in range(len(values))])


class Unknown(Exception):
    """Something that no kernel can do."""


def pallas_for_gpu() -> tuple[Any, Any] | None:
    """What a kernel is written with, if JAX has it."""
    try:
        from jax.experimental import pallas
        from jax.experimental.pallas import triton
    except ImportError:  # JAX 0.11 says that a later version will not have it
        return None
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    return pallas, triton


def evaluate(program: Any, given: list[Any], operation: Callable[..., list[Any]]) -> list[Any]:
    """What a program computes, with another way to do each operation."""
    known = dict(zip((*program.constvars, *program.invars), given, strict=True))
    read = lambda v: v.val if hasattr(v, "val") else known[v]  # noqa: E731
    for equation in program.eqns:
        found = operation(equation, [read(v) for v in equation.invars], **equation.params)
        known |= zip(equation.outvars, found, strict=True)
    return [read(v) for v in program.outvars]


class Pieces:
    """How arrays are cut: into pieces of one width, each filled up with zeros to a power of two."""

    def __init__(self, width: int) -> None:
        self.width, self.wide = width, max(16, 1 << (width - 1).bit_length())

    def fits(self, a: Any) -> bool:
        """Whether the last axis of an array can be cut like that."""
        return a.dtype == jnp.float32 and a.size > 0 and a.shape[-1] % self.width == 0

    def filled(self, a: Any) -> int:
        """How long the last axis gets."""
        return a.shape[-1] // self.width * self.wide

    def fill(self, a: Any) -> Any:
        """The array with zeros behind every piece of the last axis; of single numbers, as they are."""
        if a.shape[-1] > 1 and self.wide > self.width:
            parts = a.reshape(*a.shape[:-1], -1, self.width)
            a = jnp.pad(parts, [*[(0, 0)] * a.ndim, (0, self.wide - self.width)]).reshape(*a.shape[:-1], -1)
        return a.astype(jnp.float32)

    def strip(self, a: Any) -> Any:
        """The opposite of `fill`."""
        return a if self.wide == self.width else a.reshape(*a.shape[:-1], -1, self.wide)[..., : self.width].reshape(*a.shape[:-1], -1)

    def read(self, ref: Any, *place: Any) -> Any:
        """The pieces at a place, of a matrix in rows of pieces; a single number as such."""
        if ref.shape[-1] == 1:
            return ref[*place, 0]
        parts = [slice(i, i + self.wide) for i in range(0, ref.shape[-1], self.wide)]
        if len(ref.shape) == len(place) + 1:
            return [ref[*place, part] for part in parts]
        return [[ref[i : i + self.wide, part] for part in parts] for i in range(0, ref.shape[0], self.wide)]

    def write(self, ref: Any, value: list[Any], *place: Any) -> None:
        for i, piece in enumerate(value):
            ref[*place, i * self.wide : (i + 1) * self.wide] = piece

    def operation(self, equation: Any, values: list[Any], **settings: Any) -> list[Any]:
        """One operation of a program on one row: numbers, and arrays in pieces."""
        name, kinds = equation.primitive.name, [v.aval.dtype for v in equation.invars]
        lists = [v for v in values if isinstance(v, list)]
        matrices = [isinstance(v[0], list) for v in lists]
        if name == "jit" and not settings["jaxpr"].consts:
            return evaluate(settings["jaxpr"].jaxpr, values, self.operation)
        if any(kind not in (bool, jnp.float32) for kind in (*kinds, *(v.aval.dtype for v in equation.outvars))):
            raise Unknown("other numbers")
        if name == "dot_general" and matrices == [False, True] and settings["dimension_numbers"] == (((1,), (0,)), ((), ())):
            products = [[(self.alone(piece)[:, None] * w).sum(0) for w in row] for piece, row in zip(*values, strict=True)]
            return [[sum(parts[1:], start=parts[0]) for parts in zip(*products, strict=True)]]
        if any(matrices):
            raise Unknown(name)
        if name == "broadcast_in_dim" and not lists:
            return values
        if name == "broadcast_in_dim" and settings["broadcast_dimensions"][-1] == len(settings["shape"]) - 1:
            return [self.slice(values[0], 0, settings["shape"][-1])]
        if len(lists) == len(values):
            if name == "concatenate" and settings["dimension"] == 1:
                return [[piece for value in values for piece in value]]
            if name == "split" and settings["axis"] == 1:
                ends = np.cumsum(settings["sizes"])
                return [self.slice(values[0], *span) for span in zip([0, *ends], ends, strict=False)]
            if name == "slice" and not settings["strides"] and equation.outvars[0].aval.shape[:-1] == equation.invars[0].aval.shape[:-1]:
                return [self.slice(values[0], settings["start_indices"][-1], settings["limit_indices"][-1])]
        if not (name in ENTRYWISE and bool not in kinds) and not (name in ON_TRUTH and (lists or name != "select_n")):
            raise Unknown(name)
        numbers = [v if isinstance(v, list) else jnp.asarray(v, kind) for v, kind in zip(values, kinds, strict=True)]
        if not lists:
            return [equation.primitive.bind(*numbers, **settings)]
        pieces = [v if isinstance(v, list) else [jnp.full(self.wide, v)] * len(lists[0]) for v in numbers]
        return [[equation.primitive.bind(*parts, **settings) for parts in zip(*pieces, strict=True)]]

    def alone(self, piece: Any) -> Any:
        """A piece without what functions made of the zeros that fill it up: it need not be finite, and weights of zero would not help."""
        return piece if self.wide == self.width else jnp.where(lax.iota(jnp.int32, self.wide) < self.width, piece, 0)

    def slice(self, value: list[Any], start: int, end: int) -> list[Any]:
        if start % self.width or end % self.width or end > len(value) * self.width:
            raise Unknown("a slice through a piece")
        return value[start // self.width : end // self.width]
