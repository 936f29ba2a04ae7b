"""The two engines: the same few operations under the same names."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from ..settings import did_you_mean

__all__ = ["cores", "get_engine", "has_gpu", "has_jax", "started"]

NAMES = ("numpy", "jax")


class Local(threading.local):
    """What a fit must know that is one of many: see together.py."""

    wrap: Any = None  # makes an engine the engine of one of many
    fits: int = 1  # that share what is compiled
    once: Callable[..., Any] = staticmethod(lambda array, key, make: make(array))  # see Meeting.once
    kept: bool = True  # whether anybody will go on from where the fit ends
    guests: Any = None  # fits that are trained beside it, from what it prepares: see Guests
    members: int = 1  # that go through one program side by side, while it is made
    kernels: int = 0  # that were made for a GPU: see jax_whole.py
    tiles: int = 0  # convolutions and their gradients that were traced in tiles: see jax_conv.py
    placed: bool = False  # whether it is one of those that train now: see Meeting.place


LOCAL = Local()


def get_engine(name: str) -> Any:
    """Return the engine module `name`; jax is imported only here."""
    if name not in NAMES:
        raise ValueError(f"engine must be 'auto', 'numpy' or 'jax', got {name!r}.{did_you_mean(name, ('auto', *NAMES))}")
    if name == "jax" and not has_jax():
        raise ImportError("engine='jax' needs the package jax, which cannot be imported here. Use engine='numpy', or install jax.")
    module = f"{__name__}.{name}"
    with contextlib.nullcontext() if module in sys.modules else objects_that_stay():
        engine = importlib.import_module(module)
    return LOCAL.wrap(engine) if LOCAL.wrap else engine


@contextlib.contextmanager
def objects_that_stay() -> Iterator[None]:
    """A context in which Python looks for no garbage, and in the objects made in it only when it looks through all there are.

    JAX's import makes 140,000; looking through them several times takes a sixth of the time to a first compiled step.
    """
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks and gc.get_freeze_count() < 1000:  # somebody else froze none: Python 3.12 begins with some hundred of its own
            gc.freeze()
            gc.unfreeze()  # among the oldest
        if looks:
            gc.enable()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def started(pool: Executor, function: Callable[..., Any], *args: Any) -> Future[Any]:
    """The function's future result; done here and now if Python is ending and its pools take no more work."""
    try:
        return pool.submit(function, *args)
    except RuntimeError:
        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done


def has_jax() -> bool:
    """Whether jax can be imported (it is not imported to find out)."""
    try:
        return importlib.util.find_spec("jax") is not None
    except (ImportError, ValueError):
        return False


@functools.cache
def has_gpu() -> bool:
    """Whether jax would run on a GPU: a driver is there, a plugin for it, and nobody asked for the CPU or hid the GPU."""
    first = os.environ.get("JAX_PLATFORMS", "").partition(",")[0]  # of several platforms, the one that arrays live on
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1")
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    return first in ("", "cuda", "gpu") and seen and shutil.which("nvidia-smi") is not None and any(map(importlib.util.find_spec, plugins))
