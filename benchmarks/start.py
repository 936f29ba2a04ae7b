"""How much longer the first epoch of a new process takes than a later one: JAX is imported, programs are compiled or found on disk.

Every number is of processes of their own: some that find nothing on disk, and after each of them some that find its programs.
Numbers are medians, with their range.

    python benchmarks/start.py            the table; writes build/start.json (or --json FILE)
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import show_tables, start_table
from work import LEARNING_RATE, WORKS, Work, data_of, mlp, write_numbers

BUILD = Path(__file__).resolve().parent.parent / "build"
COLD, WARM = 3, 3  # processes that find nothing on disk; and that find something, for each of them
AIMS = {"tiny": 0.4}  # seconds, with programs on disk
DEPTHS = (2, 16, 63, 128)


def works() -> dict[str, tuple[Work, str]]:
    """What is started, and with which optimizer."""
    deep = {f"{n} × 64 units, {kind}": (mlp(30, *[64] * n, 4, batch=32, rows=20_000), kind) for kind in ("SGD", "Adam") for n in DEPTHS}
    return {name: (work, "SGD") for name, work in WORKS.items() if work.group == "cpu"} | deep


def longer(name: str) -> float:
    """In this process: seconds of the first epoch less those of the second."""
    from peers.ours import network

    import pellucid as pc

    work, kind = works()[name]
    X, y = data_of(work)
    model, optimizer = pc.Network(network(work), work.shape, "softmax_cross_entropy"), getattr(pc, kind)(LEARNING_RATE)

    def seconds() -> float:
        began = time.perf_counter()
        model.fit(X, y, epochs=1, batch_size=work.batch, optimizer=optimizer, engine="jax", progress=False)
        return time.perf_counter() - began

    return seconds() - seconds()


def in_new_process(name: str, folder: str) -> float:
    environment = {key: value for key, value in os.environ.items() if key != "JAX_ENABLE_COMPILATION_CACHE"} | {"PELLUCID_CACHE": folder}
    run = subprocess.run([sys.executable, __file__, "one", name], capture_output=True, text=True, check=True, env=environment)
    return float(run.stdout)


def measure() -> dict[str, Any]:
    """Every row of the table."""
    rows: dict[str, Any] = {}
    for name, (work, _) in works().items():
        found: dict[str, list[float]] = {"cold": [], "warm": []}
        for _ in range(COLD):
            with tempfile.TemporaryDirectory() as folder:
                found["cold"].append(in_new_process(name, folder))
                found["warm"] += [in_new_process(name, folder) for _ in range(WARM)]
        label = name if name not in WORKS else f"{name}: {work.label}"
        rows[label] = {how: [min(s), statistics.median(s), max(s)] for how, s in found.items()} | {"wanted": AIMS.get(name)}
    return rows


def main() -> None:
    match sys.argv[1:]:
        case ["one", name]:
            print(longer(name))
            return
        case ["--json", file]:
            target = Path(file)
        case _:
            target = BUILD / "start.json"
    rows = measure()
    write_numbers(rows, target)
    show_tables([start_table(rows)], [f"numbers: {target}"])


if __name__ == "__main__":
    main()
