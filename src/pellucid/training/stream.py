"""Rows for the device: all of them at once, or chunk by chunk where they do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..engines.numpy import gather
from .step import Batch

__all__ = ["supply"]


def supply(run: Any, data: Batch | None, plans: Iterator[Any]) -> Iterator[tuple[Any, Any, Batch]]:
    """Each plan of a chunk, followed by the plan and the rows as the device has them.

    Where `data` is None, the rows of a chunk are gathered and sent while the chunk before it is run.
    """
    engine = run.engine
    if data is not None:
        yield from ((plan, engine.put(plan), data) for plan in plans)
        return

    def send() -> tuple[Any, Any, Batch] | None:
        plan = next(plans, None)
        if plan is None:
            return None
        own = plan._replace(rows=np.arange(plan.rows.size, dtype=np.int32).reshape(plan.rows.shape))
        with engine.precision(run.model.dtype):  # which is a setting of each thread
            return plan, engine.put(own), engine.put(gather(run.job.data, plan.rows.ravel()))

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(send)
        while (chunk := coming.result()) is not None:
            coming = pool.submit(send)
            yield chunk
