"""How often `engine="auto"` takes the engine that is done first: measured over a grid of networks.

    python benchmarks/calibrate.py            prints every cell, and how often the choice was right

The time of a step is the lowest of many short runs, so that other work on the machine does not enter; the time to
compile is processor time, for the same reason. The constants of `pellucid/engines/choose.py` come from here.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from work import write_numbers

import pellucid as pc
from pellucid.engines import get_engine
from pellucid.engines.choose import choose_engine, predict_work
from pellucid.training.loop import Plan, plan_of
from pellucid.training.step import Batch, State

WIDTHS, BATCHES, HIDDEN = (16, 64, 256, 1024), (1, 16, 128, 1024), (1, 2, 6)
STEPS = (30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
LARGEST = 3e9  # operations in a step
SECONDS = 1.0  # for the short runs of one cell on one engine


def prepare(width: int, batch: int, hidden: int, steps: int) -> tuple[Any, ...]:
    """All that `engine.train` takes."""
    rng, optimizer = np.random.default_rng(0), pc.SGD(1e-3)
    layers = [layer for _ in range(hidden) for layer in (pc.Linear(width), pc.ReLU())]
    model = pc.Network(pc.Chain(*layers, pc.Linear(10)), (width,), "softmax_cross_entropy")
    rows = batch * min(steps, 16)
    x, y = rng.standard_normal((rows, width), dtype=np.float32), rng.integers(0, 10, rows).astype(np.int32)
    order = np.concatenate([rng.permutation(rows) for _ in range(-(-steps * batch // rows))])[: steps * batch]
    plan = Plan(*plan_of(order, batch), np.full(steps, 1e-3, np.float32), np.int32(steps))
    state = State(model.params, optimizer.slots(model.params), optimizer.numbers(np.float32), np.int32(0), np.uint32(0))
    return model, optimizer.kind(), state, Batch(x, y, np.ones(rows, np.float32)), plan


def lowest(call: Any) -> float:
    """The shortest of many runs."""
    times, until = list[float](), time.perf_counter() + SECONDS
    while len(times) < 5 or (time.perf_counter() < until and len(times) < 500):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def measure(width: int, batch: int, hidden: int) -> dict[str, Any]:
    """Seconds per step on both engines, seconds to compile, and what was predicted."""
    jax, numpy = get_engine("jax"), get_engine("numpy")
    model = prepare(width, batch, hidden, 1)[0]
    predicted = predict_work(model.net, model.params, batch)
    many = int(np.clip(3e-3 / predicted.jax, 4, 300))
    model, kind, state, data, plan = prepare(width, batch, hidden, many)
    short = plan._replace(count=np.int32(1))
    on_numpy = lowest(lambda: numpy.train(model.net, model.loss, kind, state, data, short))
    began = time.process_time()
    program = jax.chunk.lower(model.net, model.loss, kind, state, data, plan).compile()
    compiling = time.process_time() - began
    state, data, *plans = jax.put((state, data, plan, short))
    long, once = (lowest(lambda p=p: program(state, data, p)[1].block_until_ready()) for p in plans)
    return {
        "width": width, "batch": batch, "hidden": hidden, "numpy": on_numpy, "jax": (long - once) / (many - 1), "compile": compiling,
        "predicted": predicted._asdict(),
    }  # fmt: skip


def judge(cells: list[dict[str, Any]]) -> None:
    """Compare the choice with the measured times, for every number of steps."""
    right, lost, total = 0, [], 0
    for cell in cells:
        model = prepare(cell["width"], cell["batch"], cell["hidden"], 1)[0]
        for steps in STEPS:
            seconds = {"numpy": steps * cell["numpy"], "jax": cell["compile"] + steps * cell["jax"]}
            choice, _ = choose_engine(model.net, model.params, cell["batch"], steps)
            ratio = seconds[choice] / min(seconds.values())
            right, total = right + (ratio == 1), total + 1
            lost.append(ratio)
    print(f"right in {right} of {total} ({right / total:.0%}); time lost: mean {np.mean(lost) - 1:.1%}, worst {max(lost):.2f}×")


def main() -> None:
    target = Path(__file__).resolve().parent.parent / "build" / "calibrate.json"
    if "--reuse" in sys.argv:
        judge(json.loads(target.read_text()))
        return
    import jax  # noqa: F401  (what is compared is a process that has it)

    cells = []
    for width, batch, hidden in itertools.product(WIDTHS, BATCHES, HIDDEN):
        if 6.0 * batch * width * width * hidden <= LARGEST:
            cells.append(measure(width, batch, hidden))
            c, p = cells[-1], cells[-1]["predicted"]
            print(
                f"width {width:5} batch {batch:5} hidden {hidden}: numpy {c['numpy'] * 1e6:9.1f} µs ({p['numpy'] * 1e6:9.1f} predicted), "
                f"jax {c['jax'] * 1e6:9.1f} ({p['jax'] * 1e6:9.1f}), compile {c['compile']:.2f} s ({p['compile']:.2f})",
                flush=True,
            )
    write_numbers(cells, target)
    judge(cells)


if __name__ == "__main__":
    main()
