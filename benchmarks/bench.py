"""`make bench`: this library beside its peers, in one run.

Every peer trains in a process of its own, on the same two cores with two threads. The processes wait while one of
them runs a round; rounds go round the table in turn, so that a disturbance hits all alike. Numbers are medians over
the rounds with their range.

    python benchmarks/bench.py                          the table; writes build/bench.json (and bench.png)
    python benchmarks/bench.py --only tiny,width        some rows, or groups of rows (scaling curves)
    python benchmarks/bench.py --peers torch,scikit     some peers (ours are always there)
    python benchmarks/bench.py --write-docs             also writes docs/performance.md
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from report import markdown, plot, show
from work import THREADS, Work, select

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


class Peer(NamedTuple):
    """A library, the module it needs, and the command line of its process."""

    module: str
    command: tuple[str, ...]
    default: bool = True


PEERS: dict[str, Peer] = {
    "auto": Peer("pellucid", ("peers.ours", "auto")),
    "numpy": Peer("pellucid", ("peers.ours", "numpy")),
    "jax": Peer("pellucid", ("peers.ours", "jax")),
    "autodiff": Peer("jax", ("peers.autodiff",)),
    "torch": Peer("torch", ("peers.pytorch", "eager")),
    "torch-compile": Peer("torch", ("peers.pytorch", "compile"), default=False),
    "scikit": Peer("sklearn", ("peers.scikit",)),
}
OURS = ("auto", "numpy", "jax")
IMPORTS = {"pellucid": "pellucid", "sklearn": "sklearn.neural_network", "torch": "torch", "jax": "jax"}
DISTRIBUTIONS = {"numpy": "numpy", "jax": "jax", "torch": "torch", "sklearn": "scikit-learn"}


def main() -> None:
    options = arguments()
    target = ROOT / "build" / "bench.json"
    if options.reuse:
        result = json.loads(target.read_text())
    else:
        result = measure(select(options.only), chosen(options.peers), options.rounds)
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(result, indent=1) + "\n")
    show(result)
    if plot(result, target.with_suffix(".png")):
        print(f"plot: {target.with_suffix('.png').relative_to(ROOT)}")
    print(f"numbers: {target.relative_to(ROOT)}")
    if options.write_docs:
        (ROOT / "docs").mkdir(exist_ok=True)
        (ROOT / "docs" / "performance.md").write_text(markdown(result))
        print("page: docs/performance.md")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="cpu", metavar="ROWS", help="rows or groups, separated by commas (default: cpu)")
    parser.add_argument("--peers", default="", metavar="NAMES", help=f"peers beside ours: {', '.join(p for p in PEERS if p not in OURS)}")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each peer for each row (default: 5)")
    parser.add_argument("--write-docs", action="store_true", help="write docs/performance.md from the numbers")
    parser.add_argument("--reuse", action="store_true", help="measure nothing: take the numbers of build/bench.json")
    return parser.parse_args()


def chosen(names: str) -> dict[str, Peer]:
    """The peers asked for, or the default ones."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in PEERS:
            raise SystemExit(f"--peers: no peer {name!r}. There are: {', '.join(PEERS)}.")
    return {name: peer for name, peer in PEERS.items() if name in OURS or (name in wanted if wanted else peer.default)}


def measure(works: dict[str, Work], peers: dict[str, Peer], rounds: int) -> dict[str, Any]:
    """All numbers of a run."""
    if hasattr(os, "sched_setaffinity"):  # inherited by every peer: XLA takes as many threads as it sees cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    there = {name: peer for name, peer in peers.items() if importlib.util.find_spec(peer.module)}
    result: dict[str, Any] = {"machine": machine(), "missing": sorted(set(peers) - set(there)), "peers": list(there)}
    tell("import seconds")
    result["imports"] = {name: import_seconds(module) for name, module in IMPORTS.items() if importlib.util.find_spec(name)}
    result["works"] = {}
    for name, work in works.items():
        row = {"label": work.label, "group": work.group, "batch": work.batch, "rows": work.rows, "steps": work.steps}
        result["works"][name] = {**row, "times": rounds_of(name, there, rounds)}
    tell("")
    result["machine"]["load at the end"] = load()
    return result


def rounds_of(work: str, peers: dict[str, Peer], rounds: int) -> dict[str, Any]:
    """Start every peer on one row, then let them run in turn."""
    running: dict[str, subprocess.Popen[str]] = {}
    times: dict[str, Any] = {}
    for name, peer in peers.items():
        tell(f"{work}: {name} starts")
        process = running[name] = start(peer, work)
        times[name] = {**answer(process, name), "us": []}
        if "skipped" in times[name]:
            running.pop(name).wait()
    for i in range(rounds):
        tell(f"{work}: round {i + 1} of {rounds}")
        for name, process in running.items():
            print(file=process.stdin, flush=True)
            times[name]["us"].append(answer(process, name)["us"])
    for name, process in running.items():
        assert process.stdin
        process.stdin.close()
        times[name] |= answer(process, name)
        process.wait()
    for row in times.values():
        if row["us"]:
            row |= {"median": statistics.median(row["us"]), "low": min(row["us"]), "high": max(row["us"])}
    return times


def start(peer: Peer, work: str) -> subprocess.Popen[str]:
    """A peer's process; it answers on stdout, its errors go to ours."""
    module, *rest = peer.command
    command = [sys.executable, "-m", module, work, *rest]
    return subprocess.Popen(command, cwd=HERE, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{name}: its process ended with status {process.wait()}; its message is above.")
    return json.loads(line)


def environment() -> dict[str, str]:
    """Two threads for every library; our sources where they are not installed."""
    threads = {name: str(THREADS) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **threads, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}


def import_seconds(module: str, times: int = 3) -> float:
    """The median time of an import in a new process."""
    code = f"import time; began = time.perf_counter(); import {module}; print(time.perf_counter() - began)"
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True) for _ in range(times)
    ]
    return statistics.median(float(run.stdout) for run in runs)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": models[0] if models else "unknown",
        "cores used": THREADS,
        "python": ".".join(map(str, sys.version_info[:3])),
        **{name: version(name_of) for name, name_of in DISTRIBUTIONS.items() if importlib.util.find_spec(name)},
        "load at the start": load(),
    }


def load() -> float | None:
    """How many processes wanted a core in the last minute; above `THREADS` the numbers are disturbed."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def tell(text: str) -> None:
    """One line of progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
