"""What a construction hands back: an ordinary network, and a certificate of what it promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..layers.base import Layer
from ..network import Network

__all__ = ["Built", "Certificate", "Table"]

CHUNK = 2**22  # numbers in the widest layer at once: keeps enumeration in tens of megabytes


@dataclass(frozen=True)
class Certificate:
    """What was promised, what was measured, and how it was checked. It is true when the promise holds.

    Every number is at hand by name: ``certificate["units"]``.
    """

    what: str
    promised: str
    measured: str
    checked: str
    holds: bool
    facts: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.holds

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def __str__(self) -> str:
        lines = [("promised", self.promised), ("measured", self.measured), ("checked", self.checked)]
        lines += [(name, show(value)) for name, value in self.facts.items()]
        width = max(len(name) for name, _ in lines)
        verdict = "holds" if self.holds else "DOES NOT HOLD"
        return "\n".join([f"{self.what}: {verdict}", *(f"  {name:<{width}}  {text}" for name, text in lines)])

    __repr__ = __str__


class Built(NamedTuple):
    """A network made by construction, with its certificate: ``network, certificate = theory.zigzag(3)``."""

    network: Network
    certificate: Certificate


class Table:
    """Rows of named numbers that print as a table."""

    def __init__(self, title: str, rows: Sequence[dict[str, Any]]) -> None:
        self.title, self.rows = title, list(rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> list[Any]:
        """A column, top to bottom."""
        return [row[column] for row in self.rows]

    def __str__(self) -> str:
        if not self.rows:
            return self.title
        cells = [list(self.rows[0]), *([show(v) for v in row.values()] for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        lines = ["  ".join(f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True)) for line in cells]
        return "\n".join([self.title, lines[0], "─" * len(lines[0]), *lines[1:]])

    __repr__ = __str__


def show(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}" if abs(int(value)) < 10**12 else f"about 2^{int(value).bit_length() - 1}"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return str(value)


# -------------------------------------------------------------------- helpers of all constructions
def network_of(net: Layer, inputs: int, weights: Sequence[tuple[Any, Any]], dtype: Any = "float64") -> Network:
    """A network whose Linear layers get, in order, these (W, b)."""
    network = Network(net, (inputs,), dtype=dtype)
    names = [name.removesuffix(".W") for name in network.parameters if name.endswith(".W")]
    values: dict[str, Any] = {}
    for name, (W, b) in zip(names, weights, strict=True):
        values |= {f"{name}.W": W, f"{name}.b": b}
    network.set_parameters(values)
    return network


def evaluate(network: Network, X: np.ndarray, widest: int) -> np.ndarray:
    """Outputs for many rows, a few at a time: a layer of 32,768 units on 65,536 rows does not fit in memory."""
    size = max(1, CHUNK // widest)
    return np.concatenate([network(X[i : i + size]) for i in range(0, len(X), size)])


def whole(name: str, value: Any, least: int, most: int, why: str = "") -> int:
    """A whole number in a range, or an error that says what is possible."""
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}.")
    number = int(value.__index__())
    if not least <= number <= most:
        raise ValueError(f"{name} must be between {least} and {most:,}, got {number:,}.{' ' + why if why else ''}")
    return number
