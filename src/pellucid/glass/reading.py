"""Formulas as people write them, read.

The language is what the layers' `formulas` use. Side by side is a matrix product (or a multiple), ``⊙`` and ``/`` go
entry by entry, ``Σ`` sums over the columns (the examples), ``Σᵢ`` down each column, ``Σ_{i,j}`` and ``max_{i,j}`` run over
indices, ``mean`` and ``‖…‖²`` are taken of each column, ``[a ; b]`` stacks, ``[z > 0]`` is 1 where it holds, else 0.
``x[b,i,j]`` is an entry of an array as Python has it, counted from 0; ``x_t`` a matrix of a series, counted from 1.
What lies outside an array or a series is left out of the sum it stands in.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["Unreadable", "read"]

TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:e[+−-]?\d+)?)|(?P<sum>Σᵢ|(?:Σ|max)_(?:\{[^}]*\}|[a-z]\b)|Σ)"
    r"|(?P<name>[A-Za-zα-ωΑ-ΡΤ-Ω][A-Za-z0-9α-ωΑ-ΡΤ-Ω]*[\u0302′]?(?:_(?:\{[^}]*\}|[A-Za-z]+))?)|(?P<raised>[ᵀ²³])|(?P<sign>[-+−⊙·/()\[\],;√‖|<>≤≥=]))"
)


class Unreadable(ValueError):
    """Words, or a formula outside the language."""


class Reader:
    """A formula as a tree of tuples (kind, …)."""

    def __init__(self, formula: str) -> None:
        self.tokens: list[tuple[str, str, bool]] = []
        at = 0
        while at < len(formula.rstrip()):
            m = TOKEN.match(formula, at)
            if m is None:
                raise Unreadable(formula)
            self.tokens.append((str(m.lastgroup), m.group(m.lastgroup or 0), m.group() != m.group().lstrip()))
            at = m.end()
        self.at = 0

    def peek(self, *signs: str) -> str:
        """The next token's text if it is one of `signs` (or any, without them)."""
        text = self.tokens[self.at][1] if self.at < len(self.tokens) else ""
        return text if not signs or text in signs else ""

    def take(self, *signs: str) -> str:
        text = self.peek(*signs)
        if not text:
            raise Unreadable(f"expected {' or '.join(signs)} at {self.peek()!r}")
        self.at += 1
        return text

    def condition(self) -> Any:
        left = self.sum()
        return ("compare", self.take(), left, self.sum()) if self.peek("<", ">", "≤", "≥", "=") else left

    def sum(self) -> Any:
        node = self.product()
        while self.peek("+", "−", "-"):
            node = ("add" if self.take() == "+" else "sub", node, self.product())
        return node

    def product(self) -> Any:
        if self.peek("−", "-"):
            self.take()
            return ("neg", self.product())
        node = self.beside()
        while self.peek("⊙", "·", "/"):
            sign = self.take()
            node = ("over" if sign == "/" else "times", node, self.beside(), sign)
        return node

    def beside(self) -> Any:
        node = self.raised()
        while self.at < len(self.tokens) and (self.tokens[self.at][0] in ("number", "name", "sum") or self.peek("(", "[", "√")):
            node = ("beside", node, self.raised())
        return node

    def raised(self) -> Any:
        node = self.one()
        while self.peek("ᵀ", "²", "³"):
            sign = self.take()
            node = ("turned", node) if sign == "ᵀ" else ("power", node, "²³".index(sign) + 2, sign)
        return node

    def several(self, end: str, between: str = ",") -> list[Any]:
        found = [self.condition()]
        while self.peek(between):
            self.take()
            found.append(self.condition())
        self.take(end)
        return found

    def one(self) -> Any:
        if self.at == len(self.tokens):
            raise Unreadable("the formula ends too soon")
        kind, text, _ = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return ("number", float(text.replace("−", "-")), text)
        if kind == "sum":
            sign, _, over = text.partition("_")
            return ("sum", sign, tuple(over.strip("{}").replace(" ", "").split(",")) if over else (), self.product())
        if kind == "name":
            if self.peek("(") and not self.tokens[self.at][2]:
                self.take("(")
                return ("call", text, self.several(")"))
            if self.peek("[") and not self.tokens[self.at][2]:
                self.take("[")
                return ("entry", text, self.several("]"))
            return ("name", text)
        if text == "(":
            return ("group", self.several(")")[0])
        if text == "[":
            parts = self.several("]", ";")
            return ("stack", parts) if len(parts) > 1 else ("holds", parts[0])
        if text == "√":
            inner = self.one()
            return ("call", "√", [inner[1] if inner[0] == "group" else inner])
        if text in "‖|":
            inner = self.sum()
            self.take(text)
            if text == "|":
                return ("call", "abs", [inner])
            self.take("²")
            return ("square_norm", inner)
        raise Unreadable(f"{text!r} begins nothing")


def read(formula: str) -> Any:
    """The tree of an expression."""
    reader = Reader(formula)
    node = reader.condition()
    if reader.at < len(reader.tokens):
        raise Unreadable(f"{reader.peek()!r} is left over")
    return node
