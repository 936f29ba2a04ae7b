"""What one of many fits asks for: a chunk to be trained, and who is trained beside it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..training.checkpoint import rows_digest
from ..training.sequences import forget
from ..training.step import Batch, State
from ..tree import leaves
from .pile import Part

__all__ = ["Guest", "Guests", "Request", "Rows"]


class Rows(Batch):
    """A fit's data, told apart by what is in it: the same fold of several candidates goes to the device once."""

    origin: Any = None  # see Meeting

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and all(map(are_same, self, other))

    def __hash__(self) -> int:
        return hash(rows_digest(self))

    @property
    def shapes(self) -> tuple[Any, ...]:
        return tuple(None if a is None else (a.shape[1:], a.dtype) for a in self)


class Request:
    """A chunk that a fit wants to train; `engine` does so where it is not one of a batch."""

    def __init__(
        self, static: tuple[Any, ...], state: State, data: Any, plan: Any, precision: Any, guests: Guests | None = None, engine: Any = None
    ) -> None:
        self.precision, self.guests, self.engine = precision, guests, engine
        self.static, self.state, self.data, self.plan = static, state, data, plan
        self.pile = state.params.pile if isinstance(state.params, Part) else None
        self.done = threading.Event()
        self.result: Any = None

    @property
    def kind(self) -> Any:
        """What must be equal in one program."""
        return self.static, self.precision, self.data.shapes, self.plan.rows.shape[1:], id(self.pile)

    def train(self) -> None:
        """Train it by itself, here and now."""
        with self.engine.precision(*self.precision):
            self.engine.run(self)

    def __len__(self) -> int:
        return 1 if self.guests is None or self.guests.seated else 1 + len(self.guests)

    def weights(self) -> Any:
        """What was learned, on the host."""
        params = self.result[0].params
        return params.get() if isinstance(params, Part) else forget(self.engine.get(params))

    def beside(self, optimizer: Any, steps: int) -> Request | None:
        """The same chunk with another optimizer's numbers; None where it is not the whole training, or another kind of optimizer."""
        if self.plan.count != steps or self.pile is not None or optimizer.kind() != self.static[2]:
            return None
        state = self.state._replace(numbers=optimizer.numbers(self.plan.rates.dtype))
        plan = self.plan._replace(rates=np.full_like(self.plan.rates, optimizer.learning_rate))
        return self.other(state, plan)

    def until(self, steps: int) -> Request:
        """Its first steps."""
        return self.other(self.state, self.plan._replace(count=np.int32(steps)))

    def other(self, state: State, plan: Any) -> Request:
        """The same request with another state and plan."""
        return Request(self.static, state, self.data, plan, self.precision, engine=self.engine)

    def asks_for_what(self, other: Request) -> bool:
        """Whether it is the same training, number by number."""
        same = are_same(self.plan.rates, other.plan.rates) and self.state.numbers == other.state.numbers
        same = same and self.static == other.static and self.precision == other.precision and all(map(are_same, self.plan, other.plan))
        return same and self.data == other.data and trees_are_same(self.state, other.state)


class Guest:
    """A fit that differs from another one, its host, in nothing but numbers of its optimizer.

    Parameters
    ----------
    optimizer : Optimizer
        Its own, with a learning rate that is a number.
    steps : int
        Of its whole training.
    """

    request: Request | None = None  # once it is trained beside its host; its result says with what outcome
    optional = False  # whether it need not be trained at all
    guests: Guests  # of its own, should it become a fit

    def __init__(self, optimizer: Any, steps: int) -> None:
        self.optimizer, self.steps = optimizer, steps

    def shorten(self) -> bool:
        """Whether its own fit would have ended before: then its request is now for the steps up to there, and is trained again."""
        return False

    def leave(self) -> None:
        """Become a fit of its own."""
        raise NotImplementedError


class Guests(list[Any]):
    """All guests of one fit."""

    host: Any = None  # that fit, until it has ended
    seated = False  # whether it is too late for more
    request: Request | None = None  # of the host
    together = False  # whether they and their host are to be trained as one program with others, or not at all

    def want(self, request: Request, fits: int) -> bool:
        """Whether they and their host, whose request this is, are to be trained among so many fits."""
        return True

    def trained(self) -> None:
        """Called when the device is about to: it is told what else to do then; before anybody looks at an outcome."""


def are_same(a: Any, b: Any) -> bool:
    """Whether two arrays are equal; those in the same place are not looked at."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.__array_interface__ == b.__array_interface__:
        return True
    return a is b or np.array_equal(a, b)


def trees_are_same(a: Any, b: Any) -> bool:
    mine, theirs = dict(leaves(a)), dict(leaves(b))
    return mine.keys() == theirs.keys() and all(are_same(value, theirs[path]) for path, value in mine.items())
