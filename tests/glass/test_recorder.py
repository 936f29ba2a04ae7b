"""Promises of the flight recorder."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid as pc
from pellucid.glass import FlightRecorder, replay

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 5)).astype("float32")
Y = X @ RNG.normal(size=5)


class Exponential(pc.Layer):
    """Forward   y = eˣ.

    Backward  dx = dy ⊙ y
    """

    def forward(self, ops, p, x):
        y = ops.xp.exp(x)
        return y, y

    def backward(self, ops, p, y, dy, wrt_input=True):
        return dy * y, {}


def crash(net, y, optimizer, path, loss="squared_error", X=X, engine="numpy", prepare=None, **options):
    recorder, model = FlightRecorder(path), pc.Network(net, X.shape[1:], loss)
    if prepare:
        prepare(model)
    with pytest.raises(pc.NonFiniteError) as caught:
        model.fit(X, y, epochs=30, optimizer=optimizer, engine=engine, progress=False, callbacks=recorder, **options)
    return model, recorder.flight, caught.value


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_divergence_is_followed_to_the_layer_that_overflowed(tmp_path, engine):
    net = pc.Linear(16) >> pc.ReLU() >> pc.Linear(1).named("out")
    _, flight, error = crash(net, Y, pc.SGD(0.5), tmp_path / "f", engine=engine)
    last = flight.chain[-1]
    assert last.bad
    assert "overflow" in last.events
    assert last.place.startswith("out Linear(1)")
    assert error.layer == "net.out"
    assert "smaller learning rate" in flight.advice
    losses = [step["loss"] for step in flight.steps]
    assert losses[-2] > 1e6 > losses[0]
    assert "How it came to that" in "".join(error.__notes__)


def test_chain_names_the_exponential_and_what_went_into_it(tmp_path):
    """eˣ overflows float32 beyond log(3.4e38) = 88.7."""
    X = np.ones((8, 1), "float32")
    X[3] = 9.5
    net = pc.Linear(1, bias=False) >> Exponential() >> pc.Linear(1)
    _, flight, error = crash(
        net, np.zeros(8), pc.SGD(1e-30), tmp_path / "f", X=X, prepare=lambda m: m.set_parameters({"0.W": [[10.0]]}), batch_size=8
    )
    assert [str(item) for item in flight.chain] == [
        "input: x up to 9.5",
        "0 Linear(1, bias=False): output up to 95",
        "1 Exponential(): output → overflow → not finite",
    ]
    assert flight.chain[-1].events == ("overflow",)
    assert error.rows == [3]


def test_logarithm_of_zero_is_blamed_on_the_loss(tmp_path):
    net = pc.Linear(16) >> pc.Tanh() >> pc.Linear(1) >> pc.Sigmoid()
    _, flight, error = crash(net, (Y > 0).astype(float), pc.SGD(50.0), tmp_path / "f", loss="binary_cross_entropy")
    assert flight.chain[-1].place == "loss BinaryCrossEntropy()"
    assert "divide by zero" in flight.chain[-1].events
    assert "SigmoidCrossEntropy" in flight.advice
    assert error.layer == "loss"


def test_unscaled_inputs_are_blamed_first(tmp_path):
    _, flight, _ = crash(pc.Linear(8) >> pc.ReLU() >> pc.Linear(1), Y, pc.SGD(0.1), tmp_path / "f", X=X * 1e6)
    assert "scale the inputs" in flight.advice


def test_a_file_replays_the_step(tmp_path):
    optimizer = pc.SGD(0.5, momentum=0.5)
    model, flight, _ = crash(pc.Linear(16) >> pc.ReLU() >> pc.Linear(1), Y, optimizer, tmp_path / "f")
    again = replay(tmp_path / "f", pc.Network(model.net, 5, model.loss, seed=9), optimizer)
    assert str(again) == str(flight)
    np.testing.assert_array_equal(again.trace["0"].y, flight.trace["0"].y)
    np.testing.assert_array_equal(again.state.params[0]["W"], model.params[0]["W"])


def test_a_wrong_file_is_refused(tmp_path):
    model, _, _ = crash(pc.Linear(16) >> pc.ReLU() >> pc.Linear(1), Y, pc.SGD(0.5), tmp_path / "f")
    with pytest.raises(ValueError, match="belongs to Linear"):
        replay(tmp_path / "f", pc.Network(pc.Linear(1), 5))
    (tmp_path / "g").write_bytes(b"no")
    with pytest.raises(ValueError, match="no flight record"):
        replay(tmp_path / "g", model)
    with pytest.raises(ValueError, match="carries no step"):
        pc.NonFiniteError(1, 1, "", "the loss", []).report()


def test_without_a_recorder_the_error_can_still_report():
    model = pc.Network(pc.Linear(16) >> pc.ReLU() >> pc.Linear(1), 5)
    with pytest.raises(pc.NonFiniteError) as caught:
        model.fit(X, Y, epochs=30, optimizer=pc.SGD(0.5), engine="numpy", progress=False)
    assert "overflow" in str(caught.value.report())
