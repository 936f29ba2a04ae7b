"""Tables from files and frames: columns by name, numbers and words told apart, and the preprocessing a network needs."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from .settings import did_you_mean

__all__ = ["Columns", "DATA_SETS", "Table", "preprocessing", "read_table", "task_of"]

DATA_SETS = ("iris", "wine", "breast_cancer", "digits", "diabetes")
MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "<na>", "nat"}
DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?")


class Table:
    """Columns by name: numbers (nan where missing), truth values, dates, or words (None where missing)."""

    def __init__(self, columns: dict[str, np.ndarray], source: str) -> None:
        self.columns, self.source = columns, source
        self.rows = len(next(iter(columns.values()))) if columns else 0

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise ValueError(f"{self.source} has no column {name!r}.{did_you_mean(name, self.columns)} It has: {shortened(self.columns)}.")
        return self.columns[name]

    def take(self, rows: np.ndarray) -> Table:
        return Table({name: column[rows] for name, column in self.columns.items()}, self.source)


class Columns(TransformerMixin, BaseEstimator):
    """Finds the columns `names` in a frame, whatever their order, and gives the number columns, then those in `words`.

    X is a pandas or polars DataFrame, a Table, a dict of columns, or an array with just these columns in this order.
    Frames say the same with different values (None, nan, NA); here each becomes what a CSV file would have given.
    """

    def __init__(self, names: list[str], words: list[str]) -> None:
        self.names, self.words = names, words

    def fit(self, X: Any, y: Any = None) -> Columns:
        self.feature_names_in_, self.n_features_in_ = np.array(self.names, dtype=object), len(self.names)
        return self

    def transform(self, X: Any) -> np.ndarray:
        table = self._table(X)
        order = self.get_feature_names_out().tolist()
        columns = [as_words(table[name]) if name in self.words else self._numbers(table, name) for name in order]
        return np.stack(columns, axis=1)  # objects, if any of them are

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        return np.array(sorted(self.names, key=self.words.__contains__), dtype=object)

    def _table(self, X: Any) -> Table:
        if isinstance(X, Table):
            return X
        if isinstance(X, dict) or hasattr(X, "columns"):
            have = list(X if isinstance(X, dict) else X.columns)
            for name in self.names:
                if have.count(name) > 1:
                    raise ValueError(f"X: two columns are named {name!r}.")
            return Table({str(name): X[name] for name in have}, "X")
        X = X if isinstance(X, np.ndarray) else np.array(X, dtype=object)
        if X.ndim != 2 or X.shape[1] != len(self.names):
            raise ValueError(
                f"expected a frame with the columns {shortened(self.names)}, or an array of shape (rows, {len(self.names)}) "
                f"with just these, in this order; got an array of shape {X.shape}."
            )
        return Table(dict(zip(self.names, X.T, strict=True)), "X")

    @staticmethod
    def _numbers(table: Table, name: str) -> np.ndarray:
        """A column as numbers; dates are days since 1970."""
        column = as_column(table[name])
        if column.dtype == object:
            example = next(word for word in column if word is not None)
            raise ValueError(f"{table.source}: column {name!r} must hold numbers, as in training, but holds words such as {example!r}.")
        if column.dtype.kind == "M":
            column = (column - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
        if np.isinf(column).any():
            raise ValueError(f"{table.source}: column {name!r} holds an infinite number.")
        return column.astype(np.float64)


def as_column(values: Any) -> np.ndarray:
    """Values of a frame as numbers, truth values or dates; anything else is read as its text would be."""
    values = np.atleast_1d(np.asarray(values))
    if values.dtype.kind in "iuf":
        return values.astype(np.float64)
    return values if values.dtype.kind in "bM" else typed(as_words(values))


def as_words(values: Any) -> np.ndarray:
    """Values as words, None where missing; 7.0 is '7', as a file has it."""
    words = [str(int(v)) if isinstance(v, float | np.floating) and v.is_integer() else str(v).strip() for v in values]
    return np.array([None if word.lower() in MISSING else word for word in words], dtype=object)


def typed(words: np.ndarray, comma: bool = False) -> np.ndarray:
    """Words as numbers, truth values or dates if they are nothing else; `comma`: 1,5 is a number too."""
    known = [word for word in words if word is not None]
    for swap in (False, True) if comma else (False,):
        try:
            return np.array([np.nan if w is None else float(w.replace(",", ".") if swap else w) for w in words])
        except ValueError:
            pass
    if {word.lower() for word in known} <= {"true", "false"}:
        truth = np.array([np.nan if w is None else w.lower() == "true" for w in words])
        return truth if len(known) < len(words) else truth.astype(bool)
    if all(map(DATE.fullmatch, known)):
        try:
            return np.array(["NaT" if w is None else w for w in words], dtype="datetime64[ms]")
        except ValueError:
            pass
    return words


def shortened(names: Any) -> str:
    names = [str(name)[:60] for name in names]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def read_table(source: str, words: Collection[str] = ()) -> Table:
    """A CSV, TSV or Parquet file, or one of the data sets that come with scikit-learn; `words` are known to be columns of words."""
    path = Path(source)
    if source in DATA_SETS and not path.exists():
        return data_set(source)
    if not path.exists():
        hint = did_you_mean(source, DATA_SETS)
        raise FileNotFoundError(f"{source} does not exist.{hint} Data sets that need no file: {', '.join(DATA_SETS)}.")
    if path.is_dir():
        raise IsADirectoryError(f"{source} is a folder, not a file.")
    parquet = path.suffix.lower() in (".parquet", ".pq")
    table = Table(from_parquet(path) if parquet else from_csv(path, words), source)
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


def from_csv(path: Path, words: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Columns of a file with a header line; the separator is found by looking at it. `words` are not tried as numbers."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
            separator = max(",;\t|", key=re.sub(r'"[^"]*"', "", head).count)
            reader = csv.reader(chain([head], file), delimiter=separator)
            names = [name.strip() for name in next(reader, [])]
            rows = []
            for row in reader:
                if len(row) == len(names):
                    rows.append(row)
                elif row:
                    raise ValueError(f"{path}, line {reader.line_num}: expected {len(names)} values as in the header, got {len(row)}.")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"{path} cannot be read as text in UTF-8: there is a byte {byte:#x}. Save the table as CSV in UTF-8.") from None
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as a table of text (CSV): {error}.") from None
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path}: two columns are named {twice!r}.")
    columns = {name: as_words(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)} if rows else {}
    return {name: column if name in words else typed(column, separator == ";") for name, column in columns.items()}


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
    return {str(name): as_column(frame[name]) for name in frame.columns}


def task_of(target: np.ndarray) -> str:
    """Words, truth values and few whole numbers are classes; other numbers are values."""
    if target.dtype.kind in "Ob":
        return "classification"
    values = np.unique(target)
    few = len(values) <= min(20, max(2, len(target) // 5))
    return "classification" if few and (values == np.round(values)).all() else "regression"


def preprocessing(table: Table, names: list[str]) -> tuple[list[tuple[str, Any]], list[str]]:
    """Steps of a pipeline for the columns `names`: medians for missing numbers, unit scale, one-hot words.

    Returns them with remarks about columns left out.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    used, words, remarks = [], [], []
    for name in names:
        column = table[name]
        different = len(set(column)) if column.dtype == object else 0
        if not name:
            remarks.append("a column has no name: left out")
        elif column.dtype.kind in "fM" and np.isnan(column).all():
            remarks.append(f"column {name!r} is empty: left out")
        elif different > 50 and different > 0.5 * len(column):
            remarks.append(f"column {name!r} has {different} different words in {len(column)} rows: left out")
        else:
            used.append(name)
            words += [name] if different else []
    if not used:
        why = "; ".join(remarks) or "the target is its only column"
        raise ValueError(f"{table.source} leaves no column to learn from: {why}.")
    count = len(used) - len(words)
    parts: list[Any] = []
    if count:
        fill = SimpleImputer(strategy="median", keep_empty_features=True)
        parts.append(("numbers", make_pipeline(fill, StandardScaler()), list(range(count))))
    if words:
        encoder = OneHotEncoder(handle_unknown="ignore", max_categories=50, sparse_output=False)
        parts.append(("words", encoder, list(range(count, len(used)))))
    return [("table", Columns(used, words)), ("columns", ColumnTransformer(parts))], remarks
