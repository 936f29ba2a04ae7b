"""Ctrl-C in the middle of an epoch."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import pellucid as pc

rng = np.random.default_rng(0)
X, y = rng.normal(size=(100, 5)), rng.integers(0, 3, 100)
OPTIONS = {"epochs": 4, "batch_size": 16, "optimizer": pc.Adam(pc.OneCycle(1e-2)), "validation": 0.2}


def network() -> pc.Network:
    return pc.Network(pc.Linear(8) >> pc.ReLU() >> pc.Dropout(0.2) >> pc.Linear(3), (5,), "softmax_cross_entropy", seed=3)


class Watch(pc.Callback):
    """All three fits are watched: under JAX, coming back after every step may round the last bit differently."""

    def __init__(self, interrupts: bool) -> None:
        self.interrupts = interrupts

    def batch_end(self, run, batch, loss):
        if self.interrupts and run.epoch == 2 and batch == 3:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_a_fit_interrupted_in_the_middle_of_an_epoch_resumes_exactly(engine, tmp_path):
    options = {**OPTIONS, "engine": engine}
    whole, interrupted, resumed = network(), network(), network()
    whole.fit(X, y, callbacks=Watch(False), **options)
    history = interrupted.fit(X, y, checkpoint=tmp_path / "run.ckpt", callbacks=Watch(True), **options)
    assert history.stopped == "interrupted by Ctrl-C"
    history = resumed.fit(X, y, checkpoint=tmp_path / "run.ckpt", resume=True, callbacks=Watch(False), **options)
    assert len(history) == 4
    for name, weights in whole.parameters.items():
        np.testing.assert_array_equal(resumed.parameters[name], weights)
