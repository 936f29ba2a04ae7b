"""Tabular regression: median house values in California, a fifth of the districts held out."""

from __future__ import annotations

import numpy as np
from common import SHORT, data_folder, main, outcome
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import pellucid as pc
from pellucid.datasets import load_california_housing

NET = pc.Linear(128) >> pc.SiLU() >> pc.Linear(128) >> pc.SiLU() >> pc.Linear(64) >> pc.SiLU() >> pc.Linear(1)
EPOCHS, BATCH = 60, 64


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Counts as logarithms, three ratios, missing numbers of bedrooms filled with the median; values in 100,000 dollars."""
    table = load_california_housing(data_folder("california-housing"))
    column = dict(zip(table.number_names, table.numbers.T, strict=True))
    rooms, people, homes = column["total_rooms"], column["population"], column["households"]
    bedrooms = np.where(np.isnan(column["total_bedrooms"]), np.nanmedian(column["total_bedrooms"]), column["total_bedrooms"])
    place = [column["longitude"], column["latitude"], column["housing_median_age"], column["median_income"]]
    counts = [np.log(c) for c in (rooms, bedrooms, people, homes)]
    numbers = np.stack([*place, *counts, rooms / homes, bedrooms / rooms, people / homes], axis=1)
    y = table.target / 1e5
    train, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=0)
    scale = StandardScaler().fit(numbers[train])
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(table.categories[train])
    X = np.hstack([np.clip(scale.transform(numbers), -5, 5), one_hot.transform(table.categories)]).astype(np.float32)
    return X[train], y[train], X[test], y[test]


def run(seed: int) -> dict:
    X, y, X_test, y_test = load()
    model = pc.Network(NET, X.shape[1:], pc.Huber(0.5), seed=seed)
    optimizer = pc.AdamW(pc.OneCycle(0.004), weight_decay=0.05)
    history = model.fit(X, y, epochs=2 if SHORT else EPOCHS, batch_size=BATCH, optimizer=optimizer)
    return outcome(model, history, **{"test R²": float(r2_score(y_test, model.predict(X_test)))})


if __name__ == "__main__":
    main("California housing", run)
