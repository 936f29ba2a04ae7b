"""Many fits as one program: each runs in a thread of its own, and where all wait to train, one batched program trains them.

Nothing of a fit is written again for this. A thread runs the training loop as ever, with an engine whose `train` waits for
the others. Their states are laid on top of each other and stay on the device; a fit holds its own as a `Part` of the pile.

A fit that differs from another one in nothing but numbers of its optimizer need not even run: it is that one's guest, trained
beside it from what its host has prepared.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..training.data import frozen, is_finite
from ..training.sequences import carries_state
from ..training.step import Batch, State
from . import LOCAL, cores
from .choose import predict_work
from .pile import Part, alone, train
from .requests import Guest, Guests, Request, Rows

__all__ = ["Meeting"]

SPARE = 2  # threads beside those that train
SMALL = 2**22  # bytes of an array that stays on the device for other fits
LOCKED = 0.38  # of a step on NumPy; where it is more, two loops wait for Python's lock most of the time


class Meeting:
    """Where fits wait for each other.

    Parameters
    ----------
    fits : int
        How many there are in all.
    at_once : int
        How many train at the same time; when one has ended, the next begins.
    batched : bool
        Whether they train as one program. Otherwise each trains by itself, and they only share cores and the word to stop.
    ended : function, optional
        Called whenever a fit has ended.
    """

    def __init__(self, fits: int, at_once: int, batched: bool, ended: Callable[[], Any] = lambda: None) -> None:
        self.fits, self.left, self.at_once, self.batched, self.ended = fits, fits, at_once, batched, ended
        self.stopped = False
        #: the array that one is cut from, and which of its rows, where that is known
        self.origin: Callable[[Any], tuple[np.ndarray, np.ndarray] | None] = lambda array: None
        self.finite = dict[int, Any]()  # whether all of that array is
        #: what was trained before it was asked for
        self.foreseen = list[Request]()
        #: threads to run them in: spare ones prepare a fit or score it while others train, so that no core waits for Python
        self.threads = at_once if batched or at_once == 1 else at_once + SPARE
        self.places, self.alone = threading.Semaphore(at_once), threading.Lock()
        self.kept = dict[int, tuple[np.ndarray, dict[Any, Any]]]()
        self.lock, self.waiting = threading.Lock(), list[Request]()
        # those of a batch that do not wait run one after the other: dozens of threads at once would only hinder each other
        self.turn: Any = threading.Lock() if batched else contextlib.nullcontext()

    def member(self, fit: Callable[[], Any], guests: Guests | None = None) -> Any:
        """Run one of the fits in this thread."""
        LOCAL.wrap, LOCAL.fits, LOCAL.once, LOCAL.guests = self.engine, self.fits, self.once, guests
        with self.turn:
            try:
                return fit()
            finally:
                del LOCAL.wrap, LOCAL.fits, LOCAL.once, LOCAL.guests
                with self.lock:
                    self.seat(guests)
                    self.left -= 1
                    self.serve()
                    self.ended()

    def welcome(self, guests: Guests, guest: Guest) -> bool:
        """Let a fit be the guest of another, if that one has not been trained yet."""
        with self.lock:
            if guests.seated:
                return False
            guests.append(guest)
            self.serve()
            return True

    def seat(self, guests: Guests | None, request: Request | None = None, room: int | None = None) -> list[Request]:
        """What guests, at most so many, want to train beside this request; who cannot becomes a fit of its own."""
        wanted = list[Request]()
        if guests is not None and not guests.seated:
            guests.seated, guests.request = True, request
            if request and room is not None and len(guests) > room:  # the others are the guests of one of them
                first, *others = guests[room:]
                del guests[room:]
                first.guests += others
                first.leave()
            for guest in guests:
                with contextlib.suppress(Exception), np.errstate(over="raise"):  # its own fit will say what is wrong
                    guest.request = request.beside(guest.optimizer, guest.steps) if request else None
                if guest.request:
                    wanted.append(guest.request)
                if guest.request or guest.optional:
                    self.left -= 1
                elif not self.stopped:
                    guest.leave()
        return wanted

    def back(self, guest: Guest) -> None:
        """A guest whose training is not what its own fit would be becomes one."""
        with self.lock:
            self.left += 1
        guest.leave()

    def stop(self) -> None:
        """End all fits, as Ctrl-C would: each keeps the weights it has."""
        with self.lock:
            self.stopped = True
            for request in self.waiting:
                request.result = KeyboardInterrupt()
                request.done.set()
            self.waiting = []

    def once(self, array: Any, key: Any, make: Callable[[Any], Any]) -> Any:
        """``make(array)``, kept for other fits where nobody may write into the array: a fold of a search is prepared once."""
        if type(array) is not np.ndarray or array.flags.writeable or not array.flags.owndata:
            return make(array)
        _, kept = self.kept.setdefault(id(array), (array, {}))  # the array stays, so that no other gets its id
        if key not in kept:
            found = self.origin(array) if key is is_finite else None  # rows of a finite array are finite
            if found and id(found[0]) not in self.finite:
                self.finite[id(found[0])] = make(found[0])
            made = (found and self.finite[id(found[0])]) or make(array)
            kept.setdefault(key, frozen(made) if isinstance(made, np.ndarray) else made)  # another fit may have been faster
        return kept[key]

    @contextlib.contextmanager
    def place(self, alone: bool) -> Iterator[None]:
        """A context for training, in which no more fits are than may be; of those that want to be alone, one.

        A fit within a fit is part of it, and those of a batch take turns already.
        """
        if self.batched or LOCAL.placed:
            yield
            return
        with self.alone if alone else contextlib.nullcontext(), self.places:
            LOCAL.placed = True
            try:
                yield
            finally:
                LOCAL.placed = False

    def recall(self, engine: Any) -> Any:
        """The engine for a fit that may be among those foreseen."""
        return Recalling(self, engine) if engine.name == "jax" else engine

    def engine(self, engine: Any) -> Any:
        return (Together if self.batched and engine.name == "jax" else Watched)(self, engine)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """A context for a fit of a batch that waits: it is another one's turn."""
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()

    def wait(self, request: Request) -> Any:
        """Hand in a request; its result comes when all have handed in theirs."""
        with self.lock:
            if self.stopped:
                raise KeyboardInterrupt
            self.waiting.append(request)
            self.serve()
        with self.away():
            request.done.wait()
        if isinstance(request.result, BaseException):
            raise request.result.with_traceback(None)  # several fits may raise this one
        return request.result

    def serve(self) -> None:
        """If all are waiting, train them: those of one kind as one program."""
        if not self.waiting or sum(map(len, self.waiting)) < min(self.at_once, self.left):
            return
        wanted, waiting, self.waiting = list[Request](), self.waiting, []
        failure: BaseException = KeyboardInterrupt()  # which may come here in between
        try:
            for request in waiting:
                room = self.at_once - len(waiting) - len(wanted)
                wanted += self.seat(request.guests, request, room)
            train_kinds([*waiting, *wanted])
            hosts = [request.guests for request in waiting if request.guests and request is request.guests.request]
            for guests in hosts:
                guests.trained()  # what else the device is to do, while it trains
            again = [guest.request for guests in hosts for guest in guests if guest.request and guest.shorten()]
            train_kinds(again, few=True)  # while the others are scored
        except Exception as error:
            failure = error
        finally:
            for request in waiting:
                request.result = request.result or failure
                request.done.set()


