"""A network as a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Layer, Shape, parameter_count
from .combine import Chain, Combinator

__all__ = ["summary"]


def summary(net: Layer, shape: Shape) -> str:
    """Layers, output shapes and parameter counts, one line each."""
    params, out = net.build(np.random.default_rng(0), tuple(shape))
    rows = [("layer", "output", "parameters"), *lines(net, params, tuple(shape), "")]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    table = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
    rule = "─" * len(table[0])
    return "\n".join([f"input {shape}", table[0], rule, *table[1:], rule, f"output {out}, {parameter_count(params):,} parameters to learn"])


def lines(net: Layer, params: Any, shape: Shape, indent: str) -> list[tuple[str, str, str]]:
    _, out = net.build(np.random.default_rng(0), shape)
    if not isinstance(net, Combinator):
        return [(f"{indent}{net!r}", str(out), f"{parameter_count(params):,}")]
    whole = isinstance(net, Chain) and not indent and not net.name
    rows = [] if whole else [(f"{indent}{net.name or type(net).__name__}", str(out), "")]
    for child, p in zip(net.children, params, strict=True):
        rows += lines(child, p, shape, indent if whole else indent + "  ")
        if isinstance(net, Chain):
            _, shape = child.build(np.random.default_rng(0), shape)
    return rows
