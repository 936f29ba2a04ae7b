"""Promises of `model.trace`."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid as pc
from pellucid.engines.numpy import NumpyOps
from pellucid.glass.trace import Recorder
from pellucid.training.step import gradients
from pellucid.tree import flatten

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(6, 4)), RNG.integers(0, 3, 6)


def network(dtype="float32"):
    hidden = (pc.Linear(5).named("linear") >> pc.Tanh()).named("hidden")
    skip = pc.Linear(3) | (pc.Linear(3) >> pc.ReLU() >> pc.Dropout(0.3))
    gate = (pc.Linear(4) >> pc.Sigmoid()) * pc.Linear(4)
    return pc.Network(hidden >> skip >> gate >> pc.Linear(3).named("out"), 4, "softmax_cross_entropy", seed=3, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_those_of_the_training_step_bit_for_bit(dtype):
    model = network(dtype)
    batch = model.as_batch(X, LABELS)
    ops = NumpyOps(training=True, seed=np.uint32(3), step=np.int32(7), weight=batch.weight)
    g = gradients(ops, model.net, model.loss, model.params, batch)
    trace = model.trace(X, LABELS, step=7)
    assert trace.loss == float(g.loss)
    assert np.array_equal(trace.output, g.y)
    for name, value in flatten(g.params, model.net).items():
        assert np.array_equal(trace.gradients[name], value)
        assert np.array_equal(trace[name.rpartition(".")[0] + ".d" + name.rpartition(".")[2]], value)


def test_every_layer_is_there_by_a_readable_path():
    trace = network().trace(X, LABELS)
    assert set(trace.layers) >= {"net", "hidden", "hidden.linear", "hidden.1", "1.0", "1.1.0", "1.1.2", "2.0.1", "2.1", "out"}
    layer = trace["hidden.linear"]
    assert layer.x.shape == (6, 4)
    assert layer.y.shape == layer.dy.shape == (6, 5)
    assert trace["hidden.linear.W"].shape == trace["hidden.linear.dW"].shape == (4, 5)
    np.testing.assert_array_equal(trace["hidden.1.x"], layer.y)
    assert "hidden.linear" in repr(trace)


def test_dense_layer_obeys_the_textbook():
    """δ aᵀ and Wᵀδ, written out by hand (N31)."""
    call = network("float64").trace(X, LABELS)["out"]
    np.testing.assert_allclose(call.y, call.x @ call.params["W"] + call.params["b"], rtol=1e-14)
    np.testing.assert_allclose(call.grads["W"], sum(np.outer(a, d) for a, d in zip(call.x, call.dy, strict=True)), rtol=1e-12)
    np.testing.assert_allclose(call.dx, call.dy @ call.params["W"].T, rtol=1e-14)


def test_gradients_of_single_rows_sum_to_the_gradient_of_the_batch():
    trace = network("float64").trace(X, LABELS, sample_weight=[1, 2, 1, 3, 1, 1])
    per_row = trace.per_sample()
    assert set(per_row) == set(trace.gradients)
    for name, value in per_row.items():
        assert value.shape == (6, *trace.gradients[name].shape)
        np.testing.assert_allclose(value.sum(0), trace.gradients[name], rtol=1e-10, atol=1e-14)


def test_gradient_of_a_single_row_is_the_gradient_of_that_row_alone():
    model = pc.Network(pc.Linear(5) >> pc.Tanh() >> pc.Linear(3), 4, "softmax_cross_entropy", dtype="float64")
    alone = model.gradients(X[2:3], LABELS[2:3])[1]["0.W"] / 6
    np.testing.assert_allclose(model.trace(X, LABELS).per_sample("0.W")[2], alone, rtol=1e-12)


class Shared(pc.Layer):
    """Applies one linear layer three times, noting every step.

    Forward   h_t = x W
    """

    inner: pc.Layer = pc.Linear(4)

    @property
    def children(self):
        return (self.inner,)

    def build(self, rng, shape):
        params, out = self.inner.build(rng, shape)
        return (params,), out

    def forward(self, ops, p, x):
        caches = []
        for _ in range(3):
            x, cache = ops.forward(self.inner, p[0], x, 0)
            ops.note("h", x)
            caches.append(cache)
        return x, caches

    def backward(self, ops, p, caches, dy, wrt_input=True):
        total = None
        for cache in reversed(caches):
            ops.note("dh", dy)
            dy, (grads) = ops.backward(self.inner, p[0], cache, dy, 0, True)
            total = grads if total is None else {k: total[k] + grads[k] for k in grads}
        return dy, (total,)


def test_a_layer_used_at_every_step_shows_every_step_in_the_order_of_time():
    model = pc.Network(Shared() >> pc.Linear(3), 4, "softmax_cross_entropy", dtype="float64")
    trace = model.trace(X, LABELS)
    assert {"0.0", "0.0@2", "0.0@3"} <= set(trace.layers)
    np.testing.assert_array_equal(trace["0"].steps("h")[1], trace["0.0@2"].y)
    np.testing.assert_array_equal(trace["0"].steps("dh")[2], trace["0"].dy)
    np.testing.assert_array_equal(trace["0"].steps("dh")[0], trace["0.0"].dy)
    per_row = trace.per_sample("0.0.W")
    np.testing.assert_allclose(per_row.sum(0), trace.gradients["0.0.W"], rtol=1e-10)


def test_a_recurrent_layer_shows_every_step():
    """h_t by hand (N15), and the flow into x_t = W_xh δ_t with δ_t = (dh_t + W_hh δ_{t+1}) ⊙ (1 − h_t²) (N35)."""
    model = pc.Network(pc.RNN(3) >> pc.Linear(2), (5, 2), "softmax_cross_entropy", dtype="float64")
    x = RNG.normal(size=(4, 5, 2))
    trace = model.trace(x, [0, 1, 1, 0])
    call, p = trace["0"], trace["0"].params
    h, states = np.zeros((4, 3)), []
    for t in range(5):
        h = np.tanh(x[:, t] @ p["W_xh"] + h @ p["W_hh"] + p["b"])
        states.append(h)
    np.testing.assert_allclose(call.steps("h"), states, rtol=1e-12)
    delta, back = np.zeros((4, 3)), call.dy
    for t in reversed(range(5)):
        delta = (back if t == 4 else delta @ p["W_hh"].T) * (1 - states[t] ** 2)
        np.testing.assert_allclose(call.dx[:, t], delta @ p["W_xh"].T, rtol=1e-10)
    text = model.explain(x[:1], [0]).text()
    assert all(f"h¹{step} = tanh(W_xh¹" in text for step in "₁₂₅")


def test_sequences_of_different_length_are_traced_without_their_padding():
    model = pc.Network(pc.RNN(3) >> pc.Linear(2), (None, 2), "softmax_cross_entropy", dtype="float64")
    long, short = RNG.normal(size=(5, 2)), RNG.normal(size=(2, 2))
    listed, padded = model.trace([long, short], [0, 1]), np.zeros((2, 5, 2))
    padded[0], padded[1, :2] = long, short
    given = model.trace(padded, [0, 1], lengths=[5, 2])
    assert not given["0"].dx[1, 2:].any()
    for name in listed.gradients:
        np.testing.assert_array_equal(listed.gradients[name], given.gradients[name])
    assert "all gradients agree" in model.explain(padded, [0, 1], lengths=[5, 2]).text()


class Cube(pc.Layer):
    """Forward   y = x³, through a layer inside."""

    def forward(self, ops, p, x):
        y, _ = ops.forward(pc.Identity(), {}, ops.note("cube", x**3), 0)
        return y, None


def test_a_layer_without_backward_is_traced_through_jax():
    model = pc.Network(pc.Linear(3) >> Cube() >> pc.Linear(3), 4, "softmax_cross_entropy", dtype="float64")
    trace = model.trace(X, LABELS)
    np.testing.assert_allclose(trace["1"].dx, trace["1"].dy * 3 * np.asarray(trace["1"].x) ** 2, rtol=1e-12)
    np.testing.assert_allclose(trace.per_sample("0.W").sum(0), trace.gradients["0.W"], rtol=1e-10)


def test_through_a_jump_flows_nothing_when_looked_at():
    model = pc.Network(pc.Sign() >> pc.Linear(3), 4, "softmax_cross_entropy")
    trace = model.trace(X, LABELS)
    np.testing.assert_allclose(trace["1"].dx, trace["1"].dy @ model.parameters["1.W"].T, rtol=1e-5)
    assert not trace["0"].dx.any()
    np.testing.assert_array_equal(trace["1.dW"], model.gradients(X, LABELS)[1]["1.W"])
    assert "∇W¹" in model.explain(X, LABELS, check=False).text()


def test_bad_use_is_answered_clearly():
    model = network()
    with pytest.raises(ValueError, match=r"built for \(batch, 4\), got \(6, 3\)"):
        model.trace(X[:, :3], LABELS)
    with pytest.raises(ValueError, match="no parameters yet"):
        pc.Network(pc.Linear(2)).trace(X, X[:, :2])
    trace = model.trace(X, LABELS)
    with pytest.raises(KeyError, match=r"Did you mean 'hidden.linear'"):
        trace["hiden.linear"]
    with pytest.raises(KeyError, match=r"out has: x, y, dy, dx, W, b, dW, db"):
        trace["out.V"]
    with pytest.raises(KeyError, match="no parameter"):
        trace.per_sample("out.V")
    with pytest.raises(KeyError, match="noted no 'h'"):
        trace["out"].steps("h")
    with pytest.raises(TypeError, match="Did you mean 'sample_weight'"):
        model.trace(X, LABELS, sample_weigth=None)


def test_recording_does_not_change_a_number():
    class Recording(Recorder, NumpyOps):
        pass

    model = network()
    batch = model.as_batch(X, LABELS)
    plain, seen = (
        Ops(training=True, seed=np.uint32(0), weight=batch.weight).forward(model.net, model.params, batch.x, "net")[0]
        for Ops in (NumpyOps, Recording)
    )
    assert np.array_equal(plain, seen)
