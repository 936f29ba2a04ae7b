"""Epochs that nobody looks into, several in one compiled call: a small fit is not held up by coming back after each."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .loop import Plan, Run, describe, epoch_plan, epoch_rates, fill, means
from .progress import SILENT
from .step import Batch

__all__ = ["epochs_at_once", "run_ahead"]

ENTRIES = 2**18  # row numbers in a plan, at most: 1 MB
EPOCHS = 32  # so that little is computed in vain when a fit ends early


def epochs_at_once(run: Run, chunk: int) -> int:
    """How many epochs one call runs: decided by shapes alone, so that fits of any length share one program.

    Whoever looks at the weights after an epoch must find those of that epoch: then there is no running ahead.
    """
    job = run.job
    looks = job.validation is not None or job.early_stopping or job.checkpoint or any(c.looks_at_weights for c in job.callbacks)
    if looks or run.engine.name != "jax":
        return 1
    return max(1, min(EPOCHS, chunk // job.steps, ENTRIES // (job.steps * job.batch_size)))


def run_ahead(run: Run, data: Batch, at_once: int, bar: Any, finish: Callable[..., None]) -> None:
    """Train `at_once` epochs a call and tell them one by one, until the end of one changes the plan for the next.

    Then (the fit stops, or goes on with another learning rate) the call is made again up to there: the same program on
    the same numbers, so the same path. What is left of the fit is for the caller to go on with.
    """
    job, net, loss, engine, steps = run.job, run.model.net, run.model.loss, run.engine, run.job.steps
    kind = job.optimizer.kind()
    if callable(job.order):
        job.order = Remembered(job.order)
    while run.epoch < job.epochs and not run.stopping:
        began, before, n = time.perf_counter(), run.state, min(at_once, job.epochs - run.epoch)
        parts = [epoch_plan(run, run.epoch + i) for i in range(n)]
        rows, sizes, rates = (fill(np.concatenate(a), at_once * steps) for a in list(zip(*parts, strict=True))[:3])
        plan = Plan(rows, sizes, rates, np.int32(n * steps))
        run.state, sums, finite = engine.train(net, loss, kind, engine.copy(before), data, engine.put(plan))
        if not finite:  # epoch by epoch it is found where
            run.state = before
            return
        sums, seconds = np.asarray(sums, np.float64), (time.perf_counter() - began) / n
        for i in range(n):
            totals = sums[i * steps : (i + 1) * steps].sum(0)
            if bar is not SILENT:
                bar.advance(len(job.data.x), run.epoch + 1, describe(run, totals))
            run.epoch += 1
            finish(means(loss, totals), seconds)
            if i + 1 < n and (run.stopping or not np.array_equal(epoch_rates(run, run.epoch), parts[i + 1].rates)):
                plan = plan._replace(count=np.int32((i + 1) * steps))
                run.state = engine.train(net, loss, kind, engine.copy(before), data, engine.put(plan))[0]
                return


class Remembered:
    """The order of rows, drawn once for every epoch: what was drawn ahead of time is there when its epoch comes."""

    def __init__(self, draw: Callable[[int], np.ndarray]) -> None:
        self.draw = draw
        self.drawn: dict[int, np.ndarray] = {}

    def __call__(self, epoch: int) -> np.ndarray:
        if epoch not in self.drawn:
            self.drawn[epoch] = self.draw(epoch)
        return self.drawn[epoch]
