"""Evaluates the right side of a page's line on its own: what stands there, translated to Python and NumPy."""

from __future__ import annotations

import math
import re

import numpy as np

from pellucid.glass.notation import Matrix

BINDS_LOOSER = re.compile(r" [+−] | ; |, ")


class Value(np.ndarray):
    """A matrix with the page's signs: `**` stands for what is written side by side and binds tighter than ⊙."""

    def __pow__(self, other):
        a, b = np.asarray(self), np.asarray(other)
        return of(a * b if 1 in (a.size, b.size) else a @ b)

    def __rpow__(self, other):
        return of(np.asarray(other)) ** self

    def square(self):
        return of(np.asarray(self) ** 2)

    def cube(self):
        return of(np.asarray(self) ** 3)


def of(a):
    return np.atleast_2d(np.asarray(a, float)).view(Value)


def evaluate(parts, shown=False):
    """The value of a line's numbers; with `shown`, of the digits that are printed."""
    values, code = [], ""
    for part in parts:
        if isinstance(part, Matrix):
            printed = [[float(c.replace("−", "-").replace("∞", "inf")) for c in row] for row in part.cells]
            values.append(of(printed if shown else part.values))
            code += f"⟦{len(values) - 1}⟧"
        else:
            code += part
    rows = re.fullmatch(r"rows (\d+) … (\d+) of ⟦0⟧", code)
    if rows:
        return values[0][int(rows[1]) : int(rows[2]) + 1]
    code = re.sub(r"\(\d+ more: ", "(", code)
    with np.errstate(all="ignore"):
        return eval(python(code), {**FUNCTIONS, "V": values, "of": of})


def python(code):
    """The page's formula as a Python expression."""
    code = re.sub(r"‖((?:(?!‖).)*)‖²", r"norm2(\1)", code)
    code = re.sub(r"\|((?:(?!\|).)*)\|", r"abs(\1)", code)
    code = code.replace(")ᵀ", ").T")
    while "Σ" in code:
        at = code.rindex("Σ")
        name, start = ("down", at + 3) if code[at + 1] == "ᵢ" else ("across", at + 2)
        end = reach(code, start)
        code = f"{code[:at]}{name}({code[start:end]}){code[end:]}"
    code = re.sub(r"\[", "(", stacked(code)).replace("]", ")").replace("≤", "<=").replace("≥", ">=").replace(" = ", " == ")
    code = re.sub(r"(⟧|\)|\d)([²³])", lambda m: f"{m[1]}.cube()" if m[2] == "³" else f"{m[1]}.square()", code)
    code = re.sub(r"(⟧|\)|\d|\.T) (?=[⟦(\d]|[a-zσΦφ√]+\w*\()", r"\1 ** ", code)
    code = re.sub(r"⟦(\d+)⟧", r"V[\1]", code)
    return code.replace("⊙", "*").replace("·", "*").replace("−", "-").replace("√(", "sqrt(")


def reach(code, start):
    """Where the product that begins at `start` ends."""
    depth = 0
    for i in range(start, len(code)):
        if depth == 0 and (code[i] in ")]" or BINDS_LOOSER.match(code, i)):
            return i
        depth += (code[i] in "([") - (code[i] in ")]")
    return len(code)


def stacked(code):
    """[a ; b] as stack(a, b); brackets without ; hold a condition."""
    match = re.search(r"\[([^\[\]]* ; [^\[\]]*)\]", code)
    return stacked(code[: match.start()] + f"stack({match[1].replace(' ; ', ', ')})" + code[match.end() :]) if match else code


def sum_of(axis):
    return lambda a: of(np.asarray(of(a)).sum(axis, keepdims=True))


def seen(S):
    """Later positions are not looked at."""
    return of(np.where(np.triu(np.ones(S.shape)) > 0, S, -np.inf)) if S.size > 1 else S


FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sqrt": lambda z: of(np.sqrt(z)),
    "abs": np.abs,
    "min": np.minimum,
    "max": lambda *z: of(np.max(np.stack(np.broadcast_arrays(*map(of, z))), 0)),
    "σ": lambda z: 1 / (1 + np.exp(-of(z))),
    "Φ": lambda z: of(np.vectorize(lambda v: 0.5 + 0.5 * math.erf(v / math.sqrt(2)))(of(z))),
    "φ": lambda z: of(np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi)),
    "sign": lambda z: of(np.where(of(z) >= 0, 1, -1)),
    "down": sum_of(0),
    "across": sum_of(1),
    "mean": lambda a: sum_of(0)(a) / len(of(a)),
    "norm2": lambda a: sum_of(0)(of(a).square()),
    "stack": lambda *a: of(np.concatenate(a)),
    "tril": lambda a: of(np.tril(a)),
    "seen": seen,
    "softmax": lambda z: of(np.exp(z)) / sum_of(0)(np.exp(z)),
    "cube": lambda z: of(z).cube(),  # the functions of tests/table.py
    "cube_slope": lambda z: 3 * of(z).square(),
    "some_id": lambda z: of(np.floor(7 * np.abs(z)) % 5),
    "flat": lambda z: 0 * of(z),
}
