"""What a layer is: three pure methods on frozen settings."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from ..settings import Settings
from ..tree import is_buffer, leaves

if TYPE_CHECKING:
    from ..engines.ops import Ops

__all__ = ["Array", "Layer", "Params", "Shape", "ShapeError"]

Array: TypeAlias = Any  # a NumPy or a JAX array: a layer does not know which
Params: TypeAlias = Any  # a dict of arrays, or a tuple with one entry per child
Shape: TypeAlias = tuple[Any, ...]  # sizes; the first is None where sequences may have any length


class ShapeError(ValueError):
    """A layer was given a shape it cannot work with. The message says where, what and how to mend it."""

    def __init__(self, layer: Layer, expected: str, got: object, fix: str = "") -> None:
        super().__init__(layer, expected, got, fix)
        self.layer, self.expected, self.got, self.fix = layer, expected, got, fix
        self.path: list[str] = []

    def __str__(self) -> str:
        where = f" (at net.{'.'.join(self.path)})" if self.path else ""
        fix = f" {self.fix}" if self.fix else ""
        return f"{self.layer!r}{where}: expected {self.expected}, got {self.got}.{fix}"


class Layer(Settings):
    """A differentiable function with parameters.

    A subclass lists its hyper-parameters as annotated fields and writes three pure methods.

    build(rng, shape)
        Parameters in float64 and the output shape, from the input shape without its batch axis.
    forward(ops, p, x)
        The output y, and whatever `backward` needs to remember.
    backward(ops, p, cache, dy, wrt_input=True)
        From the flow dy = ∂L/∂y: the flow dx = ∂L/∂x (None if not `wrt_input`) and a dict of gradients,
        named as the parameters. Left out, the JAX engine derives it.
    """

    name: str | None = dataclasses.field(default=None, kw_only=True)

    #: what multiplies its weights, for the prediction of its cost: "product", "convolution" or "scan"
    work: ClassVar[str] = "product"
    #: whether it may compute in bfloat16 where `fit` is asked for that
    half: ClassVar[bool] = False

    def build(self, rng: np.random.Generator, shape: Shape) -> tuple[Params, Shape]:
        return {}, shape

    def forward(self, ops: Ops, p: Params, x: Array) -> tuple[Array, Any]:
        raise NotImplementedError(f"{type(self).__name__} has no forward method.")

    def backward(self, ops: Ops, p: Params, cache: Any, dy: Array, wrt_input: bool = True) -> tuple[Array | None, Params]:
        raise NotImplementedError(
            f"{type(self).__name__} has no backward method, and only the JAX engine can derive one. "
            "Use engine='jax', or write backward(self, ops, p, cache, dy, wrt_input=True)."
        )

    def prime(self, rng: np.random.Generator, p: Params, x: np.ndarray) -> Params:
        """Parameters for a start that depends on data: called once before the first fit, with this layer's inputs."""
        return p

    def check_input(self, x: np.ndarray) -> None:
        """Refuse rows X that this layer cannot take; called on the host where X itself is its input."""

    @property
    def children(self) -> tuple[Layer, ...]:
        return ()

    # ---------------------------------------------------------------- the algebra
    def __rshift__(self, other: Layer) -> Layer:
        from .combine import Chain

        return Chain(self, operand(">>", other))

    def __or__(self, other: Layer) -> Layer:
        from .combine import Concat

        return Concat(self, operand("|", other))

    def __add__(self, other: Layer) -> Layer:
        from .combine import Sum

        return Sum(self, operand("+", other))

    def __mul__(self, other: Layer) -> Layer:
        from .combine import Product

        return Product(self, operand("*", other))

    # ---------------------------------------------------------------- looking at it
    def named(self, name: str) -> Any:
        """Return this layer under a name that paths, errors and files will show."""
        if not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"A layer's name must be a plain word like 'gate', got {name!r}.")
        return self.replace(name=name)

    def count(self, shape: Shape) -> int:
        """The number of weights and biases to be learned for an input of `shape` (N02)."""
        params, _ = self.build(np.random.default_rng(0), shape)
        return parameter_count(params)

    def summary(self, shape: Shape) -> str:
        """A table of layers, output shapes and parameter counts for an input of `shape` (without batch axis)."""
        from .summary import summary

        return summary(self, shape)

    def formulas(self) -> tuple[list[str], list[str]]:
        """This layer's forward and backward equations; by default the "Forward" and "Backward" lines of its docstring.

        A layer that writes its own states them for column vectors, in the language of `pellucid.glass.reading`, and
        pages then put numbers into them.
        """
        from ..glass.formulas import from_docstring

        return from_docstring(type(self).__doc__)

    def quantities(self, call: Any, inner: list[Any]) -> dict[str, Any]:
        """What `formulas` speaks of beside x, y, their flows, parameters and settings: values by name, from one traced call.

        `inner` are the calls of this layer's children. Matrices have examples as columns; a series is a dict by number.
        A dict called "given" says of names that did not come from this call's formulas what they are instead.
        """
        return {}

    def formula(self) -> Any:
        """The symbolic forward and backward formulas of this expression, as a page: text, HTML, LaTeX."""
        from ..glass.formulas import formula

        return formula(self)

    def draw(self) -> str:
        """The expression drawn as a diagram of boxes and wires, in text."""
        from ..glass.draw import draw

        return draw(self)

    def __repr__(self) -> str:
        text = super().__repr__()
        return f"{text}.named({self.name!r})" if self.name else text


def parameter_count(params: Params) -> int:
    return sum(math.prod(np.shape(leaf)) for path, leaf in leaves(params) if not is_buffer(path))


def require_layer(name: str, given: object) -> None:
    """Refuse what is no layer: a class, most of the time."""
    if not isinstance(given, Layer):
        hint = f" Write {given.__name__}(...)." if isinstance(given, type) else ""
        raise TypeError(f"{name} must be a layer or an expression of layers, got {given!r}.{hint}")


def operand(symbol: str, other: object) -> Layer:
    if isinstance(other, Layer):
        return other
    if isinstance(other, type) and issubclass(other, Layer):
        raise TypeError(f"{other.__name__} is a class; write {other.__name__}(...) after {symbol}.")
    raise TypeError(f"{symbol} joins two layers, got {other!r} on the right.")
