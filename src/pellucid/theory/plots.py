"""Pictures of what the constructions show. Each function returns a matplotlib figure: ``figure.savefig("out.png")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..network import Network
from .certificate import Table, evaluate
from .expressions import Expression
from .piecewise import pieces
from .regions import Regions
from .towers import box, tower, values

__all__ = ["plot_pieces", "plot_regions", "plot_table", "plot_towers"]


def figure(panels: int = 1, width: float = 4.6, height: float = 3.6) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'pellucid[plot]'.") from error
    made = Figure(figsize=(width * panels, height), layout="constrained")
    return made, list(made.subplots(1, panels, squeeze=False)[0])


def plot_table(table: Table, x: str, columns: Sequence[str], *, log: bool = False) -> Any:
    """Columns of a table over another column."""
    made, (ax,) = figure(width=6)
    for column, marker in zip(columns, "osv^dx*", strict=False):
        points = [(row[x], row[column]) for row in table if row[column] is not None]
        ax.plot(*zip(*points, strict=True), marker=marker, label=column)
    ax.set(title=table.title, xlabel=x, yscale="log" if log else "linear")
    ax.title.set_fontsize("medium")
    ax.grid(alpha=0.3)
    ax.legend()
    return made


def plot_pieces(network: Network, low: float, high: float) -> Any:
    """A network's function on an interval, with a dot at every breakpoint."""
    found = pieces(network, low, high)
    made, (ax,) = figure(width=6)
    ax.plot(found.breakpoints, network(found.breakpoints[:, None]), marker="." if found.count <= 300 else "", linewidth=1)
    ax.set(title=f"{found.count:,} linear pieces", xlabel="x", ylabel="y")
    ax.grid(alpha=0.3)
    return made


def plot_regions(found: Regions) -> Any:
    """The activation regions as polygons, coloured by linear piece; regions of one piece have one colour."""
    made, (ax,) = figure(width=5, height=5)
    from matplotlib.collections import PolyCollection

    colours = np.random.default_rng(0).permutation(found.pieces) / max(1, found.pieces - 1)
    patches = PolyCollection(found.polygons, array=colours[found.piece], cmap="turbo", edgecolors="white", linewidths=0.3)
    ax.add_collection(patches)
    ax.set(title=f"{found.count:,} regions, {found.pieces:,} pieces", xlim=found.box[0], ylim=found.box[1], xlabel="x₁", ylabel="x₂")
    return made


def plot_towers(network: Network, f: Callable[..., float] | str, low: Any, high: Any, epsilon: float) -> Any:
    """One tower, the sum of all towers beside f, and the error, for one or two inputs."""
    low, high = box(low, high)
    if isinstance(f, str):
        f = Expression(f, "xyz"[: len(low)])
    if len(low) == 1:
        return plot_line(network, f, low, high, epsilon)
    if len(low) == 2:
        return plot_plane(network, f, low, high, epsilon)
    raise ValueError(f"a picture needs one or two inputs, got {len(low)}.")


def plot_line(network: Network, f: Callable[..., float], low: np.ndarray, high: np.ndarray, epsilon: float) -> Any:
    made, (first, second, third) = figure(3)
    x = np.linspace(low, high, 4001)
    target, y = values(f, x), evaluate(network, x, len(network.parameters["0.b"]))[:, 0]
    edges = -network.parameters["0.b"] / network.parameters["0.W"][0]
    heights = np.cumsum(network.parameters["2.W"][:, 0])
    i = len(edges) // 2
    a, b = edges[i], edges[i + 1] if i + 1 < len(edges) else high[0]
    steep = float(network.parameters["0.W"][0, 0])
    near = np.linspace(a - (b - a), b + (b - a), 2001)[:, None]
    one = tower(a, b, steepness=steep).network
    first.plot(near, heights[i] * one(near))
    first.set(title=f"one tower, two sigmoids of steepness {steep:.3g}", xlabel="x")
    second.plot(x, target, label="f")
    second.plot(x, y, label=f"{len(edges)} towers", linewidth=0.8)
    second.set(title="the sum", xlabel="x")
    second.legend()
    third.plot(x, y - target, linewidth=0.8)
    for level in (-epsilon, epsilon):
        third.axhline(level, color="black", linestyle="--", linewidth=0.8)
    third.set(title=f"the error, ε = {epsilon:g}", xlabel="x")
    return made


def plot_plane(network: Network, f: Callable[..., float], low: np.ndarray, high: np.ndarray, epsilon: float) -> Any:
    made, axes = figure(3)
    side = 120
    u, v = (np.linspace(a, b, side) for a, b in zip(low, high, strict=True))
    X = np.stack(np.meshgrid(u, v), axis=-1).reshape(-1, 2)
    third = (high - low) / 3
    one = tower(low + third, high - third).network.parameters
    sigmoids = 0.5 + 0.5 * np.tanh(0.5 * (X @ one["0.W"] + one["0.b"]))
    cross = sigmoids @ np.tile([1.0, -1.0], 2)
    y = evaluate(network, X, network.parameters["2.b"].size)[:, 0]
    pictures = [
        (cross, "four sigmoids: a cross of heights 0, 1, 2"),
        (y, "the sum of towers"),
        (y - values(f, X), f"the error, ε = {epsilon:g}"),
    ]
    for ax, (z, title) in zip(axes, pictures, strict=True):
        image = ax.imshow(z.reshape(side, side), origin="lower", extent=(low[0], high[0], low[1], high[1]), aspect="auto")
        ax.set(title=title, xlabel="x", ylabel="y")
        made.colorbar(image, ax=ax)
    return made
