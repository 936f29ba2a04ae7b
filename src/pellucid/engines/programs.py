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

__all__ = ["KNOWN", "kept"]

settings: Any = jax.config
KNOWN = jax.__version_info__ < (0, 13)  # whether this JAX is one of those that have been tried, 0.8 to 0.12; a later one may do otherwise
FOLDER = keep_programs()
FLAGS = {name: value for name, value in os.environ.items() if name.startswith(("XLA_", "JAX_"))}
OURS = __name__.partition(".")[0]
LIBRARIES = {OURS, "jax", "jaxlib", "numpy", *sys.stdlib_module_names}
UNSAID = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__dataclass_fields__", "__dataclass_params__"}
UNSAID |= {"__slotnames__", "__match_args__", "__orig_bases__", "__parameters__", "_abc_impl"}
MADE_OF = "fget", "func", "__func__", "__wrapped__", "args", "keywords"
# the modules that programs are traced from
TRACED = [f"{OURS}.{name}" for name in ("losses", "optimizers", "settings", "tree", "windows", "training.step")]
TRACED += [f"{OURS}.engines.{name}" for name in ("again", "choose", "jax", "jax_conv", "jax_parts", "late", "ops", "stack", "winograd")]
TRACED += [name for name in sys.modules if name.startswith(f"{OURS}.layers.")]


def kept(*static: str, traced: tuple[str, ...] = (), **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `jax.jit` with these static arguments; a CPU's programs for layers of this library are kept on disk.

    They are traced from the function's own module, those that any program is traced from, and the modules named here.
    """
    return lambda function: functools.wraps(function)(Kept(function, static, traced, options))


class Kept:
    """A function that is compiled for each kind of arguments, or found on disk."""

    def __init__(self, function: Callable[..., Any], static: tuple[str, ...], traced: tuple[str, ...], options: dict[str, Any]) -> None:
        self.traced, self.options = (function.__module__, *traced), options
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
        if not on_cpu() or jax.device_count() > 1 or settings.jax_disable_jit:
            return self.jitted(*args)  # which knows where arrays are
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
        if FOLDER is None or not are_ours(kind.fixed) or (made_from := digest(self, kind)) is None:
            return self.jitted.lower(*args).compile()
        name = f"{self.function.__name__}-{made_from}"
        file = FOLDER / f"{name}-program"
        with contextlib.suppress(Exception):  # none is there, or it is of no use: one is made
            code, form = read(file)
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
    """Whether settings have but classes of this library in them, no functions of a user's."""
    if isinstance(things, tuple):
        return all(map(are_ours, things))
    if isinstance(things, Settings):
        return is_ours(things) and are_ours(tuple(vars(things).values()))
    return things is None or isinstance(things, bool | int | float | str) or is_ours(things)


def digest(made_by: Kept, kind: Kind) -> str | None:
    """A name for what a program is made from; None where that cannot be told."""
    if not KNOWN or not FLAGS.get("XLA_FLAGS", "--").lstrip().startswith("--"):
        return None  # a JAX that may count otherwise (see Hits); flags in a file, which may change
    told = {name: value for name, value in settings.values.items() if name not in ("jax_enable_x64", "jax_default_matmul_precision")}
    versions = sys.version, jax.__version__, jax.lib.__version__, np.__version__, cores()
    function, flags = made_by.function, (made_by.options, sorted(FLAGS.items()), sorted(told.items(), key=repr))
    words = function.__module__, function.__qualname__, *versions, *flags, *kind
    modules = {*TRACED, *made_by.traced, *modules_of(kind.fixed)}
    said = Said(modules)
    said.words("\n".join(map(repr, words)))
    try:
        for name in sorted(modules):
            said.add({key: value for key, value in vars(sys.modules[name]).items() if not key.startswith("__")})
    except Foreign:
        return None
    return said.hash.hexdigest()[:32]


def modules_of(things: Any) -> set[str]:
    """Where the classes of settings are written."""
    if isinstance(things, Settings):
        return {type(things).__module__, *modules_of(tuple(vars(things).values()))}
    return set().union(*map(modules_of, things)) if isinstance(things, tuple) else set()


class Foreign(Exception):
    """A function in this library's modules that is not of this library: somebody has put it there."""


class Said:
    """A digest of values: of code of these modules, as it is loaded, each instruction and constant.

    So a library that was edited, patched or loaded again makes other programs, whatever its files say.
    """

    def __init__(self, modules: set[str]) -> None:
        self.modules, self.hash, self.seen = modules, hashlib.sha256(), dict[int, Any]()

    def words(self, text: str) -> None:
        self.hash.update(text.encode())
        self.hash.update(b"\0")

    def add(self, value: Any) -> None:
        if value is None or isinstance(value, bool | int | float | str | Settings):
            self.words(repr(value))
        elif isinstance(value, types.CodeType):
            self.hash.update(value.co_code)
            plain = [sorted(c, key=repr) if isinstance(c, frozenset) else c for c in value.co_consts if not isinstance(c, types.CodeType)]
            self.words(repr((value.co_names, plain)))
            self.add([c for c in value.co_consts if isinstance(c, types.CodeType)])
        elif isinstance(value, list | tuple):
            for one in value:
                self.add(one)
        elif isinstance(value, set | frozenset):
            self.words(repr(sorted(one for one in value if isinstance(one, str))))
        elif isinstance(value, dict):
            for name in sorted(name for name in value if isinstance(name, str)):  # what is remembered has other names
                self.words(name)
                self.add(value[name])
        elif id(value) in self.seen:
            self.words(f"the same as {self.seen[id(value)][0]}")
        else:
            self.seen[id(value)] = len(self.seen), value  # which stays, so that no other gets its id
            self.words(getattr(value, "__qualname__", type(value).__qualname__))
            module = getattr(value, "__module__", None) or ""
            if isinstance(value, types.FunctionType) and not module.startswith("namedtuple_") and module.partition(".")[0] not in LIBRARIES:
                raise Foreign(value)
            if isinstance(value, types.FunctionType) and module in self.modules:
                self.add([value.__code__, *(value.__defaults__ or ()), value.__kwdefaults__ or {}])
                self.add([cell.cell_contents for cell in value.__closure__ or ()])
            elif isinstance(value, type) and module in self.modules:
                self.add({name: part for name, part in vars(value).items() if name not in UNSAID})
            elif not isinstance(value, types.FunctionType | type | types.ModuleType):  # a kind of method, or what is made of a function
                self.add([getattr(value, name) for name in MADE_OF if hasattr(value, name)])


@functools.cache
def writer() -> ThreadPoolExecutor:
    """The thread that writes programs to disk; Python waits for it when it ends."""
    return ThreadPoolExecutor(1, "pellucid-writer")


def write(file: Path, program: Any) -> None:
    """Keep a program, if that can be done; who reads it finds all of it or nothing."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(Exception):
        code, _, tree = serialize_executable.serialize(program)
        text = pickle.dumps((code, jax.tree.unflatten(tree, [0] * tree.num_leaves)))
        new.write_bytes(hashlib.sha256(text).digest() + text)
        new.replace(file)
    with contextlib.suppress(OSError):
        new.unlink()


def read(file: Path) -> Any:
    """What was written; a damaged file goes."""
    whole = file.read_bytes()
    if hashlib.sha256(whole[32:]).digest() != whole[:32]:
        file.unlink()
        raise ValueError(file)
    return pickle.loads(whole[32:])
