"""A run's numbers as a table, a plot and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["markdown", "plot", "show"]

TITLES = {
    "auto": "pellucid",
    "numpy": "numpy engine",
    "jax": "jax engine",
    "autodiff": "JAX autodiff + scan",
    "torch": "PyTorch eager",
    "torch-compile": "torch.compile",
    "scikit": "scikit-learn",
}
OURS = "auto"

Table = tuple[str, list[str], list[list[str]]]  # title, head, rows


def tables(result: dict[str, Any]) -> list[Table]:
    """All tables of a run; every cell is text."""
    peers, works = result["peers"], result["works"]
    heads = [TITLES[p] for p in peers]
    return [
        ("Microseconds per training step: median (lowest – highest)", ["network", *heads], by_peer(works, peers, step_cell)),
        ("How many times as long as pellucid (auto)", ["network", *heads[1:]], by_peer(works, peers[1:], ratio_cell)),
        ("Seconds until the first epoch is done, compilation included", ["network", *heads], by_peer(works, peers, first_cell)),
        ("Peak memory of the process, MiB", ["network", *heads], by_peer(works, peers, memory_cell)),
        ("Seconds to import", ["", *result["imports"]], [["", *(f"{s:.2f}" for s in result["imports"].values())]]),
    ]


def by_peer(works: dict[str, Any], peers: list[str], cell: Any) -> list[list[str]]:
    rows = []
    for name, work in works.items():
        cells = ["–" if "median" not in work["times"][p] else cell(work["times"], p) for p in peers]
        rows.append([f"{name}: {work['label']}", *cells])
    return rows


def step_cell(times: dict[str, Any], peer: str) -> str:
    t = times[peer]
    picked = f" [{t['note']}]" if t["note"] else ""
    return f"{number(t['median'])} ({number(t['low'])} – {number(t['high'])}){picked}"


def ratio_cell(times: dict[str, Any], peer: str) -> str:
    return f"{times[peer]['median'] / times[OURS]['median']:.2f}×"


def first_cell(times: dict[str, Any], peer: str) -> str:
    return f"{times[peer]['first']:.2f}"


def memory_cell(times: dict[str, Any], peer: str) -> str:
    return f"{times[peer]['peak_mb']:.0f}"


def number(us: float) -> str:
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def remarks(result: dict[str, Any]) -> list[str]:
    """What a reader must know to trust the numbers."""
    m = result["machine"]
    lines = [", ".join(f"{key} {value}" for key, value in m.items() if value is not None) + "."]
    if max(m.get(f"load at the {when}") or 0 for when in ("start", "end")) > m["cores used"] + 2:
        lines.append("The machine was busy with other things: wide ranges and slow threads are its doing; measure again when it is quiet.")
    if result["missing"]:
        lines.append(f"Not installed, so left out: {', '.join(TITLES[p] for p in result['missing'])}.")
    return lines


def show(result: dict[str, Any]) -> None:
    """Print the tables; in a pipe they are plain text."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    if not console.is_terminal:
        console = Console(width=200, no_color=True)
    for title, head, rows in tables(result):
        table = RichTable(title=title, box=box.SIMPLE, title_justify="left", title_style="bold")
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if i else "left")
        for row in rows:
            table.add_row(*(cell.replace("[", r"\[") for cell in row))
        console.print(table)
    for line in remarks(result):
        console.print(line, highlight=False)


def plot(result: dict[str, Any], path: Path) -> bool:
    """Bars for the single rows, lines for scaling curves; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups: dict[str, list[str]] = {}
    for name, work in result["works"].items():
        groups.setdefault(work["group"], []).append(name)
    figure, axes = pyplot.subplots(1, len(groups), figsize=(7 * len(groups), 4.5), squeeze=False)
    for axis, (group, names) in zip(axes[0], groups.items(), strict=True):
        curve = all(name.startswith(f"{group}-") for name in names)
        for i, peer in enumerate(result["peers"]):
            times = [result["works"][name]["times"][peer].get("median", float("nan")) for name in names]
            if curve:
                axis.loglog([int(name.split("-")[1]) for name in names], times, marker="o", label=TITLES[peer])
            else:
                width = 0.8 / len(result["peers"])
                axis.bar([x + (i + 0.5) * width - 0.4 for x in range(len(names))], times, width, label=TITLES[peer])
        if not curve:
            axis.set_xticks(range(len(names)), names)
            axis.set_yscale("log")
        axis.set_xlabel(group if curve else "")
        axis.set_ylabel("µs per training step")
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return True


def markdown(result: dict[str, Any]) -> str:
    """The page docs/performance.md."""
    parts = [
        "# Performance",
        "This page is written by `make bench` (`python benchmarks/bench.py --write-docs`): one run on one machine. Run it on yours.",
        "Every library trains the same networks on the same rows: SGD, ReLU, softmax cross-entropy, float32, two threads on two "
        "cores, each in its own process. The processes take turns, round by round, so that a disturbance hits all alike. "
        "scikit-learn is timed by its own `fit`; PyTorch by a plain loop over tensors; JAX by a hand-written scan over an epoch "
        "with automatic differentiation; ours by the seconds per epoch in the history, from the second epoch on. "
        '`pellucid` is `engine="auto"`: in brackets stands the engine it takes for a fit of the usual length.',
    ]
    for title, head, rows in tables(result):
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        parts += [f"## {title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join([*parts, "## Measured on", *remarks(result)]) + "\n"
