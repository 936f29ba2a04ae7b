"""Training steps of a mini-batch that is cut into parts, in one program.

**Halves side by side.** XLA runs the operations of a program one after the other, each on all cores if it is large enough, which
those of a network of some hundred units are not. It hands half of them to another core only where more than eight could begin at
once, and then goes on with what follows from them on either core. So a step begins with a dozen operations that do nothing; the
rows of the first half wait for the first of them, those of the second half for the last.

Two operations also wait for each other where XLA gave one the memory that the other reads. That of a value is not given
away as long as the value is needed; so the loop carries the values of both halves to the end of their step, and on to the end of
the loop, where nobody looks at them.

**Convolutions.** What lies between the layers for images is larger than a core's cache. In parts it is not, and XLA runs
operations of different parts side by side of its own accord. Here memory is better used again. They take turns, four at a
time: that compiles faster than eight at once, and trains as fast or faster.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from ..layers.base import Layer
from ..training.step import Batch
from . import jax as engine
from .choose import AT_ONCE
from .jax_parts import joined, mean_gradients
from .programs import kept

__all__ = ["train"]

TURNS = 12  # operations that do nothing


def train(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, plan: Any, rows: int) -> tuple[Any, Any]:
    """As the engine's `train`, with `rows` rows in a part; whether all is finite, nobody has looked."""
    return chunk(net, loss, optimizer, rows, not convolves(net), state, data, plan)[:2]


@functools.lru_cache(256)
def convolves(net: Layer) -> bool:
    """Whether one of its layers is a convolution."""
    return net.work == "convolution" or any(map(convolves, net.children))


@kept("net", "loss", "optimizer", "rows", "aside", compiler_options=engine.OPTIONS)
def chunk(net: Any, loss: Any, optimizer: Any, rows: int, aside: bool, state: Any, data: Batch, plan: Any) -> tuple[Any, ...]:
    """As the engine's `chunk`, followed by what the loop only keeps alive where two halves are to go side by side."""
    batch = jax.eval_shape(functools.partial(engine.batch_of, size=rows), data, plan, 0, 0)
    gradients: Any = functools.partial(mean_gradients, net, loss)
    if aside:
        part, kept = with_values(gradients, state.params, state.seed, state.step, batch, jnp.int32(0))
    else:
        once = jax.jit(gradients)  # traced once for all parts
        part, kept = lambda *args: (once(*args), []), []
    parts = math.ceil(plan.rows.shape[1] / rows)
    at_once = min(parts, AT_ONCE)
    firsts = rows * jnp.arange(math.ceil(parts / at_once) * at_once, dtype=jnp.int32).reshape(-1, at_once)

    def step(i: Any, carry: Any) -> Any:
        state, table, turns, _ = carry
        turns = [lax.sort(turn) for turn in turns]

        def one(first: Any) -> tuple[Any, Any]:
            batch = engine.batch_of(data, plan, i, first, rows)
            found, alive = part(state.params, state.seed, state.step, batch, first)
            return found, [jax.tree.leaves(batch), alive]

        found: Any
        values: Any
        if aside:
            found, values = zip(one(turns[0][0]), one(turns[-1][0] + rows), strict=True)
        else:
            several = lambda _, firsts: (None, [one(first)[0] for first in firsts])  # noqa: E731
            _, each = lax.scan(several, None, firsts)
            found, values = [jax.tree.map(lambda a, k=k: a[k], some) for k in range(len(firsts)) for some in each], ()
        return *joined(optimizer, state, found, data._replace(x=None, target=None), plan, i, table), turns, values

    table = jnp.zeros((plan.rows.shape[0], 2 + len(loss.scores)), dtype=data.weight.dtype)
    values = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), 2 * ([jax.tree.leaves(batch), kept],) if aside else ())
    carry = state, table, TURNS * aside * [jnp.zeros(2, jnp.int32)], values
    state, table, *rest = lax.fori_loop(0, plan.count, step, carry)
    return state, table, rest


def with_values(function: Any, *args: Any) -> tuple[Any, list[Any]]:
    """The function, made to return also those inner values that operations could wait for, and what these are like."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    program, inner = closed.jaxpr, {v: None for equation in closed.jaxpr.eqns for v in equation.outvars}
    alive = {v: None for equation in program.eqns for v in worth_keeping(equation) if not isinstance(v, Literal) and v in inner}
    run = jaxpr_as_fun(ClosedJaxpr(program.replace(outvars=[*program.outvars, *alive]), closed.consts))

    def both(*args: Any) -> tuple[Any, list[Any]]:
        results = run(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results[: len(program.outvars)]), results[len(program.outvars) :]

    return both, [v.aval for v in alive]


def worth_keeping(equation: Any) -> list[Any]:
    """What goes into and comes out of products and sums: XLA makes one operation of all that lies between."""
    joins = equation.primitive.name.startswith(("dot_general", "reduce_", "argm"))
    return [v for v in (*equation.outvars, *equation.invars) if v.aval.size > 1] if joins else []
