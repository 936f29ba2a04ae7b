"""The drop-in perceptrons beside scikit-learn's: times as ratios from one run, and what a fit adds to memory.

First calls are timed in processes of their own, ours and theirs in turn; everything else in one process, in turn.
Numbers are medians over the rounds.

    python benchmarks/estimators.py            the table; writes build/estimators.json (or --json FILE)
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from report import estimator_tables, show_tables
from work import write_numbers

ROUNDS = 7
BUILD = Path(__file__).resolve().parent.parent / "build"
LIMITS = {
    "iris, 100 epochs, first fit": 1.0,
    "iris, 100 epochs": 1.0,
    "digits, 30 epochs, first fit": 1.0,
    "digits, 30 epochs": 0.5,
    "digits, 30 epochs, engine='jax', compiled": 0.5,
    "predict_proba, 1 row": 1.0,
    "predict_proba, 10,000 rows": 1.0,
}
MEMORY = {"numpy": 0.3, "jax": 1.2}  # GB


def model(ours: bool, **options: Any) -> Any:
    if ours:
        from pellucid import MLPClassifier
    else:
        from sklearn.neural_network import MLPClassifier  # type: ignore[no-redef]
    return MLPClassifier(random_state=0, tol=0, n_iter_no_change=1000, **options)


def data(name: str) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    from sklearn.datasets import load_digits, load_iris

    if name == "iris":
        return *load_iris(return_X_y=True), {"max_iter": 100}
    X, y = load_digits(return_X_y=True)
    return X / 16, y, {"max_iter": 30, "batch_size": 32}


def seconds(function: Any, times: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - began) / times


def first_fit(ours: bool, name: str) -> float:
    """The first fit of a fresh process; imports are not counted, except what the fit itself imports."""
    X, y, options = data(name)
    estimator = model(ours, **options)
    return seconds(lambda: estimator.fit(X, y))


def added_memory(engine: str) -> float:
    """GB that a fit on 1 GB of float32 adds to the process."""
    rng, X = np.random.default_rng(0), np.empty((250_000, 1000), np.float32)
    for i in range(0, len(X), 10_000):
        X[i : i + 10_000] = rng.random((10_000, 1000), dtype=np.float32)
    y = rng.integers(0, 3, len(X))
    model(True, hidden_layer_sizes=10, max_iter=1, engine=engine).fit(X[:1000], y[:1000])  # loads what it needs
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model(True, hidden_layer_sizes=10, max_iter=1, engine=engine).fit(X, y)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6


def in_fresh_process(*arguments: str) -> float:
    return float(subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True).stdout)


def ratios() -> dict[str, tuple[float, float]]:
    """Medians in seconds: (ours, theirs)."""
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in LIMITS}
    fitted = [model(ours, max_iter=5).fit(*data("digits")[:2]) for ours in (True, False)]
    rows = np.tile(data("digits")[0], (6, 1))[:10_000]
    X, y, options = data("digits")
    model(True, engine="jax", **options).fit(X, y)
    for _ in range(ROUNDS):
        for name in ("iris", "digits"):
            X, y, options = data(name)
            label = f"{name}, {options['max_iter']} epochs"
            pairs[f"{label}, first fit"].append((in_fresh_process("first", "ours", name), in_fresh_process("first", "theirs", name)))
            theirs = seconds(lambda X=X, y=y, o=options: model(False, **o).fit(X, y))
            pairs[label].append((seconds(lambda X=X, y=y, o=options: model(True, **o).fit(X, y)), theirs))
            if name == "digits":
                compiled = seconds(lambda X=X, y=y, o=options: model(True, engine="jax", **o).fit(X, y))
                pairs[f"{label}, engine='jax', compiled"].append((compiled, theirs))
        for count, times, label in ((1, 200, "1 row"), (10_000, 30, "10,000 rows")):
            for m in fitted:  # whoever is first would wake the threads for the other
                seconds(lambda m=m, n=count: m.predict_proba(rows[:n]), 3)
            pair = [seconds(lambda m=m, n=count: m.predict_proba(rows[:n]), times) for m in fitted]
            pairs[f"predict_proba, {label}"].append((pair[0], pair[1]))
    return {name: tuple(map(statistics.median, zip(*values, strict=True))) for name, values in pairs.items()}


def measure() -> dict[str, Any]:
    """Every row of the table."""
    rows: dict[str, Any] = {}
    for name, (ours, theirs) in ratios().items():
        rows[name] = {"ours": ours, "theirs": theirs, "ratio": ours / theirs, "wanted": LIMITS[name]}
    for engine, most in MEMORY.items():
        rows[f"a fit on 1 GB of float32 adds, engine={engine!r}"] = {"added GB": in_fresh_process("memory", engine), "wanted": most}
    return rows


def main() -> None:
    warnings.simplefilter("ignore")
    match sys.argv[1:]:
        case ["first", who, name]:
            print(first_fit(who == "ours", name))
            return
        case ["memory", engine]:
            print(added_memory(engine))
            return
        case ["--json", file]:
            target = Path(file)
        case _:
            target = BUILD / "estimators.json"
    rows = measure()
    write_numbers(rows, target)
    show_tables(estimator_tables({"estimators": rows}), [f"numbers: {target}"])


if __name__ == "__main__":
    main()
