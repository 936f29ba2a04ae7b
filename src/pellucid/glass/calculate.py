"""Formulas that compute: equations worked out one after the other, and shown with their numbers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..layers.sliding import Origin
from .notation import Matrix
from .reading import Unreadable, read

__all__ = ["Calculation", "Working"]

TERMS = 6  # a longer sum is shown by its largest terms and the rest
MOST = 20_000  # sums of more terms are not worked out entry by entry


class Outside(Exception):
    """An entry that is not there."""


class Working(NamedTuple):
    """One line of working: what stands left and right, the right side with numbers, and what the network found."""

    left: str
    right: str
    numbers: list[Any] | None
    result: Matrix
    entry: bool = False  # whether it is one entry of a matrix that is too large to be shown
    given: str = ""  # what the value is, if it did not come from the right side


class Shown(NamedTuple):
    """A value and how it is written with numbers."""

    value: Any
    parts: list[Any]


# -------------------------------------------------------------------- evaluating and showing
def normal(z: Any) -> Any:
    return np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))(z)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "√": np.sqrt, "abs": np.abs, "sin": np.sin, "cos": np.cos, "floor": np.floor,
    "σ": lambda z: 0.5 * np.tanh(0.5 * z) + 0.5, "max": np.maximum, "min": np.minimum, "Φ": normal,
    "tril": lambda a: np.tril(a) if np.ndim(a) else a,
    "seen": lambda S: np.where(np.triu(np.ones_like(S)) > 0, S, -np.inf) if np.ndim(S) else S,
    "φ": lambda z: np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi), "sign": lambda z: np.where(np.asarray(z) >= 0, 1.0, -1.0),
}  # fmt: skip
COMPARE = {"<": np.less, ">": np.greater, "≤": np.less_equal, "≥": np.greater_equal, "=": np.equal}


class Calculation:
    """Works equations out, one after the other, and compares them with what is known.

    `matrices` have examples as columns, `arrays` are what entries are taken from, `more` are further matrices, series (as
    dicts), ranges of indices and numbers that come before both, `functions` further functions by name.
    """

    def __init__(self, matrices: Any, arrays: Any, more: Mapping[str, Any], functions: Mapping[str, Any], limit: int = 48) -> None:
        self.matrices, self.names, self.more = matrices, {**matrices, **more}, more
        self.arrays = {**arrays, **{name: a for name, a in more.items() if isinstance(a, Origin | np.ndarray)}}
        self.functions, self.limit, self.index = {**FUNCTIONS, **functions}, limit, dict[str, Any]()

    # ------------------------------------------------------------ equations
    def work(self, equations: list[str]) -> list[tuple[list[str], list[Working]]]:
        """Groups of equations, each with its lines of working; those of one series are worked out step by step."""
        out: list[tuple[list[str], list[Working]]] = []
        with np.errstate(all="ignore"):
            for letter, group in itertools.groupby(equations, self.letter):
                together = list(group)
                if letter:
                    out.append((together, self.series(together, letter)))
                else:
                    out += [([e], [w for w in [self.alone(e)] if w]) for e in together]
        return out

    def letter(self, equation: str) -> str:
        """The index of the series whose member an equation defines: "t" of "h_t = …"."""
        match = re.match(r"[^\s_]+_([a-z]) = ", equation)
        return match.group(1) if match and isinstance(self.names.get(match.group(1)), range) else ""

    def series(self, equations: list[str], letter: str) -> list[Working]:
        """A series in the order in which its members need each other; of a long one the first two and the last are shown."""
        places, defined = list(self.names[letter]), [e.partition("_")[0] for e in equations]
        if any(f"{name}_{{{letter}+1}}" in e for name in defined for e in equations):
            places.reverse()
        shown = places if len(places) <= 4 else [*places[:2], places[-1]]
        if letter == "k":  # units do not need each other: the one with the greatest flow is shown
            loudest = self.more.get("dy", self.more.get("y", {}))
            shown = [max(places, key=lambda k: float(np.abs(loudest.get(k, 0)).sum()))]
        found = []
        for name in defined:
            if not isinstance(self.names.get(name), dict):
                self.names[name] = {}
        for place in places:
            self.index[letter] = place
            for e in equations:
                worked = self.alone(e)
                if worked and place in shown:
                    found.append(worked._replace(left=self.numbered(worked.left, letter), right=self.numbered(worked.right, letter)))
        del self.index[letter]
        return found

    def numbered(self, side: str, letter: str) -> str:
        """h_{t−1} at t = 1 as h₀."""

        def put(m: re.Match[str]) -> str:
            return "".join("₀₁₂₃₄₅₆₇₈₉"[int(c)] for c in str(self.place(read(m.group(1).strip("{}")))))

        return re.sub(rf"(?<!Σ)_(\{{{letter}[^}}]*\}}|{letter}(?![A-Za-z]))", put, side)

    def alone(self, equation: str) -> Working | None:
        """One equation worked out; None if it is not in the language or does not give what the network found."""
        left, equals, right = equation.partition(" = ")
        try:
            if not equals:
                return None
            target = read(left)
            if given := self.more.get("given", {}).get(target[1]):
                return Working(left, right, None, Matrix(self.names[target[1]], self.limit), given=given)
            node = read(right)
            if target[0] == "entry":
                return self.at_largest(left, right, node, target)
            value, parts = self(node)
        except (ValueError, IndexError, Outside):
            return None
        known = self.known(target[1], np.atleast_2d(value))
        if not agree(value, known):
            return None
        result = Matrix(known, self.limit)
        if all(m.cells is not None for m in [*parts, result] if isinstance(m, Matrix)):
            return Working(left, right, parts, result)
        at = divmod(int(np.abs(known).argmax()), known.shape[1])
        lead = np.shape(self.arrays.get(left, known))[:-1]
        place = (*np.unravel_index(at[1], lead), at[0]) if len(lead) > 1 else at  # of an image, where it is in the image
        return Working(
            f"{left}[{', '.join(map(str, map(int, place)))}]", right, self(node, at).parts, Matrix(known[at].reshape(1, 1)), entry=True
        )

    def known(self, name: str, value: np.ndarray) -> np.ndarray:
        """What the network found for a name; where nobody knows it yet, `value` is remembered."""
        if name in self.matrices and not self.index:
            return self.matrices[name] if not isinstance(self.names[name], np.ndarray) else self.names[name]
        base, _, script = name.partition("_")
        if script.strip("{}") in self.index:
            return self.names[base].setdefault(self.index[script], value)
        return self.names.setdefault(name, value)

    def at_largest(self, left: str, right: str, node: Any, target: Any) -> Working | None:
        """An equation for entries, at the largest one."""
        _, name, indices = target
        array, first = origin(self.arrays[name]) if name in self.arrays else (np.zeros(0), ())
        if not array.size or any(i[0] != "name" for i in indices) or len(indices) != array.ndim:
            return None
        place = np.unravel_index(int(np.abs(array).argmax()), array.shape)
        self.index = {i[1]: int(p) + o for i, p, o in zip(indices, place, first, strict=False)}
        written = ", ".join(str(n).replace("-", "−") for n in self.index.values())
        try:
            value, parts = self(node)
        finally:
            self.index = {}
        known = np.asarray(array[place], np.float64).reshape(1, 1)
        return Working(f"{name}[{written}]", right, parts, Matrix(known), entry=True) if agree(value, known) else None

    # ------------------------------------------------------------ trees

    def __call__(self, node: Any, at: tuple[int, int] | None = None) -> Shown:
        """The value of a tree and its parts; with `at`, of that entry of it alone."""
        return getattr(self, node[0])(at, *node[1:])

    # ------------------------------------------------------------ leaves
    def leaf(self, value: Any, at: Any) -> Shown:
        a = np.asarray(value, np.float64)
        if at is not None and a.ndim == 2:
            a = a[at[0] if a.shape[0] > 1 else 0, at[1] if a.shape[1] > 1 else 0]
        return Shown(a, [Matrix(np.atleast_2d(a), self.limit)])

    def number(self, at: Any, value: float, text: str) -> Shown:
        return Shown(np.float64(value), [text])

    def name(self, at: Any, name: str) -> Shown:
        if name in self.index:
            return Shown(np.float64(self.index[name]), [str(self.index[name])])
        if name in self.names:
            return self.leaf(self.names[name], at)
        base, _, script = name.partition("_")
        series = self.names.get(base)
        if not isinstance(series, dict):
            raise Unreadable(f"{name} has no value")
        place = self.place(read(script.strip("{}")))
        if place not in series:
            raise Outside
        return self.leaf(series[place], at)

    def place(self, node: Any) -> int:
        value = float(self(node).value)
        if abs(value - round(value)) > 1e-9:
            raise Outside
        return round(value)

    def entry(self, at: Any, name: str, indices: list[Any]) -> Shown:
        if name not in self.arrays:
            raise Unreadable(f"{name} has no entries")
        array, first = origin(self.arrays[name])
        place = tuple(self.place(i) - o for i, o in zip(indices, first, strict=False))
        if len(place) != array.ndim:
            raise Unreadable(f"{name} has {array.ndim} axes")
        if any(not 0 <= p < n for p, n in zip(place, array.shape, strict=True)):
            raise Outside
        return self.leaf(array[place], None)

    # ------------------------------------------------------------ signs
    def group(self, at: Any, inner: Any) -> Shown:
        value, parts = self(inner, at)
        return Shown(value, ["(", *parts, ")"] if len(parts) > 1 else parts)

    def factor(self, node: Any, at: Any) -> Shown:
        """A tree inside a product: a sum that came out of it gets brackets."""
        value, parts = self(node, at)
        loose = node[0] in ("beside", "sum", "square_norm", "neg") and any(isinstance(p, str) and p[:3] in (" + ", " − ") for p in parts)
        return Shown(value, ["(", *parts, ")"] if loose else parts)

    def neg(self, at: Any, inner: Any) -> Shown:
        value, parts = self.factor(inner, at)
        return Shown(-value, ["−", *parts])

    def add(self, at: Any, a: Any, b: Any) -> Shown:
        found = [shown for node in (a, b) if (shown := self.there(node, at)) is not None]
        if len(found) < 2:
            return total(found)
        (u, left), (v, right) = found
        return Shown(u + v, [*left, " + ", *right])

    def there(self, node: Any, at: Any) -> Shown | None:
        try:
            return self(node, at)
        except Outside:
            return None

    def sub(self, at: Any, a: Any, b: Any) -> Shown:
        (u, left), (v, right) = self(a, at), self.factor(b, at)
        return Shown(u - v, [*left, " − ", *right])

    def times(self, at: Any, a: Any, b: Any, sign: str) -> Shown:
        (u, left), (v, right) = self.factor(a, at), self.factor(b, at)
        return Shown(u * v, [*left, " · " if np.size(u) == 1 and np.size(v) == 1 else f" {sign} ", *right])

    def over(self, at: Any, a: Any, b: Any, sign: str) -> Shown:
        (u, left), (v, right) = self.factor(a, at), self(b, at)
        bare = len(right) == 1 or b[0] in ("group", "call")
        return Shown(u / v, [*left, " / ", *(right if bare else ["(", *right, ")"])])

    def beside(self, at: Any, a: Any, b: Any) -> Shown:
        if at is not None:
            inner = np.shape(self(a).value)[1:]
            if inner and np.ndim(self(b).value) == 2 and inner[0] > 1:  # row times column
                pairs = [(self.factor(a, (at[0], k)), self.factor(b, (k, at[1]))) for k in range(inner[0])]
                return total([Shown(u * v, [*left, " · ", *right]) for (u, left), (v, right) in pairs])
        (u, left), (v, right) = self.factor(a, at), self.factor(b, at)
        product = np.ndim(u) == 2 and np.ndim(v) == 2 and 1 not in (u.size, v.size)
        return Shown(u @ v if product else u * v, [*left, " " if max(np.size(u), np.size(v)) > 1 else " · ", *right])

    def turned(self, at: Any, inner: Any) -> Shown:
        value, parts = self(inner, at and at[::-1])
        if at is not None:
            return Shown(value, parts)
        if len(parts) == 1 and isinstance(parts[0], Matrix):
            return Shown(value.T, [Matrix(parts[0].values.T, self.limit)])  # shown turned, without the sign
        return Shown(value.T, [*parts, "ᵀ"] if inner[0] == "group" else ["(", *parts, ")ᵀ"])

    def power(self, at: Any, inner: Any, n: int, sign: str) -> Shown:
        value, parts = self(inner, at)
        return Shown(value**n, [*parts, sign] if len(parts) == 1 or inner[0] == "group" else ["(", *parts, f"){sign}"])

    def compare(self, at: Any, sign: str, a: Any, b: Any) -> Shown:
        (u, left), (v, right) = self(a, at), self(b, at)
        return Shown(np.where(COMPARE[sign](u, v), 1.0, 0.0), [*left, f" {sign} ", *right])

    def holds(self, at: Any, inner: Any) -> Shown:
        value, parts = self(inner, at)
        return Shown(value, ["[", *parts, "]"])

    def stack(self, at: Any, nodes: list[Any]) -> Shown:
        shown = [self(node) for node in nodes]
        value = np.concatenate([s.value for s in shown])
        if at is not None:
            sizes = np.cumsum([len(s.value) for s in shown])
            which = int(np.searchsorted(sizes, at[0], side="right"))
            return self(nodes[which], (at[0] - (sizes[which - 1] if which else 0), at[1]))
        return Shown(value, ["[", *[p for i, s in enumerate(shown) for p in ([" ; "] if i else []) + s.parts], "]"])

    # ------------------------------------------------------------ functions and sums
    def call(self, at: Any, name: str, nodes: list[Any]) -> Shown:
        if name == "mean" and len(nodes) == 1:
            n = len(self(nodes[0]).value)
            if at is not None:
                value, parts = self.sum(at, "Σᵢ", (), nodes[0])
                return Shown(value / n, ["(", *parts, f") / {n}"])
            value, parts = self(nodes[0])
            return Shown(value.mean(0, keepdims=True), ["mean(", *parts, ")"])
        if name not in self.functions:
            raise Unreadable(f"{name} is no function")
        shown = [self(node, at) for node in nodes]
        inside = [p for i, s in enumerate(shown) for p in ([", "] if i else []) + s.parts]
        return Shown(self.functions[name](*(s.value for s in shown)), [f"{name}(", *inside, ")"])

    def square_norm(self, at: Any, inner: Any) -> Shown:
        if at is not None:
            return self.sum(at, "Σᵢ", (), ("power", inner, 2, "²"))
        value, parts = self(inner)
        return Shown((value * value).sum(0, keepdims=True), ["‖", *parts, "‖²"])

    def sum(self, at: Any, sign: str, over: tuple[str, ...], inner: Any) -> Shown:
        if over:
            return self.over_indices(at, sign, over, inner)
        rows, columns = np.shape(self(inner).value)
        if at is None:
            value, parts = self(inner)
            return Shown(value.sum(0 if sign == "Σᵢ" else 1, keepdims=True), [f"{sign} ", *parts])
        places = [(k, at[1]) for k in range(rows)] if sign == "Σᵢ" else [(at[0], k) for k in range(columns)]
        return total([self(inner, place) for place in places])

    def over_indices(self, at: Any, sign: str, over: tuple[str, ...], inner: Any) -> Shown:
        before, found = dict(self.index), []
        ranges = [self.range(name, inner) for name in over]
        if None in ranges or math.prod(map(len, ranges)) > MOST:
            raise Unreadable(f"the sum over {', '.join(over)} is not to be written down")
        for values in itertools.product(*ranges):
            self.index |= dict(zip(over, values, strict=True))
            shown = self.there(inner, at)
            if shown is not None:
                found.append(shown)
        self.index = before
        if sign == "max":
            if not found:
                raise Outside
            first = found if len(found) <= 2 * TERMS else found[: 2 * TERMS - 1]
            inside = [p for i, s in enumerate(first) for p in ([", "] if i else []) + s.parts]
            if len(found) > len(first):
                inside += [f", ({len(found) - len(first)} more: ", Matrix(np.atleast_2d(max(s.value for s in found[len(first) :]))), ")"]
            return Shown(np.max([s.value for s in found], 0), ["max(", *inside, ")"])
        return total(found)

    def range(self, name: str, node: Any) -> Any:
        """What an index runs over: what `names` says, or the axis of the array that it stands at alone."""
        if isinstance(self.names.get(name), range):
            return self.names[name]
        if isinstance(node, tuple) and node and node[0] == "entry":
            for axis, index in enumerate(node[2]):
                if index == ("name", name):
                    array, first = origin(self.arrays[node[1]])
                    return range(first[axis], first[axis] + np.shape(array)[axis])
        for part in node if isinstance(node, tuple | list) else ():
            if isinstance(part, tuple | list) and (found := self.range(name, part)) is not None:
                return found
        return None


def total(terms: list[Shown]) -> Shown:
    """The sum of terms; those that are zero are not written, and of many the largest few and the rest."""
    if not terms:
        raise Outside
    written = [s for s in terms if np.any(s.value != 0)] or terms[:1]
    by_size = sorted(range(len(written)), key=lambda i: -float(np.abs(written[i].value).max()))
    first = sorted(by_size if len(written) <= TERMS else by_size[: TERMS - 1])
    parts: list[Any] = []
    for i in first:
        parts += [*([" + "] if parts else []), *written[i].parts]
    if len(written) > len(first):
        rest = np.asarray(sum(written[i].value for i in by_size[len(first) :]))
        parts += [f" + ({len(written) - len(first)} more: ", Matrix(np.atleast_2d(rest)), ")"]
    return Shown(np.asarray(sum(s.value for s in terms)), parts)


def origin(array: Any) -> Origin:
    return array if isinstance(array, Origin) else Origin(array, (0,) * np.ndim(array))


def agree(value: Any, known: np.ndarray) -> bool:
    """Whether two values are the same up to the rounding of single precision."""
    value = np.atleast_2d(value)
    if value.shape != known.shape:
        return False
    scale = float(np.abs(known[np.isfinite(known)]).max(initial=0.0))
    return bool(np.allclose(value, known, rtol=1e-4, atol=1e-4 * scale))
