"""Convolution of images and sequences (N14)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ..initializers import Glorot, Initializer
from .base import Layer, ShapeError
from .sliding import Origin, Sliding, real

__all__ = ["ChannelsLast", "Conv1d", "Conv2d"]


class Convolution(Sliding):
    """Convolution over any number of axes; Conv1d and Conv2d say which."""

    units: int
    kernel: int | tuple = 3
    stride: int | tuple = 1
    padding: int | str | tuple = "same"
    dilation: int | tuple = 1
    groups: int = 1
    bias: bool = True
    init: Initializer = Glorot()

    window: ClassVar[str] = "kernel"
    work: ClassVar[str] = "convolution"
    half: ClassVar[bool] = True

    def check(self):
        super().check()
        self.require(self.units >= 1, "units", "at least 1")
        self.require(self.groups >= 1, "groups", "at least 1")
        self.require(self.units % self.groups == 0, "units", f"a multiple of groups ({self.groups})")

    def build(self, rng, shape):
        count = self.slide(shape)
        channels = shape[-1]
        if channels % self.groups:
            fix = f"Choose groups that divide {channels}; if the channels come first, put ChannelsLast() before it."
            raise ShapeError(self, f"a number of channels that {self.groups} groups divide", f"{channels} channels", fix)
        size = self.windows().size
        area = math.prod(size)
        W = self.init(rng, (*size, channels // self.groups, self.units), area * channels // self.groups, area * self.units // self.groups)
        return ({"W": W, "b": np.zeros(self.units)} if self.bias else {"W": W}), (*count, self.units)

    def forward(self, ops, p, x):
        x = real(ops, x)
        y = ops.conv(x, p["W"], self.windows(), self.groups)
        self.hand_on_lengths(ops)
        return (y + p["b"] if self.bias else y), x

    def backward(self, ops, p, x, dy, wrt_input=True):
        windows = self.windows()
        grads = {"W": ops.conv_weight_gradient(x, dy, windows, self.groups)}
        if self.bias:
            grads["b"] = dy.reshape(-1, self.units).sum(0)
        return (real(ops, ops.conv_input_gradient(dy, p["W"], x.shape, windows, self.groups)) if wrt_input else None), grads

    def formulas(self):  # indices inside the kernel count from its middle, or from its start where nothing is padded
        inside, place, both, read_by = self.indices()
        k, p, out, reads, by = (",".join(part) for part in (inside, place, both[: self.axes], both[self.axes :], read_by))
        first = f"n·floor(o/{self.units // self.groups})"  # of the channels of o's group, n in each
        x, W = ("c", "c") if self.groups == 1 else (f"{first}+c", f"c−{first}")
        bias = [f"db[o] = Σ_{{b,{out}}} dy[b,{out},o]"] if self.bias else []
        return [f"y[b,{out},o] = Σ_{{{k},c}} W[{k},c,o] x[b,{reads},{x}]" + (" + b[o]" if self.bias else "")], [
            f"dW[{k},c,o] = Σ_{{b,{out}}} x[b,{reads},{x}] dy[b,{out},o]",
            *bias,
            f"dx[b,{p},c] = Σ_{{{k},o}} W[{k},{W},o] dy[b,{by},o]",
        ]

    def quantities(self, call, inner):
        W, first = call.params["W"], (*self.first(), 0, 0)
        own = {"W": W} | ({"dW": call.grads["W"]} if "W" in call.grads else {})
        return {name: Origin(a, first) for name, a in own.items()} | {"n": W.shape[-2]}


class Conv2d(Convolution):
    """Convolution of images: the same small weights at every place of the image (N14).

    Forward   y[b,i,j,o] = Σ_{i′,j′,c} W[i′,j′,c,o] x[b,i+i′,j+j′,c] + b[o],      x = 0 outside the image
    Backward  dx[b,p,q,c] = Σ_{i′,j′,o} W[i′,j′,c,o] dy[b,p−i′,q−j′,o]
              dW[i′,j′,c,o] = Σ_{b,i,j} x[b,i+i′,j+j′,c] dy[b,i,j,o],   db[o] = Σ_{b,i,j} dy[b,i,j,o]

    (It is a cross-correlation, as in every library. i′ and j′ run over the kernel around its middle; with a stride s
    and a dilation d, x is read at i·s + i′·d. The note prints dx with the indices of dy and x mixed up; this is the formula
    that automatic differentiation confirms.)

    Parameters
    ----------
    units : int
        Number of output channels.
    kernel, stride, dilation : int or (height, width)
        Size of the kernel (odd or even), steps from window to window, distance between a kernel's entries.
    padding : "same", "valid", int or (height, width)
        "same": zeros all around so that window (i, j) has its middle at (i·stride, j·stride), output ⌈size/stride⌉;
        "valid": none; a number: so many zeros on each side.
    groups : int
        Channels and units are cut into so many groups, each convolved on its own; groups = channels: depthwise.
    bias : bool
        Whether b is there.
    init : Initializer
        How W, of shape (height, width, channels/groups, units), begins; b begins at zero (N48).

    Input (batch, height, width, channels), output (batch, height′, width′, units). For images stored as
    (batch, channels, height, width) put ``ChannelsLast()`` first.

    Examples
    --------
    >>> Conv2d(16, 3).count((28, 28, 1))
    160
    """

    axes: ClassVar[int] = 2


class Conv1d(Convolution):
    """Convolution of sequences: the same small weights at every time (N14 with one axis).

    Forward   y[b,t,o] = Σ_{k,c} W[k,c,o] x[b,t+k,c] + b[o],      x = 0 before the start and after the end
    Backward  dx[b,t,c] = Σ_{k,o} W[k,c,o] dy[b,t−k,o],   dW[k,c,o] = Σ_{b,t} x[b,t+k,c] dy[b,t,o],   db = Σ dy

    Options as for :class:`Conv2d`, with one number in place of two. Sequences of different length: each row is convolved
    as if it were alone; after a stride s (padding "same") a row of length n has length ⌈n/s⌉, and later layers know it.

    Input (batch, time, channels), output (batch, time′, units).

    Examples
    --------
    >>> Conv1d(8, 5, stride=2).build(np.random.default_rng(0), (20, 3))[1]
    (10, 8)
    """

    axes: ClassVar[int] = 1


class ChannelsLast(Layer):
    """Images or sequences with the channels first, as the layers here want them: a change of view, nothing is computed.

    Forward   y[b,i,j,c] = x[b,c,i,j]
    Backward  dx[b,c,i,j] = dy[b,i,j,c]

    Input (batch, channels, …), output (batch, …, channels).

    Examples
    --------
    >>> (ChannelsLast() >> Conv2d(16, 3)).build(np.random.default_rng(0), (3, 32, 32))[1]
    (32, 32, 16)
    """

    def build(self, rng, shape):
        if len(shape) < 2:
            raise ShapeError(self, "(batch, channels, height, width) or (batch, channels, time)", f"{len(shape)} axes after the batch")
        return {}, (*shape[1:], shape[0])

    def forward(self, ops, p, x):
        return ops.xp.moveaxis(x, 1, -1), None

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return (ops.xp.moveaxis(dy, -1, 1) if wrt_input else None), {}

    def formulas(self):  # p counts the places
        return ["y[b,p,c] = x[b,c,p]"], ["dx[b,c,p] = dy[b,p,c]"]

    def quantities(self, call, inner):
        last = {name: a.reshape(len(a), -1, a.shape[-1]) for name in ("y", "dy") if (a := getattr(call, name)) is not None}
        return last | {name: a.reshape(*a.shape[:2], -1) for name in ("x", "dx") if (a := getattr(call, name)) is not None}
