"""When a value stops being finite: which layer, which rows, what to change."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engines.numpy import NumpyOps, gather
from ..tree import flatten, leaves, readable
from .step import State, gradients, training_step

__all__ = ["NonFiniteError", "explain_nonfinite"]


class NonFiniteError(ArithmeticError):
    """Training met a value that is not finite. The weights from before it are kept.

    Attributes: `epoch` and `batch` (from 1), `layer` (its path), `what`, and `rows` of the data. `report()` tells the
    steps before it and the chain that led there.
    """

    moment: Any = None  # net, loss, optimizer, the state before the step, its batch, its learning rate
    steps: tuple[dict[str, float], ...] = ()  # the last steps before it

    def __init__(self, epoch: int, batch: int, layer: str, what: str, rows: list[int]) -> None:
        self.epoch, self.batch, self.layer, self.what, self.rows = epoch, batch, layer, what, rows
        shown = ", ".join(map(str, rows[:8])) + (", …" if len(rows) > 8 else "")
        super().__init__(
            f"Epoch {epoch}, batch {batch}: {what} is not finite"
            + (f", first in rows {shown}" if rows else "")
            + ". The weights from before this batch are kept. Try a smaller learning rate, clip_norm=1.0 in the "
            "optimizer, inputs scaled to about ±1, or a loss on logits (SoftmaxCrossEntropy, SigmoidCrossEntropy)."
        )

    def report(self) -> Any:
        """The last steps, and the chain of values that led to the first one that is not finite."""
        from ..glass.recorder import Flight

        return Flight.of(self)


class FiniteWatch(NumpyOps):
    """NumPy operations that remember the first layer whose output or gradient is not finite."""

    net: Any = None
    found: tuple[str, str, np.ndarray] | None = None

    def forward(self, layer, p, x, key):
        y, cache = super().forward(layer, p, x, key)
        self.watch(f"the output of {self.place(layer, key)}", layer, y, key)
        return y, cache

    def backward(self, layer, p, cache, dy, key, wrt_input=True):
        dx, grads = super().backward(layer, p, cache, dy, key, wrt_input)
        if dx is not None:
            self.watch(f"the gradient by the input of {self.place(layer, key)}", layer, dx, key)
        for name, gradient in leaves(grads):
            if self.found is None and not np.isfinite(gradient).all():
                self.found = (self.here(key), f"the gradient by {name[-1]} of {self.place(layer, key)}", np.array([], int))
        return dx, grads

    def here(self, key: Any) -> str:
        return ".".join(["net", *readable((*self.path, key)[1:], self.net)])

    def place(self, layer: Any, key: Any) -> str:
        return f"{self.here(key)}: {layer!r}"

    def watch(self, what: str, layer: Any, value: Any, key: Any) -> None:
        if self.found is None and not np.isfinite(value).all():
            rows = np.flatnonzero(~np.isfinite(value.reshape(len(value), -1)).all(1))
            self.found = (self.here(key), what, rows)


def explain_nonfinite(
    net: Any, loss: Any, optimizer: Any, state: State, data: Any, plan: Any, first: int, per_epoch: int, origin: np.ndarray
) -> tuple[State, NonFiniteError]:
    """Replay a chunk step by step until something is not finite; all randomness is (seed, step), so this is the run.

    `first` is the number of the chunk's first step, from 0. Returns the state before the bad step, and the error to
    raise, whose `steps` are those before it and itself.
    """
    steps: list[dict[str, float]] = []
    with np.errstate(all="ignore"):
        for i in range(int(plan.count)):
            rows = plan.rows[i, : plan.sizes[i]]
            part = gather(data, rows)
            watch = FiniteWatch(training=True, seed=state.seed, step=state.step, weight=part.weight, lengths=part.lengths)
            watch.net = net
            g = gradients(watch, net, loss, state.params, part)
            layer, what, bad = watch.found or ("", "", np.array([], int))
            if not what.startswith("the output") and not np.isfinite(g.loss):  # the loss comes before the way back
                layer, what = "loss", f"the loss {loss!r}"
            new, _ = training_step(NumpyOps, net, loss, optimizer, state, part, plan.rates[i])
            if not what:
                for name, leaf in flatten(new.params, net).items():
                    if not np.isfinite(leaf).all():
                        layer, what = name, f"parameter {name} after the update"
                        break
            size = sum(float((v.astype(np.float64) ** 2).sum()) for _, v in leaves(g.params)) ** 0.5
            steps.append({"step": int(state.step), "loss": float(g.loss), "gradient": size, "rate": float(plan.rates[i])})
            if what:
                error = NonFiniteError(*place(first + i, per_epoch), layer, what, [int(r) for r in origin[rows[bad]]])
                error.moment, error.steps = (net, loss, optimizer, state, part, plan.rates[i]), tuple(steps)
                return state, error
            state = new
    return state, NonFiniteError(*place(first + int(plan.count) - 1, per_epoch), "", "the loss", [])


def place(step: int, per_epoch: int) -> tuple[int, int]:
    """Epoch and batch of a step, from 1."""
    epoch, batch = divmod(step, per_epoch)
    return epoch + 1, batch + 1
