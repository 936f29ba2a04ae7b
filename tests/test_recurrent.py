"""Recurrent layers (N15, N16) and back-propagation through time (N35)."""

import functools
import math
import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid as pc
from pellucid import GRU, LSTM, RNN, Linear, Network, check_layer
from pellucid.engines import get_engine
from pellucid.engines.choose import choose_engine, count_uses
from pellucid.engines.numpy import NumpyOps
from pellucid.training.step import Batch, write_back
from pellucid.tree import flatten

KINDS = [RNN, LSTM, GRU]


# -------------------------------------------------------------------- gradients
@settings(max_examples=8)
@given(
    kind=st.sampled_from(KINDS),
    outputs=st.sampled_from(["last", "every"]),
    way=st.sampled_from([{}, {"bidirectional": True}, {"reverse": True}, {"streams": 2}, {"h0": True}]),
    bias=st.booleans(),
    units=st.integers(1, 3),
    steps=st.integers(1, 4),
    features=st.integers(1, 3),
    short=st.integers(0, 3),
)
def test_gradients_agree_with_differences_and_autodiff(kind, outputs, way, bias, units, steps, features, short):
    way = {**way, "h0": np.linspace(-1, 1, units)} if "h0" in way else way
    lengths = [steps, max(1, steps - short)] if short else None
    check = check_layer(kind(units, outputs=outputs, bias=bias, **way), (steps, features), batch=2, lengths=lengths, entries=4)
    assert check, str(check)


@pytest.mark.parametrize("activation", [pc.ReLU(), pc.Sigmoid(), pc.Softplus()])
def test_rnn_gradients_are_right_for_any_activation(activation):
    assert check_layer(RNN(3, activation=activation, outputs="every"), (3, 2), entries=6)


def test_gradients_through_a_stack_are_right():
    net = LSTM(3, outputs="every", bidirectional=True) >> pc.Dropout(0.3) >> GRU(2) >> Linear(2)
    model = Network(net, (None, 2), "softmax_cross_entropy", dtype="float64")
    X = [np.random.default_rng(i).normal(size=(n, 2)) for i, n in enumerate((3, 1, 4))]
    check = model.check_gradients(X, [0, 1, 1], entries=6)
    assert check, str(check)
    assert "0.backward.W_hh" in model.parameters


def test_n35_by_hand_for_one_unit_and_two_steps():
    """h_t = tanh(0.5 x_t + 0.8 h_{t−1}), y_t = 2 h_t, x = (1, −1), targets (0, 1), L = mean of (d − y)²."""
    model = Network(RNN(1, outputs="every", bias=False) >> Linear(1, bias=False), (2, 1), "squared_error", dtype="float64")
    model.set_parameters({"0.W_xh": [[0.5]], "0.W_hh": [[0.8]], "1.W": [[2.0]]})
    h1 = math.tanh(0.5)
    h2 = math.tanh(-0.5 + 0.8 * h1)
    e1, e2 = (2 * h1 - 0), (2 * h2 - 1)  # ∂L/∂y_t = 2 (y − d) / 2
    delta2 = 2 * e2 * (1 - h2**2)
    delta1 = (2 * e1 + 0.8 * delta2) * (1 - h1**2)
    loss, grads = model.gradients(np.array([[[1.0], [-1.0]]]), np.array([[0.0, 1.0]]))
    assert loss == pytest.approx(((2 * h1) ** 2 + (2 * h2 - 1) ** 2) / 2, rel=1e-12)
    assert grads["0.W_hh"][0, 0] == pytest.approx(delta2 * h1, rel=1e-12)
    assert grads["0.W_xh"][0, 0] == pytest.approx(delta1 * 1 + delta2 * -1, rel=1e-12)
    assert grads["1.W"][0, 0] == pytest.approx(e1 * h1 + e2 * h2, rel=1e-12)


