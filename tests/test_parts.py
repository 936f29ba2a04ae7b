"""Training steps whose rows go through a recurrent network in parts, side by side (engines/jax_parts.py), or in halves (jax_cut.py)."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import pellucid as pc
from pellucid.engines import choose, jax_cut, jax_parts
from pellucid.training.loop import plan_of
from pellucid.training.step import Batch, Plan, State

from .test_aside import every

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU shares rows out by itself")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(45, 6, 3))
Y = RNG.integers(0, 4, 45)
LENGTHS = RNG.integers(1, 7, 45)
NET = pc.LSTM(5) >> pc.Linear(4)
LABELS = {"y": RNG.integers(0, 4, (45, 6)), "lengths": LENGTHS}  # one at every step
SHORT = {"y": RNG.integers(0, 4, (45, 4)), "lengths": np.where(np.arange(45) % 4 == 0, 6, 2), "batch_size": 15, "epochs": 10}


class Langevin(pc.SGD):
    """A user's own optimizer that draws random numbers and looks at the weights of the rows."""

    def rule(self, ops, p, g, slots, n, rate, t):
        return (p - rate * (g + 0.1 * (ops.uniform(g.shape) - 0.5) / ops.weight.sum()),)


WAYS = {"parts": {"ROWS": 4, "SCANNED": 1e-12}, "halves": {"ROWS": 10**9, "HALVES_SCANNED": 0.0, "ROWS_HALVED": 5, "DEEP_SCANNED": 99}}


@pytest.fixture(params=WAYS)
def cut(monkeypatch, request):
    """Also these small networks are cut: 14 rows into 4, 4, 4 and 2, or in halves, also of several layers. The rows of the first part."""
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(choose, name, value)
    return {"parts": 4, "halves": 7}[request.param]


@pytest.fixture
def whole(monkeypatch):
    """Returns a function that turns cutting off, and the rows of a part, once for every call."""
    seen = []
    for module in (jax_parts, jax_cut):
        monkeypatch.setattr(module, "train", lambda *args, train=module.train: seen.append(args[-1]) or train(*args))
    return lambda: [monkeypatch.setattr(choose, name, 10**9) for name in ("ROWS", "ROWS_HALVED")], seen


def fitted(net, x=X, y=Y, optimizer=None, **options):
    model = pc.Network(net, x.shape[1:], "softmax_cross_entropy", dtype="float64", seed=3)
    more = {"epochs": 3, "batch_size": 14, "optimizer": optimizer or pc.Adam(0.02), "engine": "jax", "progress": False}
    model.fit(x, y, **more | options)
    return model


def assert_same(one, other, **tolerance):
    for name, value in other.parameters.items():
        np.testing.assert_allclose(one.parameters[name], value, err_msg=name, **tolerance)
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(one.history[name], other.history[name], **tolerance)


@pytest.mark.parametrize(
    ("net", "options"),
    [
        (pc.RNN(5) >> pc.Linear(4), {}),
        (NET, {"optimizer": pc.SGD(0.1, momentum=0.9, weight_decay=0.01, clip_norm=0.3)}),
        (pc.GRU(5, bidirectional=True) >> pc.Linear(4), {}),
        (pc.LSTM(5, outputs="every") >> pc.GlobalAvgPool() >> pc.Linear(4), {"lengths": LENGTHS}),
        (pc.RNN(5, outputs="every") >> pc.Dropout(0.4) >> pc.GRU(4, reverse=True) >> pc.Dropout(0.2) >> pc.Linear(4), {}),
        (pc.Penalty(pc.RNN(5), l1=0.01, l2=0.1) >> pc.LayerNorm() >> pc.Linear(4), {}),
        (pc.Frozen(pc.RNN(5, outputs="every")) >> pc.RNN(5) >> pc.Linear(4), {"sample_weight": np.arange(45.0)}),
        (NET, {"sample_weight": np.repeat([0.0, 1.0, 3.0], 15), "order": "given"}),
        (NET, {"sample_weight": np.arange(1.0, 46.0), "optimizer": Langevin(0.5)}),
        (pc.GRU(5, outputs="every") >> pc.Linear(4), LABELS),
        (NET, {"x": X[:, :1]}),
        (pc.Sum(pc.RNN(5), pc.GRU(5, h0=np.ones(5))) >> pc.Linear(4), {}),
        (pc.Repeat(pc.RNN(3, outputs="every"), 3) >> pc.LSTM(4) >> pc.Linear(4), {}),
    ],
)
def test_parts_add_up_to_the_whole(cut, whole, net, options):
    """Compared with the program that takes all rows at once, in float64; the last batch of 45 rows has 3, in one part."""
    assert_parts_add_up(cut, whole, net, options)


