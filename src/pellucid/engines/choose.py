"""`engine="auto"`: NumPy where compiling would cost more than it saves, JAX otherwise."""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from ..layers.base import Layer
from ..training.step import Batch
from ..tree import leaves, map_leaves
from . import has_gpu, has_jax
from .numpy import NumpyOps

__all__ = ["choose_engine", "convolves", "longest", "predict_work", "rows_of_half", "starts_apart"]

# Measured on two cores with benchmarks/calibrate.py, in seconds: for each step, layer, row of the batch, output of a layer
# with weights, operation of its products (by kind), and weight (updating it). A convolution's and a scan's operations take longer.
NUMPY = {"step": 50e-6, "layer": 9.5e-6, "row": 0.15e-6, "output": 2.2e-9, "product": 1 / 180e9, "weight": 0.8e-9}
JAX = {"step": 1e-6, "layer": 0.25e-6, "row": 0.1e-6, "output": 1.5e-9, "product": 1 / 200e9, "weight": 0.35e-9}
NUMPY |= {"convolution": 6 / 180e9, "scan": 2.2 / 180e9}
JAX |= {"convolution": 1 / 100e9, "scan": 1.2 / 100e9}
GPU = {"step": 4e-6, "layer": 4.5e-6, "row": 0.0, "output": 2e-11, "product": 1 / 250e12, "weight": 5e-12}  # one H200
GPU |= {"convolution": 3 / 40e12, "scan": 10 / 40e12}
NUMPY_READ = 1.1e-9  # per weight: with small batches the products wait for memory, not for arithmetic
COMPILE, COMPILE_PER_LAYER, IMPORT_JAX, START_GPU = 0.45, 0.015, 0.5, 1.0
# Layers that a program for a CPU and one for a GPU holds: more of them in a run of equal blocks are a loop (stack.py). Fewer compile almost
# as soon one by one, and a step takes up to a third less time; of large matrices, which a loop copies, twice as many on a CPU.
LONGEST = 32, 48
START = 0.005  # of a program that is compiled already
SCAN_CALLS = 4  # a step of a scan is called like this many layers
TARGET, LONG = 0.1, 2.0  # seconds of work in a compiled chunk, about; and the most that 32 steps may take
# On a CPU a mini-batch goes through in two halves (jax_cut.py) where a step takes about so long, no array of weights has more numbers
# and there are no more layers: shorter steps and deeper networks are not worth compiling that, and XLA shares out larger products itself.
HALVED, LARGE, DEEP, COMPILE_HALVES = (120e-6, 1e-3), 2**16, 16, 0.45
# Deep ones, of which equal blocks are a loop, in two as well, where a step takes so long, a half has so many rows, and its largest product
# as many operations: for fewer, blocks one by one take less time, and XLA shares larger ones out itself.
STACKED, HALF, WORTH = 250e-6, 16, (60e3, 10e6)
# One with convolutions goes through in so many parts where a step takes so long, each of so many rows at least: what is in between
# stays in a core's cache. Each part has gradients of its own to be written and added up, which may take so much of the step.
# The program holds no more than four: they take turns.
CUT, LEAST_ROWS, AT_ONCE, COMPILE_PART, ADD_UP, SHARE = {10e-3: 8, 2e-3: 2}, 8, 4, 0.12, 0.4e-9, 0.1
# A recurrent one goes through in parts, an even number of them, that take so long and have so many rows each: a part of fewer rows gains
# nothing, and one that takes less time is not worth its start. Two of them are halves of one program, which start together: steps that take
# so long, of so many rows, are halved too. An array of so many weights, which a core's cache does not hold, is better read once for all
# rows; and halves of more than three recurrent layers, each of which counts as eight, take seconds to compile.
SCANNED, ROWS, LARGE_SCANNED = 0.7e-3, 16, 2**20
HALVES_SCANNED, ROWS_HALVED, DEEP_SCANNED = 0.15e-3, 8, 28


