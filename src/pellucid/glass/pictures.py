"""Pictures: the network with its weights and gradients, flow over epochs, histograms, decision surfaces.

A picture is a list of a few kinds of shapes. It becomes SVG by itself, and a matplotlib figure where the extra
``[plot]`` is installed.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..layers.combine import Chain, Concat, Parallel, Product
from ..layers.linear import Linear
from ..training.callbacks import Callback
from ..tree import is_buffer, leaves
from .doctor import sample
from .page import document
from .trace import Trace, norm, observe

__all__ = ["GradientFlow", "Picture", "picture_histograms", "picture_network", "picture_surface"]

INK, PALE = "#1c2430", "#8a93a0"
SERIES = ("#2f6fb7", "#c4561a", "#2c8a57", "#7a4fb0", "#b02f5b", "#8a7a1a", "#3a9aa8", "#555555")


@dataclass
class Picture:
    """Shapes on a canvas, y downwards. ``save(path)`` writes .svg or .html, and by matplotlib .png or .pdf."""

    title: str
    width: float
    height: float
    shapes: list[tuple[Any, ...]] = field(default_factory=list)

    def line(self, points: Any, colour: str = INK, thickness: float = 1.0) -> None:
        self.shapes.append(("line", [(float(x), float(y)) for x, y in points], colour, float(thickness)))

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.shapes.append(("box", float(x), float(y), float(width), float(height), colour))

    def disc(self, x: float, y: float, radius: float, colour: str) -> None:
        self.shapes.append(("disc", float(x), float(y), float(radius), colour))

    def words(self, x: float, y: float, text: str, size: float = 12, colour: str = INK, anchor: str = "middle") -> None:
        self.shapes.append(("words", float(x), float(y), text, float(size), colour, anchor))

    def svg(self) -> str:
        """The picture as SVG."""
        out = []
        for kind, *a in self.shapes:
            if kind == "line":
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y in a[0])
                out.append(f'<polyline points="{points}" fill="none" stroke="{a[1]}" stroke-width="{a[2]:.2f}"/>')
            elif kind == "box":
                place = f'x="{a[0]:.1f}" y="{a[1]:.1f}" width="{a[2]:.1f}" height="{a[3]:.1f}"'
                out.append(f'<rect {place} fill="{a[4]}" shape-rendering="crispEdges"/>')
            elif kind == "disc":
                out.append(f'<circle cx="{a[0]:.1f}" cy="{a[1]:.1f}" r="{a[2]:.1f}" fill="{a[3]}" stroke="{INK}"/>')
            else:
                place = f'x="{a[0]:.1f}" y="{a[1]:.1f}" font-size="{a[3]:g}" fill="{a[4]}" text-anchor="{a[5]}"'
                out.append(f"<text {place}>{html.escape(a[2])}</text>")
        box = f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="Georgia, serif">{"".join(out)}</svg>'

    def html(self) -> str:
        """The picture as a page of its own."""
        return document(self.title, f"<h1>{html.escape(self.title)}</h1>{self.svg()}")

    def figure(self) -> Any:
        """The picture as a matplotlib figure."""
        try:
            from matplotlib.figure import Figure
            from matplotlib.patches import Circle, Rectangle
        except ImportError:
            raise ImportError("figures need matplotlib: install pellucid[plot], or save as .svg or .html.") from None
        figure = Figure(figsize=(self.width / 96, self.height / 96))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(self.height, 0))
        axes.axis("off")
        for order, (kind, *a) in enumerate(self.shapes):
            if kind == "line":
                axes.plot(*zip(*a[0], strict=True), color=a[1], linewidth=0.75 * a[2], zorder=order)
            elif kind == "box":
                axes.add_patch(Rectangle((a[0], a[1]), a[2], a[3], color=a[4], zorder=order))
            elif kind == "disc":
                axes.add_patch(Circle((a[0], a[1]), a[2], facecolor=a[3], edgecolor=INK, zorder=order))
            else:
                align = {"middle": "center", "start": "left", "end": "right"}[a[5]]
                axes.text(a[0], a[1], a[2], fontsize=0.75 * a[3], color=a[4], ha=align, zorder=order)
        return figure

    def save(self, path: Any) -> Path:
        """Write the picture by its suffix."""
        path = Path(path)
        if path.suffix in (".svg", ".html"):
            path.write_text(self.svg() if path.suffix == ".svg" else self.html(), encoding="utf-8")
        else:
            self.figure().savefig(path, dpi=192)
        return path

    def _repr_html_(self) -> str:
        return self.svg()


def shade(value: float, largest: float) -> str:
    """Blue for negative, red for positive, white for zero."""
    t = float(np.clip(value / largest, -1, 1)) if largest else 0.0
    end = np.array([178, 34, 52]) if t > 0 else np.array([33, 92, 170])
    return "#{:02x}{:02x}{:02x}".format(*(round(255 + (float(c) - 255) * abs(t)) for c in end))


# -------------------------------------------------------------------- the network
def picture_network(model: Any, X: Any = None, y: Any = None, most: int = 12) -> Picture:
    """Any network with its weights as colours: red positive, blue negative, strong large.

    A chain of dense layers is drawn unit by unit, every weight a line. Every other expression is drawn as blocks joined by
    wires, each with its weights as small images: a matrix (a row for every unit), the kernels of a convolution, the centres of
    a kernel layer. With X and y there is a second drawing, of the gradients. At most `most` units of a layer are drawn.
    """
    model.require_built()
    if (X is None) != (y is None):
        raise ValueError("gradients are those of a loss: give X and y, or neither.")
    panels = [("weights", model.params)]
    if X is not None:
        panels.append(("gradients", observe(model.net, model.loss, model.params, model.as_batch(X, y), model.seed).gradient_tree))
    if chain_of(model.net, model.params):
        return units(model.net, panels, most)
    title, height, picture = repr(model.net), 0.0, Picture("", 0, 0)
    for label, tree in panels:
        arrays = [np.abs(a).max(initial=0.0) for path, a in leaves(tree) if np.ndim(a) > 1]
        block = block_of(model.net, tree, max(map(float, arrays), default=0.0) or 1.0, most)
        middle = height + 40 + block.height / 2
        picture.words(16, height + 24, label, 15, INK, "start")
        picture.words(14, middle + 5, "x", 16)
        wire(picture, (24, middle), (44, middle))
        block.draw(picture, 44, middle)
        wire(picture, (44 + block.width, middle), (64 + block.width, middle))
        picture.words(74 + block.width, middle + 5, "y", 16)
        picture.width, height = block.width + 92, height + block.height + 60
    return Picture(title, picture.width, height, picture.shapes)


def units(net: Any, panels: list[tuple[str, Any]], most: int) -> Picture:
    """A chain of dense layers, unit by unit."""
    layers = {label: [p.get("W") for p in chain_of(net, tree) or []] for label, tree in panels}
    shapes = [W.shape for W in layers["weights"]]
    gap, high = 150, 60 + 34 * min(most, max(map(max, shapes)))
    wide = 80 + gap * len(shapes)
    picture = Picture(repr(net), wide * len(panels), high + 20)
    for k, (label, weights) in enumerate(layers.items()):
        picture.words(k * wide + wide / 2, 20, label, 15)
        weights = [np.zeros(shape) if W is None else W for W, shape in zip(weights, shapes, strict=True)]
        largest = max(float(np.abs(W).max()) for W in weights) or 1.0
        sizes = [weights[0].shape[0], *(W.shape[1] for W in weights)]
        spots = []
        for i, n in enumerate(sizes):
            drawn = min(n, most)
            spots.append([(k * wide + 40 + i * gap, 40 + (high - 40) * (j + 0.5) / drawn) for j in range(drawn)])
        for W, left, right in zip(weights, spots, spots[1:], strict=False):
            for i, a in enumerate(left):
                for j, b in enumerate(right):
                    w = float(W[i, j])
                    picture.line([a, b], shade(w, largest), 0.4 + 4 * abs(w) / largest)
        for column, n in zip(spots, sizes, strict=True):
            for x, y_at in column:
                picture.disc(x, y_at, 9, "#ffffff")
            if n > most:
                picture.words(column[0][0], high + 12, f"… {n} units", 11, PALE)
    return picture


def chain_of(net: Any, p: Any) -> list[Any] | None:
    """The entries of a parameter tree that belong to Linear layers in a chain; None where it is more than a chain."""
    if isinstance(net, Linear):
        return [p]
    if isinstance(net, Chain):
        parts = [chain_of(layer, p[i]) for i, layer in enumerate(net.layers)]
        return None if any(part is None for part in parts) else [entry for part in parts for entry in part or []]
    return [] if not p and not net.children else None


@dataclass
class Block:
    """A part of a drawing: its size, and how it is drawn from its left end, with its wire in the middle."""

    width: float
    height: float
    draw: Callable[[Picture, float, float], None]


def block_of(net: Any, p: Any, largest: float, most: int) -> Block:
    """An expression as a block; `p` are its parameters, or their gradients."""
    whole = net.both if getattr(net, "bidirectional", False) else net
    inside = [child(p, i) for i in range(len(whole.children))]
    parts = [block_of(layer, q, largest, most) for layer, q in zip(whole.children, inside, strict=True)]
    if isinstance(whole, Chain):
        return in_line(parts)
    if isinstance(whole, Parallel):
        return side_by_side(parts, {Concat: "⧺", Product: "×"}.get(type(whole), "+"))
    return framed(net, parts[0]) if len(parts) == 1 else leaf_block(net, p, largest, most)


def child(p: Any, i: int) -> Any:
    """The parameters of a child; an empty tree where nothing is learned."""
    if isinstance(p, dict):
        return next(iter(p.values()), {})
    return p[i] if i < len(p) else {}


def in_line(parts: list[Block], gap: float = 26) -> Block:
    def draw(picture: Picture, x: float, middle: float) -> None:
        for i, part in enumerate(parts):
            if i:
                wire(picture, (x - gap, middle), (x, middle))
            part.draw(picture, x, middle)
            x += part.width + gap

    return Block(sum(part.width + gap for part in parts) - gap, max(part.height for part in parts), draw)


def side_by_side(parts: list[Block], sign: str) -> Block:
    """Branches under each other; their ends meet in a sign."""
    wide, high, side = max(part.width for part in parts), sum(part.height + 14 for part in parts) - 14, 34

    def draw(picture: Picture, x: float, middle: float) -> None:
        top, end = middle - high / 2, x + wide + 2 * side
        for part in parts:
            at = top + part.height / 2
            begin = x + side + (wide - part.width) / 2
            picture.line([(x, middle), (x + 12, middle), (x + 12, at), (begin, at)], PALE, 1.5)
            part.draw(picture, begin, at)
            picture.line([(begin + part.width, at), (end - 12, at), (end - 12, middle)], PALE, 1.5)
            top += part.height + 14
        picture.disc(end - 12, middle, 11, "#ffffff")
        picture.words(end - 12, middle + 5.5, sign, 16)

    return Block(wide + 2 * side, high, draw)


def framed(net: Any, part: Block) -> Block:
    """A layer around another one."""

    def draw(picture: Picture, x: float, middle: float) -> None:
        frame(picture, x, middle - part.height / 2 - 24, part.width + 24, part.height + 36, PALE)
        picture.words(x + 10, middle - part.height / 2 - 8, label_of(net), 12, PALE, "start")
        wire(picture, (x, middle), (x + 12, middle))
        part.draw(picture, x + 12, middle)
        wire(picture, (x + 12 + part.width, middle), (x + 24 + part.width, middle))

    return Block(part.width + 24, part.height + 60, draw)


def leaf_block(net: Any, p: Any, largest: float, most: int) -> Block:
    """A layer as a box with its name and its weights as images."""
    found = [image for path, a in leaves(p) if not is_buffer(path[-1:]) for image in images(np.asarray(a))]
    shown = [image[:most, :most] for image in found[:6]]
    cell = 8.0 if max((max(image.shape) for image in shown), default=0) > 4 else 13.0
    wide = max(16 + 7.2 * len(label_of(net)), 12 + sum(cell * image.shape[1] + 8 for image in shown))
    high = 34 + (max(cell * len(image) for image in shown) + 6 if shown else 0)

    def draw(picture: Picture, x: float, middle: float) -> None:
        top = middle - high / 2
        picture.box(x, top, wide, high, "#f4f6f8")
        frame(picture, x, top, wide, high, INK)
        picture.words(x + wide / 2, top + 21, label_of(net), 13)
        at = x + (wide - sum(cell * image.shape[1] + 8 for image in shown) + 8) / 2
        for image in shown:
            for (i, j), value in np.ndenumerate(image):
                picture.box(at + cell * j, top + 32 + cell * i, cell, cell, shade(value, largest))
            frame(picture, at, top + 32, cell * image.shape[1], cell * len(image), PALE)
            at += cell * image.shape[1] + 8

    return Block(wide, high, draw)


def images(a: np.ndarray) -> list[np.ndarray]:
    """An array of weights as images: a matrix with a row for every unit; of a convolution each unit's kernel on the first channel."""
    if a.ndim == 4:
        return list(np.moveaxis(a[:, :, 0], -1, 0))
    return [a[:, :, o].T for o in range(a.shape[-1])] if a.ndim == 3 else [a.T] if a.ndim == 2 else []


