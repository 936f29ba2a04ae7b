"""A dense network does not know the order of its inputs, a recurrent one does (N57).

Each sequence holds ±1 steps of a walk; the class is whether the walk ever falls below −3. A dense network sees the steps as
so many columns: put them into any fixed order, for all rows alike, and it learns just as well. A recurrent network reads
them one after the other with the same weights, so it needs fewer examples; once the order is destroyed it is no better.
"""

from __future__ import annotations

import numpy as np
from common import SHORT, main

import pellucid as pc

STEPS = 24


def draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    steps = rng.choice([-1.0, 1.0], size=(n, STEPS, 1)).astype(np.float32)
    return steps, (steps.cumsum(1).min((1, 2)) < -3).astype(np.int32)


def accuracy(net: pc.Layer, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, seed: int) -> float:
    model = pc.Network(net, (STEPS, 1), "softmax_cross_entropy", seed=seed)
    updates = 20 if SHORT else 2000
    epochs = max(1, updates * 32 // len(X))
    optimizer = pc.AdamW(pc.OneCycle(0.01), clip_norm=1.0)
    model.fit(X, y, epochs=epochs, optimizer=optimizer, engine="jax", progress=False)
    return model.evaluate(X_test, y_test)["accuracy"]


def run(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    X_test, y_test = draw(4000, rng)
    fixed = rng.permutation(STEPS)
    dense = pc.Flatten() >> pc.Linear(32) >> pc.ReLU() >> pc.Linear(32) >> pc.ReLU() >> pc.Linear(2)
    recurrent = pc.GRU(16) >> pc.Linear(2)
    row: dict = {"commoner class": f"{max(y_test.mean(), 1 - y_test.mean()):.3f}"}
    for n in (64,) if SHORT else (100, 400, 1600, 6400):
        X, y = draw(n, rng)
        reached = [
            accuracy(dense, X, y, X_test, y_test, seed),
            accuracy(dense, X[:, fixed], y, X_test[:, fixed], y_test, seed),
            accuracy(recurrent, X, y, X_test, y_test, seed),
        ]
        row[f"{n} rows"] = "  ".join(f"{value:.3f}" for value in reached)
    return row


if __name__ == "__main__":
    main("Order (N57): test accuracy: dense, dense on permuted steps, recurrent", run)
