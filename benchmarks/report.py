"""A run's numbers as tables, a plot and a page; the words follow the numbers."""

from __future__ import annotations

import re
import statistics
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from work import CURVES

__all__ = ["Table", "estimator_tables", "markdown", "plot", "show", "show_tables", "start_table"]

TITLES = {
    "auto": "pellucid",
    "numpy": "numpy engine",
    "jax": "jax engine",
    "autodiff": "JAX autodiff",
    "torch": "PyTorch eager",
    "torch-compile": "torch.compile",
    "torch-graph": "PyTorch CUDA graph",
    "scikit": "scikit-learn",
    "floor": "bare products",
}
OURS, FLOOR = "auto", "floor"
PLACES = {"cpu": "CPU", "gpu": "GPU"}


class Table(NamedTuple):
    """Every cell is text; the best of a row is **marked**."""

    title: str
    head: list[str]
    rows: list[list[str]]


# ---------------------------------------------------------------- tables
def group_of(result: dict[str, Any], group: str) -> dict[str, Any]:
    return {name: work for name, work in result["works"].items() if work["group"] == group}


def peers_of(works: dict[str, Any], *without: str) -> list[str]:
    """Those that have a number, in their usual order."""
    return [p for p in TITLES if p not in without and any("median" in w["times"].get(p, {}) for w in works.values())]


def row_tables(result: dict[str, Any], group: str) -> list[Table]:
    """The tables of the CPU or of the GPU rows."""
    works, place = group_of(result, group), PLACES[group]
    if not works:
        return []
    memory = "device_mb" if group == "gpu" else "peak_mb"
    peers, others, timed = peers_of(works), peers_of(works, OURS, FLOOR), peers_of(works, FLOOR)
    tables = [
        by_peer(f"{place}: how many times as long as pellucid (auto), median (lowest – highest)", works, others, ratio_cell),
        by_peer(f"{place}: microseconds per training step, median (lowest – highest)", works, peers, step_cell),
        by_peer(f"{place}: seconds from starting Python to the end of the first epoch (the fit alone)", works, timed, first_cell),
        by_peer(
            f"{place}: peak memory of the {'GPU' if group == 'gpu' else 'process'}, MiB",
            works,
            timed,
            lambda t, p: memory_cell(t, p, memory),
        ),
    ]
    floored = {name: work for name, work in works.items() if "median" in work["times"].get(FLOOR, {})}
    if floored:
        tables.append(by_peer(f"{place}: the bare matrix products in OpenBLAS, as a share of the step", floored, timed, floor_cell))
    return tables


def curve_tables(result: dict[str, Any]) -> list[Table]:
    tables = []
    for group, title in CURVES.items():
        works = {f"{work['at']:,}": work for work in group_of(result, group).values()}
        if works:
            tables.append(by_peer(f"{group}: {title}; microseconds per step", works, peers_of(works), median_cell, group))
    return tables


def by_peer(title: str, works: dict[str, Any], peers: list[str], cell: Any, corner: str = "network") -> Table:
    rows = []
    for name, work in works.items():
        times = work["times"]
        cells = ["–" if "median" not in times.get(p, {}) else cell(times, p) for p in peers]
        rows.append([f"{name}: {work['label']}" if corner == "network" else name, *cells])
    return Table(title, [corner, *(TITLES[p] for p in peers)], rows)


def median_cell(times: dict[str, Any], peer: str) -> str:
    t = times[peer]
    return mark(times, peer, number(t["median"])) + (f" [{t['note']}]" if t["note"] else "")


def step_cell(times: dict[str, Any], peer: str) -> str:
    t = times[peer]
    note = f" [{t['note']}]" if t["note"] else ""
    return f"{mark(times, peer, number(t['median']))} ({number(t['low'])} – {number(t['high'])}){note}"


def ratio_cell(times: dict[str, Any], peer: str) -> str:
    if "median" not in times.get(OURS, {}):
        return "–"
    low, middle, high = ratios(times, peer)
    text = f"{middle:.2f}× ({low:.2f} – {high:.2f})"
    return f"**{text}**" if high < 1 else text