def test_n35_as_the_note_writes_it_with_columns_and_h0():
    """δ_t = (W_hyᵀ e_t + W_hhᵀ δ_{t+1}) ⊙ (1 − h_t²), ∂W_hh = Σ δ_t h_{t−1}ᵀ, unfolded step by step."""
    rng = np.random.default_rng(0)
    T, n, m, k = 4, 3, 5, 2
    x, e, h0 = rng.normal(size=(T, n)), rng.normal(size=(T, k)), rng.normal(size=m)
    net = RNN(m, outputs="every", bias=False, h0=h0) >> Linear(k, bias=False)
    params = net.build(rng, (T, n))[0]
    W_xh, W_hh, W_hy = params[0]["W_xh"].T, params[0]["W_hh"].T, params[1]["W"].T
    h = [h0]
    for t in range(T):
        h.append(np.tanh(W_xh @ x[t] + W_hh @ h[-1]))
    delta, dW_hh, dW_xh = np.zeros(m), np.zeros((m, m)), np.zeros((m, n))
    for t in reversed(range(T)):
        delta = (W_hy.T @ e[t] + W_hh.T @ delta) * (1 - h[t + 1] ** 2)
        dW_hh += np.outer(delta, h[t])
        dW_xh += np.outer(delta, x[t])
    ops = NumpyOps(training=True)
    y, cache = ops.forward(net, params, x[None], "net")
    _, grads = ops.backward(net, params, cache, e[None], "net")
    np.testing.assert_allclose(y[0], np.array(h[1:]) @ W_hy.T, atol=1e-14)
    np.testing.assert_allclose(grads[0]["W_hh"].T, dW_hh, atol=1e-13)
    np.testing.assert_allclose(grads[0]["W_xh"].T, dW_xh, atol=1e-13)


