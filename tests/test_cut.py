"""Training steps whose mini-batches go through a network in parts (engines/jax_cut.py)."""

import jax
import numpy as np
import pytest

import pellucid as pc
from pellucid.engines import choose, jax_conv, jax_cut, jax_parts
from pellucid.training.step import Batch

from . import test_parts as parts
from .test_parts import assert_same

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU shares rows out by itself")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(45, 6))
Y = RNG.integers(0, 4, 45)
WORDS = RNG.integers(0, 9, (45, 5))
NET = pc.Linear(7) >> pc.Tanh() >> pc.Dropout(0.4) >> pc.Linear(4)


def made_to_cut(monkeypatch, number):
    """Also the small networks of these tests are cut: dense ones in two, those with convolutions in so many parts.

    Returns a function that turns that off, and one entry for every call.
    """
    seen, train = [], jax_cut.train
    for name, value in {"HALVED": (0.0, np.inf), "CUT": {0.0: number}, "LEAST_ROWS": 1, "SHARE": np.inf}.items():
        monkeypatch.setattr(choose, name, value)
    monkeypatch.setattr(jax_cut, "train", lambda *args: seen.append(args) or train(*args))

    def off():
        monkeypatch.setattr(choose, "HALVED", (np.inf, 0.0))
        monkeypatch.setattr(choose, "CUT", {})

    return off, seen


@pytest.fixture
def halved(monkeypatch):
    return made_to_cut(monkeypatch, 2)


@pytest.fixture(params=[2, 8])
def cut(monkeypatch, request):
    return made_to_cut(monkeypatch, request.param)


def fitted(net=NET, x=X, **options):
    return parts.fitted(net, x, Y, **{"batch_size": 13, **options})


def assert_parts_add_up(off, seen, net, options):
    """Compared with NumPy and with the program that takes all rows at once."""
    in_parts = fitted(net, **options)
    assert seen
    assert_same(in_parts, fitted(net, **options, engine="numpy"), rtol=1e-9, atol=1e-11)
    off()
    count = len(seen)
    assert_same(in_parts, fitted(net, **options), rtol=1e-9, atol=1e-11)
    assert len(seen) == count


@pytest.mark.parametrize(
    ("net", "options"),
    [
        (NET, {}),
        (NET, {"batch_size": 1, "epochs": 1}),
        (NET, {"optimizer": pc.SGD(0.1, momentum=0.9, weight_decay=0.01, clip_norm=0.3)}),
        (NET, {"sample_weight": np.repeat([0.0, 1.0, 3.0], 15), "order": "given"}),
        (pc.Penalty(pc.Linear(7), l1=0.01, l2=0.1) >> pc.LayerNorm() >> pc.ReLU() >> pc.Linear(4), {}),
        (pc.Frozen(pc.Linear(6)) >> pc.Sum(pc.Linear(6) >> pc.GELU(), pc.Identity()) >> pc.Linear(4), {"sample_weight": np.arange(45.0)}),
        (pc.Embedding(9, 6) >> pc.MultiHeadAttention(6, heads=2) >> pc.GlobalAvgPool() >> pc.Linear(4), {"x": WORDS}),
        (pc.Embedding(9, 6) >> pc.GlobalMaxPool() >> pc.Linear(4), {"x": WORDS, "lengths": RNG.integers(1, 6, 45)}),
    ],
)
def test_halves_add_up_to_the_whole(halved, net, options):
    """The last batch of 45 rows has 6, all in its first half."""
    assert_parts_add_up(*halved, net, options)


IMAGES = RNG.normal(size=(45, 6, 6, 2))
TILES = pc.Conv2d(16, 1) >> pc.Conv2d(64) >> pc.GlobalAvgPool() >> pc.Linear(4)
CONV = pc.Conv2d(3, 3) >> pc.ReLU() >> pc.AvgPool2d(2) >> pc.Dropout(0.3) >> pc.Flatten() >> pc.Linear(4)
SERIES = {"x": RNG.normal(size=(45, 9, 2)), "lengths": RNG.integers(1, 10, 45)}


@pytest.mark.parametrize(
    ("net", "options"),
    [
        (CONV, {"x": IMAGES}),
        (TILES, {"x": IMAGES}),
        (CONV, {"x": IMAGES, "optimizer": pc.SGD(0.1, momentum=0.9, weight_decay=0.01, clip_norm=0.3)}),
        (CONV, {"x": IMAGES, "sample_weight": np.repeat([0.0, 1.0, 3.0], 15), "order": "given"}),
        (pc.Penalty(pc.Conv2d(3, 3, stride=2), l2=0.1) >> pc.MaxPool2d(2) >> pc.Flatten() >> pc.Linear(4), {"x": IMAGES}),
        (pc.Conv1d(4, 3) >> pc.LayerNorm() >> pc.ReLU() >> pc.GlobalMaxPool() >> pc.Linear(4), SERIES),
        (pc.Conv1d(4, 3, stride=2, padding="valid") >> pc.ReLU() >> pc.GlobalAvgPool() >> pc.Linear(4), {"x": SERIES["x"]}),
    ],
)
def test_parts_of_images_and_series_add_up_to_the_whole(cut, net, options, monkeypatch):
    """The last batch of 45 rows has 6: some of the parts are empty."""
    monkeypatch.setattr(jax_conv, "WORK", 0)
    assert_parts_add_up(*cut, net, options)


