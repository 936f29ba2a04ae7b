"""What one row costs on its way through a network, counted from shapes alone."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ..layers.base import Layer, Shape
from ..layers.combine import Chain, Parallel
from ..layers.recurrent import Recurrent
from ..layers.wrap import Wrapper

__all__ = ["Cost", "cost"]

CALLS = 6  # a step of a recurrent layer is called like this many layers


class Cost(NamedTuple):
    """For one row forward, a multiplication and an addition counted as 2."""

    flops: float  # in layers that see a row at once
    scanned: float  # in recurrent layers, step by step: small products, and gates between them
    calls: int  # layers run one after the other; a recurrent layer runs at every step


@functools.lru_cache(maxsize=256)
def cost(net: Layer, shape: Shape) -> tuple[Cost, Shape]:
    """The cost of one row of `shape`, and the output shape."""
    if isinstance(net, Chain):
        parts = []
        for child in net.children:
            part, shape = cost(child, shape)
            parts.append(part)
        return total(parts), shape
    out = net.build(np.random.default_rng(0), shape)[1]
    if isinstance(net, Parallel) or (isinstance(net, Recurrent) and net.bidirectional):
        return total([cost(child, shape)[0] for child in net.children]), out
    if isinstance(net, Wrapper):
        return total([cost(net.layer, shape)[0]] * getattr(net, "times", 1)), out
    flops = net.flops(shape)
    return (Cost(0.0, flops, CALLS * shape[0]) if isinstance(net, Recurrent) else Cost(flops, 0.0, 1)), out


def total(parts: list[Cost]) -> Cost:
    return Cost(*map(sum, zip(*parts, strict=True)))
