"""Many fits as one program: each runs in a thread of its own, and where all wait to train, one batched program trains them.

Nothing of a fit is written again for this. A thread runs the training loop as ever, with an engine whose `train` waits for
the others. Their states are laid on top of each other and stay on the device; a fit holds its own as a `Part` of the pile.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..training.checkpoint import rows_digest
from ..training.data import frozen
from ..training.sequences import carries_state
from ..training.step import Batch, State
from . import LOCAL, cores
from .choose import predict_work

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
        #: threads to run them in: spare ones prepare a fit or score it while others train, so that no core waits for Python
        self.threads = at_once if batched or at_once == 1 else at_once + SPARE
        self.places, self.alone = threading.Semaphore(at_once), threading.Lock()
        self.kept = dict[int, tuple[np.ndarray, dict[Any, Any]]]()
        self.lock, self.waiting = threading.Lock(), list[Request]()
        # those of a batch that do not wait run one after the other: dozens of threads at once would only hinder each other
        self.turn: Any = threading.Lock() if batched else contextlib.nullcontext()

    def member(self, fit: Callable[[], Any]) -> Any:
        """Run one of the fits in this thread."""
        LOCAL.wrap, LOCAL.fits, LOCAL.once = self.engine, self.fits, self.once
        with self.turn:
            try:
                return fit()
            finally:
                del LOCAL.wrap, LOCAL.fits, LOCAL.once
                with self.lock:
                    self.left -= 1
                    self.serve()
                    self.ended()

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
            made = make(array)
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

    def engine(self, engine: Any) -> Any:
        return (Together if self.batched and engine.name == "jax" else Watched)(self, engine)

    def wait(self, request: Request) -> Any:
        """Hand in a request; its result comes when all have handed in theirs."""
        with self.lock:
            if self.stopped:
                raise KeyboardInterrupt
            self.waiting.append(request)
            self.serve()
        self.turn.release()
        request.done.wait()
        self.turn.acquire()
        if isinstance(request.result, BaseException):
            raise request.result.with_traceback(None)  # several fits may raise this one
        return request.result

    def serve(self) -> None:
        """If all are waiting, train them: those of one kind as one program."""
        if not self.waiting or len(self.waiting) < min(self.at_once, self.left):
            return
        groups = defaultdict(list)
        for request in self.waiting:
            groups[request.kind].append(request)
        self.waiting = []
        for group in groups.values():
            try:
                train(group)
            except Exception as error:
                for request in group:
                    request.result = error
            for request in group:
                request.done.set()


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

    def train(self, net: Any, loss: Any, optimizer: Any, state: State, data: Any, plan: Any) -> tuple[Any, Any, Any]:
        if self.alone is None:
            self.alone = not self.engine.waits and predict_work(net, state.params, plan.rows.shape[1], data).locked > LOCKED
        free = self.engine.waits and self.meeting.at_once >= cores()  # another program may wait for the first core that is free
        with contextlib.nullcontext() if free else self.meeting.place(self.alone):
            if self.meeting.stopped:
                raise KeyboardInterrupt
            outcome = self.engine.train(net, loss, optimizer, state, data, plan)
            self.engine.settle(outcome)
        return outcome


class Together(Watched):
    """The JAX engine for one of many fits: it trains when all are there."""

    fills = False  # plans: `train` does, for all at once

    def put(self, tree: Any) -> Any:
        return Rows(*tree) if isinstance(tree, Batch) else tree  # stays on the host until all are there

    def stack(self, net: Any, optimizer: Any, state: State, data: Batch, size: int) -> State:
        return state  # states are laid on top of each other as they are

    def precision(self, *wanted: Any) -> Any:
        self.wanted = wanted
        return self.engine.precision(*wanted)

    def get(self, tree: Any) -> Any:
        if isinstance(tree, State):
            return State(*map(self.get, tree))
        return tree.get() if isinstance(tree, Part) else self.engine.get(tree)

    def evaluate(self, net: Any, loss: Any, params: Any, data: Rows, plan: Any) -> Any:
        return self.engine.evaluate(net, loss, self.get(params), data, plan)

    def train(self, net: Any, loss: Any, optimizer: Any, state: State, data: Rows, plan: Any) -> tuple[Any, Any, Any]:
        state, sums, finite = self.meeting.wait(Request((net, loss, optimizer), state, data, plan, self.wanted))
        return self.get(state) if carries_state(net) else state, sums, finite


class Rows(Batch):
    """A fit's data, told apart by what is in it: the same fold of several candidates goes to the device once."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and all(a is b or np.array_equal(a, b) for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(rows_digest(self))

    @property
    def shapes(self) -> tuple[Any, ...]:
        return tuple(None if a is None else (a.shape[1:], a.dtype) for a in self)


class Request:
    """A chunk that a fit wants to train."""

    def __init__(self, static: tuple[Any, ...], state: State, data: Rows, plan: Any, precision: Any) -> None:
        self.precision = precision
        self.static, self.state, self.data, self.plan = static, state, data, plan
        self.pile = state.params.pile if isinstance(state.params, Part) else None
        self.kind = (static, precision, data.shapes, plan.rows.shape[1:], id(self.pile))  # what must be equal in one program
        self.done = threading.Event()
        self.result: Any = None


