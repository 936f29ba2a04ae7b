"""This library: Network.fit on the engine named, or on the one "auto" takes for a fit of the usual length."""

from __future__ import annotations

from typing import Any

import numpy as np
from work import LEARNING_RATE, Work

import pellucid as pc
from peers.serve import Trainer, only, serve
from pellucid.engines import has_gpu
from pellucid.engines.choose import choose_engine
from pellucid.training.step import Batch


def network(work: Work) -> pc.Layer:
    if work.kind == "conv":
        images = [layer for units in work.hidden for layer in (pc.Conv2d(units), pc.ReLU(), pc.AvgPool2d())]
        return pc.Chain(*images, pc.Flatten(), pc.Linear(work.classes))
    if work.kind in ("rnn", "lstm"):
        return pc.Chain(*map(pc.RNN if work.kind == "rnn" else pc.LSTM, work.hidden), pc.Linear(work.classes))
    layers = [layer for units in work.hidden for layer in (pc.Linear(units), pc.ReLU())]
    return pc.Chain(*layers, pc.Linear(work.classes))


def prepare(work: Work, X: Any, y: Any, engine: str) -> Trainer:
    only(not work.gpu or engine != "numpy", "the numpy engine has no GPU")
    only(not work.gpu or has_gpu(), "jax has no GPU here")
    model, note = pc.Network(network(work), work.shape, "softmax_cross_entropy"), ""
    if engine == "auto":
        row = Batch(X[:1], y[:1], np.ones(1, np.float32))
        engine, _ = choose_engine(model.net, model.params, work.batch, work.steps, row)
        note = engine
    options: dict[str, Any] = {"batch_size": work.batch, "optimizer": pc.SGD(LEARNING_RATE), "engine": engine, "progress": False}
    return Trainer(lambda epochs: sum(model.fit(X, y, epochs=epochs, **options)["seconds"]) / epochs, note)


if __name__ == "__main__":
    serve(prepare)
