"""What the examples share: where the data lie, how often to run, how to show the outcome."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHORT = bool(os.environ.get("PELLUCID_SHORT"))  # a form for tests: little data, few epochs


def data_folder(name: str) -> Path:
    """The folder of one data set, inside the folder that --data or PELLUCID_DATA names."""
    folder = os.environ.get("PELLUCID_DATA")
    if not folder:
        raise SystemExit(f"Where do the data lie? Pass --data FOLDER (with a folder {name!r} inside), or set PELLUCID_DATA.")
    return Path(folder) / name


def main(title: str, run: Callable[[int], dict[str, Any]], bar: str = "") -> None:
    """Run once for every seed and show a table of what came out."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--data", help="the folder the data sets lie in")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run (default 1)")
    args = parser.parse_args()
    if args.data:
        os.environ["PELLUCID_DATA"] = args.data
    rows = [run(seed) for seed in range(args.seeds)]
    table = Table("seed", *rows[0], title=title)
    for seed, row in enumerate(rows):
        table.add_row(str(seed), *map(show, row.values()))
    if len(rows) > 1:
        mean = (statistics.mean(r[k] for r in rows) if isinstance(v, float) else "" for k, v in rows[0].items())
        table.add_row("mean", *map(show, mean), style="bold")
    console = Console()
    console.print(table)
    if bar:
        console.print(bar)


def outcome(model: Any, history: Any, **scores: float) -> dict[str, Any]:
    """A row of the table: the scores, then what every example tells."""
    names = {name.replace("_", " "): value for name, value in scores.items()}
    return {**names, "parameters": model.count, "seconds": sum(history["seconds"]), "engine": history.engine}


def show(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
