"""Ops: an engine bound to one pass through a network.

Layers see the engine only through this class, and combinators call their children only through
`forward` and `backward`. That makes these two methods the one place where errors get their location,
where values can be recorded, and where random streams get their key.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from ..windows import Windows

__all__ = ["Ops", "counter_hash"]


class Ops:
    """The operations a layer may use.

    Attributes
    ----------
    xp : module
        The array namespace: ``numpy`` or ``jax.numpy``.
    training : bool
        Whether this pass is part of training (dropout drops, statistics move).
    seed, step : uint32 scalars
        What all randomness of this pass is derived from, together with the place in the network.
    weight : array of shape (batch,) or None
        The weight of each row; 0 means the row is not there.
    lengths : array of shape (batch,) or None
        How many positions of each row are real, for sequences of different length; the rest is padding.
        Layers that mix positions must not let the padding in; for all others it does not matter, because
        no flow comes back from it. A layer with a stride sets it for the layers after it; in the backward pass
        every layer finds what it found in the forward pass.
    """

    xp: Any
    remembers: bool = True  # whether somebody may go back through this pass, or look at it
    first: Any = None  # where these rows are a part of a mini-batch: the place of the first
    places: Any = None  # in a stack of equal blocks: of a path, what it is in each of them, and the number of the one that is running

    def __init__(self, training: bool = False, seed: Any = 0, step: Any = 0, weight: Any = None, lengths: Any = None) -> None:
        self.training, self.seed, self.step, self.weight, self.lengths = training, seed, step, weight, lengths
        self.path: list[str | int] = []
        self.kept: dict[tuple[str | int, ...], Any] = {}
        self.entered: dict[tuple[str | int, ...], Any] = {}  # the lengths each layer found, where there are any
        self.scanning = 0  # scans that are being traced, one in the other
        self.penalty: Any = 0.0
        self.charges: list[tuple[tuple[str | int, ...], Any]] = []

    # ---------------------------------------------------------------- the one hook
    def forward(self, layer: Any, p: Any, x: Any, key: str | int) -> tuple[Any, Any]:
        """Run a child's forward pass. `key` is where its parameters lie in the parent's."""
        self.path.append(key)
        if self.lengths is not None:
            self.entered[tuple(self.path)] = self.lengths
        try:
            return layer.forward(self, p, x)
        except Exception as error:
            locate(error, layer, key)
            raise
        finally:
            self.path.pop()

    def backward(self, layer: Any, p: Any, cache: Any, dy: Any, key: str | int, wrt_input: bool = True) -> tuple[Any, Any]:
        """Run a child's backward pass."""
        self.path.append(key)
        self.lengths = self.entered.get(tuple(self.path), self.lengths) if self.entered else self.lengths
        try:
            return layer.backward(self, p, cache, dy, wrt_input)
        except Exception as error:
            locate(error, layer, key)
            raise
        finally:
            self.path.pop()

    def note(self, name: str, value: Any) -> Any:
        """Offer an inner value to whoever records this pass; otherwise nothing happens."""
        return value

    def keep(self, name: str, value: Any) -> None:
        """Set a buffer of the layer that is running; the training step writes it back."""
        self.refuse_in_scan("keep", "Return the value from the scan and keep it afterwards.")
        self.kept[(*self.path[1:], name)] = value

    def charge(self, path: tuple[str | int, ...], value: Any, gradient: Any) -> None:
        """Add a penalty to the training loss, and its gradient to that of the parameter at `path` of the running layer."""
        self.refuse_in_scan("charge", "Return what all steps add up to from the scan, and charge it afterwards.")
        self.penalty = self.penalty + value
        self.charges.append(((*self.path[1:], *path), gradient))

    def uniform(self, shape: tuple[int, ...]) -> Any:
        """Numbers in [0, 1), the same bits on every engine: a hash of seed, step, place and position."""
        self.refuse_in_scan("uniform", "Draw the numbers of all steps before, and hand them to the scan.")
        xp = self.xp
        seed, step = (xp.asarray(v).astype(xp.uint32).reshape(1) for v in (self.seed, self.step))
        paths, running = self.places(self.path) if self.places else ([self.path], 0)
        place = xp.asarray([zlib.crc32(repr(path[1:]).encode()) for path in paths], dtype=xp.uint32)[running].reshape(1)
        rows, *others = shape or (1,)
        first = 0 if self.first is None else self.first
        row = (xp.arange(rows, dtype=xp.uint32) + xp.asarray(first).astype(xp.uint32))[:, None]
        positions = row * xp.uint32(math.prod(others)) + xp.arange(math.prod(others), dtype=xp.uint32)
        bits = counter_hash(xp, [seed, place, step, positions])
        return ((bits >> 8).astype(xp.float32) * 2.0**-24).reshape(shape)

    def mask(self, positions: int) -> Any:
        """1 for every real position, 0 for padding: shape (batch, positions), in the dtype of the weights."""
        there = self.xp.arange(positions, dtype=self.lengths.dtype) < self.lengths[:, None]
        return there.astype(self.weight.dtype)

    # ---------------------------------------------------------------- what array namespaces lack
    def scan(
        self, function: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, reverse: bool = False, by_rows: bool = False
    ) -> tuple[Any, Any]:
        """Step through the first axis of the arrays in `xs`: ``carry, y = function(carry, x)`` for each x.

        Returns the last carry, and all y stacked in the places of their x. Carry, xs and y are arrays, None, or tuples
        and dicts of them. With `reverse` the steps go from the last to the first. However many steps there are, the
        function is compiled once. `by_rows` says that the function treats every row of the batch by itself, rows being the
        first axis of the carry, of each x and of each y: then a GPU can share them out.
        """
        with self.in_scan():
            return self.loop(function, carry, xs, reverse, by_rows)

    @contextlib.contextmanager
    def in_scan(self) -> Iterator[None]:
        """A context for a function that is traced once for all steps of a scan."""
        self.scanning += 1
        try:
            yield
        finally:
            self.scanning -= 1

    def loop(self, function: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, reverse: bool, by_rows: bool) -> tuple[Any, Any]:
        """What `scan` does, on this engine."""
        raise NotImplementedError

    def refuse_in_scan(self, name: str, fix: str) -> None:
        """A scan's function is traced once for all its steps: what it did there would happen once, not once a step."""
        if self.scanning:
            raise RuntimeError(f"ops.{name} cannot be used inside ops.scan. {fix}")

    def matmul(self, a: Any, b: Any) -> Any:
        """a @ b, laid out as the device likes it."""
        return a @ b

    def crossprod(self, a: Any, b: Any) -> Any:
        """aᵀ b, the sum of the outer products of two matrices' rows, laid out as the device likes it."""
        return a.T @ b

    def transposed(self, a: Any) -> Any:
        """aᵀ, laid out for many products with it."""
        return a.T

    def erf(self, x: Any) -> Any:
        """The error function."""
        raise NotImplementedError

    def take(self, x: Any, rows: Any) -> Any:
        """Rows of an array."""
        raise NotImplementedError

    def add_rows(self, values: Any, rows: Any, count: int) -> Any:
        """The opposite of `take`: `count` rows, each the sum of the values that belong to it."""
        raise NotImplementedError

    # Convolution: x (batch, *axes, C), w (*size, C/groups, O), y and dy (batch, *count, O); `windows` says how the kernel slides.
    def conv(self, x: Any, w: Any, windows: Windows, groups: int) -> Any:
        """y[b,i,o] = Σ_{k,c} w[k,c,o] x[b,i+k,c]."""
        raise NotImplementedError

    def conv_input_gradient(self, dy: Any, w: Any, shape: tuple[int, ...], windows: Windows, groups: int) -> Any:
        """dx[b,p,c] = Σ_{k,o} w[k,c,o] dy[b,p−k,o], of the `shape` of x."""
        raise NotImplementedError

    def conv_weight_gradient(self, x: Any, dy: Any, windows: Windows, groups: int) -> Any:
        """dw[k,c,o] = Σ_{b,i} x[b,i+k,c] dy[b,i,o]."""
        raise NotImplementedError

    def overlap_add(self, parts: list[Any], shape: tuple[int, ...], windows: Windows) -> Any:
        """The transpose of `Windows.parts`: dx[b,p,c] = Σ_k parts[k][b,p−k,c], of the `shape` of x."""
        raise NotImplementedError


def counter_hash(xp: Any, words: list[Any]) -> Any:
    """Mix arrays of 32-bit words into one (a multiply-xorshift finaliser applied word by word)."""
    h = xp.zeros((1,), dtype=xp.uint32)
    for word in words:
        h = h ^ word
        h = (h ^ (h >> 16)) * xp.uint32(0x7FEB352D)
        h = (h ^ (h >> 15)) * xp.uint32(0x846CA68B)
        h = (h ^ (h >> 16)) + xp.uint32(0x9E3779B9)
    return h


def locate(error: Exception, layer: Any, key: str | int) -> None:
    """Say once, as a note on the error, in which layer it arose; the path grows on the way up."""
    path, text = getattr(error, "where", ("", repr(layer)))
    notes = [note for note in getattr(error, "__notes__", []) if note != f"in {path}: {text}"]
    path = ".".join(filter(None, (layer.name or str(key), path)))
    error.where = path, text  # type: ignore[attr-defined]
    error.__notes__ = [*notes, f"in {path}: {text}"]
