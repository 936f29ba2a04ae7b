"""The four combinators: every architecture is built from layers with these.

========  ============  =========  ==================================================
a >> b    b(a(x))       Chain      the flow passes through b, then through a
a | b     [a(x); b(x)]  Concat     the flow is split, the dx are summed
a + b     a(x) + b(x)   Sum        the flow is copied, the dx are summed
a * b     a(x) ⊙ b(x)   Product    each side gets flow ⊙ the other side
========  ============  =========  ==================================================
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..tree import learnable
from .base import Array, Layer, Params, Shape, ShapeError

__all__ = ["Chain", "Concat", "Product", "Sum"]


class Combinator(Layer, init=False):
    """Layers joined by one operator; nested ones of the same kind are made one."""

    layers: tuple[Layer, ...]

    symbol: ClassVar[str]
    flattens: ClassVar[bool] = True

    def __init__(self, *layers: Layer, name: str | None = None) -> None:
        flat: list[Layer] = []
        for layer in layers:
            same = self.flattens and type(layer) is type(self) and layer.name is None
            flat.extend(layer.children if same else [layer])
        object.__setattr__(self, "layers", tuple(flat))
        object.__setattr__(self, "name", name)
        self.__post_init__()

    def check(self):
        self.require(len(self.layers) >= 1, "layers", "at least one layer")
        names = [layer.name for layer in self.layers if layer.name]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{type(self).__name__}: two layers are named {name!r}; names side by side must differ.")

    def replace(self, **changes: Any) -> Any:
        return type(self)(*self.layers, **changes)

    @property
    def children(self):
        return self.layers

    def __repr__(self) -> str:
        if len(self.layers) == 1:
            text = f"{type(self).__name__}({self.layers[0]!r})"
        else:
            inner = [f"({c!r})" if isinstance(c, Combinator) and not c.name else repr(c) for c in self.layers]
            text = f" {self.symbol} ".join(inner)
        if self.name:
            return f"({text}).named({self.name!r})"
        return text

    def build_child(self, rng: Any, i: int, shape: Shape) -> tuple[Params, Shape]:
        try:
            return self.layers[i].build(rng, shape)
        except ShapeError as error:
            error.path.insert(0, self.layers[i].name or str(i))
            raise


class Chain(Combinator, init=False):
    """One layer after the other.

    Forward   y = bₙ(… b₁(x))
    Backward  the flow passes through the layers in reverse order; it stops at the first one that learns.
    """

    symbol = ">>"

    def build(self, rng, shape):
        params = []
        for i in range(len(self.layers)):
            p, shape = self.build_child(rng, i, shape)
            params.append(p)
        return tuple(params), shape

    def check_input(self, x):
        self.layers[0].check_input(x)

    def forward(self, ops, p, x):
        caches = []
        for i, layer in enumerate(self.layers):
            x, cache = ops.forward(layer, p[i], x, i)
            caches.append(cache)
        return x, caches

    def backward(self, ops, p, caches, dy, wrt_input=True):
        grads: list[Any] = [{} for _ in self.layers]
        first = 0 if wrt_input else next((i for i in range(len(p)) if learnable(p[i])), len(p))
        for i in reversed(range(first, len(p))):
            dy, grads[i] = ops.backward(self.layers[i], p[i], caches[i], dy, i, wrt_input or i > first)
        return (dy if wrt_input else None), tuple(grads)


class Parallel(Combinator, init=False):
    """Layers that see the same input. `join` puts their outputs together; `part` is the flow into one of them.

    Backward  dx = Σᵢ dxᵢ: one term for every path from x to the loss          (N30)
    """

    def join(self, ops: Any, outputs: list[Array]) -> Array:
        raise NotImplementedError

    def part(self, ops: Any, outputs: list[Array], dy: Array, i: int) -> Array:
        raise NotImplementedError

    def shape(self, shapes: list[Shape]) -> Shape:
        if any(s != shapes[0] for s in shapes):
            raise ShapeError(
                self,
                f"branches of equal output shape for {self.symbol}",
                ", ".join(map(str, shapes)),
                "Give every branch the same number of units, or use | to put them side by side.",
            )
        return shapes[0]

    def build(self, rng, shape):
        built = [self.build_child(rng, i, shape) for i in range(len(self.layers))]
        return tuple(p for p, _ in built), self.shape([s for _, s in built])

    def check_input(self, x):
        for layer in self.layers:
            layer.check_input(x)

    def forward(self, ops, p, x):
        passes, lengths = [], ops.lengths
        for i, layer in enumerate(self.layers):
            ops.lengths = lengths  # a branch with a stride sets its own
            passes.append(ops.forward(layer, p[i], x, i))
        outputs = [y for y, _ in passes]
        return self.join(ops, outputs), (outputs, [cache for _, cache in passes])

    def backward(self, ops, p, cache, dy, wrt_input=True):
        outputs, caches = cache
        dx: Array = None
        grads: list[Params] = []
        for i, layer in enumerate(self.layers):
            if not wrt_input and not learnable(p[i]):
                grads.append({})
                continue
            flow = self.part(ops, outputs, dy, i)
            di, gi = ops.backward(layer, p[i], caches[i], flow, i, wrt_input)
            if wrt_input:
                dx = di if dx is None else dx + di
            grads.append(gi)
        return dx, tuple(grads)


class Concat(Parallel, init=False):
    """Outputs side by side (N05 skip, N07 parallel).

    Forward   y = [y₁; …; yₙ] along the last axis
    Backward  each layer gets its own slice of the flow
    """

    symbol = "|"

    def shape(self, shapes):
        if any(not s or s[:-1] != shapes[0][:-1] for s in shapes):
            raise ShapeError(
                self,
                "branches that differ in the last axis only",
                ", ".join(map(str, shapes)),
                "Add Flatten() to the branches, or bring them to one shape.",
            )
        return (*shapes[0][:-1], sum(s[-1] for s in shapes))

    def join(self, ops, outputs):
        return ops.xp.concatenate(outputs, axis=-1)

    def part(self, ops, outputs, dy, i):
        start = sum(y.shape[-1] for y in outputs[:i])
        return dy[..., start : start + outputs[i].shape[-1]]


class Sum(Parallel, init=False):
    """Outputs added (N06 residual).

    Forward   y = y₁ + … + yₙ
    Backward  each layer gets the whole flow
    """

    symbol = "+"

    def join(self, ops, outputs):
        total = outputs[0]
        for y in outputs[1:]:
            total = total + y
        return total

    def part(self, ops, outputs, dy, i):
        return dy


class Product(Parallel, init=False):
    """Two outputs multiplied entry by entry (N08 product node, N09 and N10 gates).

    Forward   y = y₁ ⊙ y₂
    Backward  dy₁ = dy ⊙ y₂,   dy₂ = dy ⊙ y₁
    """

    symbol = "*"
    flattens = False

    def check(self):
        super().check()
        self.require(len(self.layers) == 2, "layers", "two layers")

    def join(self, ops, outputs):
        return outputs[0] * outputs[1]

    def part(self, ops, outputs, dy, i):
        return dy * outputs[1 - i]
