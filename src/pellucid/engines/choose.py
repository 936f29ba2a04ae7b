"""`engine="auto"`: NumPy where compiling would cost more than it saves, JAX otherwise."""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

import numpy as np

from ..layers.base import Layer, Shape
from ..layers.combine import Chain, Parallel
from ..layers.recurrent import Recurrent
from ..tree import leaves
from . import has_jax

__all__ = ["choose_engine", "predict_work"]

# Measured on two cores (`make bench` shows both engines): seconds.
NUMPY_CALLS_PER_LAYER = 16e-6
NUMPY_PER_STEP = 45e-6
JAX_PER_LAYER = 0.6e-6
JAX_PER_STEP = 2e-6
COMPILE = 0.35
COMPILE_PER_LAYER = 0.03
IMPORT_JAX = 0.5
STEP, CELL = 4, 8  # a step of a recurrent layer is called like 4 layers, and its cell compiles like 8;
# its small products and its gates take 4 times as long per flop on NumPy, and twice as long on JAX
NUMPY_FLOPS, JAX_FLOPS = 130e9, 100e9
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


def predict_work(net: Layer, params: Any, batch: int, shape: Shape) -> Work:
    """Predict the cost of a training step from the network, the batch size and the shape of a row."""
    weights = sum(float(np.prod(leaf.shape)) for _, leaf in leaves(params) if leaf.ndim > 1)
    (flops, scanned, n), _ = cost(net, shape)
    flops, scanned = 3 * batch * flops, 3 * batch * scanned  # forward, and two products of the same size backward
    update = 6e-10 * weights  # reading and writing the parameters
    return Work(
        NUMPY_PER_STEP + NUMPY_CALLS_PER_LAYER * n + (flops + 4 * scanned) / NUMPY_FLOPS + 3 * update,
        JAX_PER_STEP + JAX_PER_LAYER * n + (flops + 2 * scanned) / JAX_FLOPS + update,
        COMPILE + COMPILE_PER_LAYER * count(net) + (0 if "jax" in sys.modules else IMPORT_JAX),
    )


@functools.lru_cache(maxsize=256)
def cost(net: Layer, shape: Shape) -> tuple[np.ndarray, Shape]:
    """For one row of `shape` forward: [flops outside of scans, flops inside, layers called], and the output shape."""
    if isinstance(net, Chain):
        total = np.zeros(3)
        for child in net.children:
            part, shape = cost(child, shape)
            total = total + part
        return total, shape
    out = net.build(np.random.default_rng(0), shape)[1]
    if isinstance(net, Parallel) or (isinstance(net, Recurrent) and net.bidirectional):
        return np.sum([cost(child, shape)[0] for child in net.children], axis=0), out
    flops = net.flops(shape)
    return np.array([0, flops, STEP * shape[0]] if isinstance(net, Recurrent) else [flops, 0, count(net)]), out


def choose_engine(net: Layer, params: Any, batch: int, shape: Shape, steps: int) -> tuple[str, str]:
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
    return sum(map(count, net.children)) if net.children else CELL if isinstance(net, Recurrent) else 1


def needs_jax(net: Layer) -> bool:
    return type(net).backward is Layer.backward or any(map(needs_jax, net.children))
