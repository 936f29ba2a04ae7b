"""Pooling: windows of an image or a sequence made one number, by their mean or their largest entry."""

from __future__ import annotations

import math
from typing import ClassVar

from .base import Layer, ShapeError
from .sliding import Sliding, real

__all__ = ["AvgPool1d", "AvgPool2d", "GlobalAvgPool", "GlobalMaxPool", "MaxPool1d", "MaxPool2d"]


class Pool(Sliding):
    """A window without weights, on every channel by itself."""

    size: int | tuple = 2
    stride: int | tuple | None = None
    padding: int | str | tuple = "valid"

    window: ClassVar[str] = "size"

    def check(self):
        super().check()
        windows = self.windows()
        fits = all(2 * max(p) <= k for k, p in zip(windows.size, windows.padding, strict=True))
        self.require(fits, "padding", f"at most half of size ({self.size})")

    def build(self, rng, shape):
        return {}, (*self.slide(shape), shape[-1])

    def quantities(self, call, inner):
        inside, sizes = self.indices()[0], self.windows().size
        return {k: range(first, first + n) for k, first, n in zip(inside, self.first(), sizes, strict=True)}

    def lines(self) -> list[str]:
        """What formulas are made of: indices in the window, in the input, in the output; what is read; which output reads."""
        inside, place, both, read_by = self.indices()
        return [",".join(part) for part in (inside, place, both[: self.axes], both[self.axes :], read_by)]


class AvgPool(Pool):
    def forward(self, ops, p, x):
        shape, parts = x.shape, self.windows().parts(ops.xp, real(ops, x))
        self.hand_on_lengths(ops)
        return sum(parts) * (1 / len(parts)), shape

    def backward(self, ops, p, shape, dy, wrt_input=True):
        if not wrt_input:
            return None, {}
        windows = self.windows()
        n = math.prod(windows.size)
        return real(ops, ops.overlap_add([dy * (1 / n)] * n, shape, windows)), {}

    def formulas(self):
        (k, p, out, reads, by), n = self.lines(), math.prod(self.windows().size)
        return [f"y[b,{out},c] = (Σ_{{{k}}} x[b,{reads},c]) / {n}"], [f"dx[b,{p},c] = (Σ_{{{k}}} dy[b,{by},c]) / {n}"]


class MaxPool(Pool):
    def forward(self, ops, p, x):
        xp, shape = ops.xp, x.shape
        first, *others = self.windows().parts(xp, real(ops, x, -math.inf), fill=-math.inf)
        y, which = first, xp.zeros(first.shape, dtype=xp.int32)
        for k, part in enumerate(others, 1):
            which = xp.where(part > y, xp.int32(k), which)
            y = xp.maximum(y, part)
        self.hand_on_lengths(ops)
        return real(ops, y), (shape, which)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        if not wrt_input:
            return None, {}
        (shape, which), windows = cache, self.windows()
        parts = [dy * (which == k).astype(dy.dtype) for k in range(math.prod(windows.size))]
        return real(ops, ops.overlap_add(parts, shape, windows)), {}

    def formulas(self):
        k, p, out, reads, by = self.lines()
        back = f"dx[b,{p},c] = Σ_{{{k}}} dy[b,{by},c] [y[b,{by},c] = x[b,{p},c]]"
        return [f"y[b,{out},c] = max_{{{k}}} x[b,{reads},c]"], [back]


class AvgPool2d(AvgPool):
    """The mean of every window, channel by channel.

    Forward   y[b,i,j,c] = 1/n Σ_{i′,j′} x[b,i·s+i′,j·s+j′,c],      n entries in a window, zeros outside the image counted
    Backward  dx: every entry of a window gets dy/n

    Parameters
    ----------
    size : int or (height, width)
        The window.
    stride : int, (height, width) or None
        Steps from window to window; None: its size, so that windows do not overlap.
    padding : "valid", "same", int or (height, width)
        As in :class:`Conv2d`; at most half of the size. What no whole window covers is left out.

    Input (batch, height, width, channels), output (batch, height′, width′, channels).
    """

    axes: ClassVar[int] = 2


