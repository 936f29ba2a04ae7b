"""Training steps of a mini-batch that is cut into parts, in one program.

**Halves side by side.** XLA runs the operations of a program one after the other, each on all cores if it is large enough, which
those of a network of some hundred units are not. It hands half of them to another core only where more than eight could begin at
once, and then goes on with what follows from them on either core. So a step begins with a dozen operations that do nothing; the
rows of the first half wait for the first of them, those of the second half for the last.

Two operations also wait for each other where XLA gave one the memory that the other reads. That of a value is not given
away as long as the value is needed; so the loop carries the values of both halves to the end of their step, and on to the end of
the loop, where nobody looks at them. Whoever waits goes on on the core that it has waited for, so one such pair is enough to have
the rest of both halves on one core. And one value that is not carried is enough for such a pair, be it a single number: it may lie
where one that is carried will lie later.

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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ..training.step import Batch
from . import LOCAL, jax_loop
from . import jax as engine
from .choose import AT_ONCE, convolves
from .jax_parts import joined, mean_gradients
from .late import equations, variables
from .programs import kept
from .stack import unwrapped

__all__ = ["train"]

# XLA would add up long rows in two steps, and the place of what is in between cannot be kept
OPTIONS = engine.OPTIONS and engine.OPTIONS | {"xla_disable_hlo_passes": "tree_reduction_rewriter"}
TURNS = 12  # operations that do nothing
# Operations whose results XLA does not compute once more wherever they are needed, so that they have places in memory; and those of which
# that holds for what they read, too
MADE = "gather", "optimization_barrier", "exp", "log", "tanh", "erf", "rsqrt", "sqrt", "div"
JOINS = "concatenate", "stack"
READ = "dot_general", "while", "reduce_", "argm", *JOINS


def train(net: Any, loss: Any, optimizer: Any, state: Any, data: Batch, plan: Any, rows: int) -> tuple[Any, Any]:
    """As the engine's `train`, with `rows` rows in a part; whether all is finite, nobody has looked."""
    return chunk(net, loss, optimizer, rows, not convolves(net), state, data, plan)[:2]


@kept("net", "loss", "optimizer", "rows", "aside", traced=(jax_loop.__name__,), compiler_options=OPTIONS)
def chunk(net: Any, loss: Any, optimizer: Any, rows: int, aside: bool, state: Any, data: Batch, plan: Any) -> tuple[Any, ...]:
    """As the engine's `chunk`, followed by what the loop only keeps alive where two halves are to go side by side."""
    form = jax.tree.structure(state)
    net, state = unwrapped(net, state)

    def one(state: Any, batch: Batch, first: Any) -> Any:
        return mean_gradients(engine.JaxOps(seed=state.seed, step=state.step), net, loss, state.params, batch, first)

    def half(state: Any, i: Any, turn: Any, before: Any = None) -> tuple[Any, Any]:
        zero, first = turn
        ops, batch = Aside(zero, before, state.seed, state.step), engine.batch_of(data, plan, i, first, rows)
        return mean_gradients(ops, net, loss, state.params, batch, first), ops.loops

    parts, at_once = math.ceil(plan.rows.shape[1] / rows), AT_ONCE
    table, none = jnp.zeros((plan.rows.shape[0], 2 + len(loss.scores)), dtype=data.weight.dtype), jnp.int32(0)
    if aside:
        turns = [jnp.array([0, first], jnp.int32) for first in (*[0] * (TURNS - 1), rows)]
        loops = jax_loop.kept_by(half, state, none, turns[0])
        run, alive = with_values(half, state, none, turns[0], loops)
        values = jax_loop.zeros(2 * ([loops, alive],))
    else:
        turns, values, tiles, run = [], (), LOCAL.tiles, jax.jit(one)  # traced once for all parts
        jax.eval_shape(run, state, jax.eval_shape(lambda: engine.batch_of(data, plan, 0, 0, rows)), none)
        at_once = AT_ONCE if LOCAL.tiles == tiles else 1  # those in tiles have products side by side already
    at_once = min(parts, at_once)
    firsts = rows * jnp.arange(math.ceil(parts / at_once) * at_once, dtype=jnp.int32).reshape(-1, at_once)

    def step(i: Any, carry: Any) -> Any:
        state, table, turns, values = carry
        turns = [lax.sort(turn) for turn in turns]
        if aside:
            halves = [run(state, i, turn, before) for turn, (before, _) in zip((turns[0], turns[-1]), values, strict=True)]
            found, values = [found for (found, _), _ in halves], tuple([loops, alive] for (_, loops), alive in halves)
        else:
            batches = functools.partial(engine.batch_of, data, plan, i, size=rows)
            _, each = lax.scan(lambda _, firsts: (None, [run(state, batches(first), first) for first in firsts]), None, firsts)
            found = [jax.tree.map(lambda a, k=k: a[k], some) for k in range(len(firsts)) for some in each]
        return *joined(optimizer, state, found, data._replace(x=None, target=None), plan, i, table), turns, values

    state, table, *rest = lax.fori_loop(0, plan.count, step, (state, table, turns, values))
    return jax.tree.unflatten(form, jax.tree.leaves(state)), table, rest


