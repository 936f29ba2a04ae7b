"""`make bench`: this library beside its peers, in one run.

Every peer trains in a process of its own, on the same two cores with two threads. The processes wait while one of
them runs a round; rounds go round the table in turn, so that a disturbance hits all alike. Numbers are medians over
the rounds with their range.

    python benchmarks/bench.py                          the CPU rows; writes build/bench.json and build/bench.png
    python benchmarks/bench.py --only tiny,width        some rows, or groups of rows (gpu, and the scaling curves)
    python benchmarks/bench.py --all                    every row and curve, the estimators beside scikit-learn's, new processes
    python benchmarks/bench.py --peers torch,scikit     some peers (ours are always there)
    python benchmarks/bench.py --all --write-docs       also writes docs/performance.md

A machine with a GPU measures the GPU rows, and another one puts them on its page:

    python benchmarks/bench.py --only gpu --json gpu.json
    python benchmarks/bench.py --reuse --gpu-json gpu.json --write-docs
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from report import markdown, plot, show
from work import CURVES, GROUPS, THREADS, Work, select, write_numbers

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


class Peer(NamedTuple):
    """A library, the module it needs, the command line of its process, and whether the curves have it, too."""

    module: str
    command: tuple[str, ...]
    curves: bool = False
    gpu_only: bool = False


PEERS: dict[str, Peer] = {
    "auto": Peer("pellucid", ("peers.ours", "auto"), curves=True),
    "numpy": Peer("pellucid", ("peers.ours", "numpy"), curves=True),
    "jax": Peer("pellucid", ("peers.ours", "jax"), curves=True),
    "autodiff": Peer("jax", ("peers.autodiff",), curves=True),
    "torch": Peer("torch", ("peers.pytorch", "eager"), curves=True),
    "torch-compile": Peer("torch", ("peers.pytorch", "compile")),
    "torch-graph": Peer("torch", ("peers.pytorch", "graph"), gpu_only=True),
    "scikit": Peer("sklearn", ("peers.scikit",)),
    "floor": Peer("numpy", ("peers.floor",)),
}
OURS = ("auto", "numpy", "jax")
SCRIPTS = ("estimators", "start")  # measured by programs of their own
IMPORTS = {"pellucid": "pellucid", "jax": "jax", "torch": "torch", "sklearn": "sklearn.neural_network"}
DISTRIBUTIONS = {"numpy": "numpy", "jax": "jax", "torch": "torch", "sklearn": "scikit-learn"}
ROUND, CURVE_ROUND, GPU_ROUND = 0.4, 0.2, 1.5  # seconds of work in a round, about
CURVE_ROUNDS = 3
PATIENCE = 8.0  # seconds of rounds after which a slow peer is asked no more
LIMIT = 240.0  # seconds after which a peer that does not answer is given up
REST = 0.25  # seconds between two turns: the threads of BLAS and OpenMP go on spinning for a while when their work is done


def main() -> None:
    options = arguments()
    if options.reuse:
        result = json.loads(options.json.read_text())
    else:
        wanted = ",".join([*GROUPS, *SCRIPTS]) if options.all else options.only
        result = measure(wanted.split(","), chosen(options.peers), options.rounds, options.json)
    for file in options.gpu_json if "gpu machine" not in result else []:
        other = json.loads(file.read_text())
        result["works"] |= {name: work for name, work in other["works"].items() if work["group"] == "gpu"}
        result["gpu machine"] = other["machine"]
        result |= {key: other[key] for key in ("gpu search",) if key in other}
    show(result)
    print(f"numbers: {options.json}")
    if plot(result, options.json.with_suffix(".png")):
        print(f"plot: {options.json.with_suffix('.png')}")
    if options.write_docs:
        docs = ROOT / "docs"
        (docs / "performance.md").write_text(markdown(result, plot(result, docs / "performance.png")), encoding="utf-8")
        print("page: docs/performance.md")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    groups = ", ".join([*GROUPS, *SCRIPTS])
    parser.add_argument("--only", default="cpu", metavar="ROWS", help=f"rows or groups, separated by commas: {groups} (default: cpu)")
    parser.add_argument("--all", action="store_true", help="all groups; those for a GPU where there is one")
    parser.add_argument("--peers", default="", metavar="NAMES", help=f"peers beside ours: {', '.join(p for p in PEERS if p not in OURS)}")
    parser.add_argument(
        "--rounds", type=int, default=5, help=f"rounds of each peer for each row (default: 5; curves: at most {CURVE_ROUNDS})"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", metavar="FILE", help="where the numbers go")
    parser.add_argument(
        "--gpu-json", type=Path, nargs="+", default=[], metavar="FILE", help="where there is no GPU: take its rows from these files"
    )
    parser.add_argument("--reuse", action="store_true", help="measure nothing: take the numbers of --json")
    parser.add_argument("--write-docs", action="store_true", help="write docs/performance.md from the numbers")
    return parser.parse_args()


def chosen(names: str) -> dict[str, Peer]:
    """The peers asked for, or all."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in PEERS:
            raise SystemExit(f"--peers: no peer {name!r}. There are: {', '.join(PEERS)}.")
    return {name: peer for name, peer in PEERS.items() if name in OURS or not wanted or name in wanted}


