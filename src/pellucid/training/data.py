"""Checking what users bring, once, before anything is computed. The caller's arrays are never changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engines import LOCAL
from .step import Batch

__all__ = ["as_array", "as_inputs", "frozen", "is_finite", "make_batch", "row_weights", "select", "split"]


def as_array(what: str, values: Any) -> np.ndarray:
    """Lists, arrays, pandas and polars frames as an array, or a clear refusal."""
    if hasattr(values, "toarray"):
        raise TypeError(f"{what} is a sparse matrix; pass {what}.toarray() if it fits into memory.")
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(f"{what} has masked values; fill or drop them first.")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{what} must be a regular array: its rows differ in length.") from error
    if array.dtype == object:
        array = from_objects(what, values, array)
    if array.ndim == 0:
        raise ValueError(f"{what} must hold one entry per row, got the single value {values!r}.")
    if len(array) == 0:
        raise ValueError(f"{what} is empty: there is nothing to work on.")
    if array.dtype.kind == "c":
        raise TypeError(f"{what} holds complex numbers; pass their real and imaginary parts as columns.")
    return array


def from_objects(what: str, values: Any, array: np.ndarray) -> np.ndarray:
    """Columns of mixed type (a frame with None, say) as float64; text is refused by the column's name."""
    columns = getattr(values, "columns", range(array.shape[1]) if array.ndim == 2 else None)
    if columns is not None and array.ndim == 2:
        for j, column in enumerate(columns):
            try:
                array[:, j].astype(np.float64)
            except (TypeError, ValueError):
                raise TypeError(f"{what}: column {column!r} is not numeric; encode it first, one-hot for instance.") from None
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be numbers, got {type(array.flat[0]).__name__} such as {array.flat[0]!r}.") from None


def is_finite(array: np.ndarray) -> bool:
    """Whether no number is nan or infinite: one such makes the sum so. Of huge numbers it may say no, never yes of bad ones."""
    with np.errstate(all="ignore"):
        return bool(LOCAL.once(array, is_finite, lambda array: np.isfinite(array.sum())))


def check_finite(what: str, array: np.ndarray, cast: str = "") -> None:
    """Refuse nan and infinity, saying where the first one is."""
    if array.dtype.kind != "f" or is_finite(array):
        return
    bad = ~np.isfinite(array)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        where = ", ".join(f"{axis} {i}" for axis, i in zip(("row", "column", "position", "channel"), place, strict=False))
        fix = cast or " Fill or drop them first."
        raise ValueError(f"{what} has {bad.sum()} values that are not finite, the first ({array[place]}) at {where}.{fix}")


def frozen(a: np.ndarray) -> np.ndarray:
    """The array, which nobody may write into from now on."""
    a.flags.writeable = False
    return a


def as_inputs(X: Any, shape: tuple[Any, ...] | None, dtype: Any) -> np.ndarray:
    """X as the network takes it: numbers of `dtype`, finite, of the shape it was built for (None: of any size there)."""
    X = as_array("X", X)
    if X.dtype.kind not in "biuf":
        raise TypeError(f"X must be numbers, got {X.dtype}. Encode categories first, one-hot for instance.")
    if shape is not None and not fits(X.shape[1:], shape):
        size = int(np.prod([n or 0 for n in shape]))
        fix = ""
        if int(np.prod(X.shape[1:])) == size:
            fix = f" Pass X.reshape(len(X), {', '.join(map(str, shape))})" + (
                ", or begin the network with Flatten()." if len(shape) == 1 else "."
            )
        elif fits(X.shape, shape):
            fix = " For a single row pass X[None]."
        elif fits(X.shape[2:], shape[1:]) and X.ndim == len(shape) + 1:
            fix = f" For sequences of any length build it for {(None, *shape[1:])}."
        raise ValueError(f"X: the network was built for (batch, {', '.join(map(str, shape))}), got {X.shape}.{fix}")
    check_finite("X", X)
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(X, dtype=dtype)
    if cast.dtype.itemsize < X.dtype.itemsize:
        check_finite("X", cast, f" They are too large for {np.dtype(dtype)}: scale X, or use dtype='float64'.")
    return cast


