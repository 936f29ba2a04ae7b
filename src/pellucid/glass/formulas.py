"""The formulas of any expression, forward and backward, in the notes' symbols.

A layer speaks for itself through `Layer.formulas()`: its forward and its backward equations as strings. By default
those are the "Forward" and "Backward" lines of its docstring. In them the first equation's left side is the output,
``x`` (or ``z``) the input, ``W`` a parameter, ``dW`` its gradient, ``dx`` and ``dy`` the flows. The writer below puts
the network's own symbols in their place: z¹, W¹, δ¹, ∇W¹. With a trace it also computes every equation (`calculate`) and,
where that agrees with what the network did, shows it with its numbers: whole matrices where they are small, else one entry;
of a series its first and last steps.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..engines.numpy import NumpyOps
from ..layers.activations import Activation
from ..layers.combine import Chain, Concat, Parallel, Product
from ..layers.normalise import shares
from ..layers.wrap import Repeat
from ..tree import at, is_buffer, learnable, readable
from .calculate import Calculation
from .notation import Matrix, superscript
from .page import Line, Page, Section
from .trace import is_jump

__all__ = ["Writer", "equations", "formula", "from_docstring"]

NAME = re.compile(
    r"(?<=\w)\[[^\]]*\]|_\{[^}]*\}|[A-Za-zα-ωΑ-ΡΤ-Ω]+\u0302?(?:_[A-Za-z]+)?(?![\u0300-\u036f])"
)  # indices first: they are left alone
LEARNED = re.compile(r"d((?![PSL]\b)[A-Z][A-Za-z]*(?:_[a-z]+)?|b|c|scale|shift|gamma|beta|[μhΛ](?=_k))(?:_k)?(?=[ \[])")
SIGNS = {"gamma": "γ", "beta": "β", "alpha": "α", "mu": "μ", "sigma": "σ", "theta": "θ", "epsilon": "ε", "centres": "μ", "widths": "hΛ"}
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
    """The symbol an equation defines: "h" of "h_t = …", "W_xh" of "W_xh = …"."""
    match = re.match(r"[A-Za-zα-ωΑ-Ωŷ]+[\u0302]?(?:_[A-Za-z]{2,})?", equation.strip())
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
    turn: int = 1  # which use of a layer that is used again

    # ---------------------------------------------------------------- symbols and numbers
    def unique(self, letters: str, mark: str) -> str:
        for c in (*letters, *(f"{letters[-1]}_{i}" for i in range(2, 99))):
            if f"{c}{mark}" not in self.used:
                self.used.add(f"{c}{mark}")
                return f"{c}{mark}"
        raise ValueError("too many symbols")

    def flow(self, symbol: str) -> str:
        return f"δ{symbol[1:]}" if symbol.startswith("z") else f"∂L/∂{symbol}"

    def show(self, symbol: str, value: Any, positions: bool = True) -> Matrix | None:
        """Remember the value behind a symbol, rows of a batch as columns, as the notes write it."""
        if value is None or isinstance(value, tuple):
            return None
        a = np.asarray(value)
        turned = a.ndim == 2
        if a.ndim == 4 and a.shape[::3] == (1, 1):
            a = a[0, :, :, 0]  # one image of one channel is shown as it is
        elif a.ndim < 3 or (a.ndim == 3 and positions and a.size <= self.limit):
            a = columns(a)
        self.shown[symbol] = Matrix(a, self.limit, turned=turned)
        return self.shown[symbol]

    def lines(self, equations: list[str], names: dict[str, str], sums: Calculation | None, where: str, note: str = "") -> list[Line]:
        """Equations with the network's symbols, and with numbers where they compute what the network did."""
        lines: list[Line] = []
        for group, worked in sums.work(equations) if sums else [([e], []) for e in equations]:
            single = (
                worked[0] if len(group) == 1 and worked and not worked[0].entry and worked[0].left == group[0].partition(" = ")[0] else None
            )
            for e in group:
                left, equals, right = e.partition(" = ")
                if single and single.given:
                    lines.append(Line(substitute(left, names), None, single.result, where, single.given))
                    continue
                result = (
                    single.result
                    if single
                    else self.shown.get(names.get(left_name(left), ""))
                    if equals and not re.search("_[a-z]$", left)
                    else None
                )
                numbers = single.numbers if single else None
                lines.append(Line(substitute(left, names) + equals + substitute(right, names), numbers, result, where, note))
            for w in worked if not single else ():
                formula = substitute(w.left, names) + (f" = {substitute(w.right, names)}" if not w.entry else "")
                lines.append(Line(formula, w.numbers, w.result, where))
        return lines

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
        both = getattr(layer, "both", None) if getattr(layer, "bidirectional", False) else None
        if isinstance(both or layer, Parallel):
            return self.parallel(both or layer, path, x, dx, wanted, final)
        if isinstance(layer, Repeat):
            return self.repeat(layer, path, x, dx, wanted, final)
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

    def repeat(self, net: Any, path: Any, x: str, dx: str, wanted: bool, final: bool) -> tuple[str, str, Any, Any]:
        """The same layer several times: one after the other, the same parameters under the same symbols."""
        forward: list[Line] = []
        backward: list[Line] = []
        dy, count = dx, self.count
        shown = net.times if self.trace is not None else min(3, net.times)
        for i in range(shown):
            self.count, self.turn = count, i + 1
            x, dy, f, b = self.walk(net.layer, (*path, 0), x, dy, wanted or i > 0, final and i == shown - 1)
            forward, backward = [*forward, *f], [*b, *backward]
        self.turn = 1
        words = Line(
            f"the same layer {net.times} times{', and so on' * (shown < net.times)}; its gradients are summed", where=self.where(path)
        )
        return x, dy, [words, *forward], backward

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
        forward += self.joined(y, outputs, sign, where, "[]" if isinstance(net, Concat) else "")
        backward: list[Line] = []
        for i, lines in enumerate(branches):
            child = self.call((*path, i))
            if self.trace is not None and (child is None or child.dy is None):
                continue  # nothing is learned in this branch
            if child:
                self.show(flows[i], child.dy)
            if isinstance(net, Concat):
                part = [self.slice_of(dy, flows[i], outputs, i, where)]
            else:
                part = self.joined(flows[i], [dy, outputs[1 - i]] if isinstance(net, Product) else [dy], " ⊙ ", where)
            backward += [*part, *lines]
        if wanted:
            backward += self.joined(dx, inputs, " + ", where)
        return y, dy, forward, backward

    def slice_of(self, dy: str, flow: str, outputs: list[str], i: int, where: str) -> Line:
        """The part of a flow that belongs to one of several outputs that lie side by side."""
        whole, part = self.shown.get(dy), self.shown.get(flow)
        if whole is None or part is None or part.values.ndim != 2:
            return Line(f"{flow} = the rows of {dy} that belong to {outputs[i]}", None, part, where)
        start = sum(len(self.shown[name].values) for name in outputs[:i])
        rows = f"rows {start} … {start + len(part.values) - 1} of "
        return Line(f"{flow} = {rows}{dy}", [rows, whole], part, where)

    def joined(self, left: str, symbols: list[str], sign: str, where: str, around: str = "") -> list[Line]:
        """An equation whose right side is symbols with one sign between them; where it is too large, an entry of it, too."""
        before, after = around[:1], around[1:]
        numbers: list[Any] | None = [before]
        for i, symbol in enumerate(symbols):
            if symbol not in self.shown:
                numbers = None
                break
            numbers = [*(numbers or []), *([sign] if i else []), self.shown[symbol]]
        result = self.shown.get(left)
        filled = [n for n in [*numbers, after] if n != ""] if numbers and result is not None and len(symbols) > 1 else None
        whole = Line(f"{left} = {before}{sign.join(symbols)}{after}", filled, result, where)
        return [whole, *([] if around else entry(left, filled, result))]

    def leaf(self, layer: Any, path: Any, x: str, dx: str, wanted: bool, final: bool) -> tuple[str, str, Any, Any]:
        ahead, back = layer.formulas()
        call, where = self.call(path), self.where(path)
        lefts, used = [left_name(e) for e in ahead], {t for e in [*ahead, *back] for t in NAME.findall(e)}
        token = next((t for t in ("h", "y", *lefts[:1]) if t in lefts and t in "hyzu"), "y")
        source = next((t for t in ("x", "z") if t != token and used & {t, f"{t}_t"}), "x")
        keys = [key for key in (call.params if call else self.keys(ahead, back)) if not key.startswith("_")]
        learns = bool(keys) and self.learns(path)
        y, mark = self.output(layer, x, token, bool(keys) or (bool(layer.children) and self.learns(path)), final)
        dy = self.flow(y)
        names = {token: y, source: x, f"d{token}": dy, f"d{source}": dx}
        inner = [self.call((*path, self.key(path, i))) for i in range(len(layer.children))]
        more = layer.quantities(call, inner) if call and None not in inner else {}
        lefts += [left_name(e) for e in back]
        own = [*lefts, *(name[1:] for name in lefts if name[:1] == "d" and len(name) == 2), *more]
        own += [name for name in used if re.fullmatch("[A-Z]_[a-z]{2,}", name) or (name[:1] == "d" and name[1:] in own)]
        own = [name for name in own if not isinstance(more.get(name), range | int)]
        for key in keys:
            sign = next((s for s in SIGNS.get(key, "") if s in "".join(ahead)), key)
            if key not in names and sign not in names:
                symbol = f"{sign}{mark}"
                names |= {key: symbol, sign: symbol, f"d{key}": f"∇{symbol}", f"d{sign}": f"∇{symbol}"}
                if learns:
                    self.places[f"∇{symbol}"] = self.places[symbol] = f"{where.partition('@')[0]}.{key}".lstrip(".")
        for name in own:
            names.setdefault(name, self.flow(f"{name[1:]}{mark}") if name[:1] == "d" and name[1:] else f"{name}{mark}")
            self.used.add(names[name])
        if call:
            self.show_call(call, names, token, source, wanted)
            where = f"{where} {type(layer).__name__}".strip()
        sums = self.calculation(layer, call, token, source, more) if call else None
        ahead = ahead or [f"{token} = {type(layer).__name__}({source})"]
        forward = self.lines(ahead, names, sums, where)
        if call and not any(line.result for line in forward):
            forward.append(Line(y, None, self.shown.get(y), where))
        gradient = lambda e: names.get(left_name(e), "").startswith("∇")  # noqa: E731
        back = [e for e in back if (wanted or left_name(e) != f"d{source}") and (learns or not gradient(e))]
        note = "flat on both sides: its derivative is 0, nothing before it learns" if is_jump(layer) else ""
        backward = self.lines(back, names, sums, where, note)
        if layer.children:
            return self.around(layer, path, x, dx, wanted, names.get("a", x), forward, backward)
        return y, dy, forward, backward

    def around(
        self, layer: Any, path: Any, x: str, dx: str, wanted: bool, a: str, forward: Any, backward: Any
    ) -> tuple[str, str, Any, Any]:
        """A layer's own lines between those of its children: the last one works on its result `a`, the others on its input."""
        parts, count, last = [], self.count, len(layer.children) - 1
        flows = [f"({dx}){subscript(i + 1)}" for i in range(last)]
        for i, child in enumerate(layer.children):
            between = (x, flows[i]) if i < last else (a, self.flow(a) if a != x else dx)
            parts.append(self.walk(child, (*path, self.key(path, i)), *between, wanted or i == last))
        forward = [*(line for part in parts[:-1] for line in part[2]), *forward, *parts[-1][2]]
        backward = [*parts[-1][3], *backward, *(line for part in reversed(parts[:-1]) for line in part[3])]
        backward += self.joined(dx, flows, " + ", self.where(path)) if wanted and flows else []
        self.count = count
        return parts[-1][0], parts[-1][1], forward, backward

    def calculation(self, layer: Any, call: Any, token: str, source: str, more: dict[str, Any]) -> Calculation:
        """What a layer's equations speak of, as numbers."""
        arrays = {source: call.x, token: call.y, f"d{source}": call.dx, f"d{token}": call.dy, **call.params}
        arrays |= {f"d{name}": g for name, g in call.grads.items()}
        arrays |= {SIGNS[name]: arrays[name] for name in arrays if name in SIGNS}
        arrays = {name: np.asarray(a) for name, a in arrays.items() if a is not None and not isinstance(a, tuple)}
        if "_mask" in arrays:
            arrays["M"] = arrays["_mask"]
        matrices = {name: columns(a) for name, a in arrays.items() if a.ndim <= 2 or name in (token, source, f"d{token}", f"d{source}")}
        ops = NumpyOps(weight=self.trace.batch.weight, lengths=call.lengths)
        numbers: dict[str, Any] = {"ω": columns(shares(ops, np.asarray(call.x, float)))} if np.ndim(call.x) > 1 else {}
        functions: dict[str, Any] = {}
        for part in filter(None, (layer, getattr(layer, "activation", None))):
            if isinstance(part, Activation):
                functions |= {"g": lambda z, f=part: f.g(np, z), "g′": lambda z, f=part: f.derivative(np, z, f.g(np, z))}
            for name in part._declared():
                value = getattr(part, name)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    numbers[SIGNS.get(name, name)] = np.float64(value)
                elif callable(value) and hasattr(value, "__name__"):
                    functions[value.__name__] = functools.partial(value, np)
        return Calculation({**numbers, **matrices}, arrays, more, functions, self.limit)

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

    def show_call(self, call: Any, names: dict[str, str], token: str, source: str, wanted: bool) -> None:
        """Remember every number of one layer's call."""
        self.show(names[token], call.y)
        if names[source] not in self.shown:
            self.show(names[source], call.x)
        self.show(names[f"d{token}"], call.dy)
        if wanted:
            self.show(names[f"d{source}"], call.dx)
        for key, value in call.params.items():
            if key in names:
                self.show(names[key], value, False)
            if f"d{key}" in names and key in call.grads:
                self.show(names[f"d{key}"], call.grads[key], False)
            if key == "_mask":
                names["M"] = f"M{names['W'][1:]}"
                self.show(names["M"], value)

    # ---------------------------------------------------------------- looking things up
    def where(self, path: tuple[Any, ...]) -> str:
        if self.trace is None:
            return ""
        name = ".".join(readable(path, self.trace.net))
        again = f"{name}@{self.turn}"
        return again if self.turn > 1 and again in self.trace.layers else name

    def call(self, path: tuple[Any, ...]) -> Any:
        return self.trace.layers.get(self.where(path) or "net") if self.trace is not None else None

    def params(self, path: tuple[Any, ...]) -> Any:
        return at(self.trace.params, path)

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

    return re.sub(r"([^\s()]+_\{[^}]*\})(?=[ᵀ²³])", r"(\1)", NAME.sub(put, side))


