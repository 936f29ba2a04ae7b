"""The floor: the bare matrix products of a step, by NumPy's BLAS into arrays that are there already. Nothing is learned."""

from __future__ import annotations

from typing import Any

import numpy as np
from work import Work

from peers.serve import Trainer, only, serve, timed

SMALLEST = 1e7  # operations in a step; below, calling the products takes longer than the products


def prepare(work: Work, X: Any, y: Any) -> Trainer:
    only(work.kind == "mlp" and not work.gpu, "the floor is for dense networks on the CPU")
    pairs = list(zip(work.sizes, work.sizes[1:], strict=False))
    only(6 * work.batch * sum(n * m for n, m in pairs) >= SMALLEST, "too small: calls would be measured, not products")
    rng = np.random.default_rng(0)
    W = [rng.normal(0, n**-0.5, pair).astype(np.float32) for pair in pairs for n in pair[:1]]
    a = [X[: work.batch], *(np.ones((work.batch, m), np.float32) for _, m in pairs)]
    dW, da = [np.empty_like(w) for w in W], [np.empty_like(v) for v in a]

    def step() -> None:
        for i, w in enumerate(W):
            np.matmul(a[i], w, out=a[i + 1])
        for i in reversed(range(len(W))):
            np.matmul(a[i].T, da[i + 1], out=dW[i])
            if i:
                np.matmul(da[i + 1], W[i].T, out=da[i])

    def one() -> None:
        for _ in range(work.steps_per_epoch):
            step()

    da[-1][:] = a[-1] / work.batch
    return Trainer(timed(one))


if __name__ == "__main__":
    serve(prepare)
