"""Tabular classification: who earns more than 50,000 a year (adult census data)."""

from __future__ import annotations

import numpy as np
from common import SHORT, data_folder, main, outcome
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import pellucid as pc
from pellucid.datasets import Table, load_adult

NET = pc.Linear(64) >> pc.ReLU() >> pc.Dropout(0.3) >> pc.Linear(64) >> pc.ReLU() >> pc.Dropout(0.3) >> pc.Linear(1)
EPOCHS, BATCH = 15, 128


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Numbers as they are and as logarithms, both standardised; categories one-hot."""
    train, test = load_adult(data_folder("adult"))
    plain, logs = StandardScaler().fit(train.numbers), StandardScaler().fit(np.log1p(train.numbers))
    one_hot = OneHotEncoder(handle_unknown="ignore", min_frequency=20, sparse_output=False).fit(train.categories)

    def features(t: Table) -> np.ndarray:
        parts = [plain.transform(t.numbers), logs.transform(np.log1p(t.numbers)), one_hot.transform(t.categories)]
        return np.hstack(parts).astype(np.float32)

    return features(train), train.target, features(test), test.target


def run(seed: int) -> dict:
    X, y, X_test, y_test = load()
    model = pc.Network(NET, X.shape[1:], "sigmoid_cross_entropy", seed=seed)
    history = model.fit(X, y, epochs=2 if SHORT else EPOCHS, batch_size=BATCH, optimizer=pc.AdamW(pc.OneCycle(0.003)))
    return outcome(model, history, test_accuracy=model.evaluate(X_test, y_test)["accuracy"])


if __name__ == "__main__":
    main("Adult census income", run)
