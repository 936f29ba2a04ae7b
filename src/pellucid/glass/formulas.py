"""The formulas of any expression, forward and backward, in the notes' symbols.

A layer speaks for itself through `Layer.formulas()`: its forward and its backward equations as strings. By default
those are the "Forward" and "Backward" lines of its docstring. In them the first equation's left side is the output,
``x`` (or ``z``) the input, ``W`` a parameter, ``dW`` its gradient, ``dx`` and ``dy`` the flows. The writer below puts
the network's own symbols in their place: z¹, W¹, δ¹, ∇W¹.
"""

from __future__ import annotations

import functools
import operator
import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..layers.base import Layer
from ..layers.combine import Chain, Concat, Parallel, Product
from ..tree import is_buffer, learnable, readable
from .notation import Matrix, superscript
from .page import Line, Page, Section

__all__ = ["Writer", "equations", "formula", "from_docstring"]

NAME = re.compile(r"(?<=\w)\[[^\]]*\]|_\{[^}]*\}|[A-Za-zα-ωΑ-Ω]+(?:_[A-Za-z]+)?(?![\u0300-\u036f])")  # indices first: they are left alone
LEARNED = re.compile(r"d((?![PSL]\b)[A-Z][A-Za-z]*(?:_[a-z]+)?|b|scale|shift|centres|widths|gamma|beta)(?=[ \[])")
GREEK = {"gamma": "γ", "beta": "β", "alpha": "α", "mu": "μ", "sigma": "σ", "theta": "θ"}
REFERENCE = re.compile(r"\s*\((?:N\d\d|largest|see)[^()]*\)|\s*\(no overflow\)")


def from_docstring(doc: str | None) -> tuple[list[str], list[str]]:
    """The equations under "Forward" and "Backward" in a docstring; else those of its first line."""
    lines = (doc or "").expandtabs().splitlines()
    found: dict[str, list[str]] = {"Forward": [], "Backward": []}
    into: list[str] | None = None
    for line in lines:
        head, _, rest = line.strip().partition(" ")
        if head in found:
            into = found[head]
            into.append(rest.strip())
        elif not line.strip():
            into = None
        elif into is not None:
            into.append(line.strip())
    if not found["Forward"] and lines:
        first = [e for e in equations([lines[0].strip().rstrip(".")]) if "=" in e]
        return first[:1], first[1:]
    return equations(found["Forward"]), equations(found["Backward"])


def equations(lines: list[str]) -> list[str]:
    """Lines split where a comma, a semicolon or a stop and wide space part two equations; references to notes left out."""
    found: list[str] = []
    for line in lines:
        label = ""
        for part in re.split(r"[,;.]?\s{2,}", REFERENCE.sub("", line)):
            words = part.strip().rstrip(",;")
            if words and "=" not in words and "←" not in words and re.fullmatch(r"[a-z_]+", words):
                label = f"{words}: "  # one of several cases
            elif words:
                found.append(label + words)
    return found


def left_name(equation: str) -> str:
    """The symbol an equation defines: "h" of "h_t = …"."""
    match = re.match(r"[A-Za-zα-ωŷ]+", equation.strip())
    return match.group() if match else ""


