"""Convolution and its two gradients for the JAX engine: several ways to compute each, chosen by backend and shape.

XLA's convolution is fast where it is written as a plain forward one with the axes in their usual order (on CPU:
and in float32). So the gradients are written as such, never taken from XLA's own rules for them, which are up to
fifty times slower on CPU. Where patches and matrix products, shifted products alone, or fewer multiplications for
kernels of 3×3 (winograd.py) are faster, those are taken.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..windows import Windows, grouped, patches, ungrouped
from . import LOCAL
from .winograd import conv_tiles, input_tiles, weight_tiles

__all__ = ["conv", "conv_input_gradient", "conv_weight_gradient", "overlap_add"]

# Tiles are faster on a CPU from so many channels of a kernel on, those that go in times those that come out; and from so many
# multiplications for one of its entries on they save more, in a usual fit, than the 0.3 s that a layer takes longer to compile
CHANNELS, WORK = 32 * 32, 4e6


# ---------------------------------------------------------------- which way: on CPU measured in a loop, as training runs them, with
# batches of 8 to 256, 7 to 56 pixels a side, 3 to 128 channels, kernels of 3 and 5; where two are close, in a whole network.
# On a GPU (H200, batch 128) one input channel leaves its matrix units idle: 28×28, 16 kernels of 3×3, y 13 → 4 µs, dw 28 → 8 µs
def conv(x: Any, w: Any, windows: Windows, groups: int) -> Any:
    """y[b,i,o] = Σ_{k,c} w[k,c,o] x[b,i+k,c]."""
    way = conv_xla
    if x.shape[-1] == groups and (on_cpu() or groups == 1):
        way = conv_products
    elif in_tiles(x, w.shape, windows, groups):
        way = conv_tiles
    elif on_cpu():
        if double(x) or groups > 1:
            way = conv_patches
        elif in_rows(windows) and x.shape[-1] <= 64:
            way = conv_rows
        elif x.shape[-1] <= 4:
            way = conv_patches
    return way(x, w, windows, groups)


def conv_input_gradient(dy: Any, w: Any, shape: tuple[int, ...], windows: Windows, groups: int) -> Any:
    """dx[b,p,c] = Σ_{k,o} w[k,c,o] dy[b,p−k,o]."""
    way = input_xla
    if in_tiles(dy, w.shape, windows, groups):
        way = input_tiles
    elif on_cpu() and (double(dy) or groups > 1 or shape[-1] == 1):
        way = input_shares
    return way(dy, w, shape, windows, groups)


def conv_weight_gradient(x: Any, dy: Any, windows: Windows, groups: int) -> Any:
    """dw[k,c,o] = Σ_{b,i} x[b,i+k,c] dy[b,i,o]."""
    way = weight_xla
    if in_tiles(dy, (*windows.size, x.shape[-1], dy.shape[-1]), windows, groups):
        way = weight_tiles
    elif on_cpu():
        if double(dy) or (groups > 1 and x.shape[-1] > groups):
            way = weight_patches
        elif groups == 1 and in_rows(windows) and 4 < x.shape[-1] <= 16:
            way = weight_rows
    elif x.shape[-1] == 1:
        way = weight_patches
    return way(x, dy, windows, groups)


def in_tiles(x: Any, shape: tuple[int, ...], windows: Windows, groups: int) -> bool:
    """Whether a kernel of this shape takes less time in tiles: windows one position apart, work enough, arithmetic exact enough."""
    beside = windows.stride == windows.dilation == (1, 1) and groups == 1
    large = shape[:-2] == (3, 3) and min(shape[-2:]) >= 16 and math.prod(shape[-2:]) >= CHANNELS  # products are most of the work
    worth = large and math.prod((*x.shape[:-1], *shape[-2:])) >= WORK
    found = on_cpu() and beside and worth and x.dtype in (jnp.float32, jnp.float64)
    LOCAL.tiles += found
    return found


def in_rows(windows: Windows) -> bool:
    """Whether images can be convolved row by row."""
    return len(windows.size) == 2 and windows.stride[0] == 1


def on_cpu() -> bool:
    return bool(jax.default_backend() == "cpu")


def double(x: Any) -> bool:
    """XLA's fast convolution on CPU knows float32 only."""
    return bool(x.dtype == jnp.float64)


# ---------------------------------------------------------------- y
def xla(x: Any, w: Any, stride: Any, padding: Any, x_dilation: Any, w_dilation: Any, groups: int = 1, batch_groups: int = 1) -> Any:
    """XLA's convolution, axes in their usual order: (batch, *axes, C) and (*axes, C, O)."""
    axes = "HWD"[: x.ndim - 2]
    spec = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    return lax.conv_general_dilated(x, w, stride, padding, x_dilation, w_dilation, spec, groups, batch_groups)


def conv_xla(x: Any, w: Any, windows: Windows, groups: int) -> Any:
    ones = (1,) * len(windows.size)
    return xla(x, w, windows.stride, windows.padding, ones, windows.dilation, groups=groups)


def conv_patches(x: Any, w: Any, windows: Windows, groups: int) -> Any:
    """One matrix product: patches(x) w."""
    z = patches(jnp, x, windows, groups) @ grouped(w, groups)  # (G, N, K·C/G) @ (G, K·C/G, O/G)
    return ungrouped(z, (len(x), *windows.places(x.shape[1:-1]), w.shape[-1]))


