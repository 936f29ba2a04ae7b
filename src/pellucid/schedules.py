"""Learning rates that change while training.

Time is measured in epochs, fractions included: in the middle of the second epoch t = 1.5. Rates are
computed on the host for all steps of a chunk at once, so a schedule never causes a compilation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .settings import Settings

__all__ = ["Cosine", "Exponential", "InverseTime", "OneCycle", "ReduceOnPlateau", "Schedule", "StepDecay", "WarmUp"]


class Schedule(Settings):
    """Base of all schedules.

    A subclass writes ``rates(t, total, losses)``: the learning rates at the times `t` (an array, in epochs)
    of a fit of `total` epochs; `losses` are the watched losses of the epochs so far.
    """

    def rates(self, t: np.ndarray, total: float, losses: list[float]) -> np.ndarray:
        raise NotImplementedError

    @property
    def spans_fit(self) -> bool:
        """Whether the rates depend on how many epochs the whole fit has."""
        return False

    @property
    def watches_losses(self) -> bool:
        """Whether the rates depend on `losses`: if not, several short epochs may be run at once."""
        return True


class Decay(Schedule):
    """A schedule that begins at `rate`."""

    rate: float = 0.01

    def check(self):
        self.require(self.rate > 0, "rate", "positive")

    @property
    def watches_losses(self):
        return False


class InverseTime(Decay):
    """η = rate / (1 + decay·t): Σ η = ∞ and Σ η² < ∞, what stochastic gradient descent needs to converge (N41)."""

    decay: float = 0.1

    def check(self):
        super().check()
        self.require(self.decay >= 0, "decay", "at least 0")

    def rates(self, t, total, losses):
        return self.rate / (1 + self.decay * t)


class StepDecay(Decay):
    """η = rate · factor^⌊t / every⌋."""

    every: float = 10.0
    factor: float = 0.1

    def check(self):
        super().check()
        self.require(self.every > 0, "every", "a positive number of epochs")
        self.require(self.factor > 0, "factor", "positive")

    def rates(self, t, total, losses):
        return self.rate * self.factor ** np.floor(t / self.every)


class Exponential(Decay):
    """η = rate · factorᵗ."""

    factor: float = 0.95

    def check(self):
        super().check()
        self.require(self.factor > 0, "factor", "positive")

    def rates(self, t, total, losses):
        return self.rate * self.factor**t


class Cosine(Decay):
    """Half a cosine from `rate` down to `floor`, over `epochs` (by default the whole fit)."""

    epochs: float | None = None
    floor: float = 0.0

    def check(self):
        super().check()
        self.require(self.epochs is None or self.epochs > 0, "epochs", "a positive number of epochs")

    def rates(self, t, total, losses):
        part = np.minimum(t / (self.epochs or total), 1)
        return self.floor + (self.rate - self.floor) * 0.5 * (1 + np.cos(math.pi * part))

    @property
    def spans_fit(self):
        return self.epochs is None


class WarmUp(Schedule):
    """A straight line up from zero during the first `epochs`; then the schedule `then`, whose time begins there."""

    then: float | Schedule
    epochs: float = 1.0

    def check(self):
        self.require(self.epochs > 0, "epochs", "a positive number of epochs")

    def rates(self, t, total, losses):
        after = rates_of(self.then, np.maximum(t - self.epochs, 0), max(total - self.epochs, 1e-12), losses)
        return after * np.minimum(t / self.epochs, 1)

    @property
    def spans_fit(self):
        return isinstance(self.then, Schedule) and self.then.spans_fit

    @property
    def watches_losses(self):
        return isinstance(self.then, Schedule) and self.then.watches_losses


class OneCycle(Schedule):
    """Up to `peak` by a half cosine during the first part `rise` of the fit, then down to almost nothing (Smith, 2018)."""

    peak: float
    rise: float = 0.3
    start: float = 0.04
    end: float = 1e-4

    def check(self):
        self.require(self.peak > 0, "peak", "positive")
        self.require(0 < self.rise < 1, "rise", "between 0 and 1")

    def rates(self, t, total, losses):
        part = np.minimum(t / total, 1)
        up, down = np.minimum(part / self.rise, 1), np.clip((part - self.rise) / (1 - self.rise), 0, 1)
        high = np.where(part < self.rise, self.start, self.end)
        return self.peak * (high + (1 - high) * 0.5 * (1 + np.cos(math.pi * np.where(part < self.rise, 1 - up, down))))

    @property
    def spans_fit(self):
        return True

    @property
    def watches_losses(self):
        return False


class ReduceOnPlateau(Decay):
    """Multiply by `factor` whenever the watched loss has not fallen by `min_delta` for `patience` epochs.

    The watched loss is the validation loss where there is one, otherwise the training loss.
    """

    factor: float = 0.2
    patience: int = 5
    min_delta: float = 1e-4
    floor: float = 0.0

    def check(self):
        super().check()
        self.require(0 < self.factor < 1, "factor", "between 0 and 1")
        self.require(self.patience >= 1, "patience", "at least 1")

    def rates(self, t, total, losses):
        best, wait, reductions = math.inf, 0, 0
        for loss in losses:  # a function of the history alone: nothing to store in a checkpoint
            best, wait = (loss, 0) if loss < best - self.min_delta else (best, wait + 1)
            if wait >= self.patience:
                reductions, wait = reductions + 1, 0
        return np.full_like(t, max(self.rate * self.factor**reductions, self.floor))

    @property
    def watches_losses(self):
        return True


def rates_of(rate: Any, t: np.ndarray, total: float, losses: list[float]) -> np.ndarray:
    """The learning rates at times `t` of a number or a schedule."""
    return rate.rates(t, total, losses) if isinstance(rate, Schedule) else np.full_like(t, rate)
