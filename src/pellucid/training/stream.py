"""Rows for the device: all of them at once, or chunk by chunk where they do not fit. Work that is done in advance."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from ..engines import cores, started
from .step import Batch

__all__ = ["ahead", "supply"]

Item = TypeVar("Item")
THREADS = 8  # that gather rows


def supply(run: Any, data: Batch | None, plans: Generator[Any]) -> Generator[tuple[Any, Any, Batch]]:
    """Each plan of a chunk, followed by the plan and the rows as the device has them.

    Where `data` is None, each chunk gets rows of its own.
    """
    put = run.engine.put
    if data is not None:
        for plan in plans:
            yield plan, put(plan), data
        return
    with ThreadPoolExecutor(min(cores(), THREADS)) as pool:
        for plan in plans:
            own = plan._replace(rows=np.arange(plan.rows.size, dtype=np.int32).reshape(plan.rows.shape))
            yield plan, put(own), put(gather_in_threads(pool, run.job.data, plan.rows.ravel()))


def gather_in_threads(pool: ThreadPoolExecutor, data: Batch, rows: np.ndarray) -> Batch:
    """The rows of the data: a GPU takes them faster than one thread finds them."""
    new = Batch(*(a if a is None else np.empty((len(rows), *a.shape[1:]), a.dtype) for a in data))
    parts = list(itertools.pairwise(np.linspace(0, len(rows), THREADS + 1, dtype=int)))
    there = [(a, b) for a, b in zip(data, new, strict=True) if a is not None]
    for done in [started(pool, np.take, a, rows[i:j], 0, b[i:j], "clip") for a, b in there for i, j in parts]:
        done.result()
    return new


def ahead(items: Generator[Item], context: Callable[[], AbstractContextManager[Any]]) -> Generator[Item]:
    """The same items, each made in a thread while the one before it is used; `context` is entered there."""
    end: Any = object()

    def following() -> Item:
        with context():
            return next(items, end)

    try:
        with ThreadPoolExecutor(1) as pool:
            coming = started(pool, following)
            while (item := coming.result()) is not end:
                coming = started(pool, following)
                yield item
    finally:
        items.close()