# -------------------------------------------------------------------- other judges
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_outputs_and_gradients_agree_with_pytorch(kind, bidirectional):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    n, m, lengths = 3, 4, [6, 2, 5]
    x = rng.normal(size=(3, 6, n))
    theirs = getattr(torch.nn, kind.__name__)(n, m, batch_first=True, bidirectional=bidirectional).double()
    ours = kind(m, outputs="every", bidirectional=bidirectional)
    params = [dict(from_torch(kind, theirs, suffix, m)) for suffix in ("", "_reverse")[: 1 + bidirectional]]
    params = tuple(params) if bidirectional else params[0]

    tx = torch.tensor(x, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(tx, lengths, batch_first=True, enforce_sorted=False)
    ty, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    there = np.arange(6) < np.array(lengths)[:, None]
    flow = rng.normal(size=ty.shape) * there[..., None]
    ty.backward(torch.tensor(flow))

    ops = NumpyOps(weight=np.ones(3), lengths=np.array(lengths, np.int32))
    y, cache = ops.forward(ours, params, x, "net")
    dx, grads = ops.backward(ours, params, cache, flow, "net")
    np.testing.assert_allclose(y[there], ty.detach().numpy()[there], atol=1e-12)
    np.testing.assert_allclose(dx, tx.grad.numpy(), atol=1e-12)
    for p, suffix in zip(grads if bidirectional else [grads], ("", "_reverse"), strict=False):
        np.testing.assert_allclose(p["W_xh"].T, getattr(theirs, f"weight_ih_l0{suffix}").grad, atol=1e-12)
        np.testing.assert_allclose(p["W_hh"].T, getattr(theirs, f"weight_hh_l0{suffix}").grad, atol=1e-12)
        np.testing.assert_allclose(p["b"], getattr(theirs, f"bias_ih_l0{suffix}").grad, atol=1e-12)
        if kind is GRU:
            np.testing.assert_allclose(p["c"], getattr(theirs, f"bias_hh_l0{suffix}").grad[2 * m :], atol=1e-12)


def from_torch(kind, layer, suffix, m):
    get = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    b, c = get[f"bias_ih_l0{suffix}"], get[f"bias_hh_l0{suffix}"].copy()
    if kind is GRU:
        yield "c", c[2 * m :].copy()
        c[2 * m :] = 0
    yield "b", b + c
    yield "W_xh", get[f"weight_ih_l0{suffix}"].T
    yield "W_hh", get[f"weight_hh_l0{suffix}"].T


@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_walk_the_same_path(kind):
    rng = np.random.default_rng(2)
    X = [rng.normal(size=(n, 2)) for n in rng.integers(1, 7, 12)]
    y = [(x.sum(1) > 0).astype(int) for x in X]
    net = kind(4, outputs="every", bidirectional=True) >> Linear(2)
    runs = []
    for engine in ("numpy", "jax"):
        model = Network(net, (None, 2), "softmax_cross_entropy", dtype="float64")
        model.fit(X, y, epochs=3, batch_size=5, engine=engine, optimizer=pc.Adam(0.01, clip_norm=1.0))
        runs.append(model.parameters)
    for name, value in runs[0].items():
        np.testing.assert_allclose(value, runs[1][name], atol=1e-10, err_msg=name)


# -------------------------------------------------------------------- what it promises
@pytest.mark.parametrize("kind", KINDS)
def test_an_output_depends_on_no_later_input(kind):
    net = kind(3, outputs="every")
    p = net.build(np.random.default_rng(0), (6, 2))[0]
    x = np.random.default_rng(1).normal(size=(2, 6, 2))
    later = x.copy()
    later[:, 4:] += 1
    y, z = (NumpyOps().forward(net, p, v, "net")[0] for v in (x, later))
    assert np.array_equal(y[:, :4], z[:, :4])
    assert not np.allclose(y[:, 4], z[:, 4])


@pytest.mark.parametrize("kind", KINDS)
def test_last_is_the_last_of_every(kind):
    x = np.random.default_rng(1).normal(size=(2, 6, 2))
    p = kind(3).build(np.random.default_rng(0), (6, 2))[0]
    every, last = (NumpyOps().forward(kind(3, outputs=o), p, x, "net")[0] for o in ("every", "last"))
    assert np.array_equal(every[:, -1], last)


def test_bidirectional_is_two_layers_side_by_side():
    net, pair = LSTM(3, bidirectional=True), LSTM(3) | LSTM(3, reverse=True)
    x = np.random.default_rng(1).normal(size=(2, 6, 2))
    p = net.build(np.random.default_rng(0), (6, 2))[0]
    assert np.array_equal(NumpyOps().forward(net, p, x, "net")[0], NumpyOps().forward(pair, p, x, "net")[0])
    assert net.count((None, 2)) == pair.count((None, 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_out_is_dtype_in(kind, dtype):
    import jax

    engine = get_engine("jax")
    net = kind(3, outputs="every", h0=[0.1, 0.2, 0.3])
    p = {key: value.astype(dtype) for key, value in net.build(np.random.default_rng(0), (4, 2))[0].items()}
    x = np.zeros((2, 4, 2), dtype)

    def both(Ops, p, x):
        ops = Ops(weight=np.ones(2, dtype), lengths=np.array([4, 2], np.int32))
        y, cache = ops.forward(net, p, x, "net")
        dx, grads = ops.backward(net, p, cache, y, "net")
        return y, dx, *grads.values()

    with engine.precision(dtype):
        for found in both(NumpyOps, p, x), jax.eval_shape(functools.partial(both, engine.JaxOps), p, x):
            assert {str(a.dtype) for a in found} == {dtype}


def test_recurrent_weights_begin_orthogonal_and_the_forget_gate_open():
    p = LSTM(4).build(np.random.default_rng(0), (None, 3))[0]
    for block in np.split(p["W_hh"], 4, axis=1):
        np.testing.assert_allclose(block @ block.T, np.eye(4), atol=1e-12)
    assert np.array_equal(p["b"], [0] * 4 + [1] * 4 + [0] * 8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_does_not_grow_with_the_sequence(kind):
    import jax

    engine = get_engine("jax")
    net = kind(3, outputs="every", bidirectional=True) >> kind(2) >> Linear(1)

    def size(steps):
        model = Network(net, (None, 2))
        batch = Batch(np.ones((4, steps, 2), "f4"), np.ones((4, 1), "f4"), np.ones(4, "f4"), np.full(4, 2, np.int32))
        run = jax.make_jaxpr(lambda p, b: engine.value_and_gradients(net, model.loss, p, b, np.uint32(0)))
        return str(run(model.params, batch)).count(" = ")

    assert size(4) == size(400) > 50


def test_inner_values_are_offered_to_the_recorder():
    class Recorder(NumpyOps):
        def note(self, name, value):
            notes[name] = value
            return value

    notes = {}
    net = LSTM(3)
    p, x = net.build(np.random.default_rng(0), (5, 2))[0], np.ones((2, 5, 2))
    y, _ = Recorder().forward(net, p, x, "net")
    assert set(notes) == {"h", "c", "i", "f", "g", "o"}
    assert all(value.shape == (2, 5, 3) for value in notes.values())
    np.testing.assert_allclose(notes["h"], notes["o"] * np.tanh(notes["c"]))
    assert np.array_equal(notes["h"][:, -1], y)


def test_an_expression_prints_as_the_code_that_makes_it():
    net = RNN(3, outputs="every", activation=pc.ReLU(), h0=[0, 1, 2]) >> LSTM(4, bidirectional=True, bias=False)
    assert eval(repr(net), vars(pc)) == net


# -------------------------------------------------------------------- the scan
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_is_the_same_loop_on_both_engines(reverse):
    xs = (np.arange(5.0), {"b": np.arange(10.0).reshape(5, 2)}, None)

    def step(carry, now):
        a, tree, nothing = now
        carry = 0.5 * carry + a
        return carry, (carry, tree["b"] * carry, nothing)

    expected, carry = [], 1.0
    for t in reversed(range(5)) if reverse else range(5):
        carry = 0.5 * carry + t
        expected.append(carry)
    jax = get_engine("jax")
    for Ops in (NumpyOps, jax.JaxOps):
        with jax.precision("float64"):
            end, (ys, products, nothing) = Ops().scan(step, np.float64(1), xs, reverse)
        assert float(end) == carry
        assert nothing is None
        np.testing.assert_allclose(ys, expected[::-1] if reverse else expected)
        np.testing.assert_allclose(products, xs[1]["b"] * np.asarray(ys)[:, None])


@pytest.mark.parametrize("engine", ["numpy", "jax"])
@pytest.mark.parametrize("call", [lambda ops: ops.keep("_a", 1.0), lambda ops: ops.uniform((2,))])
def test_keep_and_uniform_are_refused_inside_a_scan(engine, call):
    module = get_engine(engine)
    ops = module.NumpyOps() if engine == "numpy" else module.JaxOps()
    with pytest.raises(RuntimeError, match=r"cannot be used inside ops\.scan"):
        ops.scan(lambda carry, x: (carry, call(ops)), np.float32(0), np.zeros(3, "f4"))
    call(ops)  # afterwards they work again


# -------------------------------------------------------------------- carried state
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_carried_over_chunks_the_outputs_equal_one_long_pass(kind, engine):
    module = get_engine(engine)
    Ops = module.NumpyOps if engine == "numpy" else module.JaxOps
    net = kind(3, outputs="every", streams=2)
    params = net.build(np.random.default_rng(0), (None, 2))[0]
    text = np.random.default_rng(1).normal(size=(2 * 12, 2))
    long = text.reshape(2, 12, 2)
    with module.precision("float64"):
        whole = np.asarray(Ops().forward(net, params, long, "net")[0])
        parts = []
        for chunk in pc.cut_streams(text, streams=2, steps=4).reshape(3, 2, 4, 2):
            ops = Ops(training=True)
            y, _ = ops.forward(net, params, chunk, "net")
            params = write_back(params, ops.kept)
            parts.append(np.asarray(y))
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-12)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_an_epoch_over_streams_reads_the_long_texts_and_the_next_begins_anew(engine):
    text = np.random.default_rng(0).integers(0, 3, 2 * 30 + 1)
    letters = np.eye(3)[text]
    model = Network(LSTM(4, outputs="every", streams=2) >> Linear(3), (None, 3), "softmax_cross_entropy", dtype="float64")
    X, y = pc.cut_streams(letters[:-1], 2, 5), pc.cut_streams(text[1:], 2, 5)
    long = model.evaluate(letters[:-1].reshape(2, 30, 3), text[1:].reshape(2, 30))["loss"]
    cold = model.evaluate(X, y)["loss"]
    history = model.fit(X, y, epochs=2, batch_size=2, order="given", optimizer=pc.SGD(1e-15), engine=engine)
    np.testing.assert_allclose(history["loss"], [long, long], rtol=1e-9)
    assert abs(cold - long) > 1e-6
    assert not model.parameters["0._carried_h"].any()  # nothing of it stays with the model


def test_streams_out_of_order_are_refused_with_the_remedy():
    model = Network(LSTM(4, outputs="every", streams=2) >> Linear(3), (None, 3), "softmax_cross_entropy")
    X, y = np.zeros((6, 5, 3)), np.arange(30).reshape(6, 5) % 3
    for options in ({}, {"batch_size": 2}, {"batch_size": 3, "order": "given"}, {"batch_size": 2, "order": "given", "validation": 0.5}):
        with pytest.raises(ValueError, match=r"LSTM\(4, .*batch_size=2, order='given'.*cut_streams"):
            model.fit(X, y, **options)
    with pytest.raises(ValueError, match="streams must be 0 for a layer that reads from the end"):
        LSTM(4, bidirectional=True, streams=2)
    with pytest.raises(ValueError, match="expected batches of 2 rows"):
        model.gradients(X[:3], y[:3])


def test_cut_streams_keeps_every_piece_in_order():
    rows = pc.cut_streams(np.arange(100), streams=3, steps=4)
    assert rows.shape == (24, 4)
    assert [rows[i::3].ravel().tolist() for i in range(3)] == [list(range(32 * i, 32 * i + 32)) for i in range(3)]
    with pytest.raises(ValueError, match="fewer or shorter"):
        pc.cut_streams(np.arange(5), streams=3, steps=4)


# -------------------------------------------------------------------- cost, and errors
def test_work_grows_with_the_sequence():
    net = GRU(8, outputs="every", bidirectional=True) >> Linear(2)
    params = net.build(np.random.default_rng(0), (10, 4))[0]

    def row(steps):
        return Batch(np.zeros((1, steps, 4)), np.zeros(1), np.ones(1))

    used = count_uses(net, params, row(10))
    assert used["scan"] == 2 * 10 * (4 + 8) * 3 * 8
    assert used["product"] == 10 * 16 * 2
    assert used["layer"] > 20
    assert choose_engine(net, params, 32, 5, row(2))[0] == "numpy"
    assert choose_engine(net, params, 32, 500, row(200))[0] == "jax"


@pytest.mark.parametrize(
    ("shape", "fix"), [((3,), "outputs='every'"), ((4, 4, 2), r"Reshape\(\(T, -1\)\)")], ids=["no time axis", "an axis too many"]
)
def test_wrong_shapes_are_refused_by_name_with_the_remedy(shape, fix):
    with pytest.raises(pc.ShapeError, match=rf"GRU\(2\): expected \(steps, features\).*{fix}"):
        GRU(2).build(np.random.default_rng(0), shape)


def test_a_fixed_length_is_asked_for_where_it_is_needed():
    with pytest.raises(pc.ShapeError, match=r"Flatten\(\).*fixed size"):
        Network(RNN(3, outputs="every") >> pc.Flatten() >> Linear(2), (None, 2))
    assert Network(RNN(3, outputs="every") >> pc.Flatten() >> Linear(2), (4, 2)).output_shape == (2,)


# -------------------------------------------------------------------- a scan as one kernel: on GPU, here interpreted on CPU
KERNEL_CASES = [
    RNN(32),
    RNN(16, outputs="every"),
    RNN(16, reverse=True, outputs="every"),
    RNN(64, activation=pc.Sigmoid()),
    RNN(16, activation=pc.LeakyReLU()),
    RNN(16, bias=False),
    RNN(24, outputs="every"),
    RNN(3),
    LSTM(16),
    LSTM(20, reverse=True, outputs="every"),
    GRU(16, outputs="every"),
    GRU(10, bias=False),
]


def in_kernel(monkeypatch):
    """Let the JAX engine run scans as kernels; returns a list with one entry for every scan: whether it did."""
    from pellucid.engines import jax as engine
    from pellucid.engines.jax_kernel import scan_rows

    done = []

    def loop(self, function, carry, xs, reverse, by_rows):
        found = scan_rows(function, carry, xs, reverse, interpret=True) if by_rows and not self.derived else None
        done.append(found is not None)
        return found or plain(self, function, carry, xs, reverse, by_rows)

    plain = engine.JaxOps.loop
    monkeypatch.setattr(engine.JaxOps, "loop", loop)
    return done


def gradients_of(layer, X, engine="jax"):
    import jax

    model = Network(layer >> pc.Flatten() >> Linear(3), X.shape[1:], "softmax_cross_entropy", seed=1)
    batch = Batch(X, np.arange(len(X), dtype=np.int32) % 3, np.ones(len(X), np.float32))
    run = get_engine(engine).value_and_gradients
    if engine == "jax":
        run = jax.jit(run.__wrapped__, static_argnums=(0, 1))  # not a program that is there already
    return flatten(run(model.net, model.loss, model.params, batch, np.uint32(0))[1], model.net)


@pytest.mark.parametrize("layer", KERNEL_CASES, ids=repr)
def test_a_scan_as_one_kernel_gives_the_scans_gradients(layer, monkeypatch, in_float32):
    X = np.random.default_rng(0).normal(size=(48, 7, 5)).astype(np.float32)  # 48 rows: three blocks
    expected = gradients_of(layer, X, "numpy")
    done = in_kernel(monkeypatch)
    found = gradients_of(layer, X)
    assert done == [True, True]  # ahead and back
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layer", KERNEL_CASES, ids=repr)
def test_a_gpus_program_has_one_kernel_ahead_and_one_back(layer, monkeypatch):
    """The program for a GPU can be made without one, by JAX up to 0.10; only to run it takes one."""
    import jax

    from pellucid.engines import jax as engine

    monkeypatch.setattr(engine, "on_cpu", lambda: False)
    params = jax.tree.map(np.float32, layer.build(np.random.default_rng(0), (7, 5))[0])
    x, dy = np.zeros((48, 7, 5), np.float32), np.zeros((48, 7, layer.units) if layer.outputs == "every" else (48, layer.units), np.float32)

    def both(p, x, dy):
        ops = engine.JaxOps(weight=np.ones(48, np.float32))
        return layer.backward(ops, p, layer.forward(ops, p, x)[1], dy)

    try:
        text = jax.jit(both).trace(params, x, dy).lower(lowering_platforms=("cuda",)).as_text()
    except RuntimeError as error:
        if "No supported GPU" in str(error):
            pytest.skip("this JAX makes programs for a GPU only where it sees one")
        raise
    assert len(re.findall(r"custom_call @\S*triton", text)) == 2, re.findall(r"custom_call @\S*", text)


@pytest.mark.parametrize(
    ("layer", "rows"),
    [(RNN(256), 32), (LSTM(128), 32), (GRU(128), 257), (RNN(16, activation=pc.Softplus()), 32), (RNN(1), 8)],
    ids=["too many weights", "too many weights in gates", "many weights and rows", "unknown operation", "one unit"],
)
def test_what_no_kernel_can_do_is_scanned(layer, rows, monkeypatch, in_float32):
    X = np.random.default_rng(0).normal(size=(rows, 3, 5)).astype(np.float32)
    done = in_kernel(monkeypatch)
    expected, found = gradients_of(layer, X, "numpy"), gradients_of(layer, X)
    assert not done[0]  # ahead; the way back may be simple enough
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-5)


def test_without_pallas_for_a_gpu_a_layer_is_scanned(monkeypatch):
    """A later JAX may come without it."""
    from jax.experimental import pallas

    monkeypatch.delattr(pallas, "triton", raising=False)
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    done = in_kernel(monkeypatch)
    gradients_of(RNN(16), np.ones((32, 3, 5), np.float32))
    assert done == [False, False]


@pytest.mark.parametrize("layer", [RNN(16), LSTM(10), GRU(16, reverse=True)], ids=repr)
def test_padded_sequences_go_through_the_kernel(layer, monkeypatch, in_float32):
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, 5)).astype(np.float32) for n in [2, 5, 3] * 8]
    done = in_kernel(monkeypatch)
    models = [Network(layer >> Linear(1), (None, 5), seed=1) for _ in range(2)]
    for model, engine in zip(models, ("numpy", "jax"), strict=True):
        model.fit(rows, np.arange(24.0)[:, None] / 24, epochs=2, batch_size=8, optimizer=pc.SGD(0.1), engine=engine, progress=False)
    assert done
    assert all(done)
    for a, b in zip(*(flatten(model.params, model.net).values() for model in models), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-6)