class Pile:
    """States on top of each other, on the device, and the rows of all their data sets one below the other."""

    def __init__(self, state: State, data: Batch, starts: np.ndarray) -> None:
        self.state, self.data, self.starts = state, data, starts
        self.lock, self.host = threading.Lock(), dict[str, Any]()

    @classmethod
    def of(cls, group: list[Request]) -> Pile:
        import jax

        first, end, starts = dict[Rows, int](), 0, []
        for request in group:
            starts.append(first.setdefault(request.data, end))
            end = max(end, starts[-1] + len(request.data.x))
        data = Batch(*(None if a[0] is None else np.concatenate(a) for a in zip(*first, strict=True)))
        state = jax.tree.map(lambda *a: np.stack(a), *(request.state for request in group))
        return cls(state, jax.device_put(data), np.array(starts, np.int32))

    def read(self, field: str) -> Any:
        """A field of all the states on the host, copied once."""
        import jax

        with self.lock:
            if field not in self.host:
                self.host[field] = jax.device_get(getattr(self.state, field))
            return self.host[field]


class Part:
    """One fit's part of a field of the pile."""

    def __init__(self, pile: Any, index: int, field: str) -> None:
        self.pile, self.index, self.field = pile, index, field

    @classmethod
    def all_of(cls, pile: Any, index: int, state: State) -> State:
        parts = {field: cls(pile, index, field) for field in ("params", "slots", "step")}
        return state._replace(**parts)

    def get(self) -> Any:
        import jax

        return jax.tree.map(lambda a: np.array(a[self.index]), self.pile.read(self.field))


def train(group: list[Request]) -> None:
    """Train a group as one program, and give each request its result."""
    from . import jax as engine

    first = group[0]
    with engine.precision(*first.precision):
        pile = first.pile or Pile.of(group)
        size, places = len(pile.starts), [request.state.params.index for request in group] if first.pile else range(len(group))
        counts = {int(request.plan.count) for request in group}
        steps = 1 << (max(counts) - 1).bit_length()  # so that few programs serve fits of any number of epochs
        orders, order = alike([request.plan.rows for request in group])
        rows = np.zeros((1 << (len(orders) - 1).bit_length(), steps, *orders[0].shape[1:]), np.int32)  # few programs, too
        for one, place in zip(orders, rows, strict=False):
            place[: len(one)] = one[:steps]
        which, count = np.zeros((2, size), np.int32)  # who has left the pile gets any rows, and nobody looks at the outcome
        sizes, rates = (np.zeros((size, steps), a.dtype) for a in first.plan[1:3])
        for i, request, number in zip(places, group, order, strict=True):
            which[i], count[i] = number, request.plan.count
            sizes[i, : count[i]], rates[i, : count[i]] = (a[: count[i]] for a in request.plan[1:3])
        plan = first.plan._replace(
            rows=spread()(rows, which, pile.starts), sizes=sizes, rates=rates, count=count if len(counts) > 1 else np.int32(counts.pop())
        )
        state, sums, finite = program()(*first.static, pile.state, pile.data, plan)
        sums, finite = np.asarray(sums), np.asarray(finite)
    trained = Pile(state, pile.data, pile.starts)
    for i, request in zip(places, group, strict=True):
        request.result = Part.all_of(trained, i, request.state), sums[i], finite[i]


def alike(orders: list[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """Those that differ, and which of them each is: fits of a search go through their rows in few different orders."""
    different, numbers, begun = list[np.ndarray](), list[int](), defaultdict[bytes, list[int]](list)
    for order in orders:
        same = begun[order[:1].tobytes()]
        number = next((i for i in same if np.array_equal(different[i], order)), len(different))
        if number == len(different):
            different.append(order)
            same.append(number)
        numbers.append(number)
    return different, numbers


@functools.cache
def spread() -> Any:
    """The rows of every member: those of its order, from where its data begin. A GPU does this a hundred times as fast."""
    import jax

    return jax.jit(lambda rows, which, starts: rows[which] + starts[:, None, None])


@functools.cache
def program() -> Any:
    """The compiled training chunk for many at once: states and plans side by side, the data shared.

    Where all have the same number of steps it is one number, and the loop needs no choice of who still takes part.
    """
    import jax

    from . import jax as engine

    chunk: Any = engine.chunk.__wrapped__  # type: ignore[attr-defined]

    def many(net: Any, loss: Any, optimizer: Any, state: State, data: Batch, plan: Any) -> Any:
        axes = plan._replace(rows=0, sizes=0, rates=0, count=None if np.ndim(plan.count) == 0 else 0)
        LOCAL.members = len(plan.rows)
        try:
            return jax.vmap(functools.partial(chunk, net, loss, optimizer), in_axes=(0, None, axes))(state, data, plan)
        finally:
            LOCAL.members = 1

    return jax.jit(many, static_argnames=("net", "loss", "optimizer"), compiler_options=engine.OPTIONS)
