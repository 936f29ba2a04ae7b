"""`engine="auto"`: the prediction behind it."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pellucid as pc
from pellucid.engines import choose
from pellucid.engines.choose import choose_engine, predict_work
from pellucid.layers import Layer
from pellucid.training.step import Batch


def mlp(*sizes):
    layers = [layer for units in sizes[1:-1] for layer in (pc.Linear(units), pc.ReLU())]
    return pc.Network(pc.Chain(*layers, pc.Linear(sizes[-1])), (sizes[0],), "softmax_cross_entropy")


@pytest.mark.parametrize(
    ("sizes", "batch", "steps", "engine"),
    [  # what `make bench` and benchmarks/calibrate.py measure on two cores
        ((30, 64, 64, 4), 32, 300, "numpy"),
        ((30, 64, 64, 4), 32, 30_000, "jax"),
        ((30, 64, 64, 4), 1, 300, "numpy"),
        ((30, 64, 64, 4), 1, 30_000, "jax"),
        ((784, 512, 256, 10), 128, 100, "numpy"),
        ((784, 512, 256, 10), 128, 30_000, "jax"),
        ((100, 256, 256, 10), 64, 30_000, "jax"),
        ((1024, 1024, 10), 1, 3_000, "jax"),
    ],
)
def test_the_engine_that_is_done_first_is_taken(sizes, batch, steps, engine):
    model = mlp(*sizes)
    assert choose_engine(model.net, model.params, batch, steps)[0] == engine


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 5))
def test_more_work_is_never_predicted_to_take_less_time(width, batch, hidden):
    def predicted(width, batch, hidden):
        model = mlp(8, *[width] * hidden, 3)
        return predict_work(model.net, model.params, batch)

    now = predicted(width, batch, hidden)
    for more in (predicted(width + 7, batch, hidden), predicted(width, batch + 7, hidden), predicted(width, batch, hidden + 1)):
        assert more.numpy > now.numpy
        assert more.jax > now.jax
        assert more.chunk <= now.chunk


def test_a_deep_network_is_predicted_to_compile_as_soon_as_one_half_as_deep():
    a, b, c = (predict_work(model.net, model.params, 1).compile for model in (mlp(8, *[8] * hidden, 3) for hidden in (4, 32, 64)))
    assert a < b == c


def test_a_network_without_weights_has_a_prediction():
    work = predict_work(pc.Tanh(), {}, 8)
    assert math.isfinite(work.numpy)
    assert work.numpy > work.jax > 0


def test_fits_of_one_kind_share_the_cost_of_compiling():
    net = pc.Linear(64) >> pc.ReLU() >> pc.Linear(4)
    params, _ = net.build(np.random.default_rng(0), (30,))
    steps = next(n for n in range(100, 10**6, 100) if choose_engine(net, params, 32, n)[0] == "jax")
    assert choose_engine(net, params, 32, steps // 2)[0] == "numpy"
    engine, reason = choose_engine(net, params, 32, steps // 2, fits=3)
    assert engine == "jax"
    assert "shared by 3 fits" in reason
    assert choose_engine(net, params, 32, 100, compiled=True)[0] == "jax"


def test_auto_takes_a_program_that_is_there():
    X, y = np.random.default_rng(0).normal(size=(64, 7)), np.arange(64) % 2

    def fit(engine="auto"):
        model = pc.Network(pc.Linear(13) >> pc.Tanh() >> pc.Linear(2), (7,), "softmax_cross_entropy")
        return model.fit(X, y, epochs=100, engine=engine, progress=False)

    assert fit().engine == "numpy"
    fit("jax")
    history = fit()
    assert history.engine == "jax"
    assert "already compiled" in history.engine_reason


def test_what_a_row_takes_is_counted_once_for_a_network(monkeypatch):
    """Fits that follow leave BLAS alone before they train."""
    calls = []
    count = choose.count_uses
    monkeypatch.setattr(choose, "count_uses", lambda *args: calls.append(args) or count(*args))
    monkeypatch.setattr(choose, "USES", {})
    X, y = np.ones((8, 3)), np.ones((8, 1))
    model = pc.Network(pc.Linear(5) >> pc.ReLU() >> pc.Linear(1), (3,))
    for _ in range(3):
        model.fit(X, y, epochs=1, engine="jax", progress=False)
    assert len(calls) == 1
    assert predict_work(model.net, model.params, 8, Batch(X[:1], y[:1], np.ones(1))) == predict_work(
        model.net, model.params, 8, Batch(X[1:2], y[1:2], np.ones(1))
    )
    pc.Network(pc.Linear(6) >> pc.ReLU() >> pc.Linear(1), (3,)).fit(X, y, epochs=1, engine="jax", progress=False)
    assert len(calls) == 2


class Inverse(Layer):
    """A layer whose weights may not be zero."""

    def build(self, rng, shape):
        return {"W": 2 * np.eye(shape[0])}, shape

    def forward(self, ops, p, x):
        inverse = ops.xp.linalg.inv(p["W"])
        return x @ inverse, (x, inverse)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        x, inverse = cache
        return dy @ inverse.T, {"W": -inverse.T @ (x.T @ dy) @ inverse.T}


def test_uses_are_counted_with_the_weights_there_are():
    X = np.random.default_rng(0).normal(size=(20, 4))
    model = pc.Network(Inverse() >> pc.Linear(1), 4, dtype="float64")
    assert model.check_gradients(X, X[:, :1])
    assert len(model.fit(X, X[:, :1], epochs=2, engine="numpy", progress=False)) == 2


class Scaled(Layer):
    """Compared by nothing that it does, and not to be hashed."""

    factors: list = dataclasses.field(default_factory=list, compare=False)
    more: list = dataclasses.field(default_factory=list)

    def forward(self, ops, p, x):
        return self.factors[0] * x, None

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return self.factors[0] * dy, {}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_users_activation_is_the_one_that_was_given():
    X = np.random.default_rng(0).normal(size=(20, 4))
    losses = [
        pc.MLPRegressor(hidden_layer_sizes=(4,), activation=activation, max_iter=2, engine="numpy", random_state=0).fit(X, X[:, 0]).loss_
        for activation in (Scaled([1.0]), Scaled([3.0]), pc.Identity())
    ]
    assert losses[0] == losses[2] != losses[1]
