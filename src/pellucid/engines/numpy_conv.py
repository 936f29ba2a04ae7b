"""Convolution and its two gradients as patches and matrix products, for the NumPy engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..windows import Windows, grouped, patches, ungrouped

__all__ = ["conv", "conv_input_gradient", "conv_weight_gradient", "overlap_add"]

BLOCK = 1 << 18  # numbers in a block of patches: it stays in the cache, and memory does not grow with the batch


def conv(x: Any, w: Any, windows: Windows, groups: int) -> Any:
    """y = patches(x) w."""
    count = windows.places(x.shape[1:-1])
    y = np.empty((len(x), *count, w.shape[-1]), np.result_type(x, w))
    matrices = grouped(w, groups)
    for rows in blocks(x.shape, count, windows):
        z = patches(np, x[rows], windows, groups) @ matrices  # (G, N, K·C/G) @ (G, K·C/G, O/G)
        y[rows] = ungrouped(z, y[rows].shape)
    return y


def conv_weight_gradient(x: Any, dy: Any, windows: Windows, groups: int) -> Any:
    """dw = patches(x)ᵀ dy."""
    dw: Any = 0
    for rows in blocks(x.shape, dy.shape[1:-1], windows):
        p = patches(np, x[rows], windows, groups)
        dw = dw + p.transpose(0, 2, 1) @ grouped(dy[rows], groups)  # (G, K·C/G, N) @ (G, N, O/G)
    return ungrouped(dw, (*windows.size, x.shape[-1] // groups, dy.shape[-1]))


def conv_input_gradient(dy: Any, w: Any, shape: tuple[int, ...], windows: Windows, groups: int) -> Any:
    """dx: every window's share dy wᵀ, added where the window lies."""
    dx = np.empty(shape, np.result_type(dy, w))
    matrices = grouped(w, groups).transpose(0, 2, 1)
    for rows in blocks(shape, dy.shape[1:-1], windows):
        d = dy[rows]
        shares = grouped(d, groups) @ matrices  # (G, N, O/G) @ (G, O/G, K·C/G)
        shares = shares.reshape(groups, -1, math.prod(windows.size), shape[-1] // groups)
        parts = [ungrouped(shares[:, :, k], (*d.shape[:-1], shape[-1])) for k in range(shares.shape[2])]
        dx[rows] = overlap_add(parts, (len(d), *shape[1:]), windows)
    return dx


def overlap_add(parts: list[Any], shape: tuple[int, ...], windows: Windows) -> Any:
    """Add the parts of all windows where they lie: the transpose of `Windows.parts`."""
    padded = np.zeros([n + sum(p) for n, p in zip(shape, windows.pad, strict=True)], parts[0].dtype)
    for entry, part in zip(windows.entries(parts[0].shape[1:-1]), parts, strict=True):
        padded[entry] += part
    return padded[tuple(slice(before, before + n) for n, (before, _) in zip(shape, windows.pad, strict=True))]


def blocks(shape: tuple[int, ...], count: tuple[int, ...], windows: Windows) -> Iterator[slice]:
    """The batch in slices whose patches fill about a block."""
    size = max(1, BLOCK // (math.prod(count) * math.prod(windows.size) * shape[-1]))
    return (slice(i, i + size) for i in range(0, shape[0], size))
