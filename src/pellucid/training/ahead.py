"""Epochs that somebody watches without looking at the weights, several in one compiled call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..schedules import Schedule
from .callbacks import Callback, call
from .progress import SILENT
from .step import Batch

__all__ = ["foretold", "run_ahead"]


def foretold(job: Any) -> bool:
    """Whether all that is looked at after an epoch is its loss: then it can be told when several epochs have been run."""
    plain = Callback.epoch_end, Callback.batch_end
    looks = any(c.looks_at_weights for c in job.callbacks if (type(c).epoch_end, type(c).batch_end) != plain)
    return not (looks or job.validation is not None or job.early_stopping or job.checkpoint)


def run_ahead(run: Any, data: Batch, together: int, length: int, bar: Any, finish: Callable[..., None]) -> None:
    """Train `together` epochs a call and tell them one by one, until the end of one changes the plan for the next.

    Then (the fit stops or fails, or goes on with another learning rate) the call is made again up to there: the same program on
    the same numbers, so the same path. What is left of the fit is for the caller to go on with.
    """
    from .loop import describe, epoch_rates, means, plans

    job, net, loss, engine, steps = run.job, run.model.net, run.model.loss, run.engine, run.job.steps
    kind, moves = job.optimizer.kind(), isinstance(job.optimizer.learning_rate, Schedule)
    if callable(job.order):
        job.order = Remembered(job.order)

    def again(before: Any, plan: Any, epochs: int) -> Any:
        return engine.train(net, loss, kind, before, data, engine.put(plan._replace(count=np.int32(epochs * steps))))[0]

    while run.epoch < job.epochs and not run.stopping:
        began, before, n = time.perf_counter(), run.state, min(together, job.epochs - run.epoch)
        (plan,) = plans(run, together, together, length, length)
        state, *outcome = engine.train(net, loss, kind, before, data, engine.put(plan))
        sums, finite = engine.get(outcome)
        if not finite:  # epoch by epoch it is found where
            return
        run.state, sums, seconds = state, sums[: n * steps].astype(np.float64), (time.perf_counter() - began) / n
        for i, totals in enumerate(sums.reshape(n, steps, -1).sum(1), 1):
            if bar is not SILENT:
                bar.advance(len(job.data.x), run.epoch + 1, describe(run, totals))
            run.epoch += 1
            try:
                finish(means(loss, totals), seconds)
            except BaseException:  # a callback's: what was learned up to here stays
                run.state = again(before, plan, i)
                raise
            rates = plan.rates[i * steps : (i + 1) * steps]  # of the next epoch, as they were foretold
            moved = moves and i < n and not np.array_equal(epoch_rates(run, range(run.epoch, run.epoch + 1)), rates)
            if i < n and (run.stopping or moved):
                run.state = again(before, plan, i)
                return
        call(run, "pause")


class Remembered:
    """The order of rows, drawn once for every epoch: what was drawn ahead of time is there when its epoch comes."""

    def __init__(self, draw: Callable[[int], np.ndarray]) -> None:
        self.draw = draw
        self.drawn: dict[int, np.ndarray] = {}

    def __call__(self, epoch: int) -> np.ndarray:
        if epoch not in self.drawn:
            self.drawn[epoch] = self.draw(epoch)
        return self.drawn[epoch]
