"""Handwritten digits (N44): the fully connected network of N03, and a convolutional one of fewer than 100,000 parameters."""

from __future__ import annotations

import sys

import numpy as np
from common import SHORT, data_folder, main, outcome

import pellucid as pc
from pellucid.datasets import load_mnist

EPOCHS, BATCH = 15, 128


def dense() -> pc.Layer:
    """softmax(W₂ ReLU(W₁ ReLU(W₀ x))), no biases; dropout while training."""

    def layer(units: int) -> pc.Layer:
        return pc.Linear(units, bias=False, init=pc.He())

    hidden = pc.Dropout(0.1) >> layer(512) >> pc.ReLU() >> pc.Dropout(0.2) >> layer(256) >> pc.ReLU() >> pc.Dropout(0.2)
    return pc.Flatten() >> hidden >> layer(10)


def convolutional() -> pc.Layer:
    """Three convolutions, two poolings, one hidden layer."""
    he = pc.He()
    first = pc.Conv2d(16, 3, init=he) >> pc.ReLU() >> pc.MaxPool2d(2)
    second = pc.Conv2d(32, 3, init=he) >> pc.ReLU() >> pc.Conv2d(32, 3, init=he) >> pc.ReLU() >> pc.MaxPool2d(2)
    return first >> second >> pc.Flatten() >> pc.Dropout(0.3) >> pc.Linear(48, init=he) >> pc.ReLU() >> pc.Linear(10)


NETWORKS = {"dense": dense, "convolutional": convolutional}


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return load_mnist(data_folder("mnist"))


def train(network: str, seed: int) -> dict:
    X, y, X_test, y_test = load()
    model = pc.Network(NETWORKS[network](), (28, 28, 1), "softmax_cross_entropy", seed=seed)
    optimizer = pc.Adam(pc.OneCycle(0.003))
    history = model.fit(X, y, epochs=1 if SHORT else EPOCHS, batch_size=BATCH, optimizer=optimizer)
    return outcome(model, history, test_accuracy=model.evaluate(X_test, y_test)["accuracy"])


if __name__ == "__main__":
    chosen = sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1] in NETWORKS else "dense"
    main(f"MNIST, {chosen} network (N44)", lambda seed: train(chosen, seed))