def first_cell(times: dict[str, Any], peer: str) -> str:
    return f"{times[peer]['first']:.2f} ({times[peer]['fit']:.2f})"


def memory_cell(times: dict[str, Any], peer: str, key: str) -> str:
    return "–" if times[peer].get(key) is None else f"{times[peer][key]:,.0f}"


def floor_cell(times: dict[str, Any], peer: str) -> str:
    return f"{times[FLOOR]['median'] / times[peer]['median']:.0%}"


def mark(times: dict[str, Any], peer: str, text: str) -> str:
    """The quickest of a row stands out."""
    quickest = min((t["median"], p) for p, t in times.items() if "median" in t and p != FLOOR)[1]
    return f"**{text}**" if peer == quickest else text


def ratios(times: dict[str, Any], peer: str) -> tuple[float, float, float]:
    """Lowest, median and highest of peer ÷ pellucid, round by round: both ran one after the other."""
    pairs = [theirs / ours for theirs, ours in zip(times[peer]["us"], times[OURS]["us"], strict=False)]
    return min(pairs), statistics.median(pairs), max(pairs)


def number(us: float) -> str:
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def import_table(result: dict[str, Any]) -> Table:
    return Table("Seconds to import", ["", *result["imports"]], [["import", *(f"{s:.2f}" for s in result["imports"].values())]])


def start_table(rows: dict[str, Any]) -> Table:
    """A new process, with and without programs on disk."""
    title = "Seconds that the first epoch of a new process takes longer than a later one, JAX's import included"
    cells = []
    for name, row in rows.items():
        spans = [f"{middle:.2f} ({low:.2f} – {high:.2f})" for low, middle, high in (row["cold"], row["warm"])]
        cells.append([name, *spans, f"≤ {row['wanted']:.2f}" if row["wanted"] else ""])
    return Table(title, ["network", "nothing on disk", "programs on disk", "aim"], cells)


def start_tables(result: dict[str, Any]) -> list[Table]:
    return [start_table(result["start"])] if result.get("start") and "failed" not in result["start"] else []


def estimator_table(rows: dict[str, Any], title: str) -> Table:
    """`MLPClassifier`, and a search with it, here and in scikit-learn."""
    cells = []
    for name, row in rows.items():
        if "ratio" in row:
            best = f"**{times(row['ratio'])}**" if row["ratio"] < 1 else times(row["ratio"])
            cells.append([name, milliseconds(row["ours"]), milliseconds(row["theirs"]), best, f"≤ {times(row['wanted'])}"])
        else:
            cells.append([name, f"{row['added GB']:.2f} GB", "", "", f"≤ {row['wanted']:.2f} GB"])
    return Table(title, ["", "pellucid", "scikit-learn", "ratio", "aim"], cells)


def times(ratio: float) -> str:
    return f"{ratio:.2f}×" if ratio >= 0.1 else f"{ratio:.3f}×"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.2f} ms"


def estimator_tables(result: dict[str, Any]) -> list[Table]:
    titles = {"estimators": "MLPClassifier beside scikit-learn's", "gpu search": "A search on the GPU beside scikit-learn's, n_jobs=2"}
    return [estimator_table(result[key], title) for key, title in titles.items() if result.get(key) and "failed" not in result[key]]


