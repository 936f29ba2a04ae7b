"""Loaders for well-known data sets that lie in a folder you name. Nothing is downloaded.

Every loader takes files as their publishers name them, plain or gzipped.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["Table", "Text", "load_adult", "load_california_housing", "load_japanese_vowels", "load_mnist", "load_text", "read_idx"]


class Table(NamedTuple):
    """Rows of a table: numbers, categories as text ("?" where missing), and the target."""

    numbers: np.ndarray  # (rows, columns) float64, nan where missing
    categories: np.ndarray  # (rows, columns) of str
    target: np.ndarray
    number_names: list[str]
    category_names: list[str]


class Text(NamedTuple):
    """A text as numbers: `alphabet[codes[i]]` is its i-th character."""

    codes: np.ndarray  # (length,) int32
    alphabet: str


def read_file(folder: str | os.PathLike[str], *names: str) -> bytes:
    """The content of the first of `names` that is there, plain or gzipped."""
    folder = Path(folder)
    for name in names:
        if (folder / name).is_file():
            return (folder / name).read_bytes()
        if (folder / f"{name}.gz").is_file():
            with gzip.open(folder / f"{name}.gz") as file:
                return file.read()
    raise FileNotFoundError(f"{folder} has no file {' or '.join(names)} (plain or with .gz). Name the folder the data lie in.")


def read_idx(content: bytes) -> np.ndarray:
    """Parse the IDX format of MNIST: two zero bytes, the type (8: unsigned byte), the number of axes, their sizes, data."""
    if content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise ValueError(f"expected an IDX file of unsigned bytes (it begins with 0, 0, 8), got {content[:4]!r}.")
    axes = content[3]
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    body = content[4 + 4 * axes :]
    if len(body) != math.prod(shape):
        raise ValueError(f"the IDX file promises {shape} bytes but holds {len(body)}: it is damaged or cut short.")
    return np.frombuffer(body, np.uint8).reshape(shape)


def load_mnist(folder: str | os.PathLike[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Handwritten digits (N44); Fashion-MNIST lies in files of the same names.

    Returns
    -------
    X_train, y_train, X_test, y_test
        Images (60000, 28, 28, 1) and (10000, 28, 28, 1) as float32 from 0 to 1; labels from 0 to 9 as int32.
    """
    parts = []
    for name in ("train", "t10k"):
        images = read_idx(read_file(folder, f"{name}-images-idx3-ubyte", f"{name}-images.idx3-ubyte"))
        labels = read_idx(read_file(folder, f"{name}-labels-idx1-ubyte", f"{name}-labels.idx1-ubyte"))
        parts += [images[..., None].astype(np.float32) / np.float32(255), labels.astype(np.int32)]
    return tuple(parts)  # type: ignore[return-value]


ADULT = [
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
]
ADULT_NUMBERS = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]


def load_adult(folder: str | os.PathLike[str]) -> tuple[Table, Table]:
    """Census income: does a person earn more than 50,000 a year? Returns the training and the test table; target 0 or 1."""
    tables = []
    for name in ("adult.data", "adult.test"):
        lines = read_file(folder, name).decode("utf-8").splitlines()
        rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip() and not line.startswith("|")]
        columns = as_columns(rows, ADULT, name)
        target = np.array([cell.rstrip(".") == ">50K" for cell in columns["income"]], dtype=np.int32)
        tables.append(as_table({k: v for k, v in columns.items() if k != "income"}, ADULT_NUMBERS, target))
    return tables[0], tables[1]


def load_california_housing(folder: str | os.PathLike[str]) -> Table:
    """Median house values of Californian districts, in dollars, with location and census figures."""
    rows = list(csv.reader(read_file(folder, "housing.csv").decode("utf-8").splitlines()))
    columns = as_columns(rows[1:], rows[0], "housing.csv")
    target = np.array(columns.pop("median_house_value"), dtype=np.float64)
    return as_table(columns, [name for name in columns if name != "ocean_proximity"], target)


def as_columns(rows: list[list[str]], names: list[str], file: str) -> dict[str, list[str]]:
    for i, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError(f"{file}: row {i + 1} has {len(row)} cells, expected {len(names)}.")
    return {name: [row[j] for row in rows] for j, name in enumerate(names)}


def as_table(columns: dict[str, list[str]], numbers: list[str], target: np.ndarray) -> Table:
    categories = [name for name in columns if name not in numbers]
    values = np.array([[float(cell) if cell else math.nan for cell in columns[name]] for name in numbers]).T
    words = np.array([columns[name] for name in categories], dtype=str).T
    return Table(values, words, target, numbers, categories)


def load_japanese_vowels(folder: str | os.PathLike[str]) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray], np.ndarray]:
    """Nine speakers saying two vowels, as sequences of 7 to 29 frames of 12 coefficients (N47).

    Returns
    -------
    X_train, y_train, X_test, y_test
        Lists of float32 arrays (frames, 12); speakers from 0 to 8 as int32.
    """
    parts: list = []
    for name in ("TRAIN", "TEST"):
        lines = read_file(folder, f"JapaneseVowels_{name}.ts").decode("utf-8").splitlines()
        body = [line for line in lines if line.strip() and line[0] not in "#@"]
        sequences, labels = [], []
        for line in body:
            *dimensions, label = line.split(":")
            sequences.append(np.array([d.split(",") for d in dimensions], dtype=np.float32).T.copy())
            labels.append(int(label) - 1)
        parts += [sequences, np.array(labels, dtype=np.int32)]
    return tuple(parts)


def load_text(path: str | os.PathLike[str]) -> Text:
    """A text file, plain or gzipped, as codes of its characters in alphabetical order (N47)."""
    path = Path(path)
    text = read_file(path.parent, path.name.removesuffix(".gz")).decode("utf-8")
    if not text:
        raise ValueError(f"{path} is empty.")
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    letters, codes = np.unique(points, return_inverse=True)
    return Text(codes.astype(np.int32), "".join(map(chr, letters)))