class AvgPool1d(AvgPool):
    """The mean of every window of a sequence: :class:`AvgPool2d` along time.

    Forward   y[b,t,c] = 1/n Σ_k x[b,t·s+k,c]
    Backward  dx: every entry of a window gets dy/n

    Input (batch, time, channels), output (batch, time′, channels).
    """

    axes: ClassVar[int] = 1


class MaxPool2d(MaxPool):
    """The largest entry of every window, channel by channel.

    Forward   y[b,i,j,c] = max_{i′,j′} x[b,i·s+i′,j·s+j′,c]
    Backward  dx: the entry that won (the first of equal ones) gets dy, the others nothing

    Options as for :class:`AvgPool2d`; the padding never wins.

    Input (batch, height, width, channels), output (batch, height′, width′, channels).
    """

    axes: ClassVar[int] = 2


class MaxPool1d(MaxPool):
    """The largest entry of every window of a sequence: :class:`MaxPool2d` along time.

    Forward   y[b,t,c] = max_k x[b,t·s+k,c]
    Backward  dx: the entry that won (the first of equal ones) gets dy, the others nothing

    Input (batch, time, channels), output (batch, time′, channels).
    """

    axes: ClassVar[int] = 1


class GlobalPool(Layer):
    """All places of an image, or all times of a sequence, made one number per channel."""

    def build(self, rng, shape):
        if len(shape) < 2:
            raise ShapeError(self, "(batch, height, width, channels) or (batch, time, channels)", f"{len(shape)} axes after the batch")
        return {}, shape[-1:]

    def quantities(self, call, inner):
        places = {name: a.reshape(len(a), -1, a.shape[-1]) for name in ("x", "dx") if (a := getattr(call, name)) is not None}
        return {**places, "n": places["x"].shape[1]}


class GlobalAvgPool(GlobalPool):
    """The mean over all places (or all times: of sequences of different length, over each row's own).

    Forward   y[b,c] = 1/n Σ x[b,…,c]
    Backward  dx[b,…,c] = dy[b,c]/n

    Input (batch, …, channels), output (batch, channels).
    """

    def forward(self, ops, p, x):
        n = math.prod(x.shape[1:-1])
        share = 1 / n
        if ops.lengths is not None:
            share = (ops.xp.maximum(ops.lengths, 1)[:, None].astype(x.dtype) * (n // x.shape[1])) ** -1
        places = tuple(range(1, x.ndim - 1))
        return real(ops, x).sum(places) * share, (x.shape, share)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        if not wrt_input:
            return None, {}
        shape, share = cache
        flow = (dy * share).reshape(shape[0], *(1,) * (len(shape) - 2), shape[-1])
        return real(ops, ops.xp.broadcast_to(flow, shape)), {}

    def formulas(self):  # p counts the places
        return ["y[b,c] = (Σ_p x[b,p,c]) / n"], ["dx[b,p,c] = dy[b,c] / n"]


class GlobalMaxPool(GlobalPool):
    """The largest entry over all places (or all times: of sequences of different length, over each row's own).

    Forward   y[b,c] = max x[b,…,c]
    Backward  dx: the entry that won (the first of equal ones) gets dy, the others nothing

    Input (batch, …, channels), output (batch, channels).
    """

    def forward(self, ops, p, x):
        xp = ops.xp
        rows = real(ops, x, -math.inf).reshape(x.shape[0], -1, x.shape[-1])
        y = rows.max(1)
        return (y if ops.lengths is None else xp.where(y == -math.inf, xp.zeros_like(y), y)), (x.shape, rows.argmax(1))

    def backward(self, ops, p, cache, dy, wrt_input=True):
        if not wrt_input:
            return None, {}
        shape, which = cache
        places = ops.xp.arange(math.prod(shape[1:-1]), dtype=which.dtype)
        won = places[:, None] == which[:, None]  # (batch, places, channels)
        return real(ops, (won.astype(dy.dtype) * dy[:, None]).reshape(shape)), {}

    def formulas(self):  # p counts the places
        return ["y[b,c] = max_p x[b,p,c]"], ["dx[b,p,c] = dy[b,c] [y[b,c] = x[b,p,c]]"]
