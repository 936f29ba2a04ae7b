"""The doctor: silent on a dozen healthy runs, right first finding on a dozen planted faults."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_friedman1, make_moons

import pellucid as pc
from pellucid.glass import Doctor, Finding

DIGITS, LABELS = load_digits(return_X_y=True)
DIGITS, LABELS = (DIGITS[:600] / 16).astype("float32"), LABELS[:600]
MOONS, SIDES = make_moons(400, noise=0.1, random_state=0)
FRIEDMAN, ANSWERS = make_friedman1(400, random_state=0)
ANSWERS = (ANSWERS - ANSWERS.mean()) / ANSWERS.std()
TONES = np.random.default_rng(0).normal(size=(200, 8, 2))
L, CE = pc.Linear, "softmax_cross_entropy"


def watched(net, X, y, loss="auto", epochs=20, optimizer=None, seed=0, prepare=None, **options):
    """Fit under a doctor and return what it says."""
    doctor = Doctor(report=False)
    model = pc.Network(net, X.shape[1:], loss, seed=seed)
    if prepare:
        prepare(model)
    options = {"engine": "numpy", "progress": False, "callbacks": doctor} | options
    model.fit(X, y, epochs=epochs, optimizer=optimizer or pc.Adam(3e-3), **options)
    return doctor.diagnosis


HEALTHY = {
    "digits, relu": lambda: watched(L(32) >> pc.ReLU() >> L(10), DIGITS, LABELS, CE),
    "digits, two hidden layers, validated": lambda: watched(
        L(64) >> pc.ReLU() >> L(32) >> pc.ReLU() >> L(10), DIGITS, LABELS, CE, epochs=15, validation=0.2
    ),
    "digits, without bias (N03)": lambda: watched(
        L(48, bias=False) >> pc.ReLU() >> L(24, bias=False) >> pc.ReLU() >> L(10, bias=False), DIGITS, LABELS, CE
    ),
    "digits, sigmoid, momentum": lambda: watched(L(32) >> pc.Sigmoid() >> L(10), DIGITS, LABELS, CE, optimizer=pc.SGD(0.3, momentum=0.9)),
    "digits, explicit softmax": lambda: watched(L(32) >> pc.Tanh() >> L(10) >> pc.Softmax(), DIGITS, LABELS),
    "digits, early stopping": lambda: watched(L(32) >> pc.Tanh() >> L(10), DIGITS, LABELS, CE, epochs=60, validation=0.2, early_stopping=5),
    "digits, raw pixels 0 to 16": lambda: watched(L(32) >> pc.ReLU() >> L(10), DIGITS * 16, LABELS, CE),
    "digits, L-BFGS": lambda: watched(L(16) >> pc.Tanh() >> L(10), DIGITS, LABELS, CE, optimizer=pc.LBFGS(), epochs=40),
    "moons, sigmoid output": lambda: watched(L(16) >> pc.Tanh() >> L(1) >> pc.Sigmoid(), MOONS, SIDES, epochs=60, optimizer=pc.Adam(0.02)),
    "moons, squared error on a sigmoid that starts well": lambda: watched(
        L(16) >> pc.Tanh() >> L(1) >> pc.Sigmoid(), MOONS, SIDES, "squared_error", epochs=60, optimizer=pc.Adam(0.02)
    ),
    "friedman, regression": lambda: watched(L(32) >> pc.ReLU() >> L(1), FRIEDMAN, ANSWERS, epochs=60, validation=0.2),
    "friedman, residual and gate": lambda: watched(
        L(16) >> (pc.Identity() + (L(16) >> pc.ReLU())) >> ((L(8) >> pc.Sigmoid()) * L(8)) >> L(1), FRIEDMAN, ANSWERS, epochs=60
    ),
    "moons, converged long ago": lambda: watched(L(16) >> pc.Tanh() >> L(2), MOONS, SIDES, CE, epochs=150, optimizer=pc.Adam(0.02)),
    "a rule under much noise": lambda: watched(
        L(8) >> pc.ReLU() >> L(1), FRIEDMAN, ANSWERS + 2 * np.random.default_rng(0).normal(size=400), epochs=30
    ),
    "sequences through a recurrent layer": lambda: watched(
        pc.RNN(12) >> L(2), TONES, (TONES[:, -4:, 0].sum(1) > 0).astype(int), CE, optimizer=pc.Adam(0.01)
    ),
    "digits, batch normalisation": lambda: watched(L(32) >> pc.BatchNorm() >> pc.ReLU() >> L(10), DIGITS, LABELS, CE, epochs=10),
    "rows of digits through a bidirectional GRU": lambda: watched(
        pc.GRU(12, bidirectional=True) >> L(10), DIGITS.reshape(-1, 8, 8), LABELS, CE, epochs=8, optimizer=pc.Adam(0.01)
    ),
    "rows of digits through attention": lambda: watched(
        pc.Positions() >> pc.MultiHeadAttention(8, 2) >> pc.LayerNorm() >> pc.GlobalAvgPool() >> L(10),
        DIGITS.reshape(-1, 8, 8),
        LABELS,
        CE,
        epochs=10,
        optimizer=pc.Adam(0.01),
    ),
    "digits compressed to eight numbers": lambda: watched(
        L(32) >> pc.ReLU() >> L(8) >> L(32) >> pc.ReLU() >> L(64), DIGITS, DIGITS, "squared_error"
    ),
    "images through a convolution": lambda: watched(
        pc.Conv2d(6) >> pc.ReLU() >> pc.MaxPool2d() >> pc.Flatten() >> L(10), DIGITS.reshape(-1, 8, 8, 1)[:300], LABELS[:300], CE, epochs=8
    ),
    "a rare class": lambda: watched(L(16) >> pc.ReLU() >> L(2), FRIEDMAN - 0.5, (ANSWERS > 1.3).astype(int), CE, epochs=40),
    "digits, compiled": lambda: watched(L(32) >> pc.ReLU() >> L(10), DIGITS, LABELS, CE, epochs=5, engine="jax"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_doctor_is_silent_on_a_healthy_run(name):
    diagnosis = HEALTHY[name]()
    assert not diagnosis, str(diagnosis)


def set_bias(name, value):
    return lambda model: model.set_parameters({name: np.full(model.parameters[name].shape, value)})


def scale(factor, *names):
    return lambda model: model.set_parameters({n: factor * model.parameters[n] for n in names})


DEEP = L(16) >> pc.Sigmoid()
for _ in range(7):
    DEEP = DEEP >> L(16) >> pc.Sigmoid()
DEEP = DEEP >> L(10)
WIDE = L(24, init=pc.He())
for _ in range(7):
    WIDE = WIDE >> pc.LeakyReLU(0.5) >> L(24)
WIDE = WIDE >> L(10)


PLANTED = {
    "inputs in the thousands": (
        "unscaled inputs",
        lambda: watched(L(32) >> pc.Tanh() >> L(10), DIGITS * 5000, LABELS, CE),
    ),
    "inputs of a millionth": ("unscaled inputs", lambda: watched(L(32) >> pc.Tanh() >> L(10), DIGITS * 1e-6, LABELS, CE)),
    "targets in the thousands": (
        "unscaled targets",
        lambda: watched(L(16) >> pc.Tanh() >> L(1), FRIEDMAN, 3000 + 500 * ANSWERS, epochs=20),
    ),
    "a learning rate of 5 with Adam": (
        "learning rate too high",
        lambda: watched(L(32) >> pc.Tanh() >> L(10), DIGITS, LABELS, CE, optimizer=pc.Adam(5.0)),
    ),
    "a learning rate of 1e-7": (
        "learning rate too low",
        lambda: watched(L(32) >> pc.Tanh() >> L(10), DIGITS, LABELS, CE, optimizer=pc.Adam(1e-7)),
    ),
    "a tiny rate of gradient descent": (
        "learning rate too low",
        lambda: watched(L(32) >> pc.ReLU() >> L(10), DIGITS, LABELS, CE, optimizer=pc.SGD(1e-6)),
    ),
    "biases far below zero before ReLU": (
        "dead ReLUs",
        lambda: watched(L(32) >> pc.ReLU() >> L(10), DIGITS, LABELS, CE, epochs=5, prepare=set_bias("0.b", -20.0)),
    ),
    "weights fifty times too large before tanh": (
        "saturated tanh",
        lambda: watched(L(32) >> pc.Tanh() >> L(10), DIGITS, LABELS, CE, epochs=5, prepare=scale(50, "0.W")),
    ),
    "biases far from zero before sigmoid": (
        "saturated sigmoid",
        lambda: watched(L(32) >> pc.Sigmoid() >> L(10), DIGITS, LABELS, CE, epochs=5, prepare=set_bias("0.b", 15.0)),
    ),
    "squared error on a sigmoid that starts sure and wrong (N26)": (
        "saturated output with a quadratic loss",
        lambda: watched(L(8) >> pc.Tanh() >> L(1) >> pc.Sigmoid(), MOONS, SIDES, "squared_error", epochs=10, prepare=set_bias("2.b", 12.0)),
    ),
    "nine sigmoid layers": ("vanishing flow", lambda: watched(DEEP, DIGITS, LABELS, CE, epochs=5, optimizer=pc.SGD(0.01))),
    "weights four times too large in a deep network": (
        "exploding flow",
        lambda: watched(
            WIDE, DIGITS, LABELS, CE, epochs=1, optimizer=pc.SGD(1e-9), prepare=scale(6, *(f"{i}.W" for i in range(2, 16, 2)))
        ),
    ),
    "one of two classes with a hundredth of the weight": (
        "class collapse",
        lambda: watched(L(8) >> pc.Tanh() >> L(2), MOONS, SIDES, CE, epochs=3, sample_weight=np.where(SIDES == 1, 0.01, 1)),
    ),
    "targets that have nothing to do with the inputs": (
        "plateau",
        lambda: watched(
            L(2) >> pc.Tanh() >> L(1), FRIEDMAN, np.random.default_rng(0).permutation(ANSWERS), epochs=30, optimizer=pc.Adam(0.01)
        ),
    ),
    "a recurrent layer that forgets within a few steps": (
        "vanishing flow through time",
        lambda: watched(
            pc.RNN(6, recurrent_init=pc.Constant(0.01)) >> L(2), np.repeat(TONES, 3, 1), (TONES[:, 0, 0] > 0).astype(int), CE, epochs=3
        ),
    ),
    "forty rows of random labels learned by heart": (
        "overfitting",
        lambda: watched(
            L(64) >> pc.ReLU() >> L(10), DIGITS[:40], np.random.default_rng(0).integers(0, 10, 40), CE, epochs=60,
            optimizer=pc.Adam(0.01), validation=(DIGITS[40:], LABELS[40:]),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_doctor_finds_the_planted_fault_first(name):
    expected, run = PLANTED[name]
    diagnosis = run()
    assert diagnosis.first is not None
    assert diagnosis.first.name == expected, str(diagnosis)


def test_a_finding_says_number_threshold_layer_reason_and_remedy():
    finding = PLANTED["biases far below zero before ReLU"][1]().first
    assert isinstance(finding, Finding)
    assert finding.layer == "1"
    assert finding.value > finding.threshold
    for word in ("100 %", "threshold 0.4", "in 1", "why:", "try: use LeakyReLU()"):
        assert word in str(finding)


def test_vanishing_flow_is_split_into_its_factors():
    finding = PLANTED["nine sigmoid layers"][1]().first
    assert "g′(z) is what makes it small" in finding.why
    assert "15 ×0." in finding.what


def test_saturated_output_shows_the_factor_of_the_notes():
    """N26: σ(12)(1 − σ(12)) is about e⁻¹²."""
    model = pc.Network(L(1) >> pc.Sigmoid(), 2, "squared_error")
    model.set_parameters({"0.W": np.zeros((2, 1)), "0.b": [12.0]})
    finding = model.diagnose(MOONS, SIDES).first
    assert finding.name == "saturated output with a quadratic loss"
    np.testing.assert_allclose(finding.value, np.exp(-12), rtol=1e-2)


def test_diagnose_looks_at_a_network_as_it_is():
    model = pc.Network(L(8) >> pc.ReLU() >> L(2), 2, CE)
    assert not model.diagnose(MOONS, SIDES)
    assert "Nothing found" in str(model.diagnose(MOONS, SIDES))
    assert model.diagnose(MOONS * 1e4, SIDES).first.name == "unscaled inputs"
    with pytest.raises(ValueError, match="no parameters yet"):
        pc.Network(L(2)).diagnose(MOONS, SIDES)


def test_doctor_changes_nothing_and_prints_its_findings(capsys):
    def fit(callbacks):
        model = pc.Network(L(8) >> pc.ReLU() >> L(2), 2, CE)
        model.fit(MOONS * 1e3, SIDES, epochs=3, engine="numpy", callbacks=callbacks, progress=False)
        return model.parameters

    plain, seen = fit(None), fit(Doctor())
    assert all(np.array_equal(plain[k], seen[k]) for k in plain)
    assert "unscaled inputs" in capsys.readouterr().out


class Recurrent(pc.Layer):
    """h_t = tanh(x_t + w h_{t−1}), unit by unit, as small as a recurrent layer can be; the last state is the output."""

    start: float

    def build(self, rng, shape):
        return {"W": np.full((1, shape[-1]), self.start)}, shape[-1:]

    def forward(self, ops, p, x):
        h, states = np.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = ops.note("h", np.tanh(x[:, t] + p["W"] * h))
            states.append(h)
        return h, states

    def backward(self, ops, p, states, dy, wrt_input=True):
        dx, dW = [], 0
        for t in reversed(range(len(states))):
            dz = dy * (1 - states[t] ** 2)
            dW = dW + (dz * (states[t - 1] if t else 0)).sum(0, keepdims=True)
            dx.insert(0, dz)
            dy = dz * p["W"]
        return np.stack(dx, 1), {"W": dW}


@pytest.mark.parametrize(("start", "expected"), [(0.3, "vanishing flow through time"), (2.0, "exploding flow through time")])
def test_flow_through_time_is_followed_step_by_step(start, expected):
    """With tiny inputs g′ ≈ 1, so every step multiplies the flow by w."""
    X = 1e-2 * np.random.default_rng(0).normal(size=(50, 14, 3)) / 2**14
    model = pc.Network(Recurrent(start) >> L(2), (14, 3), CE, dtype="float64")
    found = {f.name: f for f in model.diagnose(X, np.arange(50) % 2)}
    np.testing.assert_allclose(found[expected].value, start**13, rtol=1e-3)
    assert f"×{start:.2g} a step" in found[expected].what
    assert "g′ = 1 − h² makes 1 on average" in found[expected].what


def test_flow_through_time_that_keeps_its_size_is_no_finding():
    X = 1e-2 * np.random.default_rng(0).normal(size=(50, 14, 3))
    model = pc.Network(Recurrent(0.95) >> L(2), (14, 3), CE, dtype="float64")
    assert not model.diagnose(X, np.arange(50) % 2)


def test_a_flow_that_had_vanished_at_the_start_is_told_while_little_is_learned():
    net = pc.Chain(*[layer for _ in range(6) for layer in (L(32), pc.Sigmoid())], L(10))
    finding = watched(net, DIGITS, LABELS, CE, epochs=30, optimizer=pc.Adam(1e-3)).first
    assert finding.name == "vanishing flow"
    assert finding.what.startswith("before the first epoch, ")
    shallow = pc.Chain(*[layer for _ in range(5) for layer in (L(32), pc.Sigmoid())], L(10))
    assert not watched(shallow, DIGITS, LABELS, CE, epochs=150, optimizer=pc.Adam(0.01))  # it vanished there, too, but all was learned