def label_of(net: Any) -> str:
    size = next((f" {value}" for f in ("units", "rate", "size") if isinstance(value := getattr(net, f, None), int | float | tuple)), "")
    return (f"{net.name}: " if net.name else "") + f"{type(net).__name__}{size}"


def frame(picture: Picture, x: float, y: float, width: float, height: float, colour: str) -> None:
    picture.line([(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)], colour)


def wire(picture: Picture, a: tuple[float, float], b: tuple[float, float]) -> None:
    picture.line([a, b], PALE, 1.5)


# -------------------------------------------------------------------- the flow over epochs
class GradientFlow(Callback):
    """Keeps, epoch by epoch, the norm of every layer's gradient on `rows` rows; ``flow.picture()`` draws them."""

    def __init__(self, *, rows: int = 128) -> None:
        self.rows = rows
        self.norms: dict[str, list[float]] = {}

    def fit_begin(self, run: Any) -> None:
        self.batch, self.norms = sample(run.job.data, self.rows), {}
        self.epoch_end(run)

    def epoch_end(self, run: Any) -> None:
        trace = observe(run.model.net, run.model.loss, run.params, self.batch, run.model.seed)
        for name, gradient in trace.gradients.items():
            if gradient.ndim > 1:
                self.norms.setdefault(name, []).append(norm(gradient))

    def picture(self) -> Picture:
        """One line per weight matrix, on a logarithmic scale."""
        if not self.norms:
            raise ValueError("nothing recorded yet: pass this object to fit(callbacks=...) first.")
        picture, (left, top, wide, high) = Picture("gradient flow", 720, 380), (70, 40, 480, 290)
        logs = {name: np.log10(np.maximum(values, 1e-30)) for name, values in self.norms.items()}
        low, top_value = np.floor(min(v.min() for v in logs.values())), np.ceil(max(v.max() for v in logs.values()))
        top_value = max(top_value, low + 1)
        place = lambda v: top + high * (top_value - v) / (top_value - low)  # noqa: E731
        picture.words(left + wide / 2, 22, "norm of the gradient by epoch", 15)
        for power in range(int(low), int(top_value) + 1):
            picture.line([(left, place(power)), (left + wide, place(power))], "#dde1e6")
            picture.words(left - 8, place(power) + 4, f"1e{power}", 11, PALE, "end")
        for i, (name, values) in enumerate(logs.items()):
            colour = SERIES[i % len(SERIES)]
            picture.line([(left + wide * k / max(1, len(values) - 1), place(v)) for k, v in enumerate(values)], colour, 2)
            picture.line([(left + wide + 16, top + 12 + 20 * i), (left + wide + 36, top + 12 + 20 * i)], colour, 2)
            picture.words(left + wide + 42, top + 16 + 20 * i, name, 12, INK, "start")
        picture.words(left + wide / 2, top + high + 20, "epoch", 11, PALE)
        for epoch in (0, len(next(iter(logs.values()))) - 1):
            picture.words(left + wide * (epoch > 0), top + high + 20, str(epoch), 11, PALE)
        return picture


