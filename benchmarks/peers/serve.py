"""What every peer's process does: make the network, train a first time, then one round whenever asked.

A peer writes ``prepare(work, X, y, *options) -> Trainer``, whose ``train(epochs)`` trains on, with the data where the
device has them, and returns the seconds of an epoch, on average. Nobody looks between epochs; the last one ends when its
result is there.
A line on stdin asks for a round; every answer is a line of JSON on stdout.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from work import WORKS, Work, data_of

__all__ = ["NotOffered", "Trainer", "only", "serve", "timed"]


class NotOffered(Exception):
    """The peer has no such kind of network."""


class Trainer(NamedTuple):
    """A network that is ready to train, and a word about how."""

    train: Callable[[int], float]
    note: str = ""


def serve(prepare: Callable[..., Trainer], variants: Callable[[Work], Sequence[tuple[Any, ...]]] = lambda work: [()]) -> None:
    """Answer the orchestrator until it closes stdin. Of several variants the quickest is measured."""
    say = channel()
    name, seconds, started, *options = sys.argv[1:]
    try:
        work, idle = WORKS[name], time.time()
        X, y = data_of(work)
        idle = time.time() - idle
        trainers, firsts = [], []
        for variant in variants(work):
            began = time.perf_counter()
            trainers.append(prepare(work, X, y, *options, *variant))
            trainers[-1].train(1)
            firsts.append((time.perf_counter() - began, time.time() - float(started) - idle))
        passes = [[t.train(1) for t in trainers] for _ in range(1 if len(trainers) == 1 else 7)]  # in turn
        epoch, trainer = min(zip(map(min, zip(*passes, strict=True)), trainers, strict=True), key=lambda pair: pair[0])
        count = max(1, math.ceil(float(seconds) / epoch))
        say(fit=firsts[0][0], first=firsts[0][1], note=trainer.note)
        for _ in sys.stdin:
            epoch = trainer.train(count)
            say(us=epoch / work.steps_per_epoch * 1e6, took=epoch * count)
        say(peak_mb=peak_mb(), device_mb=device_mb() if work.gpu else None)
    except NotOffered as error:
        say(skipped=str(error), failed=False)
    except Exception as error:  # told in the report; the other peers go on
        say(skipped=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}", failed=True)


def timed(epoch: Callable[[], Any], finish: Callable[[], Any] = lambda: None) -> Callable[[int], float]:
    """Train by calling `epoch`; `finish` waits for the device."""

    def train(epochs: int) -> float:
        began = time.perf_counter()
        for _ in range(epochs):
            epoch()
        finish()
        return (time.perf_counter() - began) / epochs

    return train


def only(there: bool, why: str) -> None:
    """Leave a row out where the peer has nothing to offer."""
    if not there:
        raise NotOffered(why)


def channel() -> Callable[..., None]:
    """Answers go to stdout as it was; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    return say


def peak_mb() -> float:
    """The most memory this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def device_mb() -> float | None:
    """The most memory this process has had on the GPU."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch:
        return torch.cuda.max_memory_allocated() / 2**20
    stats = jax and jax.local_devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] / 2**20 if stats else None
