"""What is measured: networks, batch sizes, and the data they train on.

A further row is one entry of `WORKS`. A further kind of network is a `kind` here and a function of that name in
every peer that can do it; a peer that cannot is left out of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["LEARNING_RATE", "THREADS", "WORKS", "Work", "data_of", "select"]

THREADS = 2
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Work:
    """One row: a network trained by SGD on softmax cross-entropy in float32."""

    sizes: tuple[int, ...]  # inputs, hidden units, classes
    batch: int
    rows: int  # rows of data: rows / batch steps in an epoch
    kind: str = "mlp"  # Linear and ReLU in turn
    group: str = "cpu"
    steps: int = 20_000  # how long a usual fit of it is: what engine="auto" is told

    @property
    def label(self) -> str:
        shown = self.sizes if len(self.sizes) < 6 else (*self.sizes[:2], "…", self.sizes[-1])
        return f"{'-'.join(map(str, shown))}, batch {self.batch}"

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.rows // self.batch)


WORKS: dict[str, Work] = {
    "tiny": Work((30, 64, 64, 4), batch=32, rows=3200),
    "one": Work((30, 64, 64, 4), batch=1, rows=500),
    "mid": Work((100, 256, 256, 10), batch=64, rows=3200, steps=10_000),
    "digits": Work((784, 512, 256, 10), batch=128, rows=2560, steps=4_000),
    # scaling curves: measured when their group is asked for, as in --only width
    **{f"batch-{n}": Work((100, 256, 256, 10), n, max(20 * n, 256), group="batch") for n in (1, 8, 64, 512, 4096)},
    **{f"width-{n}": Work((n, n, n, 10), 64, 1280, group="width") for n in (16, 64, 256, 1024, 4096)},
    **{f"depth-{n}": Work((64, *[64] * n, 10), 64, 1280, group="depth") for n in (1, 4, 16, 64)},
    **{f"rows-{n}": Work((30, 64, 64, 4), 32, n, group="rows") for n in (1_000, 10_000, 100_000, 1_000_000)},
}


def select(names: str) -> dict[str, Work]:
    """The rows meant by a list such as "tiny,mid" or "cpu,width"."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    groups = {work.group for work in WORKS.values()}
    for name in wanted:
        if name not in WORKS and name not in groups:
            raise SystemExit(f"--only: no row or group {name!r}. Rows: {', '.join(WORKS)}. Groups: {', '.join(sorted(groups))}.")
    return {name: work for name, work in WORKS.items() if name in wanted or work.group in wanted}


def data_of(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Rows drawn from a normal distribution, classes at random: speed does not depend on what is learned."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((work.rows, work.sizes[0]), dtype=np.float32)
    return X, rng.integers(0, work.sizes[-1], work.rows)
