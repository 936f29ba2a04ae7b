"""Classes that are Gaussian clusters with different covariances (N49).

The best rule is quadratic. A linear classifier cannot follow it, a gated layer, which multiplies two linear
maps, can.
"""

from __future__ import annotations

import numpy as np
from common import SHORT, main
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

import pellucid as pc

MEANS = np.array([[0.0, 0.0], [0.5, 0.5], [-1.0, 1.5]])
SPREADS = np.array([[[0.3, 0.0], [0.0, 0.3]], [[2.0, 1.2], [0.0, 1.0]], [[1.5, 0.0], [-0.8, 0.3]]])


def draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    y = rng.integers(0, 3, n)
    return MEANS[y] + np.einsum("nij,nj->ni", SPREADS[y], rng.normal(size=(n, 2))), y


def exact_rule(X: np.ndarray) -> np.ndarray:
    """The class of largest density: quadratic in x."""
    covariances = SPREADS @ SPREADS.transpose(0, 2, 1)
    d = X[:, None] - MEANS
    quadratic = np.einsum("nci,cij,ncj->nc", d, np.linalg.inv(covariances), d)
    return (-0.5 * quadratic - 0.5 * np.log(np.linalg.det(covariances))).argmax(1)


def run(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    (X, y), (X_test, y_test) = draw(300 if SHORT else 5000, rng), draw(20_000, rng)
    gated = (pc.Linear(12) >> pc.Sigmoid()) * pc.Linear(12) >> pc.Linear(3)
    model = pc.Network(gated, (2,), "softmax_cross_entropy", seed=seed)
    model.fit(X, y, epochs=3 if SHORT else 60, batch_size=64, optimizer=pc.Adam(pc.OneCycle(0.02)))
    return {
        "linear": float(LogisticRegression().fit(X, y).score(X_test, y_test)),
        "gated (N09)": model.evaluate(X_test, y_test)["accuracy"],
        "quadratic, estimated": float(QuadraticDiscriminantAnalysis().fit(X, y).score(X_test, y_test)),
        "quadratic, exact": float((exact_rule(X_test) == y_test).mean()),
    }


if __name__ == "__main__":
    main("Gaussian clusters with different covariances (N49): test accuracy", run)