def train_kinds(requests: list[Request], few: bool = False) -> None:
    """Train those of one kind as one program; with `few` programs for any number of them, of which some are trained twice then."""
    groups = defaultdict[Any, list[Request]](list)
    for request in requests:
        groups[request.kind].append(request)
    for group in groups.values():
        more = (1 << (len(group) - 1).bit_length()) - len(group) if few else 0
        try:
            train([*group, *group[:more]])
        except Exception as error:
            for request in group:
                request.result = error


class Watched:
    """An engine for one of many fits: as it is, but it stops when the many are told to."""

    waits = False  # the others use the time

    def __init__(self, meeting: Meeting, engine: Any) -> None:
        self.meeting, self.engine = meeting, engine
        self.alone: bool | None = None  # whether no other may train beside it, found with the first chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def put(self, tree: Any) -> Any:
        if not isinstance(tree, Batch) or any(a is not None and a.nbytes > SMALL for a in tree):
            return self.engine.put(tree)
        return Batch(*(a if a is None else self.meeting.once(a, ("put", self.engine.name), self.engine.put) for a in tree))

    def settle(self, tree: Any) -> None:
        """Nobody waits: times of fits that run side by side say little."""

    def precision(self, *wanted: Any) -> Any:
        self.wanted = wanted
        return self.engine.precision(*wanted)

    def train(self, net: Any, loss: Any, optimizer: Any, state: State, data: Any, plan: Any) -> tuple[Any, Any, Any]:
        if LOCAL.guests is not None and LOCAL.guests.together:
            raise NotWorthwhile
        request = Request((net, loss, optimizer), state, data, plan, self.wanted, LOCAL.guests, self)
        self.run(request)
        if request.guests and not request.guests.seated:
            request.plan = plan._replace(rows=self.engine.put(plan.rows))  # once for all of them
        with self.meeting.lock:
            self.meeting.seat(request.guests, request)  # each trains when there is a place
        return request.result

    def run(self, request: Request) -> None:
        """Train what is asked for, when there is a place."""
        (net, *_), state, data, plan = request.static, request.state, request.data, request.plan
        if self.alone is None:
            self.alone = not self.engine.waits and predict_work(net, state.params, plan.rows.shape[1], data).locked > LOCKED
        free = self.engine.waits and self.meeting.at_once >= cores()  # another program may wait for the first core that is free
        with contextlib.nullcontext() if free else self.meeting.place(self.alone):
            if self.meeting.stopped:
                raise KeyboardInterrupt
            request.result = self.engine.train(*request.static, state, data, plan)
            self.engine.settle(request.result)


