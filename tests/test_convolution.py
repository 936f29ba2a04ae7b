"""Convolution and pooling: the note's formula (N14), gradients, engines, PyTorch, padding of sequences, wrong use."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid as pc
from pellucid.engines import get_engine, jax_conv, winograd
from pellucid.engines.choose import count_uses
from pellucid.training.step import Batch, gradients
from pellucid.tree import map_leaves
from pellucid.windows import Windows

NUMPY, JAX = get_engine("numpy"), get_engine("jax")
quick = settings(max_examples=8, deadline=None, derandomize=True)


@st.composite
def convolutions(draw, axes=None):
    """A convolution and a shape that fits it."""
    axes = axes or draw(st.sampled_from([1, 2]))
    several = st.tuples(*[st.integers(1, 3)] * axes)
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, units = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, stride, dilation = draw(st.tuples(*[st.integers(1, 4)] * axes)), draw(several), draw(st.tuples(*[st.integers(1, 2)] * axes))
    padding = draw(st.sampled_from(["same", "valid", 1, 3, (2, 0)[:axes]]))
    layer = (pc.Conv1d if axes == 1 else pc.Conv2d)(
        units, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=draw(st.booleans())
    )
    space = tuple((k - 1) * d + draw(st.integers(1, 4)) for k, d in zip(kernel, dilation, strict=True))
    return layer, (*space, channels)


POOLS = [
    (pc.MaxPool2d(2), (4, 6, 2)),
    (pc.MaxPool2d(3, stride=2, padding=1), (5, 6, 2)),
    (pc.MaxPool2d((3, 2), stride=1, padding="same"), (4, 4, 1)),
    (pc.AvgPool2d(2), (5, 4, 2)),
    (pc.AvgPool2d(3, stride=2, padding=1), (5, 6, 2)),
    (pc.AvgPool2d((1, 3), padding="same"), (4, 5, 1)),
    (pc.MaxPool1d(3, stride=2), (9, 2)),
    (pc.AvgPool1d(2, padding="same"), (7, 2)),
    (pc.GlobalAvgPool(), (3, 4, 2)),
    (pc.GlobalMaxPool(), (3, 4, 2)),
    (pc.GlobalAvgPool(), (5, 2)),
    (pc.GlobalMaxPool(), (5, 2)),
    (pc.ChannelsLast(), (2, 3, 4)),
    (pc.ChannelsLast(), (2, 5)),
]


def note_convolution(x, w):
    """The sum of N14 word by word: y[b,oc,i,j] = Σ w[oc,ic,i′,j′] x[b,ic,i+i′,j+j′], zero outside, −K ≤ i′, j′ ≤ K."""
    B, IC, H, W = x.shape
    OC, K = len(w), w.shape[-1] // 2
    y = np.zeros((B, OC, H, W))
    for b, oc, i, j, ic, di, dj in itertools.product(range(B), range(OC), range(H), range(W), range(IC), *[range(-K, K + 1)] * 2):
        if 0 <= i + di < H and 0 <= j + dj < W:
            y[b, oc, i, j] += w[oc, ic, di + K, dj + K] * x[b, ic, i + di, j + dj]
    return y


def run(engine, layer, params, x, dy, lengths=None, dtype=np.float64):
    """Output, dx and parameter gradients of one layer for a given flow."""
    Ops = engine.JaxOps if engine.name == "jax" else engine.NumpyOps

    def both(params, x, dy, lengths):
        ops = Ops(training=True, weight=np.ones(len(x), dtype), lengths=lengths)
        y, cache = ops.forward(layer, params, x, "net")
        return y, *ops.backward(layer, params, cache, dy, "net")

    with engine.precision(dtype):
        given = map_leaves(lambda a: np.asarray(a, dtype), params), x.astype(dtype), dy.astype(dtype), lengths
        return engine.get((jax.jit(both) if engine is JAX else both)(*given))


def test_conv2d_is_the_notes_sum():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 5, 4)), rng.normal(size=(2, 3, 3, 3))
    y, _, _ = run(NUMPY, pc.Conv2d(2, 3, bias=False), {"W": w.transpose(2, 3, 1, 0)}, x.transpose(0, 2, 3, 1), np.zeros((2, 5, 4, 2)))
    np.testing.assert_allclose(y.transpose(0, 3, 1, 2), note_convolution(x, w), atol=1e-12)


@quick
@given(convolutions(), st.integers(0, 99))
def test_convolution_gradients_are_right(case, seed):
    layer, shape = case
    assert pc.check_layer(layer, shape, batch=2, seed=seed, entries=10)


@pytest.mark.parametrize(("layer", "shape"), POOLS, ids=str)
def test_pooling_gradients_are_right(layer, shape):
    check = pc.check_layer(layer, shape, entries=30)
    assert check, check


@quick
@given(convolutions(), st.integers(0, 99))
def test_engines_agree_on_convolution(case, seed):
    agree(*case, seed)


@pytest.mark.parametrize(("layer", "shape"), POOLS, ids=str)
def test_engines_agree_on_pooling(layer, shape):
    agree(layer, shape, 0)


def agree(layer, shape, seed):
    rng = np.random.default_rng(seed)
    params, out = layer.build(rng, shape)
    x, dy = rng.normal(size=(3, *shape)), rng.normal(size=(3, *out))
    ours, theirs = run(NUMPY, layer, params, x, dy), run(JAX, layer, params, x, dy)
    assert ours[0].shape == (3, *out)
    for a, b in zip((*ours[:2], *ours[2].values()), (*theirs[:2], *(theirs[2][k] for k in ours[2])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    for engine in (NUMPY, JAX):
        y, dx, grads = run(engine, layer, params, x, dy, dtype=np.float32)
        assert {a.dtype for a in (y, dx, *grads.values())} == {np.dtype("float32")}
        np.testing.assert_allclose(y, ours[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(dx, ours[1], rtol=1e-4, atol=1e-4)


@quick
@given(convolutions(), st.integers(0, 99))
def test_every_way_of_the_compiled_engine_agrees_with_xla(case, seed):
    layer, shape = case
    rng = np.random.default_rng(seed)
    params, out = layer.build(rng, shape)
    windows, groups, x, dy, w = layer.windows(), layer.groups, rng.normal(size=(2, *shape)), rng.normal(size=(2, *out)), params["W"]

    def every_way(x, w, dy):
        y, back = jax.vjp(lambda x, w: jax_conv.conv_xla(x, w, windows, groups), x, w)
        dx, dw = back(dy)
        ways = [(jax_conv.conv_patches(x, w, windows, groups), y)]
        if shape[-1] == groups:
            ways.append((jax_conv.conv_products(x, w, windows, groups), y))
        if groups == 1 and jax_conv.in_rows(windows):
            ways += [(jax_conv.conv_rows(x, w, windows, groups), y), (jax_conv.weight_rows(x, dy, windows, groups), dw)]
        ways += [(f(dy, w, x.shape, windows, groups), dx) for f in (jax_conv.input_xla, jax_conv.input_shares)]
        return ways + [(f(x, dy, windows, groups), dw) for f in (jax_conv.weight_xla, jax_conv.weight_patches)]

    with jax.enable_x64(True):
        for ours, xla in jax.jit(every_way)(x, w, dy):
            np.testing.assert_allclose(ours, xla, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
@pytest.mark.parametrize("padding", [((0, 0), (0, 0)), ((1, 2), (3, 0))])
def test_images_in_rows_agree_with_the_numpy_engine(stride, dilation, padding):
    rng = np.random.default_rng(0)
    windows = Windows((3, 2), (1, stride), dilation, padding)
    x, w = rng.normal(size=(2, 9, 8, 5)), rng.normal(size=(3, 2, 5, 4))
    y = NUMPY.NumpyOps.conv(x, w, windows, 1)
    dy = rng.normal(size=y.shape)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax_conv.conv_rows(*map(jax.numpy.asarray, (x, w)), windows, 1), y, atol=1e-12)
        dw = jax_conv.weight_rows(*map(jax.numpy.asarray, (x, dy)), windows, 1)
    np.testing.assert_allclose(dw, NUMPY.NumpyOps.conv_weight_gradient(x, dy, windows, 1), atol=1e-12)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.tuples(*[st.integers(1, 7)] * 2), st.tuples(*[st.tuples(st.integers(0, 4), st.integers(2, 3))] * 2), st.integers(0, 99))
def test_kernels_in_tiles_agree_with_the_numpy_engine(space, padding, seed):
    """Odd sizes, too, padding of other widths at both ends, more of it than a kernel is wide, and images smaller than a tile."""
    rng, windows, ops = np.random.default_rng(seed), Windows((3, 3), (1, 1), (1, 1), padding), NUMPY.NumpyOps
    x, w, dy = (rng.normal(size=shape) for shape in ((2, *space, 3), (3, 3, 3, 4), (2, *windows.places(space), 4)))

    def in_tiles(x, w, dy):
        dx, dw = winograd.input_tiles(dy, w, x.shape, windows, 1), winograd.weight_tiles(x, dy, windows, 1)
        return winograd.conv_tiles(x, w, windows, 1), dx, dw

    dx, dw = ops.conv_input_gradient(dy, w, x.shape, windows, 1), ops.conv_weight_gradient(x, dy, windows, 1)
    with jax.enable_x64(True):
        for tiles, numpy in zip(jax.jit(in_tiles)(x, w, dy), (ops.conv(x, w, windows, 1), dx, dw), strict=True):
            np.testing.assert_allclose(tiles, numpy, rtol=1e-10, atol=1e-10)


@pytest.fixture
def taken(monkeypatch):
    """The ways in tiles that are taken, small images too."""
    seen = []
    monkeypatch.setattr(jax_conv, "WORK", 0)
    for name in ("conv_tiles", "input_tiles", "weight_tiles"):
        way = getattr(jax_conv, name)
        monkeypatch.setattr(jax_conv, name, lambda *args, name=name, way=way: seen.append(name) or way(*args))
    return seen


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU has other ways")
@pytest.mark.parametrize(
    ("layer", "channels"), [(pc.Conv2d(64, padding="valid"), 16), (pc.Conv2d(26, padding=(2, 0), bias=False), 40)], ids=str
)
def test_kernels_with_many_channels_are_computed_in_tiles(layer, channels, taken):
    shape = (4, 5, channels)
    agree(layer, shape, 0)
    assert {*taken} == {"conv_tiles", "input_tiles", "weight_tiles"}
    check = pc.check_layer(layer, shape, batch=2, entries=10)
    assert check, check


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU has other ways")
@pytest.mark.parametrize(
    ("layer", "channels", "dtype", "expected"),
    [
        (pc.Conv2d(32), 32, "float32", True),
        (pc.Conv2d(16), 64, "float64", True),
        (pc.Conv2d(32), 31, "float32", False),
        (pc.Conv2d(512), 15, "float32", False),
        (pc.Conv2d(32), 32, "bfloat16", False),  # sums would lose digits before they are multiplied
        (pc.Conv2d(32, stride=2), 32, "float32", False),
        (pc.Conv2d(32, dilation=2), 32, "float32", False),
        (pc.Conv2d(64, groups=2), 64, "float32", False),
        (pc.Conv2d(32, 5), 32, "float32", False),
    ],
)
def test_tiles_are_for_kernels_of_three_by_three_with_many_channels(layer, channels, dtype, expected, taken):
    params, out = layer.build(np.random.default_rng(0), shape := (6, 6, channels))
    windows, leaf = layer.windows(), lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
    x, w, dy = leaf(2, *shape), leaf(*params["W"].shape), leaf(2, *out)
    with jax.enable_x64(True):
        jax.eval_shape(lambda x, w: jax_conv.conv(x, w, windows, layer.groups), x, w)
        jax.eval_shape(lambda dy, w: jax_conv.conv_input_gradient(dy, w, x.shape, windows, layer.groups), dy, w)
        jax.eval_shape(lambda x, dy: jax_conv.conv_weight_gradient(x, dy, windows, layer.groups), x, dy)
    assert taken == ["conv_tiles", "input_tiles", "weight_tiles"] * expected


@pytest.mark.parametrize(("rows", "expected"), [(19, False), (20, True)])
def test_tiles_are_for_work_that_is_worth_compiling_them(rows, expected, monkeypatch):
    monkeypatch.setattr(jax_conv, "on_cpu", lambda: True)
    x = jax.ShapeDtypeStruct((rows, 14, 14, 32), np.float32)  # 20 · 14 · 14 · 32 · 32 = 4.01 million
    assert jax_conv.in_tiles(x, (3, 3, 32, 32), Windows((3, 3), (1, 1), (1, 1), ((1, 1), (1, 1))), 1) is expected


def test_tiles_are_as_exact_as_other_ways():
    """Beside double precision: sums of three inputs and halves of three weights lose next to nothing."""
    rng, windows = np.random.default_rng(0), Windows((3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)))
    x, w, dy = (rng.normal(size=shape) for shape in ((8, 14, 14, 64), (3, 3, 64, 64), (8, 14, 14, 64)))
    for exact, tiles, args in (
        (NUMPY.NumpyOps.conv, winograd.conv_tiles, (x, w, windows, 1)),
        (NUMPY.NumpyOps.conv_input_gradient, winograd.input_tiles, (dy, w, x.shape, windows, 1)),
        (NUMPY.NumpyOps.conv_weight_gradient, winograd.weight_tiles, (x, dy, windows, 1)),
    ):
        right = exact(*args)
        half = [a.astype(np.float32) if isinstance(a, np.ndarray) else a for a in args]
        with jax.default_matmul_precision("float32"):
            off = np.abs(tiles(*half) - right).max() / np.abs(right).max()
        assert off < 3e-6


def test_patches_in_blocks_are_patches_at_once(monkeypatch):
    from pellucid.engines import numpy_conv

    rng = np.random.default_rng(0)
    layer = pc.Conv2d(4, 3, groups=2)
    params, out = layer.build(rng, (6, 5, 2))
    x, dy = rng.normal(size=(7, 6, 5, 2)), rng.normal(size=(7, *out))
    whole = run(NUMPY, layer, params, x, dy)
    monkeypatch.setattr(numpy_conv, "BLOCK", 2000)  # three images a block
    parts = run(NUMPY, layer, params, x, dy)
    for a, b in zip((*whole[:2], *whole[2].values()), (*parts[:2], *parts[2].values()), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


# ---------------------------------------------------------------- beside PyTorch
@quick
@given(convolutions(), st.integers(0, 99))
def test_convolution_is_pytorchs(case, seed):
    torch = pytest.importorskip("torch")
    layer, shape = case
    if layer.padding == "same" and max(layer.stride) > 1:  # PyTorch has no such thing
        layer = layer.replace(padding="valid")
    axes = layer.axes
    rng = np.random.default_rng(seed)
    params, out = layer.build(rng, shape)
    x, dy = rng.normal(size=(2, *shape)), rng.normal(size=(2, *out))
    first = (0, axes + 1, *range(1, axes + 1))  # channels first
    tx = torch.tensor(x.transpose(first), requires_grad=True)
    tw = torch.tensor(np.ascontiguousarray(params["W"].transpose(axes + 1, axes, *range(axes))), requires_grad=True)
    tb = torch.zeros(layer.units, dtype=torch.float64, requires_grad=True)
    function = torch.nn.functional.conv1d if axes == 1 else torch.nn.functional.conv2d
    same = layer.padding == "same"
    total = [d * (k - 1) for k, d in zip(layer.kernel, layer.dilation, strict=True)]
    padded = torch.nn.functional.pad(tx, [n for t in reversed(total) for n in (t // 2, t - t // 2)]) if same else tx
    padding = 0 if same or layer.padding == "valid" else layer.padding
    ty = function(padded, tw, tb, stride=layer.stride, padding=padding, dilation=layer.dilation, groups=layer.groups)
    ty.backward(torch.tensor(dy.transpose(first)))
    y, dx, grads = run(NUMPY, layer, params, x, dy)
    last = (0, *range(2, axes + 2), 1)
    np.testing.assert_allclose(y, ty.detach().numpy().transpose(last), atol=1e-5)
    np.testing.assert_allclose(dx, tx.grad.numpy().transpose(last), atol=1e-5)
    np.testing.assert_allclose(grads["W"], tw.grad.numpy().transpose(*range(2, axes + 2), 1, 0), atol=1e-5)
    if layer.bias:
        np.testing.assert_allclose(grads["b"], tb.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "name", "shape"),
    [
        (pc.MaxPool2d(2), "MaxPool2d", (7, 6, 2)),
        (pc.MaxPool2d(3, stride=2, padding=1), "MaxPool2d", (7, 6, 2)),
        (pc.AvgPool2d(2), "AvgPool2d", (7, 6, 2)),
        (pc.AvgPool2d((3, 2), stride=1, padding=1), "AvgPool2d", (7, 6, 2)),
        (pc.MaxPool1d(3, stride=1), "MaxPool1d", (8, 3)),
        (pc.AvgPool1d(4, padding=2), "AvgPool1d", (8, 3)),
        (pc.GlobalAvgPool(), "AdaptiveAvgPool2d", (7, 6, 2)),
        (pc.GlobalMaxPool(), "AdaptiveMaxPool2d", (7, 6, 2)),
    ],
    ids=str,
)
def test_pooling_is_pytorchs(layer, name, shape):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(3, *shape)), 1)  # rounded: ties happen
    _, out = layer.build(rng, shape)
    dy = rng.normal(size=(3, *out))
    tx = torch.tensor(np.moveaxis(x, -1, 1), requires_grad=True)
    settings = (
        {k: getattr(layer, k) if getattr(layer, k) != "valid" else 0 for k in ("stride", "padding")} if hasattr(layer, "size") else {}
    )
    ty = getattr(torch.nn, name)(getattr(layer, "size", 1), **settings)(tx)
    ty.backward(torch.tensor(np.moveaxis(dy, -1, 1)).reshape(ty.shape))
    y, dx, _ = run(NUMPY, layer, {}, x, dy)
    np.testing.assert_allclose(y, np.moveaxis(ty.detach().numpy(), 1, -1).reshape(y.shape), atol=1e-5)
    np.testing.assert_allclose(dx, np.moveaxis(tx.grad.numpy(), 1, -1), atol=1e-5)


# ---------------------------------------------------------------- sequences of different length
SEQUENCES = [
    pc.Conv1d(4, 3) >> pc.Tanh() >> pc.Conv1d(3, 4, stride=2) >> pc.GlobalAvgPool(),
    pc.Conv1d(4, 3, stride=2) >> pc.MaxPool1d(2, padding="same") >> pc.Conv1d(3, 3) >> pc.GlobalMaxPool(),
    pc.Conv1d(4, 2, padding="valid", dilation=2) >> pc.AvgPool1d(2, stride=1) >> pc.GlobalAvgPool(),
    (pc.Conv1d(3, 3, stride=2) | (pc.Conv1d(2, 3) >> pc.MaxPool1d(3, stride=2, padding=1))) >> pc.Conv1d(2, 3) >> pc.GlobalAvgPool(),
]


@pytest.mark.parametrize("net", SEQUENCES, ids=str)
def test_a_padded_sequence_counts_as_if_it_were_alone(net):
    rng = np.random.default_rng(0)
    params, out = net.build(rng, (16, 2))
    lengths = np.array([16, 5, 9, 12], np.int32)
    x, dy = rng.normal(size=(4, 16, 2)), rng.normal(size=(4, *out))
    y, dx, grads = run(NUMPY, net, params, x, dy, lengths)
    total = [map_leaves(np.zeros_like, grads)]
    for i, n in enumerate(lengths):
        alone = run(NUMPY, net, params, x[i : i + 1, :n], dy[i : i + 1])
        np.testing.assert_allclose(y[i], alone[0][0], atol=1e-12)
        np.testing.assert_allclose(dx[i, :n], alone[1][0], atol=1e-12)
        assert not dx[i, n:].any()
        total.append(map_leaves(np.add, total[-1], alone[2]))
    map_leaves(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), grads, total[-1])
    compiled = run(JAX, net, params, x, dy, lengths)
    map_leaves(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), (y, dx, grads), compiled)


@pytest.mark.parametrize("net", SEQUENCES, ids=str)
def test_what_the_padding_contains_changes_nothing_by_a_bit(net):
    rng = np.random.default_rng(0)
    params, out = net.build(rng, (16, 2))
    lengths, x, dy = np.array([16, 5, 9], np.int32), rng.normal(size=(3, 16, 2)), rng.normal(size=(3, *out))
    soiled = np.where(np.arange(16)[:, None] < lengths[:, None, None], x, np.nan)
    clean, same = run(NUMPY, net, params, x, dy, lengths), run(NUMPY, net, params, soiled, dy, lengths)
    np.testing.assert_array_equal(clean[0], same[0])
    np.testing.assert_array_equal(clean[1], same[1])
    map_leaves(np.testing.assert_array_equal, clean[2], same[2])


def test_a_loss_at_every_step_after_a_stride_counts_real_steps_only():
    net = pc.Conv1d(2, 3, stride=2)
    rng = np.random.default_rng(0)
    params, _ = net.build(rng, (8, 1))
    x, target, lengths = rng.normal(size=(2, 8, 1)), rng.normal(size=(2, 4, 2)), np.array([8, 3], np.int32)
    batch = Batch(x, target, np.ones(2), lengths)
    whole = gradients(NUMPY.NumpyOps(weight=batch.weight, lengths=lengths), net, pc.SquaredError(), params, batch)
    np.testing.assert_array_equal(whole.weight, [[1, 1, 1, 1], [1, 1, 0, 0]])


# ---------------------------------------------------------------- training, cost, wrong use
def test_a_convolutional_network_learns_the_same_on_both_engines():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X, y = X.reshape(-1, 1, 8, 8)[:400] / 16, y[:400]
    net = (
        pc.ChannelsLast() >> pc.Conv2d(8, 3) >> pc.ReLU() >> pc.MaxPool2d(2) >> pc.Conv2d(8, 3) >> pc.ReLU()
        >> pc.Flatten() >> pc.Linear(10)
    )  # fmt: skip
    models = {}
    for engine in ("numpy", "jax"):
        models[engine] = pc.Network(net, (1, 8, 8), "softmax_cross_entropy", dtype="float64")
        models[engine].fit(X, y, epochs=10, batch_size=50, optimizer=pc.Adam(0.02), engine=engine, progress=False)
    for name, value in models["numpy"].parameters.items():
        np.testing.assert_allclose(models["jax"].parameters[name], value, rtol=1e-6, atol=1e-8)
    assert models["numpy"].evaluate(X, y)["accuracy"] > 0.95


def test_predicted_work_counts_every_place_a_kernel_is_used():
    net, shape = pc.Conv2d(2, 3, stride=2) >> pc.ReLU() >> pc.Flatten() >> pc.Linear(10), (20, 30, 1)
    row = Batch(np.zeros((1, *shape)), np.zeros(1), np.ones(1))
    used = count_uses(net, net.build(np.random.default_rng(0), shape)[0], row)
    assert (used["product"], used["convolution"]) == (300 * 10, 18 * 10 * 15)


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (pc.Conv2d(4, 3, groups=2), (8, 8, 3), ["Conv2d(4, groups=2)", "2 groups", "3 channels", "Choose groups that divide 3"]),
        (pc.Conv2d(4, 5, padding="valid"), (4, 8, 1), ["Conv2d", "at least 5 × 5", "4 × 8", "padding='same'"]),
        (pc.Conv1d(4, 3, dilation=4, padding=1), (6, 2), ["Conv1d", "at least 9", "8", "Make kernel smaller"]),
        (pc.Conv2d(4, 3), (28, 28), ["Conv2d", "(batch, height, width, channels)", "(batch, 28, 28)", "Reshape((28, 28, 1))"]),
        (pc.Conv2d(4, 3), (784,), ["Conv2d", "(batch, height, width, channels)", "(batch, 784)"]),
        (pc.MaxPool2d(3), (2, 2, 1), ["MaxPool2d", "at least 3 × 3", "2 × 2", "Make size smaller"]),
        (pc.GlobalAvgPool(), (5,), ["GlobalAvgPool", "(batch, time, channels)"]),
        (pc.ChannelsLast(), (5,), ["ChannelsLast", "(batch, channels, time)"]),
    ],
    ids=str,
)
def test_a_shape_that_cannot_be_is_refused_with_layer_expectation_and_fix(layer, shape, words):
    with pytest.raises(pc.ShapeError) as error:
        layer.build(np.random.default_rng(0), shape)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pc.Conv2d(3, 3, groups=2), "units must be a multiple of groups"),
        (lambda: pc.Conv2d(3, (3, 3, 3)), "kernel must be a whole number ≥ 1, or 2 of them"),
        (lambda: pc.Conv2d(3, 0), "kernel must be"),
        (lambda: pc.Conv2d(3, 3, padding="sam"), "padding must be a whole number ≥ 0.*'same' or 'valid'"),
        (lambda: pc.Conv1d(3, 3, stride=0), "stride must be"),
        (lambda: pc.MaxPool2d(2, padding=2), "padding must be at most half of size"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("layer", [pc.Conv2d(4, (3, 2), stride=(1, 2), padding=(1, 0)), pc.Conv1d(4), pc.MaxPool2d(2, stride=1)], ids=str)
def test_a_layer_prints_as_the_code_that_makes_it(layer):
    assert eval(repr(layer), vars(pc)) == layer


def test_windows_lie_where_the_formula_says():
    windows = Windows((3,), (2,), (2,), ((1, 1),))
    x = np.arange(1.0, 8.0).reshape(1, 7, 1)
    parts = np.concatenate(windows.parts(np, x), -1)[0]  # window i, entry k: position 2i + 2k − 1, zero outside
    np.testing.assert_array_equal(parts, [[0, 2, 4], [2, 4, 6], [4, 6, 0]])


@pytest.mark.parametrize("layer", [pc.Conv1d(6, 3), pc.MaxPool1d(2)], ids=repr)
def test_sequences_of_different_length_are_to_be_padded(layer):
    sequences = [np.ones((n, 5)) for n in (4, 7, 5)]
    with pytest.raises(pc.ShapeError, match="Pad them to one length"):
        pc.NetworkClassifier(layer >> pc.GlobalAvgPool(), epochs=1).fit(sequences, [0, 1, 0])
