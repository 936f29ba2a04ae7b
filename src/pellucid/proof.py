"""Proof: our gradients against central differences and automatic differentiation, in float64 (N34, N37)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .engines import get_engine, has_jax
from .layers.base import Layer, require_layer
from .losses import Loss
from .training.data import frozen
from .training.step import Batch, gradients, weights
from .tree import flatten, is_buffer, leaves, map_leaves, readable, unflatten

__all__ = ["GradientCheck", "GradientRow", "check_gradients", "check_layer"]

STEP = 1e-4  # with extrapolation: truncation error ~ STEP⁴, rounding error ~ 1e-16/STEP


@dataclass(frozen=True)
class GradientRow:
    """One parameter (or the input) at the entry where the three values differ most."""

    name: str
    checked: int
    skipped: int  # entries within a step of a kink, where no derivative exists
    index: tuple[int, ...]
    ours: float
    differences: float
    autodiff: float | None
    error: float  # the largest difference, relative to the largest entry of the whole gradient


@dataclass(frozen=True)
class GradientCheck:
    """The result of a gradient check: prints as a table, is true when every row is within tolerance."""

    rows: list[GradientRow]
    tolerance: float
    judges: str = field(default="")

    @property
    def worst(self) -> GradientRow:
        return max(self.rows, key=lambda row: row.error if not math.isnan(row.error) else math.inf)

    def __bool__(self) -> bool:
        return all(row.error <= self.tolerance for row in self.rows)

    def __str__(self) -> str:
        table = self.cells()
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
        lines.insert(1, "─" * max(map(len, lines)))
        return "\n".join([*lines, self.verdict])

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        words = "all gradients agree" if self else f"gradients disagree, worst at {self.worst.name}"
        return f"{words} with {self.judges} (tolerance {self.tolerance:g})"

    def cells(self) -> list[tuple[str, ...]]:
        """The table as words, its head first."""
        table: list[tuple[str, ...]] = [("parameter", "entries", "worst at", "ours", "differences", "autodiff", "rel. error", "")]
        for r in self.rows:
            auto = "–" if r.autodiff is None else f"{r.autodiff:.9g}"
            entries = f"{r.checked}" + (f" ({r.skipped} at kinks skipped)" if r.skipped else "")
            verdict = "ok" if r.error <= self.tolerance else "WRONG"
            place = str(list(r.index)) if r.checked else "–"
            table.append((r.name, entries, place, f"{r.ours:.9g}", f"{r.differences:.9g}", auto, f"{r.error:.1e}", verdict))
        return table

    __repr__ = __str__

    def __rich__(self) -> Any:
        from .glass.report import rich_table

        return rich_table(self)

    def show(self) -> None:
        """Print the table in colour: green where the three values agree, red where not."""
        from rich.console import Console

        Console().print(self)

    def html(self) -> str:
        """The table as HTML, green or red."""
        from .glass.report import html_table

        return html_table(self)

    _repr_html_ = html


class Probe(Loss):
    """L = Σ d y, ∂L/∂y = d: lets any flow d into the last layer."""

    def __call__(self, ops, y, d):
        return (d * y).sum(-1), d


def check_layer(
    layer: Layer,
    shape: int | tuple[int, ...],
    *,
    batch: int = 3,
    seed: int = 0,
    tolerance: float = 1e-6,
    entries: int = 100,
    lengths: Any = None,
) -> GradientCheck:
    """Check a layer's gradients, by its parameters and its input, for random rows of `shape` (without the batch axis).

    For your own layers as for ours::

        assert check_layer(MyLayer(8), (5,))

    With `lengths`, one per row, only that many positions of each row are real.
    """
    require_layer("layer", layer)
    rng, shape = np.random.default_rng(seed), tuple(np.atleast_1d(shape).tolist())
    params, out = layer.build(rng, shape)
    params = map_leaves(lambda a: np.asarray(a, np.float64), params)
    x, flow = rng.normal(size=(batch, *shape)), rng.normal(size=(batch, *out))
    weight = np.full(batch, 1.0)
    data = Batch(x, flow, weight, None if lengths is None else np.asarray(lengths, np.int32))
    return check_gradients(layer, Probe(), params, data, seed=seed, tolerance=tolerance, entries=entries, wrt_input=True)


def check_gradients(
    net: Layer,
    loss: Loss,
    params: Any,
    batch: Batch,
    *,
    seed: int = 0,
    tolerance: float = 1e-6,
    entries: int = 100,
    wrt_input: bool = False,
) -> GradientCheck:
    """Compare three values of every derivative; float64 parameters and batch are expected."""
    from .engines.choose import needs_jax

    jax = get_engine("jax") if has_jax() else None
    engine = jax if needs_jax(net) else get_engine("numpy")
    if engine is None:
        raise ValueError("A layer has no backward method, and jax, which could derive it, cannot be imported.")
    # a layer that writes into what it is given would move the point at which gradients are compared
    params, *rows = map_leaves(lambda a: a if a is None else frozen(np.array(a)), (params, *batch))
    batch = Batch(*rows)
    point = {**flatten(params, net), **({"input": batch.x} if wrt_input else {})}
    zero = {".".join(readable(path, net)): np.zeros_like(a) for path, a in leaves(params) if not is_buffer(path)}

    def ours(params: Any) -> tuple[Any, Any]:
        g = gradients(engine_ops(engine, seed, batch), net, loss, params, engine.put(batch), wrt_input)
        return g.params, g.x

    def value(values: dict[str, Any], engine: Any = engine) -> Any:
        ops = engine_ops(engine, seed, batch)
        x = values.get("input", batch.x)
        y, _ = ops.forward(net, unflatten(params, values, net), x, "net")
        per_row, _ = loss(ops, y, batch.target)
        w = weights(ops, per_row, batch)
        return (per_row * w).sum() / w.sum() + ops.penalty

    whole = one_program(engine, value)

    def number(values: dict[str, Any]) -> float:
        with engine.precision(np.float64), np.errstate(all="ignore"):
            return float(whole(values))

    with engine.precision(np.float64):
        grads, dx = engine.get(one_program(engine, ours)(params))
    own = {**zero, **flatten(grads, net), **({"input": dx} if wrt_input else {})}  # a parameter that backward leaves out does not learn
    for name, g in own.items():
        require_shape(name, np.shape(g), point, len(batch.x))
    auto = differentiate(jax, lambda v: value(v, jax), point, list(own)) if jax else None
    scale = max(max((float(np.abs(g).max()) for g in own.values() if g.size), default=0.0), 1e-300)
    rng = np.random.default_rng(seed)
    rows = [judge(name, own[name], auto and auto[name], point, number, scale, tolerance, entries, rng) for name in own]
    judges = "central differences" + (" and automatic differentiation" if auto else " (jax is not there for automatic differentiation)")
    return GradientCheck(rows, tolerance, judges)


def engine_ops(engine: Any, seed: int, batch: Batch) -> Any:
    Ops = engine.JaxOps if engine.name == "jax" else engine.NumpyOps
    return Ops(training=True, seed=np.uint32(seed), step=np.int32(0), weight=batch.weight, lengths=batch.lengths)


def require_shape(name: str, shape: tuple[int, ...], point: dict[str, Any], rows: int) -> None:
    """A gradient must be that of a parameter, and have its shape."""
    if name not in point:
        known = ", ".join(other for other in point if other != "input") or "no parameters"
        raise ValueError(f"backward gave a gradient for {name}, but build made {known}.")
    wanted = point[name].shape
    if shape != wanted:
        hint = " Sum it over the rows of the batch." if shape == (rows, *wanted) else ""
        raise ValueError(f"the gradient of {name} must have the shape of {name}, {wanted}, got {shape}.{hint}")


def one_program(engine: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled if the engine is JAX: operation by operation there would be dozens of programs.

    One that looks at values, as a layer for NumPy alone may do, is run operation by operation all the same.
    """
    if engine.name == "numpy":
        return function
    compiled = engine.jax.jit(function)

    def run(*args: Any) -> Any:
        try:
            return compiled(*args)
        except engine.jax.errors.ConcretizationTypeError:
            return function(*args)

    return run


