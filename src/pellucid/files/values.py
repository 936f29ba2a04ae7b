"""Values as JSON and tensors: data only, and objects of a short list of classes. Nothing in a file is ever run."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..settings import Settings
from .expression import parse

__all__ = ["decode", "encode"]

#: what may be stored, and where it is imported from
CLASSES = {
    "Network": "pellucid.network",
    "History": "pellucid.training.callbacks",
    "MLPClassifier": "pellucid.estimators",
    "MLPRegressor": "pellucid.estimators",
    "NetworkClassifier": "pellucid.estimators",
    "NetworkRegressor": "pellucid.estimators",
    "RBFClassifier": "pellucid.estimators",
    "RBFRegressor": "pellucid.estimators",
    "Columns": "pellucid.tables",
    "Pipeline": "sklearn.pipeline",
    "ColumnTransformer": "sklearn.compose",
    "TransformedTargetRegressor": "sklearn.compose",
    "SimpleImputer": "sklearn.impute",
    "MissingIndicator": "sklearn.impute",
    "StandardScaler": "sklearn.preprocessing",
    "MinMaxScaler": "sklearn.preprocessing",
    "MaxAbsScaler": "sklearn.preprocessing",
    "RobustScaler": "sklearn.preprocessing",
    "Normalizer": "sklearn.preprocessing",
    "PolynomialFeatures": "sklearn.preprocessing",
    "OneHotEncoder": "sklearn.preprocessing",
    "OrdinalEncoder": "sklearn.preprocessing",
    "LabelBinarizer": "sklearn.preprocessing",
    "PCA": "sklearn.decomposition",
}
#: numbers that safetensors can hold
KINDS = "biuf"
LEFT_OUT = ("callbacks", "scoring", "memory")  # functions and caches: not needed to predict


def encode(value: Any, tensors: dict[str, np.ndarray], path: str) -> Any:
    """`value` as JSON; arrays of numbers go into `tensors` under their path."""
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"~": "float", "v": repr(value)}
    if isinstance(value, list):
        return [encode(v, tensors, f"{path}.{i}") for i, v in enumerate(value)]
    if type(value) is tuple:
        return {"~": "tuple", "v": [encode(v, tensors, f"{path}.{i}") for i, v in enumerate(value)]}
    if isinstance(value, dict):
        pairs = [[encode(k, tensors, f"{path}.key"), encode(v, tensors, f"{path}.{k}")] for k, v in value.items()]
        return {"~": "dict", "v": pairs}
    if isinstance(value, np.ndarray):
        return encode_array(value, tensors, path)
    if isinstance(value, np.generic):
        return {"~": "scalar", "v": encode_array(np.asarray(value), tensors, path)}
    if isinstance(value, slice):
        return {"~": "slice", "v": [encode(part, tensors, path) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, Settings):
        return {"~": "expression", "v": repr(value)}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"~": "dtype" if isinstance(value, np.dtype) else "type", "v": np.dtype(value).str}
    if isinstance(value, np.random.RandomState):
        return {"~": "random", "v": encode(value.get_state(legacy=True), tensors, path)}
    return encode_object(value, tensors, path)


def encode_array(value: np.ndarray, tensors: dict[str, np.ndarray], path: str) -> dict[str, Any]:
    if value.dtype.kind in KINDS:
        tensors[path] = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("=")).reshape(value.shape)
        return {"~": "array", "v": path}
    if value.dtype.kind not in "UO":
        raise TypeError(f"{path}: an array of {value.dtype} cannot be stored in a model file.")
    items = [encode(v, tensors, f"{path}.{i}") for i, v in enumerate(value.ravel().tolist())]
    return {"~": "words", "kind": value.dtype.kind, "shape": list(value.shape), "v": items}


def encode_object(value: Any, tensors: dict[str, np.ndarray], path: str) -> dict[str, Any]:
    name = type(value).__name__
    if CLASSES.get(name) is None or class_of(name) is not type(value):
        best = " Save its best_estimator_." if hasattr(value, "best_estimator_") else ""
        raise TypeError(
            f"{path or 'the model'}: {name} cannot be stored in a model file, which holds data, never code. It holds networks, pellucid's "
            f"estimators, and pipelines of scikit-learn's usual preprocessing.{best}"
        )
    state = {k: v for k, v in vars(value).items() if k != "_skl_callbacks"}
    state = {k: None if k in LEFT_OUT and not isinstance(v, str) else v for k, v in state.items()}
    return {"~": "object", "class": name, "v": {k: encode(v, tensors, f"{path}.{k}".lstrip(".")) for k, v in state.items()}}


def class_of(name: str) -> Any:
    return getattr(importlib.import_module(CLASSES[name]), name)


def decode(node: Any, tensors: Any, also: Iterable[Any] = ()) -> Any:
    """The value that `encode` described; anything else raises an error."""
    if isinstance(node, list):
        return [decode(v, tensors, also) for v in node]
    if not isinstance(node, dict):
        return node
    kind, v = node["~"], node["v"]
    if kind == "float":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[v]
    if kind == "tuple":
        return tuple(decode(item, tensors, also) for item in v)
    if kind == "dict":
        return {decode(k, tensors, also): decode(item, tensors, also) for k, item in v}
    if kind == "array":
        return tensors[v]
    if kind == "words":
        return decode_words(node, [decode(item, tensors, also) for item in v])
    if kind == "scalar":
        return decode(v, tensors, also)[()]
    if kind == "slice":
        return slice(*(decode(part, tensors, also) for part in v))
    if kind == "expression":
        return parse(v, also)
    if kind in ("dtype", "type"):
        if not re.fullmatch(r"[<|>]([biuf][1248]|[OU]0?)", v):
            raise ValueError(f"unknown type of numbers {v!r}")
        return np.dtype(v) if kind == "dtype" else np.dtype(v).type
    if kind == "random":
        state = np.random.RandomState()
        state.set_state(decode(v, tensors, also))
        return state
    if kind == "object":
        return decode_object(node["class"], v, tensors, also)
    raise ValueError(f"unknown kind of value {kind!r}")


def decode_words(node: dict[str, Any], items: list[Any]) -> np.ndarray:
    if node["kind"] == "U":
        if not all(isinstance(item, str) for item in items):
            raise ValueError("an array of words holds something else")
        longest = max(map(len, items), default=0)
        if longest * len(items) > 4 * sum(map(len, items)) + 1_000_000:  # one very long word would make all of them long
            raise ValueError("words of too different length")
        return np.array(items, dtype=str).reshape(node["shape"])
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(node["shape"])


def decode_object(name: str, state: dict[str, Any], tensors: Any, also: Iterable[Any]) -> Any:
    if name not in CLASSES:
        raise ValueError(f"class {name!r} may not be in a model file")
    cls = class_of(name)
    made = cls.__new__(cls)
    if not all(isinstance(key, str) and key.isidentifier() and not key.startswith("__") for key in state):
        raise ValueError(f"{name} has an attribute with an odd name")
    vars(made).update({key: decode(value, tensors, also) for key, value in state.items()})
    return made
