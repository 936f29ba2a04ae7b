"""A loop over equal blocks that computes one after the other only what leads to the next: the rest comes later, for all of them at once.

On the way back, the gradient of a block's weights leads nowhere. Those of all blocks are one product of stacks of matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from .jax_conv import on_cpu
from .jax_kernel import ENTRYWISE, ON_TRUTH
from .jax_whole import equations

__all__ = ["scan_apart"]

# Operations that take no more time and memory for all blocks at once than one after the other
LATE = ENTRYWISE | ON_TRUTH | {"dot_general", "reduce_sum", "transpose", "reshape", "squeeze", "broadcast_in_dim"}
LATE |= {"optimization_barrier", "layout_constraint"}
# Bytes of what is left for later, at most: a CPU has so many near it (more, written in the loop and read after it, take longer than
# they save), and on a GPU they and what is made of them are to fit beside the rest.
CPU, GPU = 2**21, 2**30


def scan_apart(ops: Any, function: Callable[[Any, Any], Any], carry: Any, xs: Any, reverse: bool = False) -> Any:
    """What ``ops.scan`` gives. `function` is traced and taken apart: what its carry needs stays in the loop."""
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), xs)
    with ops.in_scan():
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(carry, one)
    program, count = traced.jaxpr, len(jax.tree.leaves(carry))
    given, ends, outcomes = program.invars[count:], program.outvars[:count], program.outvars[count:]
    needed, now, later = set(variables(ends)), list[Any](), list[Any]()
    for equation in reversed(program.eqns):
        if needed.isdisjoint(equation.outvars) and {e.primitive.name for e in equations([equation])} <= LATE:
            later.insert(0, equation)
        else:
            now.insert(0, equation)
            needed.update(variables(equation.invars))
    known = {*given, *program.constvars, *(v for equation in later for v in equation.outvars)}
    between = [v for v in dict.fromkeys(variables([v for e in later for v in e.invars] + outcomes)) if v not in known]
    size = sum(v.aval.size * v.aval.dtype.itemsize for v in between) * len(jax.tree.leaves(xs)[0])
    if size > (CPU if on_cpu() else GPU):
        return ops.scan(function, carry, xs, reverse)
    step, rest = (
        jaxpr_as_fun(ClosedJaxpr(program.replace(invars=[*some, *given], eqns=eqns, outvars=outvars), traced.consts))
        for some, eqns, outvars in ((program.invars[:count], now, [*ends, *between]), (between, later, outcomes))
    )

    def turn(carry: Any, x: Any) -> Any:
        found = step(*carry, *x)
        return found[:count], found[count:]

    (start, form), places = jax.tree.flatten(carry), jax.tree.leaves(xs)
    end, found = ops.loop(turn, start, places, reverse, by_rows=False)
    ys = jax.vmap(rest)(*found, *places)
    return jax.tree.unflatten(form, end), jax.tree.unflatten(jax.tree.structure(shapes[1]), ys)


def variables(atoms: Any) -> list[Any]:
    """Those that are no numbers."""
    return [v for v in atoms if not hasattr(v, "val")]
