"""Checkpoints: everything a fit needs to go on as if it had never stopped, in one file without pickle."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from ..engines import LOCAL
from ..tree import flatten, unflatten
from .callbacks import History
from .step import Batch

__all__ = ["Saved", "data_digest", "load_checkpoint", "rows_digest", "save_checkpoint"]

FORMAT = "pellucid checkpoint 1"


class Saved(NamedTuple):
    """What a checkpoint holds."""

    params: Any
    slots: Any
    best: Any  # the best weights, or None
    epoch: int
    step: int
    history: History


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half of one."""
    path = Path(path)
    name = path.with_name(f".{path.name[:100]}.{uuid4().hex}")
    try:
        with open(name, "xb") as file:  # readable by whom the umask allows, unlike a file of tempfile's
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def save_checkpoint(path: str | os.PathLike[str], saved: Saved, fingerprint: dict[str, Any]) -> None:
    """Write `saved`, and what it belongs to, to `path`."""
    from safetensors.numpy import save

    trees = {"params": saved.params, "slots": saved.slots, "best": saved.best if saved.best is not None else ()}
    tensors = {name: np.ascontiguousarray(leaf) for name, leaf in flatten(trees).items()}
    history = dict(vars(saved.history))
    metadata = {
        "format": FORMAT,
        "state": json.dumps({"epoch": saved.epoch, "step": saved.step, "best": saved.best is not None, "history": history}),
        "fingerprint": json.dumps(fingerprint),
    }
    write_atomically(path, save(tensors, metadata))


def load_checkpoint(path: str | os.PathLike[str], fingerprint: dict[str, Any], params: Any, slots: Any) -> Saved:
    """Read the checkpoint at `path`; refuse one that belongs to another network, optimizer or data set."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"{path} is no checkpoint of this version: expected {FORMAT!r}, got {metadata.get('format')!r}.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is no checkpoint, or a damaged one: {error}.") from error
    state, theirs = json.loads(metadata["state"]), json.loads(metadata["fingerprint"])
    for key, value in json.loads(json.dumps(fingerprint)).items():
        if theirs.get(key) != value:
            raise ValueError(
                f"{path} belongs to another run: its {key} is {theirs.get(key)!r}, here it is {value!r}. Use another file, or resume=False."
            )
    trees = {"params": params, "slots": slots, "best": params if state["best"] else ()}
    trees = unflatten(trees, tensors)
    history = History()
    vars(history).update(state["history"])
    return Saved(trees["params"], trees["slots"], trees["best"] if state["best"] else None, state["epoch"], state["step"], history)


def rows_digest(data: Batch) -> str:
    """A short digest of the rows to learn from; fits on the same array look at it once."""
    parts = (LOCAL.once(array, data_digest, functools.partial(data_digest, rows=100)) for array in data if array is not None)
    return hashlib.blake2b("".join(parts).encode(), digest_size=8).hexdigest()


def data_digest(*arrays: np.ndarray, rows: int = 1000) -> str:
    """A short digest of shapes, types and about so many rows of each array."""
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        sample = array[:: max(1, len(array) // rows)]
        sample = getattr(sample, "values", sample)  # of sparse rows
        digest.update(f"{array.shape}{array.dtype}".encode() + np.ascontiguousarray(sample).tobytes())
    return digest.hexdigest()