def entry(symbol: str, numbers: Any, whole: Matrix | None) -> list[Line]:
    """One entry of what is too large to be shown, from numbers that go together entry by entry."""
    if not numbers or whole is None or all(part.cells is not None for part in numbers if isinstance(part, Matrix)):
        return []
    at = np.unravel_index(int(np.abs(whole.values).argmax()), whole.values.shape)
    parts = [Matrix(np.reshape(part.values[at], (1, 1))) if isinstance(part, Matrix) else part for part in numbers]
    return [Line(f"{symbol}[{', '.join(map(str, map(int, at)))}]", parts, Matrix(np.reshape(whole.values[at], (1, 1))))]


def columns(a: np.ndarray) -> np.ndarray:
    """Examples (and their positions) as columns; a vector as one column."""
    return a.reshape(-1, 1) if a.ndim < 2 else a.reshape(-1, a.shape[-1]).T


def subscript(n: int) -> str:
    return "".join("₀₁₂₃₄₅₆₇₈₉"[int(c)] for c in str(n))


def formula(net: Any) -> Page:
    """The symbolic forward and backward formulas of an expression."""
    writer = Writer()
    y, dy, forward, backward = writer.walk(net, (), "a⁰", "∂L/∂a⁰", True, True)
    known = dy if dy.startswith("∂") else f"{dy} = ∂L/∂{y}"
    lead = f"a⁰ is the input, {y} the output. {known} comes from the loss; ∇ is the gradient by a parameter. Columns are examples."
    return Page(repr(net), lead, [Section("Forward", forward, kind="forward"), Section("Backward", backward, kind="backward")])