@pytest.mark.parametrize("cut", ["parts"], indirect=True)
def test_parts_of_rows_too_short_for_a_convolution_add_up_to_the_whole(cut, whole):
    """They have no output: parts made of such rows count nothing."""
    net = pc.Conv1d(4, 3, padding="valid") >> pc.RNN(5, outputs="every") >> pc.Linear(4)
    assert_parts_add_up(cut, whole, net, SHORT)


def assert_parts_add_up(rows, whole, net, options):
    off, seen = whole
    parts = fitted(net, **options)
    assert set(seen) == {rows}
    off()
    count = len(seen)
    assert_same(parts, fitted(net, **options), rtol=1e-9, atol=1e-11)
    assert len(seen) == count


def test_parts_agree_with_numpy(cut, whole):
    """Also in what dropout drops: the numbers follow the place of a row in its mini-batch."""
    net = pc.RNN(5) >> pc.Dropout(0.5) >> pc.Linear(4)
    assert_same(fitted(net), fitted(net, engine="numpy"), rtol=1e-9, atol=1e-11)
    assert whole[1]


def test_weights_of_rows_may_be_tiny(cut, whole):
    off, seen = whole

    def loss():
        model = pc.Network(NET, (6, 3), "softmax_cross_entropy")
        model.fit(X.astype("f4"), Y, epochs=3, batch_size=14, engine="jax", sample_weight=np.full(45, 1e-36), progress=False)
        return model.history["loss"]

    parts = loss()
    assert seen
    off()
    np.testing.assert_allclose(parts, loss(), rtol=1e-5)


def test_a_fit_in_a_thread_goes_on_when_the_script_has_ended():
    """Python then takes no more work for its pools of threads."""
    program = """
import threading, time
import numpy as np, pellucid as pc
X, y = np.zeros((64, 64, 32), "f4"), np.arange(64) % 4
def fit(epochs, **more):
    model = pc.Network(pc.RNN(128) >> pc.Linear(4), (64, 32), "softmax_cross_entropy")
    model.fit(X, y, epochs=epochs, batch_size=32, engine="jax", progress=False, **more)
    model.predict(np.zeros((600, 64, 32), "f4"))
def work():
    main = threading.main_thread()
    while main.is_alive():
        time.sleep(0.01)
    fit(2, callbacks=lambda run: None)
    fit(2)
    print("done")
fit(1)
threading.Thread(target=work).start()
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert told.stdout.strip() == "done", told.stderr


def test_any_number_of_cores_and_any_member_of_a_population_compute_the_same_bits(cut, whole, monkeypatch):
    models = []
    for cores in (1, 2, 3):
        lanes = [ThreadPoolExecutor(1) for _ in range(cores)]
        monkeypatch.setattr(jax_parts, "starters", lambda lanes=lanes: lanes)
        models.append(fitted(NET))
    population = pc.Population(NET, (6, 3), "softmax_cross_entropy", dtype="float64", seed=3, optimizer="adam", learning_rate=[0.02, 0.1])
    population.fit(X, Y, epochs=3, batch_size=14, engine="jax", how="threads", progress=False)
    for other in (*models[1:], population[0]):
        assert_same(other, models[0], rtol=0, atol=0)


def assert_failure_is_told_as_by_the_whole(net, off, seen, **options):
    def error():
        with pytest.raises(pc.NonFiniteError) as caught:
            fitted(net, optimizer=pc.SGD(1e200), **options)
        return str(caught.value)

    told = error()
    assert seen
    off()
    assert told == error()


def assert_precision_is_the_callers(net, x, off, seen):
    def losses(**options):
        model = pc.Network(net, x.shape[1:], "softmax_cross_entropy")
        model.fit(x.astype("f4"), Y, epochs=2, batch_size=14, engine="jax", progress=False, **options)
        assert {value.dtype for value in model.parameters.values()} == {np.dtype("f4")}
        return model.history["loss"]

    full, half = losses(), losses(precision="bfloat16")
    assert len(set(full + half)) == 4
    assert seen
    off()
    np.testing.assert_allclose(full, losses(), rtol=1e-6)
    np.testing.assert_allclose(half, losses(precision="bfloat16"), rtol=1e-3)


def test_a_fit_that_fails_tells_the_place(cut, whole):
    assert_failure_is_told_as_by_the_whole(pc.RNN(5, activation=pc.ReLU()) >> pc.Linear(4), *whole)


def test_float32_and_precision_are_the_callers(cut, whole):
    assert_precision_is_the_callers(NET, X, *whole)


class Centred(pc.Layer):
    """A user's own layer whose rows depend on each other."""

    def build(self, rng, shape):
        return {}, shape

    def forward(self, ops, p, x):
        return x - x.mean(0), None

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return dy - dy.mean(0), {}


