"""Training where the device has no room for the state before a chunk and the one after it."""

from __future__ import annotations

import time
from typing import Any

from ..tree import leaves
from .step import Batch, State

__all__ = ["Scarce", "is_scarce", "size_of"]

ROOM = 6  # states: before a chunk, after it, one computed in advance, gradients, gaps between them
SHARE = 0.1  # of the time may be spent on copies


class Scarce:
    """Chunks whose state after takes the place of that before, which can be computed again: from a copy on the host, made a while ago.

    If the device fails, that copy is what is left.
    """

    def __init__(self, run: Any, always: bool) -> None:
        self.run, self.always, self.due = run, always, 0.0  # always: a copy for every chunk
        self.static = run.model.net, run.model.loss, run.job.optimizer.kind()

    def train(self, state: State, rows: Batch, plan: Any) -> tuple[State, Any]:
        """The state after a chunk, and the outcome."""
        engine, began = self.run.engine, time.perf_counter()
        if self.always or began >= self.due:
            self.kept, self.past = engine.get(state), list[Any]()
            now = time.perf_counter()
            self.due = now + (now - began) / SHARE
        self.run.state = self.kept
        self.past.append((rows, plan))
        state, *outcome = engine.train_in_place(*self.static, state, rows, plan)
        return state, outcome

    def before(self) -> State:
        """The state before the last chunk, on the host."""
        engine, job, (*past, _) = self.run.engine, self.run.job, self.past
        if not past:
            return self.kept
        state = engine.stack(*self.static, engine.put(self.kept), job.data, job.batch_size)
        for rows, plan in past:
            state, *_ = engine.train_in_place(*self.static, state, rows, plan)
        return engine.get(state)


def is_scarce(run: Any) -> bool:
    """Whether a fit is short of memory; one of many, which the others wait for, is trained as they are."""
    return run.engine.waits and run.engine.room() < ROOM * size_of(run.state)


def size_of(tree: Batch | State) -> int:
    """Bytes of all its arrays."""
    return sum(a.nbytes for _, a in leaves(tree) if a is not None)
