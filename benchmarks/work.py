"""What is measured: networks, batch sizes, and the data they train on.

A further row is one entry of `WORKS`. A further kind of network is a `kind` here and a function of that name in
every peer that can do it; a peer that cannot is left out of the row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["CURVES", "GROUPS", "LEARNING_RATE", "THREADS", "WORKS", "Work", "data_of", "mlp", "select", "write_numbers"]

THREADS = 2
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Work:
    """One row: a network trained by SGD on softmax cross-entropy in float32.

    mlp    inputs - hidden - … - classes, ReLU between them
    conv   pixels × pixels × 1, then for every size a 3×3 convolution ("same"), ReLU, 2×2 average pooling; linear to the classes
    rnn    a sequence of inputs, tanh units, the last output, linear to the classes; lstm is the same with gates
    """

    shape: tuple[int, ...]  # of one row of data
    hidden: tuple[int, ...]  # units or channels
    classes: int
    batch: int
    rows: int  # rows of data: rows / batch steps in an epoch
    kind: str = "mlp"
    group: str = "cpu"
    at: int = 0  # where on its curve
    steps: int = 20_000  # how long a usual fit of it is: what engine="auto" is told

    @property
    def gpu(self) -> bool:
        return self.group == "gpu"

    @property
    def sizes(self) -> tuple[int, ...]:
        return *self.shape, *self.hidden, self.classes

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.rows // self.batch)

    @property
    def label(self) -> str:
        if self.kind == "conv":
            names = ["×".join(map(str, self.shape)), *(f"conv {c}" for c in self.hidden), str(self.classes)]
        elif self.kind in ("rnn", "lstm"):
            units = "tanh" if self.kind == "rnn" else "LSTM"
            names = [f"{self.shape[0]} steps of {self.shape[1]}", *(f"{u} {units}" for u in self.hidden), str(self.classes)]
        else:
            sizes = self.sizes if len(self.sizes) < 6 else (*self.sizes[:2], "…", self.sizes[-1])
            return f"{'-'.join(map(str, sizes))}, batch {self.batch}"
        return f"{' → '.join(names)}, batch {self.batch}"


def mlp(*sizes: int, batch: int, rows: int, **more: Any) -> Work:
    return Work(sizes[:1], sizes[1:-1], sizes[-1], batch, rows, **more)


def conv(batch: int, rows: int, channels: tuple[int, ...] = (16, 32), **more: Any) -> Work:
    return Work((28, 28, 1), channels, 10, batch, rows, kind="conv", **more)


def rnn(length: int, rows: int, kind: str = "rnn", **more: Any) -> Work:
    return Work((length, 32), (128,), 10, 32, rows, kind=kind, **more)


WORKS: dict[str, Work] = {
    "tiny": mlp(30, 64, 64, 4, batch=32, rows=3200),
    "one": mlp(30, 64, 64, 4, batch=1, rows=500),
    "mid": mlp(100, 256, 256, 10, batch=64, rows=3200, steps=10_000),
    "digits": mlp(784, 512, 256, 10, batch=128, rows=2560, steps=4_000),
    "conv": conv(64, rows=640, steps=4_000),
    "conv-wide": conv(128, rows=1280, channels=(32, 64), steps=2_000),
    "rnn": rnn(64, rows=640, steps=4_000),
    "lstm": rnn(64, rows=320, kind="lstm", steps=4_000),
    "gpu-tiny": mlp(30, 64, 64, 4, batch=32, rows=32_000, group="gpu", steps=100_000),
    "gpu-digits": mlp(784, 512, 256, 10, batch=128, rows=25_600, group="gpu", steps=4_000),
    "gpu-wide": mlp(784, 4096, 4096, 10, batch=1024, rows=40_960, group="gpu", steps=2_000),
    "gpu-conv": conv(128, rows=12_800, group="gpu", steps=4_000),
    "gpu-rnn": rnn(64, rows=3200, group="gpu", steps=4_000),
    "gpu-lstm": rnn(64, rows=3200, kind="lstm", group="gpu", steps=4_000),
    **{f"batch-{n}": mlp(100, 256, 256, 10, batch=n, rows=max(8 * n, 256), group="batch", at=n) for n in (1, 8, 64, 512, 4096)},
    **{f"width-{n}": mlp(n, n, n, 10, batch=64, rows=1280, group="width", at=n) for n in (16, 64, 256, 1024, 4096)},
    **{f"depth-{n}": mlp(64, *[64] * n, 10, batch=64, rows=1280, group="depth", at=n) for n in (1, 4, 16, 64)},
    **{f"sequence-{n}": rnn(n, rows=32 * max(2, min(8, 1024 // n)), group="sequence", at=n) for n in (8, 32, 128, 1024)},
    **{f"rows-{n}": mlp(30, 64, 64, 4, batch=32, rows=n, group="rows", at=n) for n in (1_000, 10_000, 100_000, 1_000_000)},
}
CURVES = {
    "batch": "100-256-256-10, the batch grows",
    "width": "n-n-n-10, batch 64, the width n grows",
    "depth": "hidden layers of 64 units, batch 64, their number grows",
    "sequence": "128 tanh units on steps of 32 inputs, batch 32, the sequence grows",
    "rows": "30-64-64-4, batch 32, the data set grows",
}
GROUPS = ("cpu", "gpu", *CURVES)


def select(names: str) -> dict[str, Work]:
    """The rows meant by a list such as "tiny,mid" or "cpu,width"."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in WORKS and name not in GROUPS:
            raise SystemExit(f"--only: no row or group {name!r}. Groups: {', '.join(GROUPS)}, estimators, start. Rows: {', '.join(WORKS)}.")
    return {name: work for name, work in WORKS.items() if name in wanted or work.group in wanted}


def data_of(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Rows drawn from a normal distribution, classes at random: speed does not depend on what is learned."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((work.rows, *work.shape), dtype=np.float32)
    return X, rng.integers(0, work.classes, work.rows)


def write_numbers(numbers: Any, target: Path) -> None:
    """What was measured, in a file that a program can read again."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(numbers, indent=1) + "\n")
