"""Convolution with 3×3 kernels by four multiplications for each number instead of nine.

Two neighbours of an output, and the four inputs d that they see, along one axis (S. Winograd 1980; A. Lavin and S. Gray 2015, F(2×2, 3×3)):

    y = Aᵀ [G w ⊙ Bᵀ d]        y₀ = m₀ + m₁ + m₂      m₀ = (d₀ − d₂) w₀                    m₁ = (d₁ + d₂) (w₀ + w₁ + w₂)/2
                               y₁ = m₁ − m₂ − m₃      m₃ = (d₁ − d₃) w₂                    m₂ = (d₂ − d₁) (w₀ − w₁ + w₂)/2

Along both axes: tiles of 4 × 4 inputs, two apart, give 2 × 2 outputs. Each of the 16 entries of a tile has a matrix product of its own,
which sums over channels. The gradient of the kernel is the transpose of all that, step by step, that of the input the same with the
kernel turned round. Signs apart, a number is added to at most three others, so little precision is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..windows import Windows

__all__ = ["conv_tiles", "input_tiles", "weight_tiles"]

Table = Sequence[Sequence[Any]]


def conv_tiles(x: Any, w: Any, windows: Windows, groups: int) -> Any:
    """y[b,i,o] = Σ_{k,c} w[k,c,o] x[b,i+k,c]."""
    return convolve(x, w, [before for before, _ in windows.padding], windows.places(x.shape[1:-1]))


def input_tiles(dy: Any, w: Any, shape: tuple[int, ...], windows: Windows, groups: int) -> Any:
    """dx[b,p,c] = Σ_{k,o} w[k,c,o] dy[b,p−k,o]: a convolution with the kernel turned round."""
    return convolve(dy, jnp.flip(w, (0, 1)).swapaxes(2, 3), [2 - before for before, _ in windows.padding], shape[1:-1])


def weight_tiles(x: Any, dy: Any, windows: Windows, groups: int) -> Any:
    """dw[k,c,o] = Σ_{b,i} x[b,i+k,c] dy[b,i,o]."""
    seen = along_both(inputs, tiles(x, 4, [before for before, _ in windows.padding], dy.shape[1:3]))  # Bᵀ x B
    flows = along_both(outputs_back, tiles(dy, 2, (0, 0), dy.shape[1:3]))  # A dy Aᵀ
    products = [[rows(a).T @ rows(b) for a, b in zip(*pair, strict=True)] for pair in zip(seen, flows, strict=True)]  # (C, N) @ (N, O)
    return stacked(along_both(kernel_back, products), 0, 1)  # Gᵀ (…) G


def convolve(x: Any, w: Any, before: Sequence[int], count: tuple[int, ...]) -> Any:
    """Outputs for so many places on each axis, the first of which sees so many zeros before x."""
    seen, kernel = along_both(inputs, tiles(x, 4, before, count)), along_both(kernels, w)  # Bᵀ x B, G w Gᵀ
    products = [[a @ k for a, k in zip(*pair, strict=True)] for pair in zip(seen, kernel, strict=True)]  # (b, i, j, C) @ (C, O)
    y = stacked(along_both(outputs, products), 2, 4)  # Aᵀ (…) A, as (b, i, 2, j, 2, O)
    return y.reshape(len(x), 2 * y.shape[1], 2 * y.shape[3], -1)[:, : count[0], : count[1]]


def tiles(x: Any, size: int, before: Sequence[int], count: tuple[int, ...]) -> Table:
    """For every entry of the tiles that give so many outputs on each axis: its values in all tiles, (b, i, j, C)."""
    many = [-(-n // 2) for n in count]
    after = [2 * m + size - 2 - n - low for m, n, low in zip(many, x.shape[1:3], before, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((low, high, 0) for low, high in zip(before, after, strict=True)), (0, 0, 0)])
    ends = [2 * m - 1 for m in many]
    return [[x[:, i : i + ends[0] : 2, j : j + ends[1] : 2] for j in range(size)] for i in range(size)]


def along_both(function: Callable[..., tuple[Any, ...]], table: Any) -> Table:
    """A table of arrays, the function applied to its rows and then to its columns."""
    columns = zip(*(function(*row) for row in table), strict=True)
    return list(zip(*(function(*column) for column in columns), strict=True))


def inputs(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, ...]:
    return a - c, b + c, c - b, b - d  # Bᵀ d


def kernels(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    return a, (a + b + c) / 2, (a - b + c) / 2, c  # G w


def outputs(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, ...]:
    return a + b + c, b - c - d  # Aᵀ m


def outputs_back(a: Any, b: Any) -> tuple[Any, ...]:
    return a, a + b, a - b, -b  # A dy


def kernel_back(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, ...]:
    return a + (b + c) / 2, (b - c) / 2, (b + c) / 2 + d  # Gᵀ m


def stacked(table: Table, first: int, second: int) -> Any:
    """The table as one array that has its rows along the one axis, and its columns along the other."""
    return jnp.stack([jnp.stack(list(row), second - 1) for row in table], first)


def rows(a: Any) -> Any:
    return a.reshape(-1, a.shape[-1])