def test_many_networks_at_once_share_a_kernel(monkeypatch):
    """As a population on a GPU has it: one program, the parameters of all along a first axis."""
    import jax

    from pellucid.engines import jax as engine

    layer, rng = LSTM(10), np.random.default_rng(0)
    x, dy = (rng.normal(size=size).astype(np.float32) for size in ((6, 4, 5), (6, 10)))
    all_params = [jax.tree.map(np.float32, layer.build(np.random.default_rng(seed), (4, 5))[0]) for seed in range(3)]

    def gradients(p):
        ops = engine.JaxOps(weight=np.ones(6, np.float32))
        return layer.backward(ops, p, layer.forward(ops, p, x)[1], dy)[1]

    expected = [jax.jit(gradients)(p) for p in all_params]
    done = in_kernel(monkeypatch)
    found = jax.jit(jax.vmap(gradients))(jax.tree.map(lambda *a: np.stack(a), *all_params))
    assert done == [True, True]
    for i, one in enumerate(expected):
        for name, value in one.items():
            np.testing.assert_allclose(found[name][i], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("members", "fits"), [(2, True), (3, False)])
def test_a_population_counts_as_many_rows(members, fits, monkeypatch):
    """Where the weights fill a multiprocessor, a kernel takes no more rows than there are of those, about."""
    from pellucid.engines import jax_kernel, pile

    pile.program.cache_clear()
    monkeypatch.setattr(jax_kernel, "SMALL", 0)
    monkeypatch.setattr(jax_kernel, "MANY", 16)
    done = in_kernel(monkeypatch)
    population = pc.Population(RNN(4) >> Linear(1), (3, 2), seed=list(range(members)))
    population.fit(np.ones((8, 3, 2)), np.ones((8, 1)), epochs=1, batch_size=8, engine="jax", how="batched", progress=False)
    pile.program.cache_clear()
    assert set(done) == {fits}