class Work(NamedTuple):
    """Predicted seconds for one step on each engine, and for compiling it."""

    numpy: float
    jax: float
    compile: float
    parts: int  # in how many a batch goes through the network
    locked: float  # the part of a step on NumPy in which no other thread can run Python, about

    @property
    def chunk(self) -> int:
        """Steps in a chunk: decided by shapes alone, never by a clock.

        Each chunk keeps a copy of the state and looks at all of it, so 32 at least, or eight where those take long already.
        """
        return max(8, min(32, int(LONG / self.jax)), int(TARGET / self.jax))


def predict_work(net: Layer, params: Any, batch: int, data: Batch | None = None) -> Work:
    """Predict the cost of a training step from the network and the batch size.

    With `data`, of which the first row is enough, every weight is counted as often as it is used in it (a kernel: at every place).
    """
    matrices = [leaf.shape for _, leaf in leaves(params) if leaf.ndim > 1]
    sizes = list(map(math.prod, matrices))
    weights = sum(sizes)
    used = Counter(layer=count(net), product=weights) if data is None else remembered_uses(net, params, data)
    used["output"] = used["output"] or sum(shape[-1] for shape in matrices)
    amounts = {"step": 1, "layer": used["layer"], "row": batch, "output": batch * used["output"], "weight": weights}
    amounts |= {kind: 6 * batch * used[kind] for kind in ("product", "convolution", "scan")}  # forward, dW and dx
    amounts["product"] -= 2 * batch * min([*sizes, 0][0], used["product"])  # the first layer needs no dx
    waiting = max(0.0, NUMPY_READ * weights - NUMPY["product"] * amounts["product"])
    numpy, jax = (sum(engine[what] * amount for what, amount in amounts.items()) for engine in (NUMPY, GPU if has_gpu() else JAX))
    numpy += waiting
    calls = NUMPY["step"] + NUMPY["layer"] * used["layer"]
    arrays = (numpy - calls + NUMPY["output"] * batch * used["other"]) * (1 if data is None else data.weight.dtype.itemsize / 4)
    parts, cutting = 1, 0.0
    if used["scan"] and not has_gpu():
        parts = parts_of_scan(sizes, batch, JAX["scan"] * amounts["scan"], starts_apart(net))
        cutting = COMPILE_HALVES * (parts == 2 and not starts_apart(net))
    elif not has_gpu():
        parts = parts_of(count(net), sizes, batch, jax, convolves=bool(used["convolution"]))
        cutting = (COMPILE_PART * min(parts, AT_ONCE) if used["convolution"] else COMPILE_HALVES) * (parts > 1)
    compile = COMPILE + COMPILE_PER_LAYER * min(count(net), longest(params, has_gpu())) + cutting
    return Work(numpy, jax, compile + (0 if "jax" in sys.modules else IMPORT_JAX) + START_GPU * has_gpu(), parts, calls / (calls + arrays))


def longest(params: Any, gpu: bool) -> int:
    """How many layers of a run of equal blocks are written out at most."""
    return LONGEST[gpu] * (1 if gpu or largest(params) <= LARGE else 2)


def largest(params: Any) -> int:
    """How many numbers the largest array has."""
    return max((leaf.size for _, leaf in leaves(params)), default=0)


