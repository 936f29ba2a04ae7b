"""A search over ten learning rates on five folds of digits, beside scikit-learn's: times as ratios from one run.

Both sides have a process of their own that has searched before (compilation is told apart) and are asked in turn. Same data,
same folds, same network (100 hidden units), same batch sizes (200 is scikit-learn's), 20 epochs, the refit included. Numbers are
medians.

    python benchmarks/search.py                threads on CPU; writes build/search.json
    python benchmarks/search.py --gpu          one batched program on a GPU; writes build/search-gpu.json
    python benchmarks/search.py --candidates 100 --rounds 3 --batch 32
    python benchmarks/search.py --gpu --mnist FOLDER --rows 10000 --dtype float32    on larger digits
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from work import write_numbers

BUILD = Path(__file__).resolve().parent.parent / "build"
WANTED = {"cpu": 8.0, "gpu": 100.0}  # times as fast
FOLDS, EPOCHS, JOBS = 5, 20, 2


def search(who: str, candidates: int, batch: int, X: np.ndarray, y: np.ndarray) -> Any:
    grid = {"learning_rate_init": np.logspace(-3.5, -1.5, candidates).tolist()}
    same: dict[str, Any] = {"max_iter": EPOCHS, "batch_size": batch, "random_state": 0}
    if who == "theirs":
        from sklearn.model_selection import GridSearchCV
        from sklearn.neural_network import MLPClassifier

        return GridSearchCV(MLPClassifier(**same), grid, cv=FOLDS, n_jobs=JOBS).fit(X, y)
    import pellucid as pc

    how = "batched" if who == "gpu" else "threads"
    model = pc.MLPClassifier(**same, engine="jax", alpha_scale="batch")  # scikit-learn's penalty
    return pc.PopulationSearchCV(model, grid, cv=FOLDS, n_jobs=JOBS, how=how).fit(X, y)


def fits_alone(who: str, candidates: int, batch: int, X: np.ndarray, y: np.ndarray) -> Any:
    """The same number of fits as a Population: no clones, no folds cut by scikit-learn, no scores."""
    from sklearn.model_selection import StratifiedKFold

    import pellucid as pc

    folds = [rows for rows, _ in StratifiedKFold(FOLDS).split(X, y)]
    rates = np.logspace(-3.5, -1.5, candidates)
    dtype: Any = X.dtype.name
    net = pc.Linear(100) >> pc.ReLU() >> pc.Linear(10)
    population = pc.Population(
        net, X.shape[1:], "softmax_cross_entropy", dtype=dtype, rows=folds * candidates, learning_rate=np.repeat(rates, FOLDS)
    )
    return population.fit(X, y, epochs=EPOCHS, batch_size=batch, engine="jax", how="batched" if who == "gpu" else "threads", threads=JOBS)


def digits(mnist: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits, of 8 × 8 pixels; or so many rows of MNIST's, of 28 × 28, from that folder."""
    if not mnist:
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        return X / 16, y
    from pellucid.datasets import load_mnist

    X, y, *_ = load_mnist(mnist)
    return X[:rows].reshape(rows, -1), y[:rows]


def serve(who: str, candidates: int, X: np.ndarray, y: np.ndarray) -> None:
    """Answer each line of stdin ("search float32 200") with the seconds it took, and what was found."""
    for line in sys.stdin:
        what, dtype, batch = line.split()
        rows, run = X.astype(dtype), fits_alone if what == "fits" else search
        few = slice(500) if what == "start" else slice(None)  # processes start, modules are imported
        began = time.perf_counter()
        found = run(who, candidates, int(batch), rows[few], y[few])
        answer: dict[str, Any] = {"seconds": time.perf_counter() - began}
        if what == "search":
            answer["scores"] = found.cv_results_["mean_test_score"].tolist()
        print(json.dumps(answer), flush=True)


class Side:
    """A process that searches when asked."""

    def __init__(self, who: str, options: argparse.Namespace) -> None:
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # joblib gives each of its processes one, unless told
        env = {name: value for name, value in os.environ.items() if name not in threads} | {"PYTHONWARNINGS": "ignore"}
        env |= {"JAX_PLATFORMS": "cpu"} if who == "cpu" else {}
        same = "--candidates", str(options.candidates), "--mnist", options.mnist, "--rows", str(options.rows)
        command = [sys.executable, __file__, "--serve", who, *same]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        print(what, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(map(str, self.process.args))} ended with {self.process.wait()}.")  # type: ignore[arg-type]
        return json.loads(line)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[200, 32])
    parser.add_argument("--dtype", nargs="+", default=["float32", "float64"])
    parser.add_argument("--mnist", default="", metavar="FOLDER", help="where MNIST lies; without it, scikit-learn's digits")
    parser.add_argument("--rows", type=int, default=10_000, help="of MNIST")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go")
    parser.add_argument("--serve", choices=("theirs", "cpu", "gpu"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.candidates, *digits(options.mnist, options.rows))
    who = "gpu" if options.gpu else "cpu"
    ours, theirs = Side(who, options), Side("theirs", options)
    result: dict[str, Any] = {}
    title = f"{options.candidates} candidates x {FOLDS} folds" + (f" on {options.rows:,} rows of MNIST" if options.mnist else "")
    print(f"{title:<50}{'ours':>10}{'scikit-learn':>14}{'times':>8}{'wanted':>8}{'first':>9}{'fits alone':>12}{'scores differ by':>18}")
    for batch, dtype in itertools.product(options.batch, options.dtype):
        asked = f"{dtype} {batch}"
        first = ours.ask(f"search {asked}")["seconds"]
        theirs.ask(f"start {asked}")
        ours.ask(f"fits {asked}")
        rounds = [(ours.ask(f"search {asked}"), theirs.ask(f"search {asked}"), ours.ask(f"fits {asked}")) for _ in range(options.rounds)]
        mine, other, fits = (statistics.median(r[k]["seconds"] for r in rounds) for k in range(3))
        apart = float(np.abs(np.subtract(rounds[0][0]["scores"], rounds[0][1]["scores"])).max())
        row = {"ours": mine, "theirs": other, "ratio": mine / other, "wanted": 1 / WANTED[who], "first": first, "fits alone": fits}
        result[f"search of {title}, {dtype}, batch {batch}"] = {**row, "scores differ by": apart}
        print(
            f"{f'{dtype}, batch {batch}':<50}{mine:>9.3f}s{other:>13.3f}s{other / mine:>8.1f}{WANTED[who]:>8.0f}"
            f"{first:>8.2f}s{fits:>11.3f}s{apart:>18.4f}",
            flush=True,
        )
    target = options.json or BUILD / f"search{'-gpu' if options.gpu else ''}.json"
    write_numbers(result, target)


if __name__ == "__main__":
    main()