@dataclass
class Writer:
    """Walks an expression and writes its equations; with a trace, the numbers too."""

    trace: Any = None
    limit: int = 48
    count: int = 0
    used: set[str] = field(default_factory=lambda: {"L", "d", "a⁰"})
    shown: dict[str, Matrix] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # symbol -> path, for those who ask by either

    # ---------------------------------------------------------------- symbols and numbers
    def unique(self, letters: str, mark: str) -> str:
        for c in (*letters, *(f"{letters[-1]}_{i}" for i in range(2, 99))):
            if f"{c}{mark}" not in self.used:
                self.used.add(f"{c}{mark}")
                return f"{c}{mark}"
        raise ValueError("too many symbols")

    def flow(self, symbol: str) -> str:
        return f"δ{symbol[1:]}" if symbol.startswith("z") else f"∂L/∂{symbol}"

    def show(self, symbol: str, value: Any, columns: bool = True) -> Matrix | None:
        """Remember the value behind a symbol, rows of a batch as columns, as the notes write it."""
        if value is None or isinstance(value, tuple):
            return None
        a = np.asarray(value)
        image = a.ndim == 4 and a.shape[::3] == (1, 1)  # one image of one channel is shown as it is
        if image or (a.ndim == 3 and len(a) == 1):
            a = a[0, :, :, 0] if image else a[0]  # one sequence: its positions are the columns
        turned = columns and a.ndim == 2 and not image
        self.shown[symbol] = Matrix(a.reshape(-1, 1) if a.ndim == 1 else a.T if turned else a, self.limit, turned=turned)
        return self.shown[symbol]

    def line(self, equation: str, names: dict[str, str], explicit: bool, where: str = "") -> Line:
        """One equation with the network's symbols, and numbers where the layer's own formula allows it."""
        left, equals, right = equation.partition(" = ")
        symbolic = substitute(left, names) + equals + substitute(right, names)
        result = self.shown.get(names.get(left.partition("[")[0].strip(), "")) if equals else None
        numbers = self.fill(right, names) if explicit and result is not None else None
        return Line(symbolic, numbers, result, where)

    def fill(self, right: str, names: dict[str, str]) -> list[Any] | None:
        """The right side with matrices in place of symbols; None if a symbol has no number."""
        parts, at = [], 0
        for m in NAME.finditer(right):
            symbol = names.get(m.group())
            if symbol is None:
                continue
            if symbol not in self.shown:
                return None
            matrix, at_end = self.shown[symbol], m.end()
            if right[at_end : at_end + 1] == "ᵀ" and matrix.cells is not None:
                matrix, at_end = replace(matrix, values=matrix.values.T), at_end + 1  # shown turned, without the sign
            parts += [right[at : m.start()], matrix]
            at = at_end
        return [p for p in [*parts, right[at:]] if p != ""]

    # ---------------------------------------------------------------- the walk
    def walk(self, layer: Any, path: Any, x: str, dx: str, wanted: bool = True, final: bool = False) -> tuple[str, str, Any, Any]:
        """Return the names of the output and of the flow into it, the forward lines and the backward lines."""
        if isinstance(layer, Chain):
            return self.chain(layer, path, x, dx, wanted, final)
        if isinstance(layer, Parallel):
            return self.parallel(layer, path, x, dx, wanted, final)
        if len(layer.children) == 1 and self.passes_on(path):
            y, dy, forward, backward = self.walk(layer.children[0], (*path, self.key(path, 0)), x, dx, wanted, final)
            ahead, back = ([Line(f"{type(layer).__name__}: {e}", where=self.where(path)) for e in side] for side in layer.formulas())
            return y, dy, [*ahead, *forward], [*backward, *back]
        return self.leaf(layer, path, x, dx, wanted, final)

    def chain(self, net: Any, path: Any, x: str, dx: str, wanted: bool, final: bool) -> tuple[str, str, Any, Any]:
        first = 0 if wanted else next((i for i in range(len(net.layers)) if self.learns((*path, i))), len(net.layers))
        forward: list[Line] = []
        backward: list[Line] = []
        dy = dx
        for i, layer in enumerate(net.layers):
            x, dy, f, b = self.walk(layer, (*path, i), x, dy, wanted or i > first, final and i == len(net.layers) - 1)
            forward, backward = [*forward, *f], [*(b if i >= first else []), *backward]
        return x, dy, forward, backward

    def parallel(self, net: Any, path: Any, x: str, dx: str, wanted: bool, final: bool) -> tuple[str, str, Any, Any]:
        forward, branches, outputs, flows, inputs = [], [], [], [], []
        for i, layer in enumerate(net.layers):
            inputs.append(f"({dx}){subscript(i + 1)}")
            y, dy, f, b = self.walk(layer, (*path, i), x, inputs[-1], wanted)
            forward += f
            branches.append(b)
            outputs.append(y)
            flows.append(dy)
        y = self.unique("y", "") if final and "y" not in self.used else self.unique("uvsc", superscript(self.count))
        dy, where, call = self.flow(y), self.where(path), self.call(path)
        if call:
            self.show(y, call.y)
            self.show(dy, call.dy)
            self.show(dx, call.dx)
        sign = " ; " if isinstance(net, Concat) else " ⊙ " if isinstance(net, Product) else " + "
        forward.append(self.joined(y, outputs, sign, where, "[]" if isinstance(net, Concat) else ""))
        backward: list[Line] = []
        for i, lines in enumerate(branches):
            child = self.call((*path, i))
            if self.trace is not None and (child is None or child.dy is None):
                continue  # nothing is learned in this branch
            if child:
                self.show(flows[i], child.dy)
            if isinstance(net, Concat):
                part = Line(f"{flows[i]} = the rows of {dy} that belong to {outputs[i]}", None, self.shown.get(flows[i]), where)
            else:
                part = self.joined(flows[i], [dy, outputs[1 - i]] if isinstance(net, Product) else [dy], " ⊙ ", where)
            backward += [part, *lines]
        if wanted:
            backward.append(self.joined(dx, inputs, " + ", where))
        return y, dy, forward, backward

    def joined(self, left: str, symbols: list[str], sign: str, where: str, around: str = "") -> Line:
        """An equation whose right side is symbols with one sign between them."""
        before, after = around[:1], around[1:]
        numbers: list[Any] | None = [before]
        for i, symbol in enumerate(symbols):
            if symbol not in self.shown:
                numbers = None
                break
            numbers = [*(numbers or []), *([sign] if i else []), self.shown[symbol]]
        result = self.shown.get(left)
        filled = [n for n in [*numbers, after] if n != ""] if numbers and result is not None and len(symbols) > 1 else None
        return Line(f"{left} = {before}{sign.join(symbols)}{after}", filled, result, where)

    def leaf(self, layer: Any, path: Any, x: str, dx: str, wanted: bool, final: bool) -> tuple[str, str, Any, Any]:
        explicit = type(layer).formulas is not Layer.formulas
        ahead, back = layer.formulas()
        call, where = self.call(path), self.where(path)
        lefts, used = [left_name(e) for e in ahead], {t for e in [*ahead, *back] for t in NAME.findall(e)}
        token = next((t for t in ("h", "y", *lefts[:1]) if t in lefts and t in "hyzu"), "y")
        source = next((t for t in ("x", "z") if t != token and used & {t, f"{t}_t"}), "x")
        keys = [key for key in (call.params if call else self.keys(ahead, back)) if not key.startswith("_")]
        learns = bool(keys) and self.learns(path)
        y, mark = self.output(layer, x, token, bool(keys) or bool(call and self.learns(path)), final)
        dy = self.flow(y)
        names = {token: y, source: x, f"d{token}": dy, f"d{source}": dx}
        for key in keys:
            if key not in names:
                sign = GREEK.get(key, key)
                symbol = f"{sign}{mark}"
                names |= {key: symbol, sign: symbol, f"d{key}": f"∇{symbol}", f"d{sign}": f"∇{symbol}"}
                if learns:
                    self.places[f"∇{symbol}"] = self.places[symbol] = f"{where}.{key}".lstrip(".")
        if call:
            self.show_call(call, names, token, source, explicit, wanted)
            where = f"{where} {type(layer).__name__}".strip()
        ahead = ahead or [f"{token} = {type(layer).__name__}({source})"]
        told = [left_name(e) == source for e in ahead]  # words about the input, such as "x = 0 outside the image"
        forward = [
            Line(substitute(e, names), where=where) if t else self.line(e, names, explicit, where) for e, t in zip(ahead, told, strict=True)
        ]
        if call and not any(line.result for line in forward):
            forward.append(Line(y, None, self.shown.get(y), where))
        back = [e for e in back if (wanted or left_name(e) != f"d{source}") and (learns or not LEARNED.match(e))]
        backward = [self.line(e, names, explicit, where) for e in sorted(back, key=lambda e: left_name(e) == f"d{source}")]
        forward += self.steps(call, mark, where)
        for i, child in enumerate(layer.children):
            name = x if len(layer.children) == 1 else f"x^{child.name or i}"
            _, _, f, b = self.walk(child, (*path, self.key(path, i)), name, dx if name == x else self.flow(name))
            forward, backward = forward + f, b + backward
        return y, dy, forward, backward

    def output(self, layer: Any, x: str, token: str, holds: bool, final: bool) -> tuple[str, str]:
        """A symbol for a layer's output, and the mark its parameters carry: a layer that holds some gets the next number."""
        self.count += holds
        mark = superscript(self.count)
        if holds and layer.name and f"z^{layer.name}" not in self.used:
            mark = superscript(layer.name)
        elif not holds and x[0] in "zahuv":
            mark = x[1:]  # a¹ = σ(z¹)
        if final and not holds and "y" not in self.used:
            return self.unique("y", ""), mark
        return self.unique(("hz" if token == "h" else "zh") if holds else "auvq", mark), mark

    def keys(self, ahead: list[str], back: list[str]) -> list[str]:
        """The parameters of a layer that is not built, as far as its equations tell."""
        return [m.group(1) for e in back if (m := LEARNED.match(e))] or sorted(
            {t for e in ahead for t in NAME.findall(e) if re.fullmatch(r"W(_[a-z]+)?|b", t)}
        )

    def show_call(self, call: Any, names: dict[str, str], token: str, source: str, columns: bool, wanted: bool) -> None:
        """Remember every number of one layer's call."""
        self.show(names[token], call.y)
        if names[source] not in self.shown:
            self.show(names[source], call.x)
        self.show(names[f"d{token}"], call.dy)
        if wanted:
            self.show(names[f"d{source}"], call.dx)
        for key, value in call.params.items():
            if key in names:
                self.show(names[key], value, columns)
            if f"d{key}" in names and key in call.grads:
                self.show(names[f"d{key}"], call.grads[key], columns)
            if key == "_mask":
                names["M"] = f"M{names['W'][1:]}"
                self.show(names["M"], value, columns)

    def steps(self, call: Any, mark: str, where: str) -> list[Line]:
        """What a layer noted inside: a column per step, for the first row of the batch."""
        lines = []
        for name, values in call.notes.items() if call else ():
            a = call.steps(name)[:, 0] if len(values) > 1 or np.ndim(values[0]) == 3 else np.asarray(values[0])[0]
            label = f"{name}{mark} at steps 1 … {len(a)}" if np.ndim(a) == 2 else f"{name}{mark}"
            lines.append(Line(label, None, Matrix(a.T if np.ndim(a) == 2 else np.atleast_2d(a), self.limit), where))
        return lines

    # ---------------------------------------------------------------- looking things up
    def where(self, path: tuple[Any, ...]) -> str:
        return ".".join(readable(path, self.trace.net)) if self.trace is not None else ""

    def call(self, path: tuple[Any, ...]) -> Any:
        return self.trace.layers.get(self.where(path) or "net") if self.trace is not None else None

    def params(self, path: tuple[Any, ...]) -> Any:
        return functools.reduce(operator.getitem, path, self.trace.params)

    def learns(self, path: tuple[Any, ...]) -> bool:
        return self.trace is None or (learnable(self.params(path)) and not is_buffer(path))

    def key(self, path: tuple[Any, ...], i: int) -> Any:
        """Where a child's parameters lie in those of its parent."""
        p = self.params(path) if self.trace is not None else ()
        return next(iter(p)) if isinstance(p, dict) and p else i

    def passes_on(self, path: tuple[Any, ...]) -> bool:
        """Whether the output of the layer at `path` is that of the one layer in it."""
        call = self.call(path)
        child = self.call((*path, self.key(path, 0))) if call else None
        return child is None or call.y is child.y


