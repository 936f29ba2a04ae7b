"""Products in bfloat16 with float32 weights, and the loops a GPU runs, here run on CPU."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

import pellucid as pc
from pellucid.engines import get_engine
from pellucid.training.step import Plan, State
from pellucid.tree import leaves

JAX = get_engine("jax")
NETS = {
    "dense": (pc.Linear(16) >> pc.ReLU() >> pc.BatchNorm() >> pc.Linear(3), (6,)),
    "skip": (pc.Linear(6) >> (pc.Identity() + (pc.Linear(6) >> pc.Tanh())) >> pc.LayerNorm() >> pc.Linear(3), (6,)),
    "masked": (pc.Linear(4, mask=np.arange(24).reshape(6, 4) % 2) >> pc.Sigmoid() >> pc.Linear(3), (6,)),
    "convolution": (pc.Conv2d(4, 3) >> pc.ReLU() >> pc.AvgPool2d(2) >> pc.Flatten() >> pc.Linear(3), (8, 8, 2)),
    "recurrent": (pc.RNN(5, outputs="every") >> pc.LSTM(5, outputs="every") >> pc.GRU(5, bidirectional=True) >> pc.Linear(3), (4, 2)),
    "attention": (pc.Linear(8) >> pc.MultiHeadAttention(8, heads=2) >> pc.GlobalAvgPool() >> pc.Linear(3), (4, 2)),
    "kernel": (pc.RBF(5) >> pc.Linear(3), (6,)),
}


def data(shape, rows=48):
    rng = np.random.default_rng(0)
    return rng.standard_normal((rows, *shape)).astype(np.float32), rng.integers(0, 3, rows)


@pytest.mark.parametrize("name", NETS)
def test_bfloat16_gradients_are_float32_and_near_the_full_ones(name):
    net, shape = NETS[name]
    model = pc.Network(net, shape, "softmax_cross_entropy", seed=1)
    batch = model.as_batch(*data(shape))
    results = {}
    for products in (None, "bfloat16"):
        with JAX.precision(np.float32, products):
            results[products] = JAX.value_and_gradients(model.net, model.loss, model.params, batch, np.uint32(0))
    (loss, full), (low_loss, low) = results[None], results["bfloat16"]
    assert float(low_loss) == pytest.approx(float(loss), rel=0.02)
    a, b = (np.concatenate([np.ravel(g) for _, g in leaves(grads)]) for grads in (full, low))
    assert {g.dtype for _, g in leaves(low)} == {np.dtype("float32")}
    assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(a)  # bfloat16 has 8 bits: 0.4 % a rounding
    assert not np.array_equal(a, b)


@pytest.mark.parametrize("name", NETS)
def test_a_fit_in_bfloat16_keeps_float32_weights_and_learns(name):
    net, shape = NETS[name]
    X, y = data(shape)
    model = pc.Network(net, shape, "softmax_cross_entropy", seed=1)
    history = model.fit(X, y, epochs=30, optimizer=pc.Adam(0.02), precision="bfloat16", validation=0.2, progress=False)
    assert history.engine == "jax"
    assert "bfloat16" in history.engine_reason
    assert {leaf.dtype for _, leaf in leaves(model.params)} == {np.dtype("float32")}
    assert history["loss"][-1] < 0.9 * history["loss"][0]


def test_a_carried_state_stays_float32():
    X, y = data((4, 2), rows=8)
    model = pc.Network(pc.LSTM(5, streams=4) >> pc.Linear(3), (4, 2), "softmax_cross_entropy")
    model.fit(X, y, epochs=2, batch_size=4, order="given", precision="bfloat16", progress=False)
    assert {leaf.dtype for _, leaf in leaves(model.params)} == {np.dtype("float32")}


def test_products_of_tokens_keep_every_token():
    """An embedding reads whole numbers that bfloat16 could not tell apart."""
    tokens = np.arange(1000).reshape(500, 2)
    model = pc.Network(pc.Embedding(1000, 4) >> pc.Flatten() >> pc.Linear(2), (2,), "softmax_cross_entropy")
    before = next(iter(model.params[0].values())).copy()
    model.fit(tokens, tokens[:, 0] // 2 % 2, epochs=1, optimizer=pc.SGD(1.0), precision="bfloat16", progress=False)
    after = next(iter(model.params[0].values()))
    assert (np.abs(after - before).sum(1) > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "bfloat"}, "did you mean 'bfloat16'"),
        ({"precision": "bfloat16", "engine": "numpy"}, "needs engine='jax'"),
    ],
)
def test_wrong_use(options, message):
    X, y = data((6,))
    with pytest.raises(ValueError, match=f"(?i){message}"):
        pc.Network(pc.Linear(3), (6,), "softmax_cross_entropy").fit(X, y, **options)


# -------------------------------------------------------------------- what a GPU runs
@pytest.mark.parametrize("unroll", [1, JAX.UNROLL])
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100])
def test_loops_in_blocks_take_every_step_once_and_in_order(count, unroll, monkeypatch):
    monkeypatch.setattr(JAX, "on_cpu", lambda: False)
    n = np.int32(count)
    carry = jax.jit(lambda n: JAX.repeat(n, lambda i, c: c * 3 + i.astype(np.uint32), np.uint32(1), unroll))(n)
    expected = 1
    for i in range(count):
        expected = (expected * 3 + i) % 2**32
    assert int(carry) == expected


@pytest.mark.parametrize(("layers", "steps", "expected"), [(4, 256, JAX.UNROLL), (4, 255, 1), (5, 256, 1)])
def test_several_short_steps_are_a_turn_where_there_are_many(layers, steps, expected, monkeypatch):
    """Of 9 layers and more, one by one they take less time on a GPU, and half as long to compile."""
    turns, repeat = [], JAX.repeat
    monkeypatch.setattr(JAX, "on_cpu", lambda: False)
    monkeypatch.setattr(JAX, "run_steps", lambda *args: None)  # not as one kernel
    monkeypatch.setattr(JAX, "repeat", lambda *args: turns.append(args[-1]) or repeat(*args))
    net, optimizer = pc.Chain(*(pc.Linear(6), pc.Tanh()) * (layers - 1), pc.Linear(6), pc.Linear(3)), pc.SGD(0.1)
    model = pc.Network(net, (6,), "softmax_cross_entropy")
    state = State(model.params, optimizer.slots(model.params), optimizer.numbers("float32"), np.int32(0), np.uint32(0))
    plan = Plan(np.zeros((steps, 4), np.int32), np.full(steps, 4, np.int32), np.full(steps, 0.1, np.float32), np.int32(steps))
    jax.eval_shape(functools.partial(JAX.chunk.__wrapped__, net, model.loss, optimizer.kind()), state, model.as_batch(*data((6,))), plan)
    assert turns == [expected]
