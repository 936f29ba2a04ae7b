"""`engine="auto"`: NumPy where compiling would cost more than it saves, JAX otherwise."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from ..layers.base import Layer
from ..layers.convolution import Convolution
from ..training.step import Batch
from ..tree import leaves
from . import has_jax
from .numpy import NumpyOps

__all__ = ["choose_engine", "predict_work"]

# Measured on two cores (`make bench` shows both engines): seconds.
NUMPY_CALLS_PER_LAYER = 16e-6
NUMPY_PER_STEP = 45e-6
JAX_PER_LAYER = 0.6e-6
JAX_PER_STEP = 2e-6
COMPILE = 0.35
COMPILE_PER_LAYER = 0.03
IMPORT_JAX = 0.5
NUMPY_FLOPS, JAX_FLOPS = 130e9, 100e9
NUMPY_CONVOLUTION, JAX_CONVOLUTION = 5.0, 1.5  # how much slower than in a matrix product
TARGET = 0.1  # seconds of work in a compiled chunk, about


class Work(NamedTuple):
    """Predicted seconds for one step on each engine, and for compiling it."""

    numpy: float
    jax: float
    compile: float

    @property
    def chunk(self) -> int:
        """Steps in a chunk: decided by shapes alone, never by a clock."""
        return max(1, int(TARGET / self.jax))


def predict_work(net: Layer, params: Any, batch: int, row: Batch | None = None) -> Work:
    """Predict the cost of a training step from the network and the batch size.

    With a `row` of the data, every weight is counted as often as it is used in it (a kernel: at every place).
    """
    weights, n = weights_in(params), count(net)
    products, sliding = (weights, 0.0) if row is None else used_weights(net, params, row)
    flops = [6.0 * batch * (products + slower * sliding) for slower in (NUMPY_CONVOLUTION, JAX_CONVOLUTION)]
    update = 6e-10 * weights  # reading and writing the parameters
    return Work(
        NUMPY_PER_STEP + NUMPY_CALLS_PER_LAYER * n + flops[0] / NUMPY_FLOPS + 3 * update,
        JAX_PER_STEP + JAX_PER_LAYER * n + flops[1] / JAX_FLOPS + update,
        COMPILE + COMPILE_PER_LAYER * n + (0 if "jax" in sys.modules else IMPORT_JAX),
    )


def choose_engine(net: Layer, params: Any, batch: int, steps: int, row: Batch | None = None) -> tuple[str, str]:
    """Return the engine for `steps` training steps and the reason, for the history."""
    if not has_jax():
        return "numpy", "jax cannot be imported here"
    if needs_jax(net):
        return "jax", "a layer has no backward method; JAX derives it"
    work = predict_work(net, params, batch, row)
    on_numpy, on_jax = steps * work.numpy, work.compile + steps * work.jax
    choice = "numpy" if on_numpy <= on_jax else "jax"
    return choice, f"predicted {on_numpy:.2g} s on numpy, {on_jax:.2g} s on jax with {work.compile:.2g} s to compile"


def weights_in(params: Any) -> float:
    return sum(float(np.prod(leaf.shape)) for _, leaf in leaves(params) if leaf.ndim > 1)


def used_weights(net: Layer, params: Any, row: Batch) -> tuple[float, float]:
    """The multiplications of one row's forward pass, in matrix products and in convolutions.

    The pass is run; a layer's weights count once per position: of its output, or of its input where the output has lost that axis.
    """
    used = {False: 0.0, True: 0.0}

    class Counting(NumpyOps):
        def forward(self, layer: Any, p: Any, x: Any, key: str | int) -> tuple[Any, Any]:
            y, cache = super().forward(layer, p, x, key)
            if not layer.children:
                used[isinstance(layer, Convolution)] += weights_in(p) * float(np.prod((y if y.ndim == x.ndim else x).shape[1:-1]))
            return y, cache

    with np.errstate(all="ignore"):
        Counting(weight=row.weight, lengths=row.lengths).forward(net, params, row.x, "net")
    return used[False], used[True]


def count(net: Layer) -> int:
    return sum(map(count, net.children)) if net.children else 1


def needs_jax(net: Layer) -> bool:
    return type(net).backward is Layer.backward or any(map(needs_jax, net.children))
