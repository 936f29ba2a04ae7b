"""`engine="auto"`: NumPy where compiling would cost more than it saves, JAX otherwise."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

from ..layers.base import Layer
from ..tree import leaves
from . import has_jax

__all__ = ["choose_engine", "predict_work"]

# Measured on two cores with benchmarks/calibrate.py, in seconds: for each step, layer, row of the batch, output of a
# layer, operation of the matrix products, and weight (updating it).
NUMPY = {"step": 50e-6, "layer": 9.5e-6, "row": 0.15e-6, "output": 2.2e-9, "operation": 1 / 180e9, "weight": 0.8e-9}
JAX = {"step": 1e-6, "layer": 0.25e-6, "row": 0.1e-6, "output": 1.5e-9, "operation": 1 / 100e9, "weight": 0.35e-9}
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


def predict_work(net: Layer, params: Any, batch: int) -> Work:
    """Predict the cost of a training step from the network and the batch size."""
    shapes = [leaf.shape for _, leaf in leaves(params) if leaf.ndim > 1] or [(0, 0)]
    weights, first = sum(map(math.prod, shapes)), math.prod(shapes[0])
    amounts = {
        "step": 1,
        "layer": count(net),
        "row": batch,
        "output": batch * sum(shape[-1] for shape in shapes),
        "operation": batch * (6 * weights - 2 * first),  # forward, dW and dx; the first layer needs no dx
        "weight": weights,
    }
    waiting = max(0.0, NUMPY_READ * weights - NUMPY["operation"] * amounts["operation"])
    return Work(
        sum(NUMPY[what] * amount for what, amount in amounts.items()) + waiting,
        sum(JAX[what] * amount for what, amount in amounts.items()),
        COMPILE + COMPILE_PER_LAYER * count(net) + (0 if "jax" in sys.modules else IMPORT_JAX),
    )


def choose_engine(net: Layer, params: Any, batch: int, steps: int) -> tuple[str, str]:
    """Return the engine for `steps` training steps and the reason, for the history."""
    if not has_jax():
        return "numpy", "jax cannot be imported here"
    if needs_jax(net):
        return "jax", "a layer has no backward method; JAX derives it"
    work = predict_work(net, params, batch)
    on_numpy, on_jax = steps * work.numpy, work.compile + steps * work.jax
    choice = "numpy" if on_numpy <= on_jax else "jax"
    return choice, f"predicted {on_numpy:.2g} s on numpy, {on_jax:.2g} s on jax with {work.compile:.2g} s to compile"


def count(net: Layer) -> int:
    return sum(map(count, net.children)) if net.children else 1


def needs_jax(net: Layer) -> bool:
    return type(net).backward is Layer.backward or any(map(needs_jax, net.children))
