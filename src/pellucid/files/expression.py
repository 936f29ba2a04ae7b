"""Expressions from text, without evaluating it: a model file and the command line both read networks here."""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from ..layers.base import Layer
from ..settings import Fixed, Settings, did_you_mean

__all__ = ["names_known", "parse"]

LONGEST = 2_000_000  # characters
DEEPEST = 100  # brackets within brackets
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.RShift: lambda a, b: a >> b,
    ast.BitOr: lambda a, b: a | b,
    ast.Add: lambda a, b: a + b,
    ast.Mult: lambda a, b: a * b,
}


class UnknownName(NameError):
    """A name in an expression that nothing is known by."""


@functools.cache
def names_known() -> dict[str, Any]:
    """The settings classes that pellucid exports, by name."""
    import pellucid

    exported = {name: getattr(pellucid, name) for name in pellucid.__all__ if name not in pellucid.LATER}
    return {n: v for n, v in exported.items() if isinstance(v, type) and issubclass(v, Settings | Fixed)} | {"inf": math.inf}


def parse(text: str, also: Iterable[Any] | None = None) -> Any:
    """Rebuild what `repr` printed: layers, losses, optimizers and their settings; nothing else is understood.

    `also` are classes and functions of your own that the text may name.

    Examples
    --------
    >>> parse("Linear(8) >> (Tanh() | Linear(2, bias=False))")
    Linear(8) >> (Tanh() | Linear(2, bias=False))
    """
    if len(text) > LONGEST:
        raise ValueError(f"the expression is too long: {len(text)} characters, at most {LONGEST} are read.")
    depth = 0
    for bracket in re.findall(r"[(\[)\]]", text):
        depth += 1 if bracket in "([" else -1
        if depth > DEEPEST:
            raise ValueError(f"the expression has more than {DEEPEST} brackets within brackets.")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, MemoryError, RecursionError, ValueError) as error:
        raise ValueError(f"{shown(text)} is no expression: {getattr(error, 'msg', error)}.") from None
    names = names_known() | {thing.__name__: thing for thing in also or ()}
    try:
        result = value_of(tree.body, names)
    except UnknownName as error:
        hint = "" if also is None else f" If it is your own, pass it as also=[{error.name}]."
        raise ValueError(f"{error}{hint}") from None
    except RecursionError:
        raise ValueError("the expression is nested too deeply.") from None
    if not isinstance(result, Settings):
        raise ValueError(f"{shown(text)} is no layer, and no other settings either.")
    return result


def value_of(node: ast.expr, names: dict[str, Any]) -> Any:
    """The value of one node; every kind that is not listed is refused."""
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float | str | bool) or value is None:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(value, int | float):
            return -value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return -math.inf
        case ast.Tuple(elts=items):
            return tuple(value_of(item, names) for item in items)
        case ast.List(elts=items):
            return [value_of(item, names) for item in items]
        case ast.Name(id=name):
            if name in names:
                return names[name]
            raise UnknownName(f"{name!r} is not known.{did_you_mean(name, names)}", name=name)
        case ast.BinOp():
            return joined(node, names)
        case ast.Call(func=ast.Attribute(value=inner, attr="named"), args=[ast.Constant(value=str(name))], keywords=[]):
            layer = value_of(inner, names)
            if isinstance(layer, Layer):
                return layer.named(name)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            made = value_of(node.func, names)
            options = {word.arg: value_of(word.value, names) for word in keywords if word.arg}
            if isinstance(made, type) and len(options) == len(keywords):
                return made(*(value_of(a, names) for a in args), **options)
    raise ValueError(f"{shown(ast.unparse(node))} is not understood: write layers such as Linear(8), joined by >> | + *.")


def joined(node: ast.expr, names: dict[str, Any]) -> Any:
    """Layers joined by operators. The left side is walked in a loop: a chain of a thousand layers is no deep nesting."""
    pending = []
    while isinstance(node, ast.BinOp):
        if type(node.op) not in OPERATORS:
            raise ValueError(f"layers are joined by >> | + *, not by {type(node.op).__name__}.")
        pending.append((OPERATORS[type(node.op)], node.right))
        node = node.left
    result = value_of(node, names)
    for operator, right in reversed(pending):
        if not isinstance(result, Layer):
            raise ValueError(f"operators join layers, got {result!r}.")
        result = operator(result, value_of(right, names))
    return result


def shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