W, V, B = (np.random.default_rng(i).normal(size=size).astype(np.float32) for i, size in enumerate([(5, 5), (10, 5), (5,)]))
STEPS = {  # whether a kernel does it
    "units filled up are not finite": (lambda xp, h, x: (xp.tanh(1 / x @ W), h), True),
    "a root, a logarithm": (lambda xp, h, x: (xp.tanh(xp.sqrt(x * x) + xp.log(x * x + 1) @ W), h), True),
    "a state that is an input": (lambda xp, h, x: (x, h + 1), True),
    "an output that is an input": (lambda xp, h, x: (xp.tanh(h @ W), (x, h * 2)), True),
    "a state that is a constant": (lambda xp, h, x: (xp.zeros_like(h), h + x), False),
    "an output without rows": (lambda xp, h, x: (xp.tanh(h + x), xp.tanh(B)[None] * 2), False),
    "an output that is the weights": (lambda xp, h, x: (xp.tanh(h @ W + x), W), False),
    "joined with zeros": (lambda xp, h, x: (xp.tanh(xp.concatenate([h, xp.zeros_like(h)], -1) @ V + x), h), False),
    "cut through a piece": (lambda xp, h, x: (xp.tanh(xp.concatenate([h[:, 2:], x[:, :2]], -1)), h), False),
    "a sum over units": (lambda xp, h, x: (h - x.sum(1, keepdims=True), h), False),
    "two products": (lambda xp, h, x: (xp.tanh(xp.concatenate([h @ W, x], -1) @ V + B), h), True),
    "whole numbers": (lambda xp, h, x: (h + x.astype(int), h), False),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("reverse", [False, True])
def test_whatever_a_step_does_a_kernel_does_the_same_or_leaves_it(name, reverse):
    import jax
    import jax.numpy as jnp

    from pellucid.engines.jax_kernel import scan_rows

    step, known = STEPS[name]
    rng = np.random.default_rng(0)
    function, h, x = lambda h, x: step(jnp, h, x), jnp.float32(rng.normal(size=(3, 5))), jnp.float32(rng.normal(size=(4, 3, 5)))
    found, expected = scan_rows(function, h, x, reverse, interpret=True), jax.lax.scan(function, h, x, reverse=reverse)
    assert (found is not None) == known
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True) if known else ():
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "shapes", [[(3, 5), (4, 3)], [(3,), (4, 3, 5)], [(0, 5), (4, 0, 5)], [(3, 5), (0, 3, 5)], [(3, 0), (4, 3, 5)]], ids=str
)
def test_arrays_of_other_shapes_are_left(shapes):
    import jax.numpy as jnp

    from pellucid.engines.jax_kernel import scan_rows

    h, x = map(jnp.zeros, shapes)
    assert scan_rows(lambda h, x: (h, h), h, x, False, interpret=True) is None
    assert scan_rows(lambda h, x: (h, h), h, None, False, interpret=True) is None


def test_derived_layers_are_scanned(monkeypatch):
    done = in_kernel(monkeypatch)

    class Twice(pc.Layer):
        """A layer whose derivative JAX finds."""

        inner: pc.Layer

        def build(self, rng, shape):
            return self.inner.build(rng, shape)

        def forward(self, ops, p, x):
            return 2 * ops.forward(self.inner, p, x, "inner")[0], None

    X = np.random.default_rng(0).normal(size=(16, 3, 5)).astype(np.float32)
    Network(Twice(RNN(16)) >> Linear(1), (3, 5)).fit(X, np.ones((16, 1)), epochs=1, batch_size=16, engine="jax", progress=False)
    assert done
    assert not any(done)
