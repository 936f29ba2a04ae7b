"""What convolution and pooling share: a window that slides over the axes between batch and channels."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..windows import Windows
from .base import Array, Layer, Shape, ShapeError

__all__ = ["Origin", "Sliding", "real"]


class Origin(NamedTuple):
    """An array whose indices begin at `first` in formulas: a kernel counted from its middle."""

    array: Array
    first: tuple[int, ...]


class Sliding(Layer):
    """A layer with a window. A subclass says on how many `axes` it slides and which of its fields is the `window`.

    Sequences of different length: axis 1 is time. A layer lets nothing of the padding in, lets no flow back into it,
    and hands on ``ops.lengths`` for its own output: ⌊(length + padding − extent)/stride⌋ + 1, what the row alone would give.
    """

    axes: ClassVar[int]
    window: ClassVar[str]

    def windows(self) -> Windows:
        """The settings per axis; "same" centres every window: (extent − 1)/2 zeros on both sides, the odd one behind."""
        own: Any = self
        size, dilation = per_axis(getattr(own, self.window), self.axes), per_axis(getattr(own, "dilation", 1), self.axes)
        stride = size if own.stride is None else per_axis(own.stride, self.axes)
        bare = Windows(size, stride, dilation, ((0, 0),) * self.axes)
        if own.padding == "valid":
            return bare
        if own.padding == "same":
            return bare._replace(padding=tuple(((e - 1) // 2, e // 2) for e in bare.extent))
        return bare._replace(padding=tuple((n, n) for n in per_axis(own.padding, self.axes)))

    def check(self):
        for name in (self.window, "stride", "dilation", "padding"):
            value, least = getattr(self, name, 1), 0 if name == "padding" else 1
            words = {"padding": ("same", "valid"), "stride": (None,)}.get(name, ())
            if value in words:
                continue
            entries = value if isinstance(value, tuple) else (value,) * self.axes
            fine = len(entries) == self.axes and all(isinstance(n, int | np.integer) and n >= least for n in entries)
            several = f", or {self.axes} of them in a tuple" if self.axes > 1 else ""
            spoken = f", {' or '.join(map(repr, words))}" if name == "padding" else ""
            self.require(fine, name, f"a whole number ≥ {least}{several}{spoken}")

    def slide(self, shape: Shape) -> Shape:
        """How many windows there are on an input of `shape`; an error where none fits."""
        names = ("time",) if self.axes == 1 else ("height", "width")
        if len(shape) != self.axes + 1:
            fix = f"Add Reshape({(*shape, 1)}) before it: one channel." if len(shape) == self.axes else ""
            raise ShapeError(self, f"(batch, {', '.join(names)}, channels)", f"(batch, {', '.join(map(str, shape))})", fix)
        if None in shape:
            fix = "Pad them to one length; Network.fit takes the length of each as lengths=."
            raise ShapeError(self, "sequences of one length", "sequences of different length", fix)
        windows = self.windows()
        count = windows.places(shape[:-1])
        if min(count) < 1:
            room = tuple(n + sum(p) for n, p in zip(shape, windows.padding, strict=False))
            raise ShapeError(
                self,
                f"{' × '.join(names)} of at least {' × '.join(map(str, windows.extent))} for a window of that extent",
                f"{' × '.join(map(str, room))}, padding included",
                f"Make {self.window} smaller or use padding='same'; if the channels come first, put ChannelsLast() before it.",
            )
        return count

    def indices(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """For formulas: indices in the kernel and in the input, what an output reads, and which output reads an input."""
        inside, place, out = (["k"], ["p"], ["t"]) if self.axes == 1 else (["i′", "j′"], ["p", "q"], ["i", "j"])
        w = self.windows()
        reads, read_by = [], []
        for k, p, o, s, d, (before, _) in zip(inside, place, out, w.stride, w.dilation, w.padding, strict=True):
            step, rest = f"{k}·{d}" if d > 1 else k, before % d
            reads.append(f"{o}·{s}+{step}" * (s > 1) + f"{o}+{step}" * (s == 1) + f"−{rest}" * (rest > 0))
            back = f"{p}−{step}" + f"+{rest}" * (rest > 0)
            read_by.append(f"({back})/{s}" if s > 1 else back)
        return inside, place, [*out, *reads], read_by

    def first(self) -> tuple[int, ...]:
        """Where the indices inside the window begin: 0 is the entry above the output's own place."""
        w = self.windows()
        return tuple(-(before // d) for d, (before, _) in zip(w.dilation, w.padding, strict=True))

    def hand_on_lengths(self, ops: Any) -> None:
        """From here on, ``ops.lengths`` speaks of this layer's output."""
        windows = self.windows()
        (before, after), extent, stride = windows.padding[0], windows.extent[0], windows.stride[0]
        if ops.lengths is not None and (stride != 1 or before + after != extent - 1):
            fit = ops.xp.maximum((ops.lengths + (before + after - extent)) // stride + 1, 0)
            ops.lengths = ops.xp.where(ops.lengths > 0, fit, 0)


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    return tuple(int(n) for n in value) if isinstance(value, tuple) else (int(value),) * axes


def real(ops: Any, x: Array, fill: float = 0.0) -> Array:
    """`x` with `fill` in place of what its padding contains, along axis 1."""
    if ops.lengths is None:
        return x
    there = ops.xp.arange(x.shape[1], dtype=ops.lengths.dtype) < ops.lengths[:, None]
    return ops.xp.where(there.reshape(*there.shape, *(1,) * (x.ndim - 2)), x, ops.xp.asarray(fill, dtype=x.dtype))