def conv_products(x: Any, w: Any, windows: Windows, groups: int) -> Any:
    """A sum of shifted images times numbers: for one input channel per group."""
    units = w.shape[-1]
    rows = w.reshape(-1, groups, units // groups)
    y = sum(part[..., None] * row for part, row in zip(windows.parts(jnp, x), rows, strict=True))
    return y.reshape(*y.shape[:-2], units)


def conv_rows(x: Any, w: Any, windows: Windows, groups: int) -> Any:
    """One matrix product for all entries of an image's windows: those along its rows lie side by side in x, those along its columns in z.

    y[b,i,j,o] = Σ_k z[b,i+k,j,k,o]: for two axes, one group, and windows one position apart along the columns.
    """
    (kh, _), (dh, _) = windows.size, windows.dilation
    count, _ = windows.places(x.shape[1:-1])
    z = side_by_side(x, windows) @ w.transpose(1, 2, 0, 3).reshape(-1, kh * w.shape[-1])  # (b, h, j, kw·C) @ (kw·C, kh·O)
    z = z.reshape(*z.shape[:-1], kh, -1)
    return sum(z[:, k * dh : k * dh + count, :, k] for k in range(kh))


def side_by_side(x: Any, windows: Windows) -> Any:
    """The entries of windows along the rows of an image beside its channels: (b, h, j, kw·C), padding included."""
    (_, k), (_, s), (_, d) = windows.size, windows.stride, windows.dilation
    return jnp.concatenate(list(Windows((1, k), (1, s), (1, d), windows.padding).parts(jnp, x)), -1)


# ---------------------------------------------------------------- dx
def input_xla(dy: Any, w: Any, shape: tuple[int, ...], windows: Windows, groups: int) -> Any:
    """dx as a convolution of the flow, its entries `stride` apart, with w turned round."""
    axes = tuple(range(len(windows.size)))
    back = jnp.flip(w, axes).reshape(*windows.size, -1, groups, w.shape[-1] // groups)
    back = jnp.moveaxis(back, -3, -1).swapaxes(-3, -2).reshape(*windows.size, -1, shape[-1])  # (*size, O/G, C)
    padding = []
    for n, m, e, s, (before, _) in zip(shape[1:-1], dy.shape[1:-1], windows.extent, windows.stride, windows.padding, strict=True):
        low = e - 1 - before
        padding.append((low, n + e - 1 - (m - 1) * s - 1 - low))
    return xla(dy, back, (1,) * len(axes), padding, windows.stride, windows.dilation, groups=groups)


def input_shares(dy: Any, w: Any, shape: tuple[int, ...], windows: Windows, groups: int) -> Any:
    """dx: every window's share dy wᵀ, added where the window lies."""
    shares = grouped(dy, groups) @ grouped(w, groups).transpose(0, 2, 1)  # (G, N, O/G) @ (G, O/G, K·C/G)
    shares = shares.reshape(groups, -1, math.prod(windows.size), shape[-1] // groups)
    parts = [ungrouped(shares[:, :, k], (*dy.shape[:-1], shape[-1])) for k in range(shares.shape[2])]
    return overlap_add(parts, shape, windows)


def overlap_add(parts: list[Any], shape: tuple[int, ...], windows: Windows) -> Any:
    """Add the parts of all windows where they lie: the transpose of `Windows.parts`."""
    dx: Any = 0
    for entry, part in zip(windows.entries(parts[0].shape[1:-1]), parts, strict=True):
        config = [(0, 0, 0)]
        for at, n, s, (before, _) in zip(entry[1:], shape[1:-1], windows.stride, windows.padding, strict=True):
            config.append((at.start - before, n + before - at.stop, s - 1))
        dx = dx + lax.pad(part, jnp.zeros((), part.dtype), [*config, (0, 0, 0)])
    return dx


# ---------------------------------------------------------------- dw
def weight_xla(x: Any, dy: Any, windows: Windows, groups: int) -> Any:
    """dw as a convolution of x with the flow: batch and channels change places, stride and dilation too."""
    axes = zip(x.shape[1:-1], dy.shape[1:-1], windows.extent, windows.stride, windows.padding, strict=True)
    padding = [(before, e + (m - 1) * s - n - before) for n, m, e, s, (before, _) in axes]
    x, dy = x.swapaxes(0, -1), jnp.moveaxis(dy, 0, -2)  # (C, *axes, batch), (*count, batch, O)
    dw = xla(x, dy, windows.dilation, padding, (1,) * len(padding), windows.stride, batch_groups=groups)
    return jnp.moveaxis(dw, 0, -2)  # (C/G, *size, O) -> (*size, C/G, O)


def weight_patches(x: Any, dy: Any, windows: Windows, groups: int) -> Any:
    """dw = patches(x)ᵀ dy."""
    dw = patches(jnp, x, windows, groups).transpose(0, 2, 1) @ grouped(dy, groups)  # (G, K·C/G, N) @ (G, N, O/G)
    return ungrouped(dw, (*windows.size, x.shape[-1] // groups, dy.shape[-1]))


def weight_rows(x: Any, dy: Any, windows: Windows, groups: int) -> Any:
    """dw as one matrix product where no array holds all entries of a window: see `conv_rows`."""
    (kh, kw), (dh, _) = windows.size, windows.dilation
    x = side_by_side(x, windows)
    flow = jnp.concatenate([jnp.pad(dy, ((0, 0), (k * dh, x.shape[1] - k * dh - dy.shape[1]), (0, 0), (0, 0))) for k in range(kh)], -1)
    dw = x.reshape(-1, x.shape[-1]).T @ flow.reshape(-1, flow.shape[-1])  # (kw·C, N) @ (N, kh·O)
    return dw.reshape(kw, -1, kh, dy.shape[-1]).transpose(2, 0, 1, 3)
