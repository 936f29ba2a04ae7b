"""Embedding, positions and attention."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid as pc
from pellucid.engines import get_engine
from pellucid.engines.numpy import NumpyOps
from pellucid.proof import Probe, check_gradients
from pellucid.training.step import Batch

from .judge import check_by_differences, without_autodiff


def passes(layer, p, x, dy, lengths=None, engine=NumpyOps):
    ops = engine(training=True, weight=np.ones(len(x), x.dtype), lengths=lengths)
    y, cache = ops.forward(layer, p, x, "net")
    return (y, *ops.backward(layer, p, cache, dy, "net"))


# -------------------------------------------------------------------- embedding
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_embedding_agrees_with_pytorch(shape, rng):
    torch = pytest.importorskip("torch")
    layer = pc.Embedding(7, 4)
    p, out = layer.build(rng, shape)
    ids, dy = rng.integers(0, 7, (6, *shape)), rng.normal(size=(6, *out))
    y, dx, grads = passes(layer, p, ids.astype(float), dy)
    theirs = torch.nn.Embedding(7, 4, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight.copy_(torch.tensor(p["W"]))
    result = theirs(torch.tensor(ids))
    result.backward(torch.tensor(dy))
    np.testing.assert_array_equal(y, result.detach())
    np.testing.assert_allclose(grads["W"], theirs.weight.grad, atol=1e-12)
    assert (dx == 0).all()
    assert dx.shape == ids.shape


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_the_largest_id_float32_can_hold_is_found(engine):
    layer, last, module = pc.Embedding(2**24, 1), 2**24 - 1, get_engine(engine)
    table, x = np.zeros((2**24, 1), np.float32), np.array([last, last - 1], np.float32)
    table[last] = 5
    layer.check_input(x)
    y = module.forward(layer, module.put({"W": table}), module.put(x))
    assert np.ravel(y).tolist() == [5, 0]


@pytest.mark.parametrize("bad", [-1, 5, 2.5, 1e9])
@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: e >> pc.Tanh(), lambda e: e | e, pc.Frozen, lambda e: pc.Penalty(e, l2=0.1)])
def test_ids_out_of_range_or_not_whole_are_refused_by_place(bad, wrap):
    X = np.zeros((4, 3))
    X[2, 1] = bad
    model = pc.Network(wrap(pc.Embedding(5, 2)) >> pc.Flatten() >> pc.Linear(1), (3,))
    for act in (lambda: model(X), lambda: model.fit(X, np.zeros(4)), lambda: model.evaluate(X, np.zeros(4))):
        with pytest.raises(ValueError, match=r"Embedding\(5, 2\).*from 0 to 4.*row 2, position 1"):
            act()


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_wrong_ids_that_a_layer_computes_are_not_clamped_silently(engine):
    model = pc.Network(pc.Linear(1, bias=False, init=pc.Constant([[3.0]])) >> pc.Embedding(5, 2) >> pc.Flatten() >> pc.Linear(1), (1,))
    with pytest.raises(pc.NonFiniteError, match=r"Embedding\(5, 2\).*rows 1"):
        model.fit([[1.0], [2.0]], [0.0, 0.0], epochs=1, engine=engine)


def test_more_symbols_than_float32_can_tell_apart_are_refused():
    with pytest.raises(ValueError, match=r"symbols must be between 1 and 2\*\*24"):
        pc.Embedding(2**24 + 1, 2)


# -------------------------------------------------------------------- positions
def test_positions_are_the_waves_of_the_paper():
    y, _ = NumpyOps().forward(pc.Positions(), {}, np.zeros((1, 3, 4)), "net")
    expected = [[[np.sin(t), np.cos(t), np.sin(t / 100), np.cos(t / 100)] for t in range(3)]]
    np.testing.assert_allclose(y, expected, atol=1e-15)


# -------------------------------------------------------------------- attention
@settings(max_examples=25)
@given(
    heads=st.integers(1, 3), c=st.integers(1, 3), T=st.integers(1, 4), n=st.integers(1, 4),
    causal=st.booleans(), bias=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_attention_gradients_are_right_for_random_shapes(heads, c, T, n, causal, bias, seed):
    report = check_by_differences(pc.MultiHeadAttention(heads * c, heads, causal, bias), (T, n), seed=seed, batch=2, entries=8)
    assert report, str(report)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_attention_agrees_with_pytorch(causal, padded, bias, rng):
    torch = pytest.importorskip("torch")
    units, heads, T, batch = 6, 3, 5, 4
    layer = pc.MultiHeadAttention(units, heads, causal, bias)
    p, _ = layer.build(rng, (T, units))
    p = tuple({k: rng.normal(size=v.shape) for k, v in q.items()} for q in p)
    lengths = np.array([5, 2, 1, 4]) if padded else np.full(batch, T)
    real = np.arange(T) < lengths[:, None]
    x, dy = rng.normal(size=(2, batch, T, units)) * real[..., None]
    y, dx, grads = passes(layer, p, x, dy, lengths if padded else None)

    theirs = torch.nn.MultiheadAttention(units, heads, bias=bias, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.tensor(np.concatenate([q["W"].T for q in p[:3]])))
        theirs.out_proj.weight.copy_(torch.tensor(p[3]["W"].T))
        if bias:
            theirs.in_proj_bias.copy_(torch.tensor(np.concatenate([q["b"] for q in p[:3]])))
            theirs.out_proj.bias.copy_(torch.tensor(p[3]["b"]))
    t = torch.tensor(x, requires_grad=True)
    unseen = torch.triu(torch.ones(T, T, dtype=torch.bool), 1) if causal else None
    out, _ = theirs(t, t, t, key_padding_mask=torch.tensor(~real) if padded else None, attn_mask=unseen, need_weights=False)
    out.backward(torch.tensor(dy))
    np.testing.assert_allclose(y[real], out.detach().numpy()[real], atol=1e-10)
    np.testing.assert_allclose(dx, t.grad, atol=1e-10)
    np.testing.assert_allclose(np.concatenate([g["W"].T for g in grads[:3]]), theirs.in_proj_weight.grad, atol=1e-10)
    np.testing.assert_allclose(grads[3]["W"].T, theirs.out_proj.weight.grad, atol=1e-10)
    if bias:
        np.testing.assert_allclose(np.concatenate([g["b"] for g in grads[:3]]), theirs.in_proj_bias.grad, atol=1e-10)


def test_causal_attention_does_not_look_ahead(rng):
    layer = pc.MultiHeadAttention(4, 2, causal=True)
    p, _ = layer.build(rng, (5, 3))
    x = rng.normal(size=(1, 5, 3))
    changed = x.copy()
    changed[0, 3:] += 1
    y, other = (NumpyOps().forward(layer, p, a, "net")[0] for a in (x, changed))
    np.testing.assert_array_equal(y[0, :3], other[0, :3])
    assert (y[0, 3:] != other[0, 3:]).any()


def test_without_positions_attention_does_not_know_the_order_and_with_them_it_does(rng):
    x, order = rng.normal(size=(1, 6, 4)), rng.permutation(6)
    for layer, same in ((pc.MultiHeadAttention(4, 2), True), (pc.Positions() >> pc.MultiHeadAttention(4, 2), False)):
        p, _ = layer.build(np.random.default_rng(0), (6, 4))
        y, moved = (NumpyOps().forward(layer, p, a, "net")[0] for a in (x, x[:, order]))
        assert np.allclose(y[:, order], moved, atol=1e-12) == same


@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_never_looked_at(causal, rng):
    """What it holds changes no bit; how much of it there is changes nothing beyond rounding."""
    layer, lengths = pc.MultiHeadAttention(4, 2, causal), np.array([3, 1, 2])
    p, _ = layer.build(rng, (3, 5))
    x, dy = rng.normal(size=(3, 3, 5)), rng.normal(size=(3, 3, 4))
    dy *= (np.arange(3) < lengths[:, None])[..., None]
    results = []
    for extra, filling in ((0, 0.0), (0, 9.0), (4, 0.0)):
        wide = np.concatenate([x, np.zeros((3, extra, 5))], 1)
        wide[np.arange(3 + extra) >= lengths[:, None]] = filling
        flow = np.concatenate([dy, np.zeros((3, extra, 4))], 1)
        y, dx, grads = passes(layer, p, wide, flow, lengths)
        real = np.arange(3 + extra) < lengths[:, None]
        assert (dx[~real] == 0).all()
        results.append((y[real], dx[real], *(g["W"] for g in grads)))
    for a, b, c in zip(*results, strict=True):
        np.testing.assert_array_equal(a[: len(b)], b)
        np.testing.assert_allclose(a, c, atol=1e-12)


def test_attention_gradients_are_right_with_padding(rng):
    layer = pc.MultiHeadAttention(4, 2, causal=True)
    p, _ = layer.build(rng, (3, 2))
    batch = Batch(rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 3, 4)), np.array([1.0, 2.0]), np.array([3, 2], np.int32))
    report = without_autodiff(check_gradients, layer, Probe(), p, batch, wrt_input=True, entries=20)
    assert report, str(report)


def test_wrong_heads_and_shapes_are_refused_with_the_fix():
    with pytest.raises(ValueError, match="heads must be a divisor of units = 6, got 4"):
        pc.MultiHeadAttention(6, 4)
    with pytest.raises(pc.ShapeError, match=r"expected \(batch, T, n\), got \(batch, 5\)"):
        pc.MultiHeadAttention(6).build(np.random.default_rng(0), (5,))


# -------------------------------------------------------------------- together
def recall_net():
    """Residual causal self-attention over symbols and their positions."""
    block = pc.Identity() + (pc.LayerNorm() >> pc.MultiHeadAttention(16, 2, causal=True))
    return pc.Embedding(4, 16) >> pc.Positions() >> block >> pc.Linear(4)


def test_causal_attention_learns_to_find_the_first_symbol_from_every_position(rng):
    """Without attention a position knows its own symbol alone, which says nothing of the first."""
    X = rng.integers(0, 4, (512, 6))
    model = pc.Network(recall_net(), (6,), "softmax_cross_entropy")
    model.fit(X, np.repeat(X[:, :1], 6, 1), epochs=20, optimizer=pc.Adam(0.01), engine="jax")
    new = rng.integers(0, 4, (200, 6))
    assert (model.predict(new) == new[:, :1]).mean() > 0.95


def test_both_engines_train_sequences_alike(rng):
    """Not by Adam: a key's bias has gradient zero (softmax does not see it), and Adam makes steps of the noise around it."""
    X = rng.integers(0, 4, (40, 6))
    models = []
    for engine in ("numpy", "jax"):
        models.append(pc.Network(recall_net(), (6,), "softmax_cross_entropy", dtype="float64"))
        models[-1].fit(X, np.repeat(X[:, :1], 6, 1), epochs=5, optimizer=pc.SGD(0.1, momentum=0.9), engine=engine)
    for name, value in models[0].parameters.items():
        np.testing.assert_allclose(models[1].parameters[name], value, atol=1e-10, err_msg=name)
