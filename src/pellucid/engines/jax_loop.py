"""Loops over equal blocks in a CPU's training steps, as fast as the blocks one by one, or nearly.

What a scan of JAX would do in every step and these loops do not:

- fill with zeros what the turns are going to write. They write over what the turns of the step before have left.
- write what nobody reads.
- copy a matrix out of a stack row by row: for a product it is cut out of one long row of numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..training.step import Batch, training_step
from . import jax as engine
from .late import variables
from .programs import kept
from .stack import unwrapped

__all__ = ["Looping", "kept_by", "train", "zeros"]

# Up to so many numbers in a matrix, operations take less time on one core than another one takes to wake: XLA is not to share them out
SMALL, ALONE = 2**16, engine.OPTIONS and engine.OPTIONS | {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
PRODUCTS = {"dot_general", "transpose", "optimization_barrier", "layout_constraint"}  # what a matrix goes into before and in a product


def train(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, plan: Any) -> tuple[Any, Any]:
    """As the engine's `train`, for stacked parameters; whether all is finite, nobody has looked."""
    small = all(math.prod(a.shape[-2:]) <= SMALL for a in jax.tree.leaves(state.params))
    return (chunk if small else wide_chunk)(net, loss, optimizer, state, data, plan)


def steps(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, plan: Any) -> tuple[Any, Any]:
    """As the engine's `chunk`."""
    form = jax.tree.structure(state)
    net, state = unwrapped(net, state)
    state, data, plan = jax.tree.map(jnp.asarray, (state, data, plan))  # where JAX is told not to compile, they are not its own

    def step(i: Any, carry: Any, before: Any = None) -> tuple[Any, list[Any]]:
        (state, sums), loops = carry, list[Any]()
        Ops = functools.partial(Looping, before, loops)
        state, row = training_step(Ops, net, loss, optimizer, state, engine.batch_of(data, plan, i), plan.rates[i])
        return (state, lax.dynamic_update_index_in_dim(sums, jnp.stack(row), i, 0)), loops

    begin = state, jnp.zeros((plan.rows.shape[0], 2 + len(loss.scores)), data.weight.dtype)
    (state, sums), _ = lax.fori_loop(0, plan.count, lambda i, now: step(i, *now), (begin, zeros(kept_by(step, jnp.int32(0), begin))))
    return jax.tree.unflatten(form, jax.tree.leaves(state)), sums


chunk = kept("net", "loss", "optimizer", compiler_options=ALONE)(steps)
wide_chunk = kept("net", "loss", "optimizer", compiler_options=engine.OPTIONS)(steps)


class Looping(engine.JaxOps):
    """Operations of a training step whose loops add their results to `loops`. `before` are those of the step before, if there was one.

    With `alive`, inner values of a turn are carried through the loop, too, where nobody looks at them.
    """

    zero: Any = np.uint32(0)
    alive: Callable[[Any, int], list[Any]] | None = None

    def __init__(self, before: Any, loops: list[Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.before, self.loops, self.inside = before, loops, False

    def loop(self, function, carry, xs, reverse, by_rows):
        if self.inside or self.scanning > 1:  # a turn of another loop
            return super().loop(function, carry, xs, reverse, by_rows)
        (start, form), arrays = jax.tree.flatten(carry), jax.tree.leaves(xs)
        one = jax.eval_shape(lambda xs: jax.tree.map(lambda a: a[0], xs), xs)
        self.inside = True
        closed, (_, shapes) = jax.make_jaxpr(function, return_shape=True)(carry, one)
        self.inside = False
        program, count, last = closed.jaxpr, len(start), len(arrays[0]) - 1
        ends, outcomes = program.outvars[:count], program.outvars[count:]
        made = list({id(v): v for v in outcomes}.values())  # what comes out twice is stacked once
        alive = self.alive(program, count) if self.alive else []
        turn = jaxpr_as_fun(ClosedJaxpr(program.replace(outvars=[*ends, *made, *alive]), closed.consts))
        empty = [jax.ShapeDtypeStruct((last + 1, *v.aval.shape), v.aval.dtype) for v in made]
        read = [reader(program, v, a) for v, a in zip(program.invars[count:], arrays, strict=True)]
        begin, on, end = (last, 2**32 - 1, 0) if reverse else (0, 1, last)

        def body(now: Any) -> Any:
            k, _, carry, (stacks, _) = now
            found = turn(*carry, *(at(k) for at in read))
            new = [None if a is None else lax.dynamic_update_index_in_dim(a, v, k, 0) for a, v in zip(stacks, found[count:], strict=False)]
            others = (k + np.uint32(on), found[count + len(made) :]) if self.alive else ()
            return k + np.uint32(on), k != end, found[:count], (new, others)

        if self.before is None:
            values = zeros((empty, (self.zero, [v.aval for v in alive]) if self.alive else ()))
        else:
            values = self.before[len(self.loops)][-1]
        self.loops.append(lax.while_loop(lambda now: now[1], body, (self.zero + np.uint32(begin), self.zero == 0, start, values)))
        *_, carry, (stacks, _) = self.loops[-1]
        found = {id(v): zeros(shape) if a is None else a for v, shape, a in zip(made, empty, stacks, strict=True)}
        return jax.tree.unflatten(form, carry), jax.tree.unflatten(jax.tree.structure(shapes), [found[id(v)] for v in outcomes])


def reader(program: Any, v: Any, stack: Any) -> Callable[[Any], Any]:
    """What gives a variable of a turn its value out of the stack, or zeros where nobody asks for it."""
    users = {equation.primitive.name for equation in program.eqns if any(v is u for u in equation.invars)}
    shape, size = v.aval.shape, v.aval.size
    if not users and not any(v is u for u in program.outvars):
        return lambda k: jnp.zeros(shape, v.aval.dtype)
    if v.aval.ndim > 1 and users <= PRODUCTS and stack.size < 2**31:
        row = stack.reshape(-1)
        return lambda k: lax.dynamic_slice(row, (k * np.uint32(size),), (size,)).reshape(shape)
    return lambda k: lax.dynamic_index_in_dim(stack, k, keepdims=False)


def zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


def kept_by(function: Callable[..., tuple[Any, list[Any]]], *args: Any) -> list[Any]:
    """Of a function that returns results and its loops: what these loops are like, without the stacks that no result needs."""
    closed, (results, loops) = jax.make_jaxpr(function, return_shape=True)(*args)
    program, count = closed.jaxpr, len(jax.tree.leaves(results))
    needed = set(variables(program.outvars[:count]))
    for equation in reversed(program.eqns):
        if not needed.isdisjoint(equation.outvars):
            needed.update(variables(equation.invars))
    places = jax.tree.unflatten(jax.tree.structure(loops), program.outvars[count:])
    return [
        (*rest, ([a if v in needed else None for a, v in zip(stacks, there, strict=True)], others))
        for (*rest, (stacks, others)), (*_, (there, _)) in zip(loops, places, strict=True)
    ]