class Mine(pc.RNN):
    """A user's own recurrent layer: its cell takes every row by itself."""


class Noisy(pc.RNN):
    """A user's own recurrent layer that does something beside its cell."""

    def forward(self, ops, p, x):
        return super().forward(ops, p | {"W_hh": p["W_hh"] * ops.uniform(p["W_hh"].shape)}, x)


class Across(pc.SoftmaxCrossEntropy):
    """A user's own loss, in which rows may depend on each other."""


class Penalised(pc.SGD):
    """A user's own optimizer that adds something to the loss."""

    def penalise(self, ops, params, value, grads, numbers):
        return value + 1.0, grads


def rows_of_part(net, optimizer, size, x=X, loss="softmax_cross_entropy"):
    model = pc.Network(net, x.shape[1:], loss)
    return jax_parts.rows_of_part(net, model.loss, optimizer, model.params, Batch(x, Y, np.ones(len(x))), size)


def test_only_what_is_known_to_go_row_by_row_is_cut(cut):
    sgd = pc.SGD(0.1)
    assert rows_of_part(NET, sgd, 14) == cut
    assert rows_of_part(Mine(5) >> pc.Linear(4), sgd, 14) == cut
    assert rows_of_part(NET, sgd, 4) == 0
    assert rows_of_part(NET, sgd, 14, loss=Across()) == 0
    assert rows_of_part(Noisy(5) >> pc.Linear(4), sgd, 14) == 0
    assert rows_of_part(NET, Penalised(0.1), 14) == 0
    assert rows_of_part(pc.Flatten() >> pc.Linear(4), sgd, 14) == 0
    assert rows_of_part(pc.RNN(5) >> Centred() >> pc.Linear(4), sgd, 14) == 0
    assert rows_of_part(pc.RNN(5) >> pc.BatchNorm() >> pc.Linear(4), sgd, 14) == 0
    assert rows_of_part(pc.RNN(5, streams=14) >> pc.Linear(4), sgd, 14) == 0