class Aside(jax_loop.Looping):
    """Operations of a half, whose loops do not wait for those of the other one; `zero` is a zero that this half waits for."""

    def __init__(self, zero: Any, before: Any, seed: Any, step: Any) -> None:
        super().__init__(before, [], seed=seed, step=step)
        self.zero = zero.astype(np.uint32)

    def alive(self, program, count):
        others, ends = {*program.constvars, *program.invars[:count]}, program.outvars[:count]
        return [*dict.fromkeys([*waited_for(program, others), *(v for v in ends if v not in others)])]


def with_values(function: Any, *args: Any) -> tuple[Any, list[Any]]:
    """The function, made to return also those inner values that operations could wait for, and what these are like.

    What it returns second is kept already.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    program, count = closed.jaxpr, len(jax.tree.leaves(shape[0]))
    others = {*program.constvars, *program.invars, *program.outvars[count:]}
    alive = waited_for(program, others)
    run = jaxpr_as_fun(ClosedJaxpr(program.replace(outvars=[*program.outvars, *alive]), closed.consts))

    def both(*args: Any) -> tuple[Any, list[Any]]:
        results = run(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results[: len(program.outvars)]), results[len(program.outvars) :]

    return both, [v.aval for v in alive]


def waited_for(program: Any, others: set[Any]) -> list[Any]:
    """What has a place in memory of its own, but for `others` and what they are reshaped to.

    An array and what it is reshaped to have one place, so one of the two is enough. But joined arrays are joined anew wherever they are
    reshaped. What is transposed is read as it was, except in a loop.
    """
    found, same, turned = dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()
    joined = {v for e in program.eqns if e.primitive.name in JOINS for v in e.outvars}
    anew = joined.difference(*(variables(e.invars) for e in program.eqns if e.primitive.name != "reshape"), variables(program.outvars))
    for equation in program.eqns:
        names = {one.primitive.name for one in equations([equation])}
        read, made = variables(equation.invars), equation.outvars
        if names == {"transpose"}:
            turned[made[0]] = turned.get(read[0], read[0])
        if names == {"reshape"} and read[0] not in joined:
            same[made[0]] = same.get(read[0], read[0])
        reads = any(name.startswith(READ) for name in names)
        arrays = [v for v in made if v not in anew] if reads or any(name.startswith(MADE) for name in names) else []
        for v in [*arrays, *(read if reads else ())]:
            v = v if equation.primitive.name == "while" else turned.get(v, v)
            found[same.get(v, v)] = v
    return [v for place, v in found.items() if others.isdisjoint((place, v))]
