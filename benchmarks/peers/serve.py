"""What every peer's process does: make the network, train a first time, then one round whenever asked.

A peer writes ``prepare(work, *options) -> train``, where ``train(epochs)`` trains on and returns seconds per step.
A line on stdin asks for a round; every answer is a line of JSON on stdout.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from work import WORKS, Work

__all__ = ["NotOffered", "only_mlp", "serve"]

ROUND = 0.4  # seconds of work in a round, about


class NotOffered(Exception):
    """The peer has no such kind of network."""


def serve(prepare: Callable[..., Callable[[int], float]], note: Callable[[], str] = str) -> None:
    """Answer the orchestrator until it closes stdin."""
    work: Work = WORKS[sys.argv[1]]
    try:
        began = time.perf_counter()
        train = prepare(work, *sys.argv[2:])
        train(1)
        first = time.perf_counter() - began
    except NotOffered as error:
        say(skipped=str(error))
        return
    epochs = max(2, math.ceil(ROUND / (train(2) * work.steps_per_epoch)))
    say(first=first, note=note())
    for _ in sys.stdin:
        say(us=train(epochs) * 1e6)
    say(peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10))


def say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def only_mlp(work: Work) -> None:
    if work.kind != "mlp":
        raise NotOffered(f"no {work.kind} here")