def measure(wanted: list[str], peers: dict[str, Peer], rounds: int, target: Path) -> dict[str, Any]:
    """All numbers of a run, written down after every row."""
    works = select(",".join(name for name in wanted if name not in SCRIPTS))
    there = {name: peer for name, peer in peers.items() if importlib.util.find_spec(peer.module)}
    if "auto" not in there:
        raise SystemExit("pellucid cannot be imported by this Python: run `make bench`, or install this folder first.")
    result: dict[str, Any] = {"machine": machine(), "missing": sorted(set(peers) - set(there)), "works": {}}
    if not gpu_name():
        result["without gpu"] = [name for name, work in works.items() if work.gpu]
        works = {name: work for name, work in works.items() if not work.gpu}
    elif any(work.gpu for work in works.values()):
        result["gpu machine"] = result["machine"]
    tell("import seconds")
    result["imports"] = {name: import_seconds(module) for name, module in IMPORTS.items() if importlib.util.find_spec(name)}
    for name, work in works.items():
        row = {"label": work.label, "group": work.group, "at": work.at, "batch": work.batch, "rows": work.rows, "steps": work.steps}
        result["works"][name] = {**row, "times": rounds_of(name, work, there, rounds)}
        result["machine"]["load at the end"] = load()
        write_numbers(result, target)
    if "estimators" in wanted and importlib.util.find_spec("sklearn"):
        for script in ("estimators", "search"):
            tell(script)
            result["estimators"] = result.get("estimators", {}) | rows_of(script)
        if gpu_name():
            tell("search on the GPU")
            result["gpu search"] = rows_of("search", "--gpu")
    if "start" in wanted:
        tell("start")
        result["start"] = rows_of("start")
    tell("")
    write_numbers(result, target)
    return result


def rounds_of(name: str, work: Work, peers: dict[str, Peer], rounds: int) -> dict[str, Any]:
    """Start every peer on one row, then let them run in turn."""
    curve = work.group in CURVES
    seconds = GPU_ROUND if work.gpu else CURVE_ROUND if curve else ROUND
    running: dict[str, Process] = {}
    times: dict[str, Any] = {}
    with contextlib.ExitStack() as ending:
        for label, peer in peers.items():
            if (peer.curves or not curve) and (work.gpu or not peer.gpu_only):
                tell(f"{name}: {label} starts")
                running[label] = ending.enter_context(contextlib.closing(Process(peer, name, work, seconds)))
                times[label] = {**running[label].answer(), "us": []}
        for i in range(min(rounds, CURVE_ROUNDS) if curve else rounds):
            tell(f"{name}: round {i + 1}")
            for label, process in running.items():
                if "skipped" not in times[label] and process.took < PATIENCE:
                    time.sleep(REST)
                    answer = process.ask()
                    times[label]["us"] += [answer.pop("us")] if "us" in answer else []
                    times[label] |= answer
        for label, process in running.items():
            times[label] |= {} if "skipped" in times[label] else process.end()
    for row in times.values():
        row.pop("took", None)
        if row["us"]:
            row |= {"median": statistics.median(row["us"]), "low": min(row["us"]), "high": max(row["us"])}
    return times


class Process:
    """A peer's process: every line it gets is a question, every line it prints an answer."""

    def __init__(self, peer: Peer, name: str, work: Work, seconds: float) -> None:
        pin(work)
        module, *rest = peer.command
        command = [sys.executable, "-m", module, name, str(seconds), str(time.time()), *rest]
        self.took, self.errors = 0.0, tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close)
        self.popen = subprocess.Popen(
            command, cwd=HERE, env=environment(work), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def answer(self) -> dict[str, Any]:
        """The next answer; a process that died, or is silent for too long, is one that is skipped."""
        assert self.popen.stdout
        timer = threading.Timer(LIMIT, self.popen.kill)
        timer.start()
        line = self.popen.stdout.readline()
        timer.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            self.took += answer.get("took", 0.0)
            return answer
        self.errors.seek(0)
        last = (self.errors.read().strip().splitlines() or ["no message"])[-1]
        return {"skipped": f"its process ended with status {self.popen.wait()}: {last}", "failed": True}

    def ask(self) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):
            print(file=self.popen.stdin, flush=True)
        return self.answer()

    def end(self) -> dict[str, Any]:
        """Let it finish; its last answer is what memory it took."""
        assert self.popen.stdin
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.close()
        return self.answer()

    def close(self) -> None:
        with self.errors, contextlib.suppress(BrokenPipeError), self.popen:  # closes its pipes and waits
            self.popen.kill()


def pin(work: Work) -> None:
    """Two cores for a CPU row, inherited by its peers: XLA takes as many threads as it sees cores. All for a GPU row."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, CORES if work.gpu else CORES[:THREADS])


CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def environment(work: Work | None = None) -> dict[str, str]:
    """Two threads for every library, the device that is meant, our sources where they are not installed."""
    more = {name: str(THREADS) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    more |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])), "TF_CPP_MIN_LOG_LEVEL": "3"}
    more |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "JAX_ENABLE_COMPILATION_CACHE": "false"}  # a first fit is a first fit
    if work and work.gpu:
        more["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the peers wait on the GPU together
    else:
        more |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **more}


def rows_of(script: str, *more: str) -> dict[str, Any]:
    """What another of these programs measures, in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"{script}.json"
        command = [sys.executable, str(HERE / f"{script}.py"), "--json", str(target), *more]
        run = subprocess.run(command, env=environment(), capture_output=True, text=True)
        if run.returncode:
            return {"failed": (run.stderr.strip().splitlines() or ["no message"])[-1]}
        return json.loads(target.read_text())


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
        "gpu": gpu_name(),
        "python": ".".join(map(str, sys.version_info[:3])),
        **{name: version(name_of) for name, name_of in DISTRIBUTIONS.items() if importlib.util.find_spec(name)},
        "load at the start": load(),
    }


def gpu_name() -> str | None:
    """The GPU here, or None."""
    if not shutil.which("nvidia-smi"):
        return None
    run = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    return next(iter(run.stdout.strip().splitlines()), None) if run.returncode == 0 else None


def load() -> float | None:
    """How many processes wanted a core in the last minute; above `THREADS` the numbers are disturbed."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def tell(text: str) -> None:
    """One line of progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
