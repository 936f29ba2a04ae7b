"""A loop over equal blocks that computes one after the other only what leads to the next: the rest comes later, for all of them at once.

On the way back, the gradient of a block's weights leads nowhere. Those of all blocks are one product of stacks of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from .jax_conv import on_cpu
from .jax_kernel import ENTRYWISE, ON_TRUTH

__all__ = ["equations", "scan_apart", "variables"]

# Operations that take no longer for all blocks at once than one after the other
LATE = ENTRYWISE | ON_TRUTH | {"dot_general", "reduce_sum", "transpose", "reshape", "squeeze", "broadcast_in_dim"}
LATE |= {"optimization_barrier", "layout_constraint"}
# Bytes of an array that is made for all blocks at once, at most: a CPU has so many near it (more, written in the loop and read after it,
# take longer than they save), and a GPU is to have room for it beside the rest.
CPU, GPU = 2**21, 2**30


def scan_apart(ops: Any, function: Callable[[Any, Any], Any], carry: Any, xs: Any, reverse: bool = False) -> Any:
    """What ``ops.scan`` gives. `function` is traced and taken apart: what its carry needs stays in the loop."""
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun  # a twentieth of JAX's import, which most networks do without

    (start, form), places = jax.tree.flatten(carry), jax.tree.leaves(xs)
    with ops.in_scan():
        one = jax.eval_shape(lambda xs: jax.tree.map(lambda a: a[0], xs), xs)
        traced, (_, shapes) = jax.make_jaxpr(function, return_shape=True)(carry, one)
    program, count = traced.jaxpr, len(start)
    first, given, ends, outcomes = program.invars[:count], program.invars[count:], program.outvars[:count], program.outvars[count:]
    needed, wanted = dict.fromkeys(variables(ends)), dict.fromkeys(variables(outcomes))
    now, later = list[Any](), list[Any]()
    for equation in reversed(program.eqns):
        if not needed.keys().isdisjoint(equation.outvars) or not is_late(equation):
            now.insert(0, equation)
            needed |= dict.fromkeys(variables(equation.invars))
        elif not wanted.keys().isdisjoint(equation.outvars):
            later.insert(0, equation)
            wanted |= dict.fromkeys(variables(equation.invars))
    made = {v for equation in later for v in equation.outvars}
    between = [v for v in wanted if v not in made.union(given, program.constvars)]
    largest = max((v.aval.size * v.aval.dtype.itemsize for v in made.union(between).difference(variables(outcomes))), default=0)
    if largest * len(places[0]) > (CPU if on_cpu() else GPU):
        return ops.scan(function, carry, xs, reverse)

    def part(invars: list[Any], eqns: list[Any], outvars: list[Any]) -> Callable[..., list[Any]]:
        return jaxpr_as_fun(ClosedJaxpr(program.replace(invars=invars, eqns=eqns, outvars=outvars), traced.consts))

    step, rest = part([*first, *given], now, [*ends, *between]), part([*between, *given], later, outcomes)

    def turn(carry: Any, x: Any) -> Any:
        found = step(*carry, *x)
        return found[:count], found[count:]

    end, found = ops.loop(turn, start, places, reverse, by_rows=False)
    return jax.tree.unflatten(form, end), jax.tree.unflatten(jax.tree.structure(shapes), jax.vmap(rest)(*found, *places))


def is_late(equation: Any) -> bool:
    """Whether it may come after the loop, where nothing in the loop needs it."""
    return {one.primitive.name for one in equations([equation])} <= LATE


def equations(all_of: Iterable[Any]) -> Iterator[Any]:
    """All operations of a program, those of its parts too."""
    for equation in all_of:
        yield from equations(equation.params["jaxpr"].jaxpr.eqns) if equation.primitive.name == "jit" else [equation]


def variables(atoms: Any) -> list[Any]:
    """Those that are no numbers."""
    return [v for v in atoms if not hasattr(v, "val")]
