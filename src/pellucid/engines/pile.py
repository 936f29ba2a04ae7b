"""States of many fits on top of each other: what one batched program trains, and what a fit gets of it.

The rows of all their data sets lie one below the other, those that several have in common once. Who takes part is decided in
together.py; nothing here waits for anybody.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..training.sequences import rows_at_once
from ..training.step import Batch, State
from . import LOCAL

if TYPE_CHECKING:
    from .requests import Request, Rows

__all__ = ["Part", "Pile", "alone", "outputs_of", "train"]

PREDICTED = 2**16  # rows at a time, of all members


class Pile:
    """States on top of each other, on the device, and the rows of all their data sets one below the other."""

    def __init__(self, state: State, data: Batch, starts: np.ndarray, source: Any = None) -> None:
        self.state, self.data, self.starts = state, data, starts
        self.source = source  # the one array that all rows are cut from, and where it is on the device, if there is one
        self.lock, self.host = threading.Lock(), dict[str, Any]()

    @classmethod
    def of(cls, group: list[Request]) -> Pile:
        import jax

        first: dict[Rows, int] = {}
        end, starts = 0, dict[int, int]()
        for rows in {id(request.data): request.data for request in group}.values():  # guests have their host's
            starts[id(rows)] = first.setdefault(rows, end)
            end = max(end, starts[id(rows)] + len(rows.x))
        source, origins = None, [rows.origin for rows in first]
        if all(origins) and len({id(whole) for whole, _ in origins}) == 1:  # the device cuts them
            source = origins[0][0], jax.device_put(origins[0][0])
        x, *others = zip(*first, strict=True)
        data = Batch(
            cut()(source[1], np.concatenate([rows for _, rows in origins])) if source else np.concatenate(x),
            *(None if a[0] is None else np.concatenate(a) for a in others),
        )
        states = {id(request.state.params): request.state._replace(numbers=()) for request in group}
        place = {key: i for i, key in enumerate(states)}
        state = jax.tree.map(lambda *a: np.stack(a), *states.values())
        if len(states) < len(group):
            state = shared()(state, np.array([place[id(request.state.params)] for request in group], np.int32))
        numbers = {name: np.array([request.state.numbers[name] for request in group]) for name in group[0].state.numbers}
        begin = np.array([starts[id(request.data)] for request in group], np.int32)
        return cls(state._replace(numbers=numbers), jax.device_put(data), begin, source)

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
        return State(cls(pile, index, "params"), cls(pile, index, "slots"), state.numbers, cls(pile, index, "step"), state.seed)

    def get(self) -> Any:
        import jax

        return jax.tree.map(lambda a: np.array(a[self.index]), self.pile.read(self.field))


def alone(state: State) -> State:
    """One fit's state, cut out of its pile on the device: the others' are not copied to the host."""
    part: Part = state.params
    whole = part.pile.state
    params, slots, step = on_its_way(entry()((whole.params, whole.slots, whole.step), part.index))
    return state._replace(params=params, slots=slots, step=step)


def on_its_way(tree: Any) -> Any:
    """Arrays that the host is going to read: they are copied to it while it does other things."""
    import jax

    for array in jax.tree.leaves(tree):
        array.copy_to_host_async()
    return tree


class Later:
    """A member's entry of an array that the device may not have computed yet; NumPy waits for it."""

    def __init__(self, array: Any, index: int) -> None:
        self.array, self.index = array, index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(np.asarray(self.array)[self.index], dtype)


def train(group: list[Request]) -> None:
    """Train a group as one program, and give each request its result; who looks at its outcome waits for it."""
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
        state, *outcome = engine.with_kernels(program(), *first.static, pile.state, pile.data, plan)
    on_its_way(outcome)
    trained = Pile(state, pile.data, pile.starts, pile.source)
    for i, request in zip(places, group, strict=True):
        request.result = Part.all_of(trained, i, request.state), *(Later(array, i) for array in outcome)


def alike(orders: list[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """Those that differ, and which of them each is: fits of a search go through their rows in few different orders."""
    different, numbers, begun = list[np.ndarray](), dict[int, int](), defaultdict[bytes, list[int]](list)
    for order in orders:
        if id(order) not in numbers:  # a guest has its host's
            same = begun[order[:1].tobytes()]
            numbers[id(order)] = next((i for i in same if np.array_equal(different[i], order)), len(different))
            if numbers[id(order)] == len(different):
                different.append(order)
                same.append(numbers[id(order)])
    return different, [numbers[id(order)] for order in orders]


def outputs_of(requests: list[Request], x: np.ndarray, origin: Any = None) -> Callable[[], np.ndarray]:
    """What networks that were trained beside each other give for rows x (of that origin), members along the first axis.

    The device begins at once; call what is returned to wait for it.
    """
    import jax

    from . import jax as engine

    net, parts = requests[0].static[0], [request.result[0].params for request in requests]
    pile, which = parts[0].pile, np.array([part.index for part in parts], np.int32)
    there = bool(origin and pile.source and pile.source[0] is origin[0])  # on the device already
    whole, rows = (pile.source[1], origin[1]) if there else (None, np.arange(len(x)))
    size = rows_at_once(net, x, PREDICTED // len(parts))
    with engine.precision(x.dtype, None if x.dtype == np.float64 else "float32"):
        blocks = []
        for begin in range(0, len(x), size):
            full = min(size, 1 << (len(x) - begin - 1).bit_length())  # so that few programs serve all
            some = np.resize(rows[begin : begin + size], full).astype(np.int32)
            known = (whole, some) if there else (x[some], np.arange(full, dtype=np.int32))
            blocks.append(on_its_way(predict()(net, pile.state.params, which, *known)))
    on_its_way(pile.state.params)  # a member that is a fit reads them when it ends
    return lambda: np.concatenate(jax.device_get(blocks), 1)[:, : len(x)]


@functools.cache
def predict() -> Any:
    """The outputs of some members for some rows."""
    import jax

    from . import jax as engine

    def outputs(net: Any, params: Any, which: Any, x: Any, rows: Any) -> Any:
        x = x.take(rows, axis=0, mode="clip")
        return jax.vmap(lambda p: engine.forward(net, p, x, np.ones(len(x), x.dtype)))(jax.tree.map(lambda a: a[which], params))

    return jax.jit(outputs, static_argnames="net")


@functools.cache
def cut() -> Any:
    """Some rows of an array."""
    import jax

    return jax.jit(lambda whole, rows: whole.take(rows, axis=0, mode="clip"))


@functools.cache
def entry() -> Any:
    """One member's of all arrays."""
    import jax

    return jax.jit(lambda tree, i: jax.tree.map(lambda a: a[i], tree))


@functools.cache
def shared() -> Any:
    """The state of every member, out of those that differ: the device makes the copies."""
    import jax

    return jax.jit(lambda states, which: jax.tree.map(lambda a: a[which], states))


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

    chunk: Any = engine.chunk.__wrapped__

    def many(net: Any, loss: Any, optimizer: Any, state: State, data: Batch, plan: Any) -> Any:
        axes = plan._replace(rows=0, sizes=0, rates=0, count=None if np.ndim(plan.count) == 0 else 0)
        LOCAL.members = len(plan.rows)
        try:
            return jax.vmap(functools.partial(chunk, net, loss, optimizer), in_axes=(0, None, axes))(state, data, plan)
        finally:
            LOCAL.members = 1

    return jax.jit(many, static_argnames=("net", "loss", "optimizer"), compiler_options=engine.OPTIONS)