class Together(Watched):
    """The JAX engine for one of many fits: it trains when all are there."""

    fills = False  # plans: `train` does, for all at once

    def put(self, tree: Any) -> Any:
        if not isinstance(tree, Batch):
            return tree  # stays on the host until all are there
        rows = Rows(*tree)
        rows.origin = self.meeting.origin(rows.x)
        return rows

    def stack(self, net: Any, loss: Any, optimizer: Any, state: State, data: Batch, size: int) -> State:
        return state  # states are laid on top of each other as they are

    def get(self, tree: Any) -> Any:
        if isinstance(tree, State):
            return State(*map(self.get, tree))
        return tree.get() if isinstance(tree, Part) else self.engine.get(tree)

    def evaluate(self, net: Any, loss: Any, params: Any, data: Rows, plan: Any) -> Any:
        return self.engine.evaluate(net, loss, self.get(params), data, plan)

    def train(self, net: Any, loss: Any, optimizer: Any, state: State, data: Rows, plan: Any) -> tuple[Any, Any, Any]:
        request = Request((net, loss, optimizer), state, data, plan, self.wanted, LOCAL.guests)
        if request.guests is not None and not request.guests.want(request, self.meeting.fits):
            raise NotWorthwhile
        state, sums, finite = self.meeting.wait(request)
        return self.get(state) if carries_state(net) else state, sums, finite


class Recalling(Together):
    """The JAX engine for a fit that may have been trained already, beside others."""

    def train(self, net: Any, loss: Any, optimizer: Any, state: State, data: Rows, plan: Any) -> tuple[Any, Any, Any]:
        wanted = Request((net, loss, optimizer), state, data, plan, self.wanted)
        for known in self.meeting.foreseen:
            if known.asks_for_what(wanted):
                with contextlib.suppress(Exception):  # it has failed
                    found, sums, finite = known.result
                    self.engine.settle(found := alone(found))
                    return found, np.asarray(sums), np.asarray(finite)
        return self.engine.train(net, loss, optimizer, self.engine.put(self.get(state)), self.engine.put(Batch(*data)), plan)


class NotWorthwhile(Exception):
    """Raised in a fit that nobody has asked for yet, where it takes less time alone, later."""
