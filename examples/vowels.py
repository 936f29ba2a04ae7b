"""Sequences of different length: which of nine speakers said the vowels (N47)."""

from __future__ import annotations

import numpy as np
from common import SHORT, data_folder, main, outcome

import pellucid as pc
from pellucid.datasets import load_japanese_vowels

NET = pc.GRU(64, bidirectional=True) >> pc.Dropout(0.5) >> pc.Linear(9)
EPOCHS, BATCH = 60, 18


def load() -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray], np.ndarray]:
    """Frames standardised with the mean and deviation of the training frames."""
    X, y, X_test, y_test = load_japanese_vowels(data_folder("japanese-vowels"))
    frames = np.concatenate(X)
    mean, deviation = frames.mean(0), frames.std(0)
    return [(x - mean) / deviation for x in X], y, [(x - mean) / deviation for x in X_test], y_test


def run(seed: int) -> dict:
    X, y, X_test, y_test = load()
    model = pc.Network(NET, (None, 12), "softmax_cross_entropy", seed=seed)
    optimizer = pc.AdamW(pc.OneCycle(0.005), weight_decay=0.05, clip_norm=1.0)
    history = model.fit(X, y, epochs=2 if SHORT else EPOCHS, batch_size=BATCH, optimizer=optimizer)
    return outcome(model, history, test_accuracy=model.evaluate(X_test, y_test)["accuracy"])


if __name__ == "__main__":
    main("Japanese vowels (N47)", run)
