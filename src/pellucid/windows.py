"""Windows: how a small window slides over the axes of an image or a sequence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Windows", "grouped", "patches", "ungrouped"]

Sizes = tuple[int, ...]


class Windows(NamedTuple):
    """Windows of `size` entries per axis, `dilation` apart, one every `stride` positions.

    Along one axis, entry k of window i lies at position i·stride + k·dilation − before, where `padding`
    holds (before, after): how many positions are added at both ends. Arrays are (batch, *axes, channels).
    """

    size: Sizes
    stride: Sizes
    dilation: Sizes
    padding: tuple[tuple[int, int], ...]

    @property
    def extent(self) -> Sizes:
        """How many positions a window spans."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True))

    def places(self, shape: Sizes) -> Sizes:
        """How many windows fit on axes of these sizes."""
        axes = zip(shape, self.padding, self.extent, self.stride, strict=True)
        return tuple((n + sum(p) - e) // s + 1 for n, p, e, s in axes)

    @property
    def pad(self) -> tuple[tuple[int, int], ...]:
        """The padding of a whole array, batch and channels included."""
        return ((0, 0), *self.padding, (0, 0))

    def entries(self, count: Sizes) -> Iterator[tuple[slice, ...]]:
        """For every entry of a window, in row-major order: where it lies in the padded array, for all windows at once."""
        for place in itertools.product(*map(range, self.size)):
            axes = zip(place, count, self.stride, self.dilation, strict=True)
            yield (slice(None), *(slice(k * d, k * d + (n - 1) * s + 1, s) for k, n, s, d in axes))

    def parts(self, xp: Any, x: Any, fill: float = 0.0) -> list[Any]:
        """For every entry of a window: its value in all windows, (batch, *count, channels)."""
        count = self.places(x.shape[1:-1])
        if any(map(any, self.padding)):
            x = xp.pad(x, self.pad, constant_values=fill)
        return [x[entry] for entry in self.entries(count)]


def patches(xp: Any, x: Any, windows: Windows, groups: int) -> Any:
    """The numbers under every window, a window a row: (G, N, K·C/G) for G groups, N windows of K entries, C channels."""
    parts = windows.parts(xp, x)
    if x.shape[-1] == 1:  # rows of windows are then written in one run
        return xp.stack(parts).reshape(1, len(parts), -1).transpose(0, 2, 1)
    p = xp.stack(parts, axis=-2).reshape(-1, len(parts), groups, x.shape[-1] // groups)
    return p.transpose(2, 0, 1, 3).reshape(groups, p.shape[0], -1)


def grouped(a: Any, groups: int) -> Any:
    """(…, C) as matrices (G, N, C/G), one per group of channels."""
    return a.reshape(-1, groups, a.shape[-1] // groups).transpose(1, 0, 2)


def ungrouped(a: Any, shape: Sizes) -> Any:
    """The inverse of `grouped`."""
    return a.transpose(1, 0, 2).reshape(shape)
