"""This library: Network.fit on the engine named, or on the one "auto" takes for a fit of the usual length."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from work import LEARNING_RATE, Work, data_of

import pellucid as pc
from peers.serve import only_mlp, serve
from pellucid.engines.choose import choose_engine

picked: list[str] = []


def mlp(work: Work) -> pc.Layer:
    _, *hidden, classes = work.sizes
    layers = [layer for units in hidden for layer in (pc.Linear(units), pc.ReLU())]
    return pc.Chain(*layers, pc.Linear(classes))


def prepare(work: Work, engine: str) -> Callable[[int], float]:
    only_mlp(work)
    X, y = data_of(work)
    model = pc.Network(mlp(work), (work.sizes[0],), "softmax_cross_entropy")
    if engine == "auto":
        engine, _ = choose_engine(model.net, model.params, work.batch, work.steps)
        picked.append(engine)

    def train(epochs: int) -> float:
        history = model.fit(
            X, y, epochs=epochs, batch_size=work.batch, optimizer=pc.SGD(LEARNING_RATE), engine=engine, progress=False
        )  # fmt: skip
        seconds = [row["seconds"] for row in history.rows]
        return statistics.median(seconds[1:] or seconds) / work.steps_per_epoch

    return train


serve(prepare, lambda: "".join(picked))