def parts_of(layers: int, sizes: list[int], batch: int, seconds: float, convolves: bool) -> int:
    """In how many parts a batch goes through layers with matrices of these sizes that take so long for a step on a CPU."""
    if not convolves:
        return 2 if HALVED[0] <= seconds <= HALVED[1] and max(sizes, default=0) <= LARGE and layers <= DEEP else 1
    most = min(batch // LEAST_ROWS, SHARE * seconds / (ADD_UP * sum(sizes)))
    return next((parts for least, parts in CUT.items() if seconds >= least and parts <= most), 1)


def parts_of_scan(sizes: list[int], batch: int, seconds: float, apart: bool) -> int:
    """In how many parts a batch goes through a network whose recurrent layers take so long for a training step on a CPU."""
    if max(sizes) >= LARGE_SCANNED:
        return 1
    parts = min(math.ceil(batch / ROWS), int(seconds / SCANNED)) // 2 * 2  # so that two cores, or four, have equal shares
    return max(parts, 1 if apart or seconds < HALVES_SCANNED or batch < ROWS_HALVED else 2)


def starts_apart(net: Layer) -> bool:
    """Whether two parts of a recurrent network are programs of their own, too."""
    return count(net) > DEEP_SCANNED or convolves(net)


@functools.lru_cache(256)
def convolves(net: Layer) -> bool:
    """Whether one of its layers is a convolution."""
    return net.work == "convolution" or any(map(convolves, net.children))


def rows_of_half(net: Layer, params: Any, batch: int, data: Batch) -> int:
    """How many rows of a batch go through a network at once whose equal blocks are a loop, beside the others; 0 where all do."""
    rows, size = math.ceil(batch / 2), largest(params)
    worth = batch >= 2 * HALF and size <= LARGE and WORTH[0] <= 2 * rows * size <= WORTH[1]
    return rows if worth and predict_work(net, params, batch, data).jax >= STACKED else 0


def choose_engine(
    net: Layer, params: Any, batch: int, steps: int, data: Batch | None = None, fits: int = 1, compiled: bool = False
) -> tuple[str, str]:
    """Return the engine for `steps` training steps and the reason, for the history.

    The `fits`-th fit of its kind is taken for one of as many still to come, which share the cost of compiling.
    """
    if not has_jax():
        return "numpy", "jax cannot be imported here"
    if needs_jax(net):
        return "jax", "a layer has no backward method; JAX derives it"
    work = predict_work(net, params, batch, data)
    compile = START if compiled else work.compile / fits
    on_numpy, on_jax = steps * work.numpy, compile + steps * work.jax
    choice = "numpy" if on_numpy <= on_jax else "jax"
    again = "already compiled" if compiled else f"{compile:.2g} s to compile" + (f", shared by {fits} fits" if fits > 1 else "")
    return choice, f"predicted {on_numpy:.2g} s on numpy, {on_jax:.2g} s on jax with {again}"


USES: dict[Any, Counter] = {}


def remembered_uses(net: Layer, params: Any, data: Batch) -> Counter:
    """As `count_uses`, once for each shape: BLAS may leave a thread spinning, which slows down the first 0.1 s of a fit."""
    key = repr(net), data.x.shape[1:], data.lengths is None, *(leaf.shape for _, leaf in leaves(params))
    used = USES.get(key)
    if used is None:
        if len(USES) >= 256:
            USES.clear()
        row = Batch(*(a if a is None else (np.asarray(a) if hasattr(a, "__array__") else a)[:1] for a in data))  # or sparse rows
        there = map_leaves(lambda a: a if isinstance(a, np.ndarray) else np.broadcast_to(np.zeros((), a.dtype), a.shape), params)
        used = USES[key] = count_uses(net, there, row)  # the numbers of JAX's arrays may not be computed yet
    return used.copy()


def count_uses(net: Layer, params: Any, row: Batch) -> Counter:
    """Run one row forward and count: layers, outputs of layers with weights, and multiplications by kind.

    A layer's weights are used once per position: of its output, or of its input where the output has lost that axis.
    """
    used: Counter = Counter()

    class Counting(NumpyOps):
        def forward(self, layer: Any, p: Any, x: Any, key: str | int) -> tuple[Any, Any]:
            y, cache = super().forward(layer, p, x, key)
            if not layer.children:
                positions = math.prod((y if y.ndim == x.ndim else x).shape[1:-1])
                used["layer"] += SCAN_CALLS * positions if layer.work == "scan" else 1
                used[layer.work] += weights_in(p) * positions
                used["output" if weights_in(p) else "other"] += y.size
            return y, cache

    with np.errstate(all="ignore"):
        Counting(weight=row.weight, lengths=row.lengths).forward(net, params, row.x, "net")
    return used


def weights_in(params: Any) -> int:
    return sum(math.prod(leaf.shape) for _, leaf in leaves(params) if leaf.ndim > 1)


def count(net: Layer) -> int:
    if net.children:
        return sum(map(count, net.children))
    return 8 if net.work == "scan" else 1  # a cell compiles like eight layers


def needs_jax(net: Layer) -> bool:
    return type(net).backward is Layer.backward or any(map(needs_jax, net.children))
