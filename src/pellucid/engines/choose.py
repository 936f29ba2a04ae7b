"""`engine="auto"`: NumPy where compiling would cost more than it saves, JAX otherwise."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from ..layers.base import Layer, Shape
from ..layers.recurrent import Recurrent
from ..tree import leaves
from . import has_jax
from .cost import Cost, cost

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
NUMPY_SCAN, JAX_SCAN = 4, 2  # small products and the gates between them: so much longer per flop
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


def predict_work(net: Layer, params: Any, batch: int, shape: Shape | None = None) -> Work:
    """Predict the cost of a training step from the network, the batch size and the shape of a row (None: every weight is used once)."""
    weights = sum(float(np.prod(leaf.shape)) for _, leaf in leaves(params) if leaf.ndim > 1)
    row = Cost(2 * weights, 0.0, count(net)) if shape is None else cost(net, shape)[0]
    flops, scanned, n = 3 * batch * row.flops, 3 * batch * row.scanned, row.calls  # forward, and two such products backward
    update = 6e-10 * weights  # reading and writing the parameters
    return Work(
        NUMPY_PER_STEP + NUMPY_CALLS_PER_LAYER * n + (flops + NUMPY_SCAN * scanned) / NUMPY_FLOPS + 3 * update,
        JAX_PER_STEP + JAX_PER_LAYER * n + (flops + JAX_SCAN * scanned) / JAX_FLOPS + update,
        COMPILE + COMPILE_PER_LAYER * count(net) + (0 if "jax" in sys.modules else IMPORT_JAX),
    )


def choose_engine(net: Layer, params: Any, batch: int, steps: int, shape: Shape | None = None) -> tuple[str, str]:
    """Return the engine for `steps` training steps and the reason, for the history."""
    if not has_jax():
        return "numpy", "jax cannot be imported here"
    if needs_jax(net):
        return "jax", "a layer has no backward method; JAX derives it"
    work = predict_work(net, params, batch, shape)
    on_numpy, on_jax = steps * work.numpy, work.compile + steps * work.jax
    choice = "numpy" if on_numpy <= on_jax else "jax"
    return choice, f"predicted {on_numpy:.2g} s on numpy, {on_jax:.2g} s on jax with {work.compile:.2g} s to compile"


def count(net: Layer) -> int:
    if net.children:
        return sum(map(count, net.children))
    return 8 if isinstance(net, Recurrent) else 1  # a cell compiles like eight layers


def needs_jax(net: Layer) -> bool:
    return type(net).backward is Layer.backward or any(map(needs_jax, net.children))
