"""Training steps of a mini-batch that is cut into parts, in one program.

**Halves side by side.** XLA runs the operations of a program one after the other, each on all cores if it is large enough, which
those of a network of some hundred units are not. It hands half of them to another core only where more than eight could begin at
once, and then goes on with what follows from them on either core. So a step begins with a dozen operations that do nothing; the
rows of the first half wait for the first of them, those of the second half for the last.

Two operations also wait for each other where XLA gave one the memory that the other reads. That of a value is not given
away as long as the value is needed; so the loop carries the values of both halves to the end of their step, and on to the end of
the loop, where nobody looks at them. Whoever waits goes on on the core that it has waited for, so one such pair is enough to have
the rest of both halves on one core.

**Stacks side by side.** The same holds for what is in a loop over equal blocks (stack.py), where all that a turn makes is carried
through the loop (`Aside`): products, what the next turn begins with, even its number and whether there is one. A recurrent
layer's loops over its steps go side by side in the same way.

**Convolutions.** What lies between the layers for images is larger than a core's cache. In parts it is not, and XLA runs
operations of different parts side by side of its own accord. Here memory is better used again. They take turns, four at a
time: that compiles faster than eight at once, and trains as fast or faster. Where layers go in tiles (winograd.py), which have
products side by side already, it is one at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from ..training.step import Batch
from . import LOCAL, jax_loop
from . import jax as engine
from .choose import AT_ONCE, convolves
from .jax_parts import joined, mean_gradients
from .programs import kept
from .stack import unwrapped

__all__ = ["train"]

# XLA would add up long rows in two steps, and the place of what is in between cannot be kept
OPTIONS = engine.OPTIONS and engine.OPTIONS | {"xla_disable_hlo_passes": "tree_reduction_rewriter"}
TURNS = 12  # operations that do nothing
# Operations whose result XLA does not compute once more in every operation that needs it, so that it has a place in memory; and those
# that have one in a loop over blocks too
APART = "dot_general", "concatenate", "reduce_", "argm", "exp"
DEAR = "log", "tanh", "erf", "rsqrt", "sqrt", "div"


def train(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, plan: Any, rows: int) -> tuple[Any, Any]:
    """As the engine's `train`, with `rows` rows in a part; whether all is finite, nobody has looked."""
    return chunk(net, loss, optimizer, rows, not convolves(net), state, data, plan)[:2]