@pytest.mark.parametrize(("options", "turns"), [({}, (8, 1)), ({"stride": 2}, (2, 4)), ({"dilation": 2}, (2, 4))])
def test_parts_in_tiles_take_turns_one_at_a_time_and_others_four(options, turns, monkeypatch):
    """What goes in tiles has products side by side already; another kernel with as many channels has not. All parts are traced once."""
    made_to_cut(monkeypatch, 8)
    traced, gradients = [], jax_cut.mean_gradients
    monkeypatch.setattr(jax_cut, "mean_gradients", lambda *args: traced.append(args) or gradients(*args))
    monkeypatch.setattr(jax_conv, "WORK", 0)
    taken, scan = [], jax.lax.scan
    monkeypatch.setattr(jax.lax, "scan", lambda f, init, xs, **more: taken.append(xs.shape) or scan(f, init, xs, **more))
    fitted(pc.Conv2d(16, 1) >> pc.Conv2d(64, **options) >> pc.GlobalAvgPool() >> pc.Linear(4), IMAGES, batch_size=40, epochs=1)
    assert taken == [turns]
    assert len(traced) == 1


def test_a_population_of_networks_in_parts_computes_the_bits_of_single_fits(cut):
    alone = fitted(CONV, IMAGES)
    population = pc.Population(
        CONV, (6, 6, 2), "softmax_cross_entropy", dtype="float64", seed=3, optimizer="adam", learning_rate=[0.02, 0.1]
    )
    population.fit(IMAGES, Y, epochs=3, batch_size=13, engine="jax", how="threads", progress=False)
    assert len(cut[1]) == 3
    assert_same(population[0], alone, rtol=0, atol=0)


def test_a_fit_in_parts_that_fails_tells_the_place(cut):
    net = pc.Conv2d(3, 3) >> pc.ReLU() >> pc.Flatten() >> pc.Linear(4)
    parts.assert_failure_is_told_as_by_the_whole(net, *cut, x=IMAGES)


def test_scikit_learns_penalty_is_added_once(halved):
    off, seen = halved

    def losses():
        model = pc.MLPClassifier((9,), alpha=5.0, alpha_scale="batch", batch_size=14, max_iter=5, random_state=0, engine="jax")
        return model.fit(X, Y).loss_curve_

    with pytest.warns(match="hasn't converged"):
        halves = losses()
    assert seen
    off()
    with pytest.warns(match="hasn't converged"):
        np.testing.assert_allclose(halves, losses(), rtol=1e-9)


def test_every_member_of_a_population_computes_the_bits_of_its_own_fit(halved):
    alone = fitted()
    population = pc.Population(NET, (6,), "softmax_cross_entropy", dtype="float64", seed=3, optimizer="adam", learning_rate=[0.02, 0.1])
    population.fit(X, Y, epochs=3, batch_size=13, engine="jax", how="threads", progress=False)
    assert len(halved[1]) == 3
    assert_same(population[0], alone, rtol=0, atol=0)


def test_a_fit_that_fails_tells_the_place(halved):
    parts.assert_failure_is_told_as_by_the_whole(pc.Linear(7) >> pc.ReLU() >> pc.Linear(4), *halved, x=X)


def test_float32_and_precision_are_the_callers(halved):
    parts.assert_precision_is_the_callers(NET, X, *halved)


def rows_of_part(net, size, shape):
    model = pc.Network(net, shape, "softmax_cross_entropy")
    data = Batch(np.zeros((1, *shape), "f4"), np.zeros(1, int), np.ones(1))
    return jax_parts.rows_of_part(net, model.loss, pc.SGD(0.1), model.params, data, size)


def test_only_steps_of_a_middling_length_are_halved():
    """By shapes alone: short ones are not worth it, and XLA shares out large products by itself."""

    def mlp(*sizes):
        return pc.Chain(*(layer for n in sizes for layer in (pc.Linear(n), pc.ReLU()))) >> pc.Linear(10)

    sizes = {8: 0, 64: 32, 65: 33, 128: 64, 256: 128, 512: 0}
    assert {size: rows_of_part(mlp(256, 256), size, (100,)) for size in sizes} == sizes
    assert rows_of_part(mlp(64, 64), 32, (30,)) == 0
    assert rows_of_part(mlp(512, 256), 128, (784,)) == 0
    assert rows_of_part(mlp(512), 64, (300,)) == 0  # weights of 600 KB
    assert rows_of_part(mlp(*7 * [100]), 64, (100,)) == 32
    assert rows_of_part(mlp(*8 * [100]), 64, (100,)) == 0  # 17 layers
    assert rows_of_part(pc.Linear(256) >> pc.BatchNorm() >> pc.Linear(256), 64, (100,)) == 0
    assert rows_of_part(pc.Conv2d(8, 3) >> pc.ReLU() >> pc.Flatten() >> pc.Linear(10), 8, (12, 12, 1)) == 0


def test_images_are_cut_by_how_long_a_step_takes():
    def conv(*units, wide=10):
        layers = [layer for n in units for layer in (pc.Conv2d(n), pc.ReLU(), pc.AvgPool2d())]
        return pc.Chain(*layers, pc.Flatten(), pc.Linear(wide))

    sizes = {8: 0, 16: 0, 32: 16, 64: 32, 128: 16, 256: 32}
    assert {size: rows_of_part(conv(16, 32), size, (28, 28, 1)) for size in sizes} == sizes
    assert rows_of_part(conv(64, 128), 32, (32, 32, 3)) == 16  # eight parts would have four rows
    assert rows_of_part(conv(16, wide=4096), 64, (28, 28, 1)) == 0  # each part would have gradients of 50 MB
    assert rows_of_part(pc.Conv2d(64) >> pc.BatchNorm() >> pc.Flatten() >> pc.Linear(10), 128, (28, 28, 1)) == 0