def substitute(side: str, names: dict[str, str]) -> str:
    """Put the network's symbols in the place of a layer's own; a raised sign after a raised sign needs brackets."""

    def put(m: re.Match[str]) -> str:
        word, _, index = m.group().partition("_")
        symbol = names.get(m.group()) or (f"{names[word]}_{index}" if index and word in names else None)
        if symbol is None or m.group()[0] in "[_":
            return m.group()
        after = side[m.end() : m.end() + 1]
        return f"({symbol})" if after and after in "ᵀ²³" and len(symbol) > 1 else symbol

    return NAME.sub(put, side)


def subscript(n: int) -> str:
    return "".join("₀₁₂₃₄₅₆₇₈₉"[int(c)] for c in str(n))


def formula(net: Any) -> Page:
    """The symbolic forward and backward formulas of an expression."""
    writer = Writer()
    y, dy, forward, backward = writer.walk(net, (), "a⁰", "∂L/∂a⁰", True, True)
    known = dy if dy.startswith("∂") else f"{dy} = ∂L/∂{y}"
    lead = f"a⁰ is the input, {y} the output. {known} comes from the loss; ∇ is the gradient by a parameter. Columns are examples."
    return Page(repr(net), lead, [Section("Forward", forward, kind="forward"), Section("Backward", backward, kind="backward")])