# -------------------------------------------------------------------- histograms and surfaces
def picture_histograms(trace: Trace, bins: int = 30) -> Picture:
    """How the outputs of every layer are distributed in a pass."""
    calls, wide, high = trace.leaves, 220, 150
    across = min(4, len(calls))
    picture = Picture("activations", wide * across, high * -(-len(calls) // across))
    for k, call in enumerate(calls):
        x0, y0 = wide * (k % across), high * (k // across)
        values = np.ravel(np.asarray(call.y, np.float64))
        counts, edges = np.histogram(values[np.isfinite(values)], bins)
        step = (wide - 30) / bins
        for i, count in enumerate(counts):
            tall = (high - 60) * count / max(1, counts.max())
            picture.box(x0 + 15 + i * step, y0 + high - 25 - tall, step * 0.9, tall, SERIES[0])
        picture.words(x0 + wide / 2, y0 + 18, f"{call.path} {type(call.layer).__name__}", 12)
        picture.words(x0 + 15, y0 + high - 8, f"{edges[0]:.2g}", 10, PALE, "start")
        picture.words(x0 + wide - 15, y0 + high - 8, f"{edges[-1]:.2g}", 10, PALE, "end")
    return picture


def picture_surface(model: Any, X: Any, y: Any = None, layer: str | None = None, cells: int = 32) -> Picture:
    """What every neuron of a layer says over the plane of two inputs; by default the network's outputs.

    X gives the range and is drawn as points, coloured by y where y holds class numbers.
    """
    model.require_built()
    if model.input_shape != (2,):
        raise ValueError(f"a surface needs a network with two inputs, this one has {model.input_shape}.")
    X = np.asarray(X, np.float64)
    low, high = X.min(0) - 0.1 * np.ptp(X, 0), X.max(0) + 0.1 * np.ptp(X, 0)
    axes = [np.linspace(a, b, cells, endpoint=False) + (b - a) / (2 * cells) for a, b in zip(low, high, strict=True)]
    grid = np.stack(np.meshgrid(*axes), -1).reshape(-1, 2).astype(model.dtype)
    values = outputs_of(model, grid, layer)
    units, size = values.shape[1], 200
    across = min(4, units)
    picture = Picture(layer or "outputs", (size + 20) * across, (size + 40) * -(-units // across))
    for u in range(units):
        x0, y0, step = (size + 20) * (u % across) + 10, (size + 40) * (u // across) + 30, size / cells
        middle = 0.5 * (values[:, u].max() + values[:, u].min()) if values[:, u].min() >= 0 else 0.0
        largest = float(np.abs(values[:, u] - middle).max())
        for i, v in enumerate(values[:, u]):
            picture.box(x0 + step * (i % cells), y0 + size - step * (i // cells + 1), step + 0.3, step + 0.3, shade(v - middle, largest))
        for i, (a, b) in enumerate(((X - low) / (high - low))[:200]):
            colour = SERIES[int(np.ravel(y)[i]) % len(SERIES)] if y is not None else INK
            picture.disc(x0 + size * a, y0 + size * (1 - b), 2.5, colour)
        picture.words(x0 + size / 2, y0 - 10, f"{layer}, unit {u + 1}" if layer else f"output {u + 1}", 13)
    return picture


def outputs_of(model: Any, x: np.ndarray, layer: str | None) -> np.ndarray:
    """The outputs of one layer, by its path."""
    if layer is None:
        return model.outputs(x, model.params).reshape(len(x), -1)
    target = np.zeros((len(x), *model.output_shape[:-1]) if model.loss.classes == "one" else (len(x), *model.output_shape))
    return np.asarray(model.trace(x, target)[layer].y).reshape(len(x), -1)
