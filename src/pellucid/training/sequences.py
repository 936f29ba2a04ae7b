"""Sequences of different length: a zero-filled array and how long each row really is.

What users bring is a list of arrays (T_i, features), or an array padded already with `lengths`. Padding is filled
here, once, so that what stood in it cannot matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..layers.base import Layer, Shape
from ..layers.recurrent import CARRIED, Recurrent, is_recurrent
from ..tree import flatten, unflatten
from .data import as_array
from .step import Batch

__all__ = ["as_sequences", "as_targets", "cut_streams", "is_list", "sequence_shape"]


def recurrent_layers(net: Layer) -> Iterator[Recurrent]:
    """All recurrent layers of a network."""
    if isinstance(net, Recurrent):
        yield net
    else:
        for child in net.children:
            yield from recurrent_layers(child)


def speaker(net: Layer) -> str:
    """The layer that errors about sequences name."""
    return repr(next(recurrent_layers(net), net))


def is_list(X: Any, shape: Shape | None) -> bool:
    """Whether X is a list of sequences, not rows of one shape."""
    if not holds_sequences(X):
        return False
    if shape is not None and shape[0] is None:
        return max(np.ndim(x) for x in X) == len(shape)
    return len({len(x) for x in X}) > 1 and max(np.ndim(x) for x in X) >= 2


def holds_sequences(values: Any) -> bool:
    is_list = isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype == object)
    return is_list and len(values) > 0 and all(hasattr(v, "__len__") for v in values)


def sequence_shape(X: Any, lengths: Any) -> Shape | None:
    """The input shape that X speaks for, where it is a list of sequences or comes with lengths: any length."""
    if is_list(X, None):
        return (None, *np.shape(max(X, key=len))[1:])
    return (None, *np.shape(X)[2:]) if lengths is not None and np.ndim(X) >= 2 else None


def as_sequences(X: Any, lengths: Any, shape: Shape | None, net: Layer) -> tuple[Any, np.ndarray | None]:
    """X with its padding filled with zeros, and the lengths (None where there is no padding)."""
    if is_list(X, shape):
        if lengths is not None:
            raise ValueError("lengths= belongs to a padded array; a list of sequences tells its lengths itself. Leave lengths out.")
        lengths = np.array([len(x) for x in X], np.int32)
        if (lengths == 0).any():
            raise empty(net, int(lengths.argmin()))
        X = pad("X", X, max(lengths.max(), (shape and shape[0]) or 0), fill=False)
        return X, (lengths if (lengths < X.shape[1]).any() else None)
    if lengths is None:
        return X, None
    X, lengths = as_array("X", X), as_array("lengths", lengths)
    if X.ndim < 2:
        raise ValueError(f"{speaker(net)}: expected X as (batch, steps, features) where lengths are given, got {X.shape}.")
    steps = X.shape[1]
    if lengths.shape != (len(X),) or lengths.dtype.kind not in "iu":
        raise ValueError(
            f"{speaker(net)}: expected lengths as {len(X)} whole numbers, one per row of X, got {lengths.dtype} {lengths.shape}."
        )
    if (lengths < 1).any():
        raise empty(net, int(lengths.argmin()))
    if (lengths > steps).any():
        row = int(lengths.argmax())
        raise ValueError(
            f"{speaker(net)}: expected lengths of at most {steps}, the padded length of X, got {lengths[row]} in row {row}. "
            "Pad X further, or correct lengths."
        )
    if (lengths == steps).all():
        return X, None
    return np.where(there(lengths, X), X, np.zeros((), X.dtype)), lengths.astype(np.int32)


def as_targets(y: Any, x: np.ndarray, lengths: np.ndarray | None, out: Shape, net: Layer) -> Any:
    """Targets, for a network with an output at every step: one per step, what stands beyond a row's length replaced."""
    if not every_step(out, x) or not (None in out or lengths is not None or any(recurrent_layers(net))):
        return y
    steps, counts = x.shape[1], np.full(len(x), x.shape[1]) if lengths is None else lengths
    gives = f"{speaker(net)}: the network gives an output at every step, so expected"
    fix = "Give one target per step, or make the last recurrent layer outputs='last'."
    if holds_sequences(y):
        for i, (t, n) in enumerate(zip(y, counts, strict=False)):
            if len(t) != n:
                raise ValueError(f"{gives} {n} targets for sequence {i}, got {len(t)}. {fix}")
        return pad("y", y, steps, fill=True)
    y = as_array("y", y)
    if y.ndim < 2 or y.shape[1] != steps:
        raise ValueError(f"{gives} targets of shape ({len(x)}, {steps}, …), got {y.shape}. {fix}")
    if lengths is None or len(y) != len(x):
        return y
    return np.where(
        there(lengths, y), y, y[:, :1]
    )  # a real target stands in: losses check every entry, weight 0 makes it count for nothing


def every_step(out: Shape, x: np.ndarray) -> bool:
    """Whether a network with outputs of shape `out` gives one for every step of x."""
    return x.ndim >= 2 and len(out) >= 2 and out[0] in (None, x.shape[1])