def differentiate(engine: Any, value: Callable[..., Any], point: dict[str, Any], names: list[str]) -> dict[str, np.ndarray]:
    """Automatic differentiation of the forward formula, by JAX."""
    import jax

    rest = {k: v for k, v in point.items() if k not in names}
    with engine.precision(np.float64):
        found = one_program(engine, jax.grad(lambda chosen: value({**rest, **chosen})))({k: point[k] for k in names})
        return {k: np.asarray(v) for k, v in found.items()}


def judge(
    name: str, own: np.ndarray, auto: Any, point: dict[str, Any], number: Any, scale: float, tolerance: float, entries: int, rng: Any
) -> GradientRow:
    """Compare at most `entries` entries of one parameter."""
    chosen = np.arange(own.size) if own.size <= entries else np.sort(rng.choice(own.size, entries, replace=False))
    worst, checked, skipped = GradientRow(name, 0, 0, (), 0.0, 0.0, None, 0.0), 0, 0
    for flat in chosen:
        index = tuple(int(i) for i in np.unravel_index(flat, own.shape))
        difference, kink = central_difference(number, point, name, index, scale, tolerance)
        if kink:
            skipped += 1
            continue
        checked += 1
        theirs = None if auto is None else float(auto[index])
        error = max(abs(own[index] - j) / scale for j in (difference, theirs) if j is not None)
        if checked == 1 or not error <= worst.error:
            worst = GradientRow(name, 0, 0, index, float(own[index]), difference, theirs, float(error))
    return GradientRow(name, checked, skipped, *list(vars(worst).values())[3:])


def central_difference(
    number: Any, point: dict[str, Any], name: str, index: tuple[int, ...], scale: float, tolerance: float
) -> tuple[float, bool]:
    """(f(x + h) − f(x − h)) / 2h, extrapolated from h and h/2; and whether a kink lies within h."""
    middle = number(point)

    def at(offset: float) -> float:
        moved = np.array(point[name], np.float64)
        moved[index] += offset
        return number({**point, name: moved})

    slopes, bends = [], []
    for h in (STEP, STEP / 2):
        above, below = at(h), at(-h)
        slopes.append((above - below) / (2 * h))
        bends.append(abs(above - 2 * middle + below) / h)  # the jump of the slope at a kink; ~ h where smooth
    off_centre = abs(slopes[0] - slopes[1]) > 100 * tolerance * scale
    centred = bends[1] > 0.75 * bends[0] and bends[1] > 1e3 * tolerance * scale
    return (4 * slopes[1] - slopes[0]) / 3, off_centre or centred
