"""Rows for the device: all of them at once, or chunk by chunk where they do not fit. Work that is done in advance."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np

from ..engines import started
from ..engines.numpy import gather
from .step import Batch

__all__ = ["ahead", "supply"]

Item = TypeVar("Item")


def supply(run: Any, data: Batch | None, plans: Generator[Any]) -> Generator[tuple[Any, Any, Batch]]:
    """Each plan of a chunk, followed by the plan and the rows as the device has them.

    Where `data` is None, each chunk gets rows of its own.
    """
    put = run.engine.put
    for plan in plans:
        if data is not None:
            yield plan, put(plan), data
        else:
            own = plan._replace(rows=np.arange(plan.rows.size, dtype=np.int32).reshape(plan.rows.shape))
            yield plan, put(own), put(gather(run.job.data, plan.rows.ravel()))


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