@kept("net", "loss", "optimizer", "rows", "aside", traced=(jax_loop.__name__,), compiler_options=OPTIONS)
def chunk(net: Any, loss: Any, optimizer: Any, rows: int, aside: bool, state: Any, data: Batch, plan: Any) -> tuple[Any, ...]:
    """As the engine's `chunk`, followed by what the loop only keeps alive where two halves are to go side by side."""
    form = jax.tree.structure(state)
    net, state = unwrapped(net, state)

    def gradients(state: Any, batch: Batch, first: Any, zero: Any = None, before: Any = None) -> tuple[Any, Any]:
        ops = Aside(zero, before, state.seed, state.step) if aside else engine.JaxOps(seed=state.seed, step=state.step)
        return mean_gradients(ops, net, loss, state.params, batch, first), ops.loops if isinstance(ops, Aside) else []

    parts, at_once = math.ceil(plan.rows.shape[1] / rows), AT_ONCE
    batch, none = jax.eval_shape(functools.partial(engine.batch_of, size=rows), data, plan, 0, 0), jnp.int32(0)
    if aside:
        loops = jax_loop.kept_by(gradients, state, batch, none, none)
        part, kept = with_values(gradients, state, batch, none, none, loops)
    else:
        part, kept, loops, tiles = jax.jit(gradients), [], [], LOCAL.tiles  # traced once for all parts
        jax.eval_shape(part, state, batch, none)
        at_once = AT_ONCE if LOCAL.tiles == tiles else 1  # those in tiles have products side by side already
    at_once = min(parts, at_once)
    firsts = rows * jnp.arange(math.ceil(parts / at_once) * at_once, dtype=jnp.int32).reshape(-1, at_once)

    def step(i: Any, carry: Any) -> Any:
        state, table, turns, before = carry
        turns = [lax.sort(turn) for turn in turns]
        found: Any
        values: Any

        def half(turn: Any, before: Any) -> tuple[Any, Any]:
            zero, first = turn
            batch = engine.batch_of(data, plan, i, first, rows)
            (found, loops), alive = part(state, batch, first, zero, before[0])
            return found, [loops, alive, jax.tree.leaves(batch)]

        def one(first: Any) -> Any:
            return part(state, engine.batch_of(data, plan, i, first, rows), first)[0]

        if aside:
            found, values = zip(half(turns[0], before[0]), half(turns[-1], before[1]), strict=True)
        else:
            _, each = lax.scan(lambda _, firsts: (None, [*map(one, firsts)]), None, firsts)
            found, values = [jax.tree.map(lambda a, k=k: a[k], some) for k in range(len(firsts)) for some in each], ()
        return *joined(optimizer, state, found, data._replace(x=None, target=None), plan, i, table), turns, values

    table = jnp.zeros((plan.rows.shape[0], 2 + len(loss.scores)), dtype=data.weight.dtype)
    values = jax_loop.zeros(2 * ([loops, kept, jax.tree.leaves(batch)],) if aside else ())
    turns = [jnp.array([0, first], jnp.int32) for first in (*[0] * (TURNS - 1), rows)] if aside else []
    state, table, *rest = lax.fori_loop(0, plan.count, step, (state, table, turns, values))
    return jax.tree.unflatten(form, jax.tree.leaves(state)), table, rest


class Aside(jax_loop.Looping):
    """Operations of a half, whose loops do not wait for those of the other one; `zero` is a zero that this half waits for."""

    def __init__(self, zero: Any, before: Any, seed: Any, step: Any) -> None:
        super().__init__(before, [], seed=seed, step=step)
        self.zero = zero.astype(np.uint32)

    def alive(self, program, count):
        return waited_for(program, {*program.constvars, *program.invars[:count]}, program.outvars[:count])


def with_values(function: Any, *args: Any) -> tuple[Any, list[Any]]:
    """The function, made to return also those inner values that operations could wait for, and what these are like.

    What it returns second is kept already.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    program, count = closed.jaxpr, len(jax.tree.leaves(shape[0]))
    alive = waited_for(program, {*program.constvars, *program.invars, *program.outvars[count:]})
    run = jaxpr_as_fun(ClosedJaxpr(program.replace(outvars=[*program.outvars, *alive]), closed.consts))

    def both(*args: Any) -> tuple[Any, list[Any]]:
        results = run(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results[: len(program.outvars)]), results[len(program.outvars) :]

    return both, [v.aval for v in alive]


def waited_for(program: Any, others: set[Any], ends: Sequence[Any] | None = None) -> list[Any]:
    """What has a place in memory of its own, but for `others`: what goes into and comes out of products, sums and the like.

    In a loop (which has `ends`, what a turn hands on) that holds for numbers, too.
    """
    named: dict[Any, Any] = {}  # of an array that is another one, looked at in another way: that one
    for equation in program.eqns:
        if equation.primitive.name in ("transpose", "reshape"):
            named[equation.outvars[0]] = named.get(equation.invars[0], equation.invars[0])
    arrays = [v for e in program.eqns if e.primitive.name.startswith(APART) for v in (*e.outvars, *e.invars) if not isinstance(v, Literal)]
    if ends is not None:
        arrays += [v for e in program.eqns if e.primitive.name.startswith(DEAR) for v in e.outvars]
    found = [named.get(v, v) for v in arrays if ends is not None or v.aval.size > 1]
    return [v for v in dict.fromkeys([*found, *(ends or ())]) if v not in others]