def fits(got: tuple[int, ...], shape: tuple[Any, ...]) -> bool:
    return len(got) == len(shape) and all(n in (None, m) for m, n in zip(got, shape, strict=True))


def make_batch(X: Any, y: Any, weight: Any, lengths: Any, loss: Any, net: Any, shape: Any, out: tuple[Any, ...], dtype: Any) -> Batch:
    """Inputs, targets, weights and lengths, checked and ready."""
    from .sequences import as_sequences, as_targets

    X, lengths = as_sequences(X, lengths, shape, net)
    x = as_inputs(X, shape, dtype)
    target = as_array("y", as_targets(y, x, lengths, out, net))
    if len(x) != len(target):
        raise ValueError(f"X and y must have the same number of rows, got {len(x)} and {len(target)}.")
    check_finite("y", target)
    target = loss.prepare(target, tuple(x.shape[1] if n is None else n for n in out), dtype)
    weight = np.ones(len(x), dtype) if weight is None else row_weights(weight, len(x), dtype)
    return Batch(x, target, weight, lengths)


def select(batch: Batch, rows: np.ndarray) -> Batch:
    """Some rows of a batch; all of them without a copy."""
    return batch if len(rows) == len(batch.x) else Batch(*(a if a is None else a[rows] for a in batch))


def row_weights(weight: Any, n: int, dtype: Any) -> np.ndarray:
    """Weights of rows: finite, not negative, not all zero."""
    weight = as_array("sample_weight", weight)
    if weight.shape != (n,):
        raise ValueError(f"sample_weight must have shape ({n},), one weight per row, got {weight.shape}.")
    if weight.dtype.kind not in "biuf":
        raise TypeError(f"sample_weight must be numbers, got {weight.dtype}.")
    check_finite("sample_weight", weight)
    if (weight < 0).any():
        raise ValueError(f"sample_weight must not be negative, got {weight.min()} in row {int(weight.argmin())}.")
    if not (weight > 0).any():
        raise ValueError("sample_weight is zero in every row: there is nothing to learn from.")
    return weight.astype(dtype)


def class_numbers(target: np.ndarray, loss: Any) -> np.ndarray | None:
    """The class of each row, where rows have one."""
    if loss.classes == "one":
        labels = target if target.dtype.kind == "i" else target.argmax(-1)
        return labels if labels.ndim == 1 else None
    if loss.classes == "many" and target.shape[1:] == (1,):
        return (target[:, 0] > 0.5).astype(int)
    return None


def class_factors(class_weight: Any, labels: np.ndarray | None, classes: int) -> np.ndarray:
    """The weight that each row's class gives it: a dict {class: weight}, or "balanced" for n / (classes · count)."""
    if labels is None:
        raise ValueError("class_weight needs a loss on classes with one class per row; use sample_weight instead.")
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(labels, minlength=classes)
        return (len(labels) / ((counts > 0).sum() * np.maximum(counts, 1)))[labels]
    if not isinstance(class_weight, dict):
        raise TypeError(f"class_weight must be 'balanced' or a dict {{class: weight}}, got {class_weight!r}.")
    unknown = [c for c in class_weight if c not in range(classes)]
    if unknown:
        raise ValueError(f"class_weight names class {unknown[0]!r}; the classes are 0 to {classes - 1}.")
    return np.array([class_weight.get(c, 1.0) for c in range(classes)], dtype=float)[labels]


def split(n: int, fraction: float, labels: np.ndarray | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows for training and for validation; classes keep their shares where each has two rows or more."""
    from sklearn.model_selection import train_test_split

    held = round(n * fraction)
    if not 1 <= held < n:
        raise ValueError(f"validation={fraction} of {n} rows leaves {held} for validation and {n - held} for training; both need one.")
    if labels is not None:
        counts = np.bincount(labels)
        if counts[counts > 0].min() < 2 or (counts > 0).sum() > min(held, n - held):
            labels = None
    train, valid = train_test_split(np.arange(n), test_size=held, random_state=seed, stratify=labels)
    return np.sort(train), np.sort(valid)
