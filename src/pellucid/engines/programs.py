"""Compiled programs that the next process finds by what they are made from: it need not trace them to know them.

JAX's own cache on disk is asked when a program has been traced and lowered, which takes a quarter of a warm start, more the deeper
the network. Where all that a program depends on is known before, its machine code is found by that.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import pickle
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import serialize_executable

from ..settings import Settings, is_ours
from . import cores, started
from .cache import keep_programs
from .jax_conv import on_cpu

__all__ = ["kept"]

settings: Any = jax.config
FOLDER = keep_programs()
SOURCES = Path(__file__).parents[1]


def kept(*static: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `jax.jit` with these static arguments; a CPU's programs for layers of this library are kept on disk."""
    return lambda function: functools.wraps(function)(Kept(function, static, options))


class Kept:
    """A function that is compiled for each kind of arguments, or found on disk."""

    def __init__(self, function: Callable[..., Any], static: tuple[str, ...], options: dict[str, Any]) -> None:
        self.jit: Any = functools.partial(jax.jit, static_argnames=static, **options)
        self.function, self.jitted = function, self.jit(function)
        self.static = [name in static for name in inspect.signature(function).parameters]
        self.programs = dict[Kind, Program]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jitted, name)

    def _cache_size(self) -> int:
        return len(self.programs) + int(self.jitted._cache_size())

    def clear_cache(self) -> None:
        self.programs.clear()
        self.jitted.clear_cache()

    def __call__(self, *args: Any) -> Any:
        if not on_cpu() or settings.jax_disable_jit:
            return self.jitted(*args)
        fixed = tuple(a for a, static in zip(args, self.static, strict=False) if static)
        moving = tuple(a for a, static in zip(args, self.static, strict=False) if not static)
        leaves, tree = jax.tree.flatten(moving)
        shapes = tuple((a.shape, a.dtype, getattr(a, "weak_type", False)) for a in leaves)
        kind = Kind(fixed, tree, shapes, settings.jax_enable_x64, settings.jax_default_matmul_precision)
        program = self.programs.get(kind) or self.programs.setdefault(kind, Program())
        if program.run is None:
            with program.lock:  # of fits that begin at once, one compiles
                program.run = program.run or self.make(kind, args, moving)
        return program.run(*moving)

    def make(self, kind: Kind, args: Any, moving: Any) -> Any:
        """The program, from disk or compiled and then written there."""
        if FOLDER is None or not are_ours(kind.fixed):
            return self.jitted.lower(*args).compile()
        name = f"{self.function.__name__}-{digest(self.function, kind)}"
        file = FOLDER / f"{name}-program"
        with contextlib.suppress(Exception):  # none is there, or it is of no use: one is made
            code, form = pickle.loads(file.read_bytes())
            found = serialize_executable.deserialize_and_load(code, jax.tree.structure((moving, {})), jax.tree.structure(form))
            os.utime(file)  # those not used for long go first
            return found
        named = functools.wraps(self.function)(lambda *args: self.function(*args))
        named.__name__ = name  # so JAX's cache does not have it from another version of this library
        before = HITS.count
        program = self.jit(named).lower(*args).compile()
        if HITS.count == before:  # what comes from there is no longer whole when it is written again
            started(writer(), write, file, program)  # while training begins
        return program


class Kind(NamedTuple):
    """What a program depends on that is not the same for all of a process."""

    fixed: tuple[Any, ...]
    tree: Any
    shapes: tuple[Any, ...]
    double: bool
    precision: str | None


class Program:
    """A compiled program, as soon as there is one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.run: Any = None


class Hits(threading.local):
    """How many programs this thread has had from JAX's cache."""

    count = 0

    def heard(self, event: str, **more: Any) -> None:
        self.count += event.endswith("/cache_hits")


HITS = Hits()
jax.monitoring.register_event_listener(HITS.heard)


def are_ours(things: Any) -> bool:
    """Whether all that settings say is told by the sources of this library: a user's class or method may be another one tomorrow."""
    if isinstance(things, tuple):
        return all(map(are_ours, things))
    if isinstance(things, Settings):
        return is_ours(things) and unchanged(type(things)) and are_ours(tuple(vars(things).values()))
    return things is None or isinstance(things, bool | int | float | str) or is_ours(things)


def unchanged(kind: type) -> bool:
    """Whether the methods of a class are written in this library (or those of every object, which `dataclasses` makes)."""
    found = ((name, value) for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, types.FunctionType))
    return all(method.__code__.co_filename.startswith(str(SOURCES)) or hasattr(object, name) for name, method in found)


def digest(function: Any, kind: Kind) -> str:
    """A name for what a program is made from."""
    words = *of_process(), function.__module__, *map(repr, kind)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


@functools.cache
def of_process() -> tuple[str, ...]:
    """What all programs of a process depend on: this library to the letter, JAX, and how it is told to compile."""
    ours = hashlib.sha256()
    for file in sorted(SOURCES.rglob("*.py")):
        ours.update(file.read_bytes())
    versions = sys.version, jax.__version__, jax.lib.__version__, np.__version__, str(cores())
    flags = sorted((name, value) for name, value in os.environ.items() if name.startswith(("XLA_", "JAX_")))
    return ours.hexdigest(), *versions, repr(flags), repr(sorted(settings.values.items(), key=repr))


@functools.cache
def writer() -> ThreadPoolExecutor:
    """The thread that writes programs to disk; Python waits for it when it ends."""
    return ThreadPoolExecutor(1, "pellucid-writer")


def write(file: Path, program: Any) -> None:
    """Keep a program, if that can be done; who reads it finds all of it or nothing."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(Exception):
        code, _, tree = serialize_executable.serialize(program)
        new.write_bytes(pickle.dumps((code, jax.tree.unflatten(tree, [0] * tree.num_leaves))))
        new.replace(file)
    with contextlib.suppress(OSError):
        new.unlink()
