"""Polynomial regression f(x) = w₂x² + w₁x + w₀ by gradient descent, with the closed form beside it (N43)."""

from __future__ import annotations

import numpy as np
from common import SHORT, main

import pellucid as pc


def run(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, 100)
    t = 2 * x**2 - 3 * x + 1 + 0.1 * rng.normal(size=100)
    X = np.stack([x, x**2], axis=1)
    model = pc.Network(pc.Linear(1, init=pc.Zeros()), (2,), "squared_error", dtype="float64")
    stop = pc.EarlyStopping(patience=1, min_delta=1e-14)  # "repeat until L converges"
    history = model.fit(X, t, epochs=200 if SHORT else 20_000, optimizer=pc.GradientDescent(0.3), early_stopping=stop)
    w1, w2 = model.parameters["W"].ravel()
    w0 = model.parameters["b"].item()
    exact = np.linalg.lstsq(np.vander(x, 3), t, rcond=None)[0]
    return {
        "by gradient descent": f"{w2:.6f} x² {w1:+.6f} x {w0:+.6f}",
        "closed form": f"{exact[0]:.6f} x² {exact[1]:+.6f} x {exact[2]:+.6f}",
        "largest difference": float(np.abs(np.array([w2, w1, w0]) - exact).max()),
        "iterations": len(history),
    }


if __name__ == "__main__":
    main("Polynomial regression (N43)", run)
