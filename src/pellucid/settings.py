"""Settings: a frozen, hashable, checked bundle of hyper-parameters.

Layers, losses, optimizers, schedules and initializers are all such bundles. Being frozen and
hashable, they can be static arguments of a compiled program: equal networks share one program.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, dataclass_transform

import numpy as np

__all__ = ["Fixed", "Settings", "did_you_mean", "friendly", "is_ours"]

P = ParamSpec("P")
R = TypeVar("R")


def did_you_mean(word: object, choices: typing.Iterable[str]) -> str:
    """`" Did you mean 'epochs'?"`, or `""` when nothing is close."""
    lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(str(word).lower(), lower, n=1)
    return f" Did you mean {lower[close[0]]!r}?" if close else ""


def refuse_unknown(owner: str, given: typing.Iterable[str], allowed: typing.Collection[str]) -> None:
    for name in given:
        if name not in allowed:
            raise TypeError(f"{owner} has no option {name!r}.{did_you_mean(name, allowed)} It takes: {', '.join(allowed)}.")


def friendly(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function answer a misspelt option with the nearest right one."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    label = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        refuse_unknown(label, options, names)
        return function(*args, **options)

    return call


class Fixed:
    """A constant array that is compared and hashed by its values.

    Examples
    --------
    >>> Fixed([[1, 0], [0, 1]]) == Fixed(np.eye(2))
    True
    """

    def __init__(self, values: Any) -> None:
        array: np.ndarray = np.array(values.array if isinstance(values, Fixed) else values, dtype=np.float64)
        array.setflags(write=False)
        self.array: np.ndarray = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((self.array.shape, (self.array + 0.0).tobytes()))  # + 0.0: -0.0 equals 0.0

    def __repr__(self) -> str:
        return f"Fixed({self.array.tolist()!r})"


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Settings:
    """Base of everything that is described by its hyper-parameters alone.

    A subclass is made a frozen dataclass; its fields are converted and checked by their annotation
    (``np.int64(8)`` becomes ``8``, an array becomes :class:`Fixed`), and ``eval(repr(s)) == s``.
    """

    def __init_subclass__(cls, init: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True, repr=False, init=init)(cls)

    @classmethod
    @functools.cache
    def _declared(cls) -> dict[str, tuple[Any, Any]]:
        """Annotation and default of every field."""
        try:
            hints = typing.get_type_hints(cls)
        except (NameError, AttributeError):  # a class made inside a function may name things only that function can see
            hints = {}
        return {field.name: (hints.get(field.name, Any), field.default) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]

    def __new__(cls, *args: Any, **options: Any) -> Any:
        refuse_unknown(cls.__name__, options, cls._declared())
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, (hint, _) in self._declared().items():
            value = getattr(self, name)
            if type(value) is hint and hint in (bool, int, float, str) and value == value:  # as it should be, and not nan
                continue
            object.__setattr__(self, name, convert(f"{type(self).__name__}: {name}", hint, value))
        self.check()

    def check(self) -> None:
        """Refuse values that make no sense together; subclasses say which."""

    def require(self, condition: bool, field: str, expected: str) -> None:
        """Raise a ``ValueError`` that names the field, what was expected and what came."""
        if not condition:
            raise ValueError(f"{type(self).__name__}: {field} must be {expected}, got {getattr(self, field)!r}.")

    def replace(self, **changes: Any) -> Any:
        """Return the same settings with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def __repr__(self) -> str:
        words = []
        for name, (_, default) in self._declared().items():
            value = getattr(self, name)
            if name == "name" or value == default:
                continue
            text = value.__qualname__ if isinstance(value, types.FunctionType) else repr(value)
            words.append(text if default is dataclasses.MISSING else f"{name}={text}")
        return f"{type(self).__name__}({', '.join(words)})"


def is_ours(thing: Any) -> bool:
    """Whether its class is one of this library's."""
    return type(thing).__module__.partition(".")[0] == __name__.partition(".")[0]


def convert(where: str, hint: Any, value: Any) -> Any:
    """Return `value` as its annotation `hint` wants it, or raise an error that says what was expected."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        options = [a for a in args if a is not type(None)]
        for option in options:
            if isinstance(option, type) and isinstance(value, option):
                return convert(where, option, value)
        return convert(where, options[0], value)
    if origin is Literal:
        if value not in args:
            raise ValueError(f"{where} must be one of {', '.join(map(repr, args))}, got {value!r}.{did_you_mean(value, map(str, args))}")
        return value
    if origin is tuple and args:
        if not isinstance(value, tuple | list | np.ndarray):
            raise TypeError(f"{where} must be a tuple, got {value!r}.")
        return tuple(convert(where, args[0], v) for v in value)
    if hint is bool:
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{where} must be True or False, got {value!r}.")
        return bool(value)
    if hint is int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{where} must be a whole number, got {value!r}.")
        return operator.index(value)
    if hint is float:
        if isinstance(value, bool | str) or not hasattr(value, "__float__"):
            raise TypeError(f"{where} must be a number, got {value!r}.")
        if math.isnan(float(value)):
            raise ValueError(f"{where} must be a number, got nan.")
        return float(value)
    if hint is Fixed:
        return Fixed(value)
    if origin is Callable:
        return importable(where, value)
    if isinstance(hint, type) and hint is not object and not isinstance(value, hint):
        if isinstance(value, type) and issubclass(value, hint):
            raise TypeError(f"{where} got the class {value.__name__}; write {value.__name__}() to make one.")
        raise TypeError(f"{where} must be {hint.__name__}, got {value!r}.")
    return value


def importable(where: str, function: Any) -> Any:
    """A function is taken only where its name finds it again, in a file or another process."""
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", None)
    found: Any = importlib.import_module(module) if callable(function) and module and "<" not in name else None
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise TypeError(
            f"{where} must be a function defined at the top of a module, got {function!r}. "
            "A lambda or an inner function cannot be found again by its name: write it with def."
        )
    return function
