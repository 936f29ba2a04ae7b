"""Model files: one safetensors file with weights, expression, preprocessing and fingerprint; no pickle anywhere.

The header's metadata holds the format, the model as JSON, and a digest of all of it. `load` checks the digest first, so a
damaged file is refused before anything is built; a forged one can at worst describe data.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import warnings
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..training.checkpoint import write_atomically
from .expression import parse
from .values import decode, encode

__all__ = ["describe", "load", "parse", "save"]

FORMAT = "pellucid model 1"


def save(model: Any, path: str | os.PathLike[str], notes: dict[str, Any] | None = None) -> None:
    """Write a Network, an estimator, or a pipeline of scikit-learn's preprocessing with one at its end.

    `notes` are your own words about the model (JSON), kept in the file.
    """
    from safetensors.numpy import save as as_bytes

    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"the folder {Path(path).absolute().parent} does not exist.")
    if Path(path).is_dir():
        raise IsADirectoryError(f"{os.fspath(path) or 'the empty name'} is a folder; name a file in it.")
    tensors: dict[str, np.ndarray] = {}
    body = {"model": encode(model, tensors, ""), "fingerprint": fingerprint(model), "notes": notes or {}}
    text = json.dumps(body, allow_nan=False)
    write_atomically(path, as_bytes(tensors, {"format": FORMAT, "body": text, "digest": digest(text, tensors)}))


def load(path: str | os.PathLike[str], also: Iterable[Any] = ()) -> Any:
    """Read what `save` wrote; its predictions are those of the saved model, bit for bit.

    `also` are layer classes and functions of your own that the network names.
    """
    body, tensors = read(path)
    try:
        model = decode(body["model"], tensors, tuple(also))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path} cannot be read as a model: {error}") from error
    if hasattr(model, "steps"):
        from sklearn import __version__ as here

        theirs = body["fingerprint"].get("scikit-learn")
        if theirs != here:
            warnings.warn(f"{path} was written with scikit-learn {theirs}, here is {here}: compare predictions.", stacklevel=2)
    return model


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What is in a model file: its fingerprint, its notes, and every array's type and shape. Nothing is built."""
    body, tensors = read(path)
    arrays = {name: f"{a.dtype} {'×'.join(map(str, a.shape)) or 'scalar'}" for name, a in tensors.items()}
    return {"format": FORMAT, **body["fingerprint"], "notes": body["notes"], "arrays": arrays}


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The checked contents of a model file."""
    from safetensors import SafetensorError, safe_open

    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a model file.")
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if not Path(path).is_file():
        raise ValueError(f"{path} is no model file: it is no ordinary file.")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path} may not be read.")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                what = metadata.get("format", "another safetensors file")
                raise ValueError(f"{path} is no model file of this version: expected {FORMAT!r}, got {what!r}.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        body = metadata["body"]
        if digest(body, tensors) != metadata["digest"]:
            raise ValueError(f"{path} is damaged: its contents do not match its digest.")
        contents = parsed(body)
        parts = {"notes": {}, **contents} if isinstance(contents, dict) else {}
        if not all(isinstance(parts.get(name), dict) for name in ("model", "fingerprint", "notes")):
            raise ValueError(f"{path} holds no model.")
        return parts, tensors
    except (SafetensorError, OSError, KeyError, TypeError, UnicodeDecodeError, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no model file, or a damaged one: {error}.") from error


def parsed(text: str) -> Any:
    """JSON as the standard has it: no NaN, no numbers without end."""

    def refuse(word: str) -> None:
        raise TypeError(f"{word} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise TypeError(str(error)) from error


def digest(text: str, tensors: dict[str, np.ndarray]) -> str:
    """A digest of everything in the file."""
    whole = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    for name in sorted(tensors):
        array = tensors[name]
        whole.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return whole.hexdigest()


def fingerprint(model: Any) -> dict[str, Any]:
    """What a person wants to know about the run: versions, network, seed, data, last metrics."""
    from .. import __version__

    facts: dict[str, Any] = {"kind": type(model).__name__, "pellucid": __version__, "numpy": np.__version__}
    facts |= {"scikit-learn": version("scikit-learn"), "python": platform.python_version()}
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    last = getattr(last, "regressor_", last)
    network = getattr(last, "network_", last)
    if hasattr(network, "net"):
        facts |= {"estimator": type(last).__name__, "network": repr(network.net), "loss": repr(network.loss)}
        facts |= {"input_shape": list(network.input_shape or ()), "dtype": str(network.dtype), "seed": network.seed}
        history = network.history
        facts |= {"data": history.data, "epochs": len(history), "stopped": history.stopped, "engine": history.engine}
        facts["metrics"] = {k: v for k, v in (history.rows[-1] if history.rows else {}).items() if np.isfinite(v)}
    if hasattr(last, "classes_"):
        facts["classes"] = np.asarray(last.classes_).tolist()
    return facts
