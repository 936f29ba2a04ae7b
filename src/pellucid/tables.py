"""Tables from files: columns by name, numbers and words told apart, and the preprocessing a network needs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from .settings import did_you_mean

__all__ = ["DATA_SETS", "Table", "preprocessing", "read_table", "task_of"]

DATA_SETS = ("iris", "wine", "breast_cancer", "digits", "diabetes")
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}


class Table:
    """Columns by name: float64 arrays (nan where missing), or object arrays of words (None where missing)."""

    def __init__(self, columns: dict[str, np.ndarray], source: str) -> None:
        self.columns, self.source = columns, source
        self.rows = len(next(iter(columns.values()))) if columns else 0

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise ValueError(f"{self.source} has no column {name!r}.{did_you_mean(name, self.columns)} It has: {shortened(self.columns)}.")
        return self.columns[name]

    def matrix(self, numbers: list[str], words: list[str]) -> np.ndarray:
        """Rows with the columns `numbers`, then `words`: floats where there are no words, objects otherwise."""
        for name in numbers:
            if self[name].dtype == object:
                example = next(word for word in self[name] if word is not None)
                raise ValueError(f"{self.source}: column {name!r} must hold numbers, as in training, but holds words such as {example!r}.")
        X = np.empty((self.rows, len(numbers) + len(words)), dtype=object if words else np.float64)
        for j, name in enumerate([*numbers, *words]):
            column = self[name]
            X[:, j] = [as_word(v) for v in column] if name in words and column.dtype != object else column
        return X


def as_word(value: float) -> str | None:
    return None if np.isnan(value) else f"{value:g}"


def shortened(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def read_table(source: str) -> Table:
    """A CSV, TSV or Parquet file, or one of the data sets that come with scikit-learn."""
    path = Path(source)
    if source in DATA_SETS and not path.exists():
        return data_set(source)
    if not path.exists():
        hint = did_you_mean(source, DATA_SETS)
        raise FileNotFoundError(f"{source} does not exist.{hint} Data sets that need no file: {', '.join(DATA_SETS)}.")
    if path.is_dir():
        raise IsADirectoryError(f"{source} is a folder, not a file.")
    read = from_parquet if path.suffix.lower() in (".parquet", ".pq") else from_csv
    table = Table(read(path), source)
    if not table.columns or table.rows == 0:
        raise ValueError(f"{source} has no rows.")
    return table


def data_set(name: str) -> Table:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    columns = {str(n): bunch.data[:, j].astype(float) for j, n in enumerate(bunch.feature_names)}
    target = bunch.target.astype(float)
    if name in ("iris", "wine", "breast_cancer"):
        target = np.array(bunch.target_names, dtype=object)[bunch.target]
    return Table({**columns, "target": target}, name)


def from_csv(path: Path) -> dict[str, np.ndarray]:
    """Columns of a file with a header line; the separator is found by looking at it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
            file.seek(0)
            separator = max(",;\t|", key=head.count)
            reader = csv.reader(file, delimiter=separator)
            names = [name.strip() for name in next(reader, [])]
            rows = [row for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a table of text (CSV): {error}.") from None
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path}: two columns are named {twice!r}.")
    for i, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError(f"{path}, row {i + 2}: expected {len(names)} values as in the header, got {len(row)}.")
    return {name: typed(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)} if rows else {}


def from_parquet(path: Path) -> dict[str, np.ndarray]:
    try:
        import polars as frames
    except ImportError:
        try:
            import pandas as frames  # type: ignore[no-redef]
        except ImportError:
            raise ImportError("reading Parquet needs polars, or pandas with pyarrow: install one of them, or use a CSV file.") from None
    try:
        frame = frames.read_parquet(path)
    except Exception as error:  # each library has errors of its own for a damaged file
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    columns = {}
    for name in frame.columns:
        values = np.asarray(frame[name])
        numeric = values.dtype.kind in "biuf"
        columns[str(name)] = values.astype(float) if numeric else typed(["" if v is None else str(v) for v in values])
    return columns


def typed(column: Any) -> np.ndarray:
    """A column of text as numbers if it holds nothing else, otherwise as words."""
    words = [None if word.strip().lower() in MISSING else word.strip() for word in column]
    try:
        return np.array([np.nan if word is None else float(word) for word in words])
    except ValueError:
        return np.array(words, dtype=object)


def task_of(target: np.ndarray) -> str:
    """Words and few whole numbers are classes; other numbers are values."""
    if target.dtype == object:
        return "classification"
    values = np.unique(target)
    few = len(values) <= min(20, max(2, len(target) // 5))
    return "classification" if few and (values == np.round(values)).all() else "regression"


def preprocessing(table: Table, names: list[str]) -> tuple[Any, list[str], list[str], list[str]]:
    """A transformer for the columns `names`: medians for missing numbers, unit scale, one-hot words.

    Returns it with the names of its number columns and its word columns, and remarks about columns left out.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers, words, remarks = [], [], []
    for name in names:
        column = table[name]
        if column.dtype != object:
            if np.isnan(column).all():
                remarks.append(f"column {name!r} is empty: left out")
            else:
                numbers.append(name)
            continue
        different = len(set(column))
        if different > 50 and different > 0.5 * len(column):
            remarks.append(f"column {name!r} has {different} different words in {len(column)} rows: left out")
        else:
            words.append(name)
    if not numbers and not words:
        raise ValueError(f"{table.source} leaves no column to learn from. {'; '.join(remarks)}.")
    parts: list[Any] = []
    if numbers:
        parts.append(("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), list(range(len(numbers)))))
    if words:
        encoder = OneHotEncoder(handle_unknown="ignore", max_categories=50, sparse_output=False)
        parts.append(("words", encoder, list(range(len(numbers), len(numbers) + len(words)))))
    return ColumnTransformer(parts), numbers, words, remarks