# ---------------------------------------------------------------- words
def summary(result: dict[str, Any]) -> list[str]:
    """What the numbers say, one sentence each."""
    lines = []
    for group, place in PLACES.items():
        works = {name: w for name, w in group_of(result, group).items() if "median" in w["times"].get(OURS, {})}
        for peer in peers_of(works, OURS, "numpy", "jax", FLOOR):
            found = {name: ratios(w["times"], peer) for name, w in works.items() if "median" in w["times"].get(peer, {})}
            low, high = min(r[1] for r in found.values()), max(r[1] for r in found.values())
            span = f"{low:.2f} to {high:.2f}" if len(found) > 1 else f"{low:.2f}"
            quicker = ", ".join(name for name, r in found.items() if r[2] < 1)
            what = f"On the {place}, {TITLES[peer]} takes {span} times as long as pellucid"
            lines.append(
                f"{what} ({len(found)} network{'s' * (len(found) > 1)}); "
                + (f"quicker in every round on {quicker}." if quicker else "quicker in every round on none.")
            )
        right = [name for name, w in works.items() if w["times"][OURS]["median"] <= 1.1 * fastest_engine(w["times"])]
        if works:
            lines.append(f'On the {place}, `engine="auto"` is within 10 % of the faster engine on {len(right)} of {len(works)} networks.')
        for name, work in works.items():
            if "median" in work["times"].get(FLOOR, {}):
                share = work["times"][FLOOR]["median"] / fastest_engine(work["times"])
                lines.append(f"On {name}, the bare matrix products alone take {share:.0%} of the time of our faster engine.")
    for group in CURVES:
        curve = list(group_of(result, group).values())
        if len(curve) > 1:
            first, *_, last = curve
            spans = [
                f"{TITLES[p]} from {number(first['times'][p]['median'])} to {number(last['times'][p]['median'])} µs"
                for p in (OURS, "autodiff", "torch") if all("median" in w["times"].get(p, {}) for w in (first, last))
            ]  # fmt: skip
            lines.append(f"From {group} {first['at']:,} to {last['at']:,}, a step goes " + ", ".join(spans) + ".")
    rows = [row for row in result.get("estimators", {}).values() if isinstance(row, dict)]
    if rows:
        met = sum(row.get("ratio", row.get("added GB")) <= row["wanted"] for row in rows)
        lines.append(f"The estimators meet {met} of {len(rows)} aims.")
    for name, row in result.get("start", {}).items():
        if isinstance(row, dict) and row["wanted"]:
            before, after = (f"{row[how][1]:.2f} s" for how in ("cold", "warm"))
            lines.append(
                f"In a new process, the first epoch of {name} takes {before} longer than a later one, {after} with its program on disk."
            )
    return lines


def fastest_engine(times: dict[str, Any]) -> float:
    return min(times[p]["median"] for p in (OURS, "numpy", "jax") if "median" in times.get(p, {}))


def remarks(result: dict[str, Any]) -> list[str]:
    """What a reader must know to trust the numbers."""
    lines = [machine_line(result["machine"])]
    elsewhere = result.get("gpu machine", result["machine"])
    if elsewhere["date"] != result["machine"]["date"] or elsewhere["gpu"] != result["machine"].get("gpu"):
        lines.append(f"GPU rows: {machine_line(elsewhere)}")
    if (result["machine"]["load at the start"] or 0) > 1 or (result["machine"].get("load at the end") or 0) > result["machine"][
        "cores used"
    ] + 1:
        lines.append("The machine was busy with other things: wide ranges and slow threads are its doing; measure again when it is quiet.")
    if result["missing"]:
        lines.append(f"Not installed, so left out: {', '.join(TITLES[p] for p in result['missing'])}.")
    if result.get("without gpu") and not group_of(result, "gpu"):
        lines.append("There is no GPU here: its rows were left out.")
    for name, work in result["works"].items():
        lines += [f"{TITLES[p]} failed on {name}: {t['skipped']}" for p, t in work["times"].items() if t.get("failed")]
    for part in ("estimators", "start"):
        if "failed" in result.get(part, {}):
            lines.append(f"benchmarks/{part}.py failed: {result[part]['failed']}")
    return lines


def machine_line(machine: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in machine.items() if value is not None) + "."


# ---------------------------------------------------------------- terminal
def show(result: dict[str, Any]) -> None:
    """Print the tables; in a pipe they are plain text."""
    tables = [
        *row_tables(result, "cpu"),
        *row_tables(result, "gpu"),
        *curve_tables(result),
        import_table(result),
        *start_tables(result),
        *estimator_tables(result),
    ]
    show_tables(tables, [*(f"• {line}" for line in summary(result)), "", *remarks(result)])


