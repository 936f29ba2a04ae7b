"""Formulas in x, y, z typed by a user: parsed into a tree of known operations, never run as Python.

The same tree is evaluated on numbers, and on intervals with their derivatives: that gives a Lipschitz constant that
holds on a whole box, not only where it was sampled.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..settings import did_you_mean

__all__ = ["Expression"]

CONSTANTS = {"pi": math.pi, "e": math.e}
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FUNCTIONS = ("abs", "cos", "exp", "log", "sin", "sqrt", "tan", "tanh")
LONGEST = 1000
CELLS = 1024  # boxes on which the derivative is enclosed


class Expression:
    """A function given as text, such as ``"sin(3*x) + abs(y)"``.

    Parameters
    ----------
    text : str
        Numbers, the variables, pi and e, + - * / ** and the functions abs, cos, exp, log, sin, sqrt, tan, tanh.
    variables : str
        The variables it may use.

    Examples
    --------
    >>> f = Expression("3*x**2 - 1", "x")
    >>> f(2.0), round(f.lipschitz([0], [1]), 9)
    (11.0, 6.0)
    """

    def __init__(self, text: str, variables: str = "x") -> None:
        self.text, self.variables = text, tuple(variables)
        if not isinstance(text, str) or len(text) > LONGEST:
            raise ValueError(f"an expression is a text of at most {LONGEST} characters.")
        try:
            self.tree = ast.parse(text.strip().replace("^", "**"), mode="eval").body
            self.check(self.tree)
        except SyntaxError as error:
            raise ValueError(f"cannot read {text!r}: {error.msg}.") from None
        except (RecursionError, MemoryError):
            raise ValueError("cannot read the expression: it is nested too deeply.") from None

    def check(self, node: ast.AST) -> None:
        """Refuse everything that is not arithmetic."""
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and abs(value) < 1e300:
                return
            case ast.Name(id=name) if name in self.variables or name in CONSTANTS:
                return
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                self.check(left)
                self.check(right)
                if type(op) is ast.Pow and any(isinstance(n, ast.Name) and n.id in self.variables for n in ast.walk(right)):
                    raise ValueError(f"{ast.unparse(node)!r}: an exponent must be a number; write exp(… * log(…)).")
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                self.check(operand)
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
                self.check(argument)
            case ast.Name(id=name):
                known = (*self.variables, *CONSTANTS)
                raise ValueError(f"unknown name {name!r} in {self.text!r}.{did_you_mean(name, known)} Known: {', '.join(known)}.")
            case ast.Call(func=ast.Name(id=name)):
                raise ValueError(
                    f"unknown function {name!r}, or not one argument.{did_you_mean(name, FUNCTIONS)} Known: {', '.join(FUNCTIONS)}."
                )
            case _:
                raise ValueError(
                    f"{ast.unparse(node)!r} is not allowed: only numbers, {', '.join(self.variables)}, + - * / ** and functions."
                )

    def evaluate(self, node: ast.AST, values: dict[str, Any], functions: Any, number: Callable[[float], Any]) -> Any:
        """The value of a node; `functions` holds sin, exp, …, `number` makes a constant."""
        match node:
            case ast.Constant(value=value):
                return number(float(value))  # type: ignore[arg-type]
            case ast.Name(id=name):
                return values[name] if name in values else number(CONSTANTS[name])
            case ast.UnaryOp(op=op, operand=operand):
                value = self.evaluate(operand, values, functions, number)
                return -value if isinstance(op, ast.USub) else value
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                exponent = self.evaluate(right, {}, np, np.float64)
                return self.evaluate(left, values, functions, number) ** float(exponent)
            case ast.BinOp(left=left, op=op, right=right):
                a, b = (self.evaluate(side, values, functions, number) for side in (left, right))
                return OPERATORS[type(op)](a, b)
            case ast.Call(func=ast.Name(id=name), args=[argument]):
                return getattr(functions, name)(self.evaluate(argument, values, functions, number))
        raise AssertionError(ast.dump(node))

    def __call__(self, *values: float) -> float:
        with np.errstate(all="ignore"):  # a value that is not finite is reported by whoever asked for it
            arrays = dict(zip(self.variables, map(np.float64, values), strict=True))
            return float(self.evaluate(self.tree, arrays, np, np.float64))

    def lipschitz(self, low: Sequence[float], high: Sequence[float]) -> float:
        """A Lipschitz constant on the box low … high: the greatest length of the gradient, enclosed by interval arithmetic."""
        try:
            from mpmath import iv
            from mpmath.libmp import ComplexResult
        except ImportError as error:
            raise ImportError("bounding a formula's slope needs sympy: pip install 'pellucid[theory]', or pass lipschitz=.") from error
        n = len(self.variables)
        cuts = [np.linspace(a, b, max(1, round(CELLS ** (1 / n))) + 1) for a, b in zip(low, high, strict=True)]
        greatest = 0.0
        try:
            for corner in itertools.product(*(itertools.pairwise(c) for c in cuts)):
                unit = [[iv.mpf(int(i == j)) for j in range(n)] for i in range(n)]
                box = {v: Slope(iv.mpf([a, b]), unit[i]) for i, (v, (a, b)) in enumerate(zip(self.variables, corner, strict=True))}
                result = self.evaluate(self.tree, box, SlopeFunctions, lambda c: Slope(iv.mpf(c), [iv.mpf(0)] * n))
                square = sum((abs(g) ** 2 for g in result.slopes), iv.mpf(0))
                greatest = max(greatest, float(iv.sqrt(square).b))
        except (ComplexResult, ZeroDivisionError, OverflowError, ValueError):
            greatest = math.nan
        if not math.isfinite(greatest):
            raise ValueError(
                f"no finite bound for the slope of {self.text!r} from {list(map(float, low))} to {list(map(float, high))}: "
                "choose an interval where it is finite, or give modulus= a modulus of continuity."
            )
        return greatest


class Slope:
    """An interval that encloses a value, with intervals that enclose its derivatives by every variable."""

    def __init__(self, value: Any, slopes: list[Any]) -> None:
        self.value, self.slopes = value, slopes

    def through(self, value: Any, derivative: Any) -> Slope:
        return Slope(value, [derivative * s for s in self.slopes])  # the chain rule

    def __neg__(self) -> Slope:
        return self.through(-self.value, -1)

    def __add__(self, other: Slope) -> Slope:
        return Slope(self.value + other.value, [a + b for a, b in zip(self.slopes, other.slopes, strict=True)])

    def __sub__(self, other: Slope) -> Slope:
        return self + (-other)

    def __mul__(self, other: Slope) -> Slope:
        pairs = zip(self.slopes, other.slopes, strict=True)
        return Slope(self.value * other.value, [a * other.value + b * self.value for a, b in pairs])

    def __truediv__(self, other: Slope) -> Slope:
        return self * other**-1.0

    def __pow__(self, k: float) -> Slope:
        exact = int(k) if k == int(k) else k  # whole powers of negative intervals exist
        return self.through(self.value**exact, k * self.value ** (exact - 1)) if k else self.through(self.value**0, 0)


class SlopeFunctions:
    """The functions of an expression on `Slope`: value and derivative."""

    @staticmethod
    def abs(u: Slope) -> Slope:
        from mpmath import iv

        sign = 1 if u.value.a >= 0 else -1 if u.value.b <= 0 else iv.mpf([-1, 1])
        return u.through(abs(u.value), sign)

    @staticmethod
    def cos(u: Slope) -> Slope:
        return u.through(u.value.ctx.cos(u.value), -u.value.ctx.sin(u.value))

    @staticmethod
    def sin(u: Slope) -> Slope:
        return u.through(u.value.ctx.sin(u.value), u.value.ctx.cos(u.value))

    @staticmethod
    def tan(u: Slope) -> Slope:
        return SlopeFunctions.sin(u) / SlopeFunctions.cos(u)

    @staticmethod
    def exp(u: Slope) -> Slope:
        value = u.value.ctx.exp(u.value)
        return u.through(value, value)

    @staticmethod
    def log(u: Slope) -> Slope:
        return u.through(u.value.ctx.log(u.value), 1 / u.value)

    @staticmethod
    def sqrt(u: Slope) -> Slope:
        value = u.value.ctx.sqrt(u.value)
        return u.through(value, 1 / (2 * value))

    @staticmethod
    def tanh(u: Slope) -> Slope:
        ctx = u.value.ctx

        def at(end: Any) -> Any:  # increasing: the ends of the interval give the ends of the value
            return 1 - 2 / (ctx.exp(2 * ctx.mpf(end)) + 1)

        value = ctx.mpf([at(u.value.a).a, at(u.value.b).b])
        return u.through(value, 1 - value**2)