def there(lengths: np.ndarray, a: np.ndarray) -> np.ndarray:
    """True at the real steps of `a`, in a shape that broadcasts to it."""
    return (np.arange(a.shape[1]) < lengths[:, None]).reshape(*a.shape[:2], *(1,) * (a.ndim - 2))


def pad(what: str, sequences: Any, steps: int, fill: bool) -> np.ndarray:
    """Sequences as one array of `steps` steps, filled up with zeros, or with each one's first entry."""
    parts = [as_array(f"{what}[{i}]", s) for i, s in enumerate(sequences)]
    for i, part in enumerate(parts):
        if part.shape[1:] != parts[0].shape[1:]:
            raise ValueError(
                f"{what}: every step must have the same shape; it is {parts[0].shape[1:]} in {what}[0], {part.shape[1:]} in {what}[{i}]."
            )
    padded = np.zeros((len(parts), steps, *parts[0].shape[1:]), np.result_type(*{part.dtype for part in parts}))
    for row, part in zip(padded, parts, strict=True):
        row[: len(part)], row[len(part) :] = part, part[0] if fill else 0
    return padded


def empty(net: Layer, row: int) -> ValueError:
    return ValueError(f"{speaker(net)}: expected at least one step in every sequence, got none in row {row}. Leave empty sequences out.")


def unpad(y: np.ndarray, lengths: np.ndarray | None, as_list: bool) -> Any:
    """Outputs at every step without those beyond each row's length: cut off in a list, zero in an array."""
    counts = np.full(len(y), y.shape[1]) if lengths is None else lengths
    if as_list:
        return [row[:n] for row, n in zip(y, counts, strict=True)]
    return np.where(there(counts, y), y, np.zeros((), y.dtype))


def steps_there(batch: Batch, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Targets and outputs as metrics take them: where sequences differ in length, the real steps one after the other."""
    if batch.lengths is None or not every_step(outputs.shape[1:], batch.x):
        return batch.target, outputs
    real = np.arange(batch.x.shape[1]) < batch.lengths[:, None]
    return batch.target[real], outputs[real]


def rows_at_once(net: Layer, x: np.ndarray, size: int) -> int:
    """Fewer rows of long sequences at a time: a recurrent layer computes the input products of all steps at once."""
    return max(1, min(size, 2**15 // max(1, x.shape[1]))) if is_recurrent(net) else size


# -------------------------------------------------------------------- long texts
def cut_streams(sequence: Any, streams: int, steps: int) -> np.ndarray:
    """Cut one long sequence into rows for truncated back-propagation through time.

    The sequence is cut into `streams` long pieces, read in parallel, `steps` at a time: rows i, i + streams,
    i + 2 streams, … are the i-th piece in order. Train with ``batch_size=streams, order="given"`` on recurrent layers
    with ``streams=streams``, and each row goes on where the piece's last one ended. What is left over at the end (less
    than streams · steps entries) is dropped.

    Parameters
    ----------
    sequence : array of shape (length, …)
    streams, steps : int

    Returns
    -------
    array of shape (rows, steps, …)

    Examples
    --------
    >>> cut_streams(np.arange(13), streams=2, steps=3)
    array([[ 0,  1,  2],
           [ 6,  7,  8],
           [ 3,  4,  5],
           [ 9, 10, 11]])
    """
    a = as_array("sequence", sequence)
    count = len(a) // (streams * steps) if streams > 0 and steps > 0 else 0
    if count == 0:
        raise ValueError(
            f"cut_streams: expected at least streams · steps = {streams} · {steps} entries, got {len(a)}. Use fewer or shorter rows."
        )
    pieces = a[: streams * count * steps].reshape(streams, count, steps, *a.shape[1:])
    return np.swapaxes(pieces, 0, 1).reshape(count * streams, steps, *a.shape[1:])


def check_streams(net: Layer, rows: int, origin: np.ndarray, size: int, order: str) -> None:
    """Refuse a fit in which carried states would meet rows of other streams."""
    for layer in recurrent_layers(net):
        if layer.streams and (size != layer.streams or order != "given" or len(origin) != rows or rows % size):
            raise ValueError(
                f"{layer!r} carries its state from batch to batch: expected batch_size={layer.streams}, order='given', a multiple of "
                f"{layer.streams} rows, all of them used; got batch_size={size}, order={order!r}, {len(origin)} of {rows} rows. "
                "Make the rows with cut_streams, give validation data of their own, or use streams=0."
            )


def carries_state(net: Layer) -> bool:
    """Whether a layer goes on from batch to batch."""
    return any(layer.streams for layer in recurrent_layers(net))


def forget(params: Any) -> Any:
    """Parameters with every carried state back at zero."""
    flat = flatten(params)
    carried = {path: np.zeros(a.shape, a.dtype) for path, a in flat.items() if CARRIED in path}
    return unflatten(params, {**flat, **carried}) if carried else params