def show_tables(tables: list[Table], lines: list[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=200, no_color=True)
    for title, head, rows in tables:
        table = RichTable(title=title, box=box.SIMPLE, title_justify="left", title_style="bold")
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if i else "left", style="cyan" if i == 0 else "")
        for row in rows:
            table.add_row(*(Text(cell.replace("**", ""), "bold green" if "**" in cell else "") for cell in row))
        console.print(table)
    for line in lines:
        console.print(line, highlight=False, markup=False)


# ---------------------------------------------------------------- page
METHOD = """\
Every library trains the same networks on the same rows: SGD, softmax cross-entropy, float32, each in its own process. On the
CPU, all have two threads on two cores; on the GPU, float32 products may use TF32 everywhere. The processes take turns, round by
round, so that a disturbance hits all alike; ratios are taken within a round. A time is that of a round divided by its steps: some
epochs at which nobody looks, with the data already where the device has them, the rows in a new order for each; the round ends when
its result is there. scikit-learn is timed by its own `fit`. JAX is written by hand with automatic differentiation: a
compiled scan over an epoch (images: or compiled steps, whichever is quicker, in brackets). PyTorch is a loop over tensors (images:
channels first or last, whichever is quicker, in brackets), `torch.compile` the same with network and loss compiled, and the CUDA graph
holds the whole step, from gathering the rows to the update. `pellucid` is `engine="auto"`: in brackets stands the engine it takes for a
fit of the usual length. In bold: the quickest of a row, and ratios below one in every round."""


