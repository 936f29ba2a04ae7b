"""What can be hooked into training: callbacks, early stopping, history."""

from __future__ import annotations

from typing import Any, Literal

from ..settings import Settings

__all__ = ["Callback", "EarlyStopping", "History"]


class Callback:
    """Base of callbacks; override what you need. A plain function counts as one that has `epoch_end`.

    `run` has `model`, `epoch` (from 1), `epochs`, `history`, `params` (the weights now) and `stop(reason)`.
    A callback with `batch_end` makes the compiled engine come back after every step, which costs speed. One that never
    looks at `run.params` may say so with ``looks_at_weights = False``: then several small epochs run in one call.
    """

    looks_at_weights: bool = True

    def fit_begin(self, run: Any) -> None: ...

    def batch_end(self, run: Any, batch: int, loss: float) -> None: ...

    def epoch_end(self, run: Any) -> None: ...

    def pause(self, run: Any) -> None:
        """Called when training comes back from the engine: after an epoch, or after several short ones run together."""

    def fit_end(self, run: Any) -> None: ...

    def nonfinite(self, run: Any, error: Any) -> None:
        """Called before a `NonFiniteError` ends the fit."""


class PlainFunction(Callback):
    def __init__(self, function: Any) -> None:
        self.function = function

    def epoch_end(self, run: Any) -> None:
        self.function(run)


def as_callbacks(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    items = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    for item in items:
        if isinstance(item, type) or not (isinstance(item, Callback) or callable(item)):
            raise TypeError(f"callbacks must be Callback objects or functions of run, got {item!r}.")
    return [item if isinstance(item, Callback) else PlainFunction(item) for item in items]


def call(run: Any, event: str, *args: Any) -> None:
    """Tell all callbacks of a fit."""
    for callback in run.job.callbacks:
        getattr(callback, event)(run, *args)


class EarlyStopping(Settings):
    """Stop when the watched value has not improved for `patience` epochs, and go back to the best weights (N46).

    Parameters
    ----------
    patience : int
        Epochs without improvement that are allowed.
    min_delta : float
        What counts as an improvement.
    monitor : str, optional
        A column of the history; by default "val_loss", or "loss" without validation data.
    mode : "min" or "max", optional
        By default "max" for a score ("accuracy") and "min" for a loss.
    restore_best : bool
        Whether the fit ends with the best weights instead of the last.
    """

    patience: int = 10
    min_delta: float = 0.0
    monitor: str | None = None
    mode: Literal["min", "max"] | None = None
    restore_best: bool = True

    def check(self):
        self.require(self.patience >= 1, "patience", "at least 1")
        self.require(self.min_delta >= 0, "min_delta", "at least 0")

    def best(self, history: History) -> tuple[int, int]:
        """The best epoch so far, and how many have passed since (a function of the history alone)."""
        column = self.monitor or history.watched
        if column not in history.rows[-1]:
            raise ValueError(f"EarlyStopping watches {column!r}, but the history has only {', '.join(history.rows[-1])}.")
        sign = -1.0 if (self.mode or ("min" if column.endswith("loss") else "max")) == "max" else 1.0
        best, epoch = float("inf"), 0
        for i, row in enumerate(history.rows):
            if sign * row[column] < best - self.min_delta:
                best, epoch = sign * row[column], i
        return epoch, len(history.rows) - 1 - epoch


class History:
    """What happened, epoch by epoch, as data.

    ``history["loss"]`` is a list with one value per epoch; `rows` holds one dict per epoch. `engine` and
    `engine_reason` say what ran and why, `stopped` why the fit ended, `best_epoch` (from 1) which weights it left.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.engine = ""
        self.engine_reason = ""
        self.stopped = ""
        self.data = ""  # a digest of the rows learned from
        self.best_epoch: int | None = None

    @property
    def watched(self) -> str:
        """The loss that schedules and early stopping look at."""
        return "val_loss" if self.rows and "val_loss" in self.rows[-1] else "loss"

    @property
    def columns(self) -> list[str]:
        return list(self.rows[-1]) if self.rows else []

    def __getitem__(self, column: str) -> list[float]:
        if self.rows and column not in self.rows[-1]:
            raise KeyError(f"{column!r}; the history has {', '.join(self.columns)}")
        return [row[column] for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        if not self.rows:
            return "History(empty)"
        last = ", ".join(f"{k}={v:.4g}" for k, v in self.rows[-1].items() if k != "epoch")
        return f"History({len(self)} epochs on {self.engine}, stopped: {self.stopped or 'no'}; last: {last})"
