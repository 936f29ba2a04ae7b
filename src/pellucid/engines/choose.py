"""`engine="auto"`: NumPy where compiling would cost more than it saves, JAX otherwise."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

from ..layers.base import Layer, Shape
from ..layers.recurrent import Recurrent
from ..tree import leaves
from . import has_jax
from .cost import Cost, cost

__all__ = ["choose_engine", "predict_work"]

# Measured on two cores with benchmarks/calibrate.py, in seconds: for each step, layer, row of the batch, output of a
# layer, operation of the matrix products, and weight (updating it). "scanned" are the operations of recurrent layers, small
# products with gates between them: a rough figure from timing RNN, LSTM and GRU, not from that script.
NUMPY = {"step": 50e-6, "layer": 9.5e-6, "row": 0.15e-6, "output": 2.2e-9, "operation": 1 / 180e9, "scanned": 1 / 36e9, "weight": 0.8e-9}
JAX = {"step": 1e-6, "layer": 0.25e-6, "row": 0.1e-6, "output": 1.5e-9, "operation": 1 / 100e9, "scanned": 1 / 50e9, "weight": 0.35e-9}
NUMPY_READ = 1.1e-9  # per weight: with small batches the products wait for memory, not for arithmetic
COMPILE, COMPILE_PER_LAYER, IMPORT_JAX = 0.45, 0.015, 0.5
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
    shapes = [leaf.shape for _, leaf in leaves(params) if leaf.ndim > 1] or [(0, 0)]
    weights, first = sum(map(math.prod, shapes)), math.prod(shapes[0])
    row = Cost(2.0 * weights, 0.0, count(net)) if shape is None else cost(net, shape)[0]
    uses = (row.flops + row.scanned) / max(1, 2 * weights)  # of a weight in one row
    amounts = {
        "step": 1,
        "layer": row.calls,
        "row": batch,
        "output": batch * uses * sum(shape[-1] for shape in shapes),
        "operation": batch * max(0, 3 * row.flops - 2 * first),  # forward, dW and dx; the first layer needs no dx
        "scanned": batch * 3 * row.scanned,
        "weight": weights,
    }
    waiting = max(0.0, NUMPY_READ * weights - NUMPY["operation"] * amounts["operation"])
    return Work(
        sum(NUMPY[what] * amount for what, amount in amounts.items()) + waiting,
        sum(JAX[what] * amount for what, amount in amounts.items()),
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