def markdown(result: dict[str, Any], picture: bool = False) -> str:
    """The page docs/performance.md."""
    parts = [
        "# Performance",
        "This page is written by `make bench` (`python benchmarks/bench.py --all --write-docs`): one run on one machine. Run it on yours.",
        *(["![How long every library takes, and how that grows](performance.png)"] if picture else []),
        "\n".join(f"- {line}" for line in summary(result)),
        "## How it is measured",
        METHOD,
    ]
    sections = {
        "On the CPU": row_tables(result, "cpu"),
        "On the GPU": row_tables(result, "gpu"),
        "How it grows": curve_tables(result),
        "Estimators": estimator_tables(result),
        "Starting": [import_table(result), *start_tables(result)],
    }
    for section, tables in sections.items():
        parts += [f"## {section}"] if tables else []
        for title, head, rows in tables:
            title = re.sub(r"^[CG]PU: ", "", title)
            lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
            parts += [f"### {title[0].upper()}{title[1:]}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join([*parts, "## Measured on", *remarks(result)]) + "\n"


# ---------------------------------------------------------------- plot
COLOURS = {
    "auto": "#1b5e9e", "numpy": "#7fb3e0", "jax": "#3d8fd1", "autodiff": "#8e5bb5", "torch": "#e4572e", "torch-compile": "#f29e6d",
    "torch-graph": "#b23a1a", "scikit": "#e9b44c", "floor": "#9a9a9a",
}  # fmt: skip


def plot(result: dict[str, Any], path: Path) -> bool:
    """Bars of ratios for the rows, lines for the scaling curves; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [group for group in PLACES if any("median" in w["times"].get(OURS, {}) for w in group_of(result, group).values())]
    curves = [group for group in CURVES if group_of(result, group)]
    lines = -(-len(curves) // 3)
    if not bars and not curves:
        return False
    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
    }
    with pyplot.rc_context({**style, "axes.titlelocation": "left", "axes.axisbelow": True, "grid.color": "#e3e3e3", "grid.linewidth": 0.7}):
        figure = pyplot.figure(figsize=(11, 3.4 * len(bars) + 3.0 * lines), layout="constrained")
        grid = figure.add_gridspec(len(bars) + lines, 3, height_ratios=[1.15] * len(bars) + [1] * lines)
        for i, group in enumerate(bars):
            draw_bars(figure.add_subplot(grid[i, :]), group_of(result, group), PLACES[group])
        for i, group in enumerate(curves):
            axis = figure.add_subplot(grid[len(bars) + i // 3, i % 3])
            draw_curve(axis, group_of(result, group), group)
        if curves:
            names = peers_of({name: w for name, w in result["works"].items() if w["group"] in CURVES})
            handles = [pyplot.Line2D([], [], color=COLOURS[p], marker="o", lw=2.4 if p == OURS else 1.4, label=TITLES[p]) for p in names]
            if len(curves) % 3:
                corner = figure.add_subplot(grid[-1, len(curves) % 3])
                corner.axis("off")
                corner.legend(handles=handles, loc="center left", frameon=False, title="µs per training step", alignment="left")
            else:
                figure.axes[-1].legend(handles=handles, fontsize="x-small", frameon=False)
        figure.savefig(path, dpi=130)
        pyplot.close(figure)
    return True


def draw_bars(axis: Any, works: dict[str, Any], place: str) -> None:
    """peer ÷ pellucid for every row: up is slower than pellucid, down is quicker."""
    peers = peers_of(works, OURS)
    width = 0.84 / max(len(peers), 1)
    axis.set_yscale("log")
    for i, peer in enumerate(peers):
        there = [(x, w["times"]) for x, w in enumerate(works.values()) if all("median" in w["times"].get(p, {}) for p in (peer, OURS))]
        if not there:
            continue
        xs = [x + (i + 0.5) * width - 0.42 for x, _ in there]
        lows, middles, highs = zip(*(ratios(times, peer) for _, times in there), strict=True)
        axis.bar(xs, [m - 1 for m in middles], width * 0.92, bottom=1, color=COLOURS[peer], label=TITLES[peer])
        axis.vlines(xs, lows, highs, color="#333333", lw=0.8)
        for x, low, m, high in zip(xs, lows, middles, highs, strict=True):
            text = f"{m:.0f}" if m >= 9.95 else f"{m:.1f}" if m >= 1.95 else f"{m:.2f}"
            at = {"y": 1.06 * high, "va": "bottom"} if m >= 1 else {"y": low / 1.06, "va": "top"}
            axis.text(x, s=text, ha="center", fontsize=6.5, color="#333333", **at)
    axis.axhline(1, color=COLOURS[OURS], lw=1.6)
    low, high = axis.get_ylim()
    low, high = min(low, 0.7) / 1.2, max(1.3 * high, 2.5)
    axis.set_ylim(low, high)
    axis.minorticks_off()
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low <= tick <= high]
    axis.set_yticks(ticks, [f"{tick:g}×" for tick in ticks])
    axis.yaxis.grid(True)
    letters = 150 // len(works)  # there is room for
    labels = ["\n".join([name, *(textwrap.fill(part, letters) for part in work["label"].split(", "))]) for name, work in works.items()]
    axis.set_xticks(range(len(works)), labels, fontsize=7.5)
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-0.55, len(works) - 0.45)
    axis.set_title(f"{place}: time of a training step, pellucid = 1", pad=22)
    corner = {"loc": "lower left", "bbox_to_anchor": (-0.01, 0.99), "borderaxespad": 0.2, "columnspacing": 1.2, "handlelength": 1}
    axis.legend(ncols=len(peers), fontsize=7.5, frameon=False, **corner)


def draw_curve(axis: Any, works: dict[str, Any], group: str) -> None:
    for peer in reversed(peers_of(works)):  # ours on top
        points = [(w["at"], w["times"][peer]) for w in works.values() if "median" in w["times"].get(peer, {})]
        xs = [x for x, _ in points]
        axis.fill_between(xs, [t["low"] for _, t in points], [t["high"] for _, t in points], color=COLOURS[peer], alpha=0.15, lw=0)
        axis.loglog(xs, [t["median"] for _, t in points], marker="o", ms=3.5, color=COLOURS[peer], lw=2.4 if peer == OURS else 1.4)
    axis.set_title(group, pad=16)
    axis.text(0, 1.02, CURVES[group], transform=axis.transAxes, fontsize=7, color="#666666", va="bottom", in_layout=False)
    axis.set_xticks([w["at"] for w in works.values()], [short(w["at"]) for w in works.values()])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda value, _: f"{short(value)}")
    axis.grid(True, which="major")


def short(value: float) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e4 else f"{value:g}"
