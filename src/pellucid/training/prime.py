"""A start that depends on data: once before the first fit, such as k-means centres (N12)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engines.numpy import NumpyOps
from ..layers.base import Layer
from .data import select
from .step import Batch, write_back

__all__ = ["prime"]

ROWS = 20_000  # are enough to see where the data lie


class PrimingOps(NumpyOps):
    """A forward pass in which every layer may first set its parameters by what comes in."""

    def __init__(self, rng: np.random.Generator, **options: Any) -> None:
        super().__init__(**options)
        self.rng = rng
        self.primed: dict[tuple[str | int, ...], Any] = {}

    def forward(self, layer, p, x, key):
        if type(layer).prime is not Layer.prime:
            real = x[self.mask(x.shape[1]) > 0] if self.lengths is not None and x.ndim > 2 else x
            p = {name: np.asarray(value, x.dtype) for name, value in layer.prime(self.rng, p, real).items()}
            self.primed |= {(*self.path, key, name)[1:]: value for name, value in p.items()}
        return super().forward(layer, p, x, key)


def prime(net: Layer, params: Any, data: Batch, seed: int) -> Any:
    """Return the parameters with which a first fit on `data` begins."""
    if not primes(net):
        return params
    rng = np.random.default_rng([seed, 0, 1])
    if len(data.x) > ROWS:
        data = select(data, np.sort(rng.choice(len(data.x), ROWS, replace=False)))
    ops = PrimingOps(rng, training=True, seed=np.uint32(seed % 2**32), weight=data.weight, lengths=data.lengths)
    with np.errstate(all="ignore"):  # values that are not finite are found and explained in training
        ops.forward(net, params, data.x, "net")
    return write_back(params, ops.primed)


def primes(net: Layer) -> bool:
    return type(net).prime is not Layer.prime or any(map(primes, net.children))