def test_only_what_takes_long_enough_is_cut():
    """By shapes alone; the largest array of weights must fit into a core's cache."""
    x, sgd = np.zeros((1, 64, 32)), pc.SGD(0.1)
    sizes = {7: 0, 8: 4, 15: 8, 16: 8, 17: 9, 32: 16, 48: 24, 50: 13, 128: 16}
    assert {size: rows_of_part(pc.RNN(128) >> pc.Linear(10), sgd, size, x) for size in sizes} == sizes
    assert rows_of_part(pc.RNN(64) >> pc.Linear(10), sgd, 32, x) == 16
    assert rows_of_part(pc.RNN(32) >> pc.Linear(10), sgd, 32, x) == 16
    assert rows_of_part(pc.RNN(16) >> pc.Linear(10), sgd, 32, x) == 0
    assert rows_of_part(pc.LSTM(512) >> pc.Linear(10), sgd, 32, x) == 0
    assert rows_of_part(pc.Conv1d(32, 3) >> pc.RNN(128) >> pc.Linear(10), sgd, 16, x) == 0  # not in halves
    several = [pc.RNN(64, outputs="every")] * 3
    assert rows_of_part(pc.Chain(*several[:2], pc.RNN(64), pc.Linear(10)), sgd, 8, x) == 4
    assert rows_of_part(pc.Chain(*several, pc.RNN(64), pc.Linear(10)), sgd, 8, x) == 0  # nor these


@pytest.mark.parametrize(("size", "module"), [(32, jax_cut), (64, jax_parts)])
def test_two_parts_are_halves_of_one_program_and_more_are_programs_of_their_own(size, module, whole, monkeypatch):
    taken = []
    monkeypatch.setattr(module, "train", lambda *args, train=module.train: taken.append(args[-1]) or train(*args))
    model = pc.Network(pc.RNN(128) >> pc.Linear(4), (64, 32), "softmax_cross_entropy")
    model.fit(np.zeros((size, 64, 32), "f4"), np.arange(size) % 4, epochs=1, batch_size=size, engine="jax", progress=False)
    assert taken == whole[1] == [16]


def test_one_program_serves_all_parts_and_steps(cut, whole):
    net, program = pc.LSTM(6) >> pc.Linear(4), {4: jax_parts.part, 7: jax_cut.chunk}[cut]
    before = program._cache_size()
    fitted(net)
    fitted(net, epochs=5, optimizer=pc.Adam(0.5))
    assert program._cache_size() - before == {4: 2, 7: 1}[cut]  # parts: one for the state as a fit begins with it, one as a step leaves it


@pytest.mark.parametrize("layer", [pc.RNN, pc.GRU, pc.LSTM])
def test_all_that_a_step_of_a_half_makes_is_carried_through_its_loop(layer):
    """Or XLA gives the other half's loop the same memory, and one waits for the other."""
    net, sgd = layer(5) >> pc.Linear(4), pc.SGD(0.1)
    model = pc.Network(net, (6, 3), "softmax_cross_entropy")
    data = model.as_batch(X.astype("f4"), Y)
    state = State(model.params, sgd.slots(model.params), sgd.numbers("float32"), np.int32(0), np.uint32(0))
    plan = Plan(*plan_of(np.arange(42), 14), np.full(3, 0.01, np.float32), np.int32(3))
    made = jax.make_jaxpr(jax_cut.chunk.function, static_argnums=range(5))(net, model.loss, sgd.kind(), 7, True, state, data, plan)
    steps = next(e for e in made.jaxpr.eqns if e.primitive.name == "while").params["body_jaxpr"].jaxpr
    loops = [e for e in every(steps.eqns) if e.primitive.name == "while"]
    assert len(loops) == 4  # ahead and back, of both halves
    for loop in loops:
        body = loop.params["body_jaxpr"].jaxpr
        dear = [v for e in every(body.eqns) if e.primitive.name in ("dot_general", "concatenate", "tanh") for v in e.outvars]
        assert dear
        assert {v for e in body.eqns for v in e.outvars if v in dear} <= set(body.outvars)
    inside = [*every(steps.eqns)]
    joined = {v for e in inside if e.primitive.name == "concatenate" for v in e.outvars}  # anew wherever they are reshaped
    looks = [e for e in inside if e.primitive.name == "reshape" and e.invars[0] not in joined and e.outvars[0].aval.size >= 6 * 7 * 5]
    assert looks
    for look in looks:  # what is looked at in another way is not kept once more
        assert not {*look.invars, *look.outvars} <= set(steps.outvars)
