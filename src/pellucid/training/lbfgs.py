"""L-BFGS: all parameters as one vector, handed to SciPy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engines.numpy import NumpyOps
from ..tree import flatten, is_buffer, leaves, unflatten
from .callbacks import call
from .data import select
from .step import Batch

__all__ = ["lbfgs_epochs"]


def lbfgs_epochs(run: Any, data: Batch, bar: Any, finish: Callable[..., None]) -> None:
    """Run SciPy's L-BFGS; each of its iterations is an epoch, and `finish` gets its loss and seconds."""
    from scipy.optimize import minimize

    engine, model, optimizer = run.engine, run.model, run.job.optimizer
    refuse_statistics(model.net, run.params, run.job.data)
    vector, unpack = as_vector(run.params, model.dtype)
    decay, began = optimizer.weight_decay, time.perf_counter()
    ops, numbers = NumpyOps(weight=run.job.data.weight), optimizer.numbers(np.float64)

    def value_and_gradient(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, grads = engine.value_and_gradients(model.net, model.loss, engine.put(unpack(vector)), data, run.state.seed)
        value, grads = optimizer.penalise(ops, unpack(vector), value, engine.get(grads), numbers)
        gradient, _ = as_vector(fill(run.params, grads), model.dtype)
        return float(value) + 0.5 * decay * float(vector @ vector), gradient + decay * vector

    def iteration(intermediate_result: Any) -> None:
        nonlocal began
        x, value = intermediate_result.x, float(intermediate_result.fun)
        run.state = run.state._replace(params=engine.put(unpack(x)))
        run.epoch += 1
        loss = value - 0.5 * decay * float(x @ x)
        bar.advance(len(data.x), run.epoch, f"loss {loss:.4f}")
        finish({"loss": loss}, time.perf_counter() - began)
        call(run, "pause")
        began = time.perf_counter()
        if run.stopping:
            raise StopIteration

    options = optimizer.options(run.epochs)
    result = minimize(value_and_gradient, vector, jac=True, method="L-BFGS-B", callback=iteration, options=options)
    if run.epoch < run.epochs and not run.stopping:
        run.stop(f"{'converged' if result.success else 'given up'}: {result.message}")


def refuse_statistics(net: Any, params: Any, data: Batch) -> None:
    """Layers that keep running values would keep nothing here, and predict with what they were built with."""
    row = select(data, np.arange(1))
    ops = NumpyOps(training=True, weight=row.weight, lengths=row.lengths)
    with np.errstate(all="ignore"):
        ops.forward(net, params, row.x, "net")
    if ops.kept:
        raise ValueError(
            f"LBFGS tries many weights for each it takes, so layers cannot keep running values of what they see, and this "
            f"network keeps {'.'.join(map(str, next(iter(ops.kept))))}. Use Adam or SGD, or LayerNorm() in place of BatchNorm()."
        )


def as_vector(params: Any, dtype: Any) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
    """All learned numbers as one float64 vector, and the way back."""
    learned = [leaf for path, leaf in leaves(params) if not is_buffer(path)]
    ends = np.cumsum([leaf.size for leaf in learned])[:-1]

    def unpack(vector: np.ndarray) -> Any:
        parts = iter(np.split(vector, ends))
        flat = {
            ".".join(map(str, path)): leaf if is_buffer(path) else next(parts).reshape(leaf.shape).astype(dtype)
            for path, leaf in leaves(params)
        }
        return unflatten(params, flat)

    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in learned]), unpack


def fill(params: Any, grads: Any) -> Any:
    """Gradients in the full shape of the parameters: zero where there is none."""
    flat = flatten(grads)
    return unflatten(params, {path: flat.get(path, np.zeros(leaf.shape)) for path, leaf in flatten(params).items()})
