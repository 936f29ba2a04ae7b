"""Two engines, one run: parity, no silent compiling, light imports, and a life without jax."""

import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import pellucid as pc
from pellucid.engines import get_engine, has_gpu
from pellucid.engines import numpy as numpy_engine
from pellucid.engines.choose import choose_engine, predict_work
from pellucid.engines.numpy import NumpyOps
from pellucid.training.loop import Plan
from pellucid.training.step import Batch, State
from pellucid.tree import leaves, map_leaves

NET = pc.Linear(16) >> pc.ReLU() >> pc.Dropout(0.3) >> (pc.Linear(8) | (pc.Linear(8) >> pc.Sigmoid()) * pc.Linear(8)) >> pc.Linear(4)


def data(n=101):
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, 6)), rng.integers(0, 4, n)


def run(engine, dtype, epochs, optimizer, batch_size=16, **options):
    model = pc.Network(NET, (6,), "softmax_cross_entropy", seed=3, dtype=dtype)
    model.fit(*data(), epochs=epochs, batch_size=batch_size, optimizer=optimizer, engine=engine, **options)
    return model


@pytest.mark.parametrize("optimizer", [pc.SGD(pc.Cosine(0.1), momentum=0.9, nesterov=True), pc.Adam(0.01, clip_norm=1.0)], ids=repr)
def test_a_whole_float64_run_gives_the_same_weights_on_both_engines(optimizer):
    """Dropout, batch order, the smaller last batch (101 = 6·16 + 5), validation: to 1e-10 after 30 epochs."""
    a, b = (run(e, "float64", 30, optimizer, validation=0.1) for e in ("numpy", "jax"))
    for name, value in a.parameters.items():
        np.testing.assert_allclose(value, b.parameters[name], rtol=0, atol=1e-10)
    for column in ("loss", "accuracy", "val_loss", "val_accuracy"):
        np.testing.assert_allclose(a.history[column], b.history[column], rtol=1e-9)


@pytest.mark.parametrize("optimizer", [pc.SGD(0.1), pc.SGD(0.1, momentum=0.9), pc.RMSProp(), pc.Adam()], ids=repr)
def test_the_first_20_float32_steps_agree(optimizer, in_float32):
    a, b = (run(e, "float32", 3, optimizer, batch_size=15) for e in ("numpy", "jax"))  # 3 epochs of 7 steps
    for name, value in a.parameters.items():
        np.testing.assert_allclose(value, b.parameters[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(engine):
    a, b = (run(engine, "float32", 3, pc.Adam()) for _ in range(2))
    for name, value in a.parameters.items():
        np.testing.assert_array_equal(value, b.parameters[name])
    other = pc.Network(NET, (6,), "softmax_cross_entropy", seed=4)
    other.fit(*data(), epochs=3, batch_size=16, engine=engine)
    assert not np.array_equal(other.parameters["0.W"], a.parameters["0.W"])


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_the_last_smaller_batch_is_trained_on(engine):
    """Rows 0 … 6 in batches of 3: the last step sees row 6 alone, as plain SGD by hand does."""
    X, y = np.arange(1.0, 8.0)[:, None] / 7, np.arange(7.0)[:, None]
    model = pc.Network(pc.Linear(1, bias=False, init=pc.Zeros()), (1,), dtype="float64")
    model.fit(X, y, epochs=1, batch_size=3, order="given", optimizer=pc.SGD(0.1), engine=engine)
    w = 0.0
    for rows in ([0, 1, 2], [3, 4, 5], [6]):
        w -= 0.1 * np.mean([2 * (w * X[i, 0] - y[i, 0]) * X[i, 0] for i in rows])
    np.testing.assert_allclose(model.parameters["W"], w, rtol=1e-14)


def test_nothing_is_compiled_again():
    """Second epoch, second fit of the same shapes, another learning rate, momentum, schedule, seed, equal network."""
    import jax

    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )

    def fit(optimizer, seed=0, **options):
        net = pc.Linear(9) >> pc.Tanh() >> pc.Dropout(0.1) >> pc.Linear(4)
        pc.Network(net, (6,), "softmax_cross_entropy", seed=seed).fit(*data(), optimizer=optimizer, engine="jax", **options)
        count = len(compiled)
        compiled.clear()
        return count

    assert fit(pc.SGD(0.1, momentum=0.5), epochs=1, validation=0.2) > 0
    assert fit(pc.SGD(0.1, momentum=0.5), epochs=5, validation=0.2) == 0
    assert fit(pc.SGD(0.2, momentum=0.9), epochs=2, validation=0.2, seed=5) == 0
    assert fit(pc.SGD(pc.OneCycle(0.3), momentum=0.1), epochs=2, validation=0.2) == 0


def test_a_chunk_is_one_loop_and_leaves_the_state_before_it_alone():
    jax_engine = get_engine("jax")
    model = pc.Network(pc.Linear(4), (6,), "softmax_cross_entropy")
    from pellucid.training.loop import Plan, plan_of
    from pellucid.training.step import State

    X, y = data()
    batch = model.as_batch(X, y)
    state = State(model.params, pc.SGD(0.1).slots(model.params), pc.SGD(0.1).numbers(np.float32), np.int32(0), np.uint32(0))
    state = jax_engine.put(state)
    plan = Plan(*plan_of(np.arange(101), 16), np.full(7, 0.1, np.float32), np.int32(7))
    args = model.net, model.loss, pc.SGD(0.1).kind(), state, batch, plan
    if jax_engine.on_cpu():  # a GPU has a kernel for this one, and more loops for those without
        assert jax_engine.chunk.lower(*args).as_text().count("stablehlo.while") == 1
    new, _, _ = jax_engine.train(*args)
    assert not np.array_equal(new.params["W"], state.params["W"])
    np.testing.assert_array_equal(state.params["W"], model.params["W"])


@pytest.mark.parametrize("optimizer", [pc.Adam(0.01), pc.SGD(0.1, momentum=0.9), pc.SGD(0.1)], ids=repr)
def test_narrow_matrices_that_the_loop_carries_turned_round_are_what_they_are(optimizer):
    """XLA's CPU gets the last layer's weights and the memory of them with rows and columns exchanged; nobody else sees that."""
    models = {}
    for engine in ("numpy", "jax"):
        models[engine] = pc.Network(pc.Linear(40) >> pc.Tanh() >> pc.Linear(4), (6,), "softmax_cross_entropy", dtype="float64")
        models[engine].fit(*data(), epochs=3, batch_size=16, optimizer=optimizer, engine=engine)
    for name, value in models["numpy"].parameters.items():
        np.testing.assert_allclose(models["jax"].parameters[name], value, rtol=1e-9, atol=1e-12)


@pytest.fixture(params=[3, 10, 20, 1000])
def chunk(request, monkeypatch):
    """Steps in a chunk. Epochs here have 5 or 7: a part of one, one, two or many; all but the last make several, run in advance."""
    from pellucid.engines import choose

    monkeypatch.setattr(choose.Work, "chunk", property(lambda self: request.param))
    return request.param


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_short_epochs_run_together_are_the_epochs_run_one_by_one(engine, chunk):
    rate = pc.OneCycle(0.3)
    alone, together = (run(engine, "float64", 7, pc.SGD(rate, momentum=0.5), callbacks=c) for c in ([lambda run: None], []))
    rtol = 1e-12 if has_gpu() else 0  # a GPU takes 32 steps in one loop and those left in another
    np.testing.assert_allclose(alone.history["loss"], together.history["loss"], rtol=rtol)
    assert together.history["epoch"] == [1, 2, 3, 4, 5, 6, 7]
    for name, value in alone.parameters.items():
        np.testing.assert_allclose(value, together.parameters[name], rtol=rtol, atol=rtol)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_a_failure_in_a_later_epoch_names_it_and_keeps_the_epochs_before(engine, chunk):
    X = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]

    def fit(epochs, **options):
        model = pc.Network(pc.Linear(1), (1,), "squared_error", seed=3)
        with pytest.raises(pc.NonFiniteError) as caught:
            model.fit(X, 3 * X, epochs=epochs, batch_size=8, optimizer=pc.SGD(30.0), engine=engine, progress=False, **options)
        return caught.value, model

    alone, before = fit(500, callbacks=[lambda run: None])
    error, model = fit(500)
    assert alone.epoch > 2
    assert (error.epoch, error.batch, error.what) == (alone.epoch, alone.batch, alone.what)
    assert model.history["loss"] == before.history["loss"]
    assert len(model.history) == error.epoch - 1
    for name, value in before.parameters.items():  # the chunk is replayed under NumPy
        np.testing.assert_allclose(value, model.parameters[name], rtol=1e-5)


def test_a_fit_that_is_stopped_keeps_what_was_trained_and_leaves_no_thread(chunk):
    """Chunks beyond the one after which it stops may have been started: nothing of them is kept."""

    class Stop(pc.Callback):
        def pause(self, run):
            run.stop()

    threads = threading.active_count()
    stopped = run("jax", "float64", 50, pc.SGD(0.1), callbacks=[Stop()])
    assert threading.active_count() == threads
    assert 1 <= len(stopped.history) < 50 or chunk == 1000
    same = run("jax", "float64", len(stopped.history), pc.SGD(0.1))
    assert stopped.history["loss"] == same.history["loss"]
    for name, value in same.parameters.items():
        np.testing.assert_array_equal(value, stopped.parameters[name])


def test_a_schedule_that_watches_the_loss_sees_every_epoch():
    class Halve(pc.Schedule):
        def rates(self, t, total, losses):
            return np.full_like(t, 0.1 * 0.5 ** len(losses))

    assert not pc.WarmUp(pc.Cosine(0.1)).watches_losses
    assert pc.WarmUp(pc.ReduceOnPlateau(0.1)).watches_losses
    X = np.ones((4, 1), np.float32)
    model = pc.Network(pc.Linear(1, bias=False), (1,), "squared_error")
    w = float(model.params["W"][0, 0])
    model.fit(X, 0 * X, epochs=3, batch_size=4, optimizer=pc.SGD(Halve()), engine="numpy", progress=False)
    assert float(model.params["W"][0, 0]) == pytest.approx(w * (1 - 0.2) * (1 - 0.1) * (1 - 0.05), rel=1e-5)


def test_callbacks_at_every_batch_do_not_change_the_run():
    class Watch(pc.Callback):
        seen = 0

        def batch_end(self, run, batch, loss):
            self.seen += 1

    for engine in ("numpy", "jax"):
        watch = Watch()
        a, b = run(engine, "float64", 2, pc.Adam()), run(engine, "float64", 2, pc.Adam(), callbacks=[watch])
        assert watch.seen == 14
        for name, value in a.parameters.items():
            np.testing.assert_array_equal(value, b.parameters[name])


# -------------------------------------------------------------------- auto
def test_auto_says_what_it_chose_and_why():
    history = pc.Network(pc.Linear(2), (6,)).fit(data()[0], data()[0][:, :2], epochs=1)
    assert history.engine == "numpy"
    assert "predicted" in history.engine_reason


def test_auto_compiles_when_the_work_is_long_enough():
    net = pc.Linear(64) >> pc.ReLU() >> pc.Linear(4)
    params, _ = net.build(np.random.default_rng(0), (30,))
    assert choose_engine(net, params, 32, 50)[0] == "numpy"
    assert choose_engine(net, params, 32, 100_000)[0] == "jax"
    assert (
        predict_work(net, params, 32).chunk
        > predict_work(pc.Linear(4000), pc.Linear(4000).build(np.random.default_rng(0), (4000,))[0], 512).chunk
    )


# -------------------------------------------------------------------- imports
def python(code, *flags):
    result = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result


def test_importing_pellucid_imports_neither_jax_nor_scikit_learn():
    report = python("import pellucid", "-X", "importtime").stderr
    modules = {line.split("|")[-1].strip().split(".")[0] for line in report.splitlines()}
    assert "pellucid" in modules
    assert not modules & {"jax", "jaxlib", "sklearn", "scipy", "torch", "matplotlib", "pandas"}


WITHOUT_JAX = """
import sys
sys.modules["jax"] = None  # import jax now fails
import numpy as np, pellucid as pc
X, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
net = pc.Linear(8) >> pc.GELU() >> pc.Dropout(0.1) >> pc.Linear(3)
model = pc.Network(net, (5,), "softmax_cross_entropy")
history = model.fit(X, y, epochs=3, validation=0.2, early_stopping=5)
assert history.engine == "numpy" and "cannot be imported" in history.engine_reason
model.fit(X, y, epochs=2, optimizer="lbfgs", engine="numpy")
assert model.predict(X).shape == (60,) and "accuracy" in model.evaluate(X, y)
report = model.check_gradients(X[:4], y[:4])
assert report and "jax is not there" in str(report)
assert pc.check_layer(net, (5,))
try:
    model.fit(X, y, engine="jax")
except ImportError as error:
    assert "engine='numpy'" in str(error)
else:
    raise SystemExit("engine='jax' was accepted")
"""


def test_everything_works_on_numpy_when_jax_cannot_be_imported():
    python(WITHOUT_JAX)


# -------------------------------------------------------------------- more rows than the device has room for
@pytest.mark.parametrize(("dtype", "room"), [("float32", 5_000), ("float64", 9_000)])  # the rows take 2,592 and 4,860 bytes
@pytest.mark.parametrize("steps", [3, 1000])
def test_rows_sent_chunk_by_chunk_give_the_same_bits(dtype, room, steps, monkeypatch):
    from pellucid.engines import choose

    monkeypatch.setattr(choose.Work, "chunk", property(lambda self: steps))
    options = {"optimizer": pc.Adam(pc.Cosine(0.01)), "validation": 0.2, "batch_size": 4}
    resident = run("jax", dtype, 4, **options)
    monkeypatch.setattr("pellucid.training.scarce.ROOM", 0)  # for the state there is enough
    sent = []
    put = get_engine("jax").put
    monkeypatch.setattr(get_engine("jax"), "room", lambda: room)
    monkeypatch.setattr(get_engine("jax"), "put", lambda tree: sent.append(tree) or put(tree))
    streamed = run("jax", dtype, 4, **options)
    rows = {len(tree.x) for tree in sent if isinstance(tree, Batch)}
    assert rows == {12 if steps == 3 else 16, 20}  # batches of 4 in a chunk, an eighth of the room at most; 20 for validation
    assert resident.history["loss"] == streamed.history["loss"]
    for name, value in resident.parameters.items():
        np.testing.assert_array_equal(value, streamed.parameters[name])


def test_a_failure_while_rows_are_sent_names_the_callers_row(monkeypatch):
    X = np.zeros((40, 1), np.float32)
    X[7] = 3e38  # the second layer's sum overflows
    monkeypatch.setattr(get_engine("jax"), "room", lambda: 0)
    with pytest.raises(pc.NonFiniteError) as caught:
        pc.Network(pc.Linear(64) >> pc.Linear(1), (1,), "squared_error").fit(X, X, epochs=2, batch_size=8, engine="jax", progress=False)
    assert caught.value.rows == [7]


# -------------------------------------------------------------------- a state that fills the device
@pytest.fixture
def little_room(monkeypatch):
    """Returns the states that were given away: all of their memory is that of the next one."""
    engine, given = get_engine("jax"), []

    def train_in_place(net, loss, optimizer, state, *rest):
        given.append(state)
        return in_place(net, loss, optimizer, state, *rest)

    in_place = engine.train_in_place
    monkeypatch.setattr(engine, "room", lambda: 12_000)  # NET and Adam's memory take 4,380 bytes, the rows 2,592
    monkeypatch.setattr(engine, "train_in_place", train_in_place)
    return given


@pytest.mark.parametrize("chunk", [3, 1000], indirect=True)
@pytest.mark.parametrize("options", [{}, {"validation": 0.2}, {"callbacks": [lambda run: None]}], ids=["", "validation", "watched"])
def test_a_large_state_is_replaced_where_it_lies_and_learns_the_same_bits(options, chunk, request):
    alone = run("jax", "float32", 6, pc.Adam(pc.Cosine(0.01)), **options)
    given = request.getfixturevalue("little_room")
    scarce = run("jax", "float32", 6, pc.Adam(pc.Cosine(0.01)), **options)
    last = [leaf for state in given[1:] for _, leaf in leaves((state.params, state.slots))]  # the first one is the host's
    assert given
    assert all(leaf.is_deleted() for leaf in last)
    assert bool(last) == (options != {} or chunk < 6 * 7)
    assert alone.history["loss"] == scarce.history["loss"]
    for name, value in alone.parameters.items():
        np.testing.assert_array_equal(value, scarce.parameters[name])


@pytest.mark.parametrize("chunk", [3, 20], indirect=True)
@pytest.mark.parametrize("share", [1e-9, 1e9], ids=["one copy", "a copy for every chunk"])
@pytest.mark.parametrize("message", ["Epoch 4.* is not finite", "no more"])
def test_a_large_state_is_not_lost_when_a_fit_fails(message, share, chunk, request, monkeypatch, in_float32):
    def fit():
        model = pc.Network(pc.Chain(*[pc.Linear(30)] * 9, pc.Linear(1)), (6,))
        rate, callbacks = pc.StepDecay(0.001, every=3, factor=1e4), [fail] if message == "no more" else []
        options = {"optimizer": pc.SGD(rate), "callbacks": callbacks, "progress": False}
        with pytest.raises(ArithmeticError, match=message) as caught:
            model.fit(*data(), epochs=6, batch_size=20, engine="jax", **options)
        assert all(np.isfinite(value).all() for value in model.parameters.values())
        return str(caught.value), model.parameters

    def fail(run):
        if run.epoch == 2:
            raise ArithmeticError("no more")

    alone = fit()
    given = request.getfixturevalue("little_room")
    monkeypatch.setattr("pellucid.training.scarce.SHARE", share)
    scarce = fit()
    assert given
    assert scarce[0] == alone[0]
    for name, value in alone[1].items():
        np.testing.assert_array_equal(value, scarce[1][name])


@pytest.mark.parametrize("how", ["batched", "threads"])
def test_many_large_states_are_trained_as_ever(how, little_room):
    population = pc.Population(NET, (6,), "softmax_cross_entropy", seed=range(3), optimizer=pc.Adam(0.01))
    population.fit(*data(), how=how, epochs=3, batch_size=16, engine="jax", progress=False)
    assert not little_room
    alone = pc.Network(NET, (6,), "softmax_cross_entropy", seed=2)
    alone.fit(*data(), epochs=3, batch_size=16, optimizer=pc.Adam(0.01), engine="jax", progress=False)
    assert little_room
    for name, value in alone.parameters.items():
        np.testing.assert_allclose(population[2].parameters[name], value, rtol=0, atol=1e-5)


def test_a_large_state_is_not_lost_when_the_device_fails(little_room, monkeypatch):
    engine, kept = get_engine("jax"), []
    in_place = engine.train_in_place

    def train_in_place(net, loss, optimizer, state, *rest):
        kept.append(engine.get(state).params)
        found = in_place(net, loss, optimizer, state, *rest)
        if len(kept) == 3:
            raise RuntimeError("out of memory")
        return found

    monkeypatch.setattr(engine, "train_in_place", train_in_place)
    monkeypatch.setattr("pellucid.training.scarce.SHARE", 1e9)  # a copy for every chunk
    model = pc.Network(NET, (6,), "softmax_cross_entropy")
    with pytest.raises(RuntimeError, match="out of memory"):
        model.fit(*data(), epochs=5, batch_size=16, engine="jax", callbacks=[lambda run: None], progress=False)
    for (_, found), (_, expected) in zip(leaves(model.params), leaves(kept[-1]), strict=True):
        np.testing.assert_array_equal(found, expected)


# -------------------------------------------------------------------- predictions
class Gate(pc.Layer):
    """A user's layer that goes on to use what it gave to another: h = inner(x), y = h + act(h)."""

    inner: pc.Layer
    act: pc.Layer

    @property
    def children(self):
        return self.inner, self.act

    def build(self, rng, shape):
        p, out = self.inner.build(rng, shape)
        return (p, self.act.build(rng, out)[0]), out

    def forward(self, ops, p, x):
        h, inner = ops.forward(self.inner, p[0], x, 0)
        y, act = ops.forward(self.act, p[1], h, 1)
        return h + y, (inner, act)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        dh, act = ops.backward(self.act, p[1], cache[1], dy, 1)
        dx, inner = ops.backward(self.inner, p[0], cache[0], dy + dh, 0, wrt_input)
        return dx, (inner, act)


@pytest.mark.parametrize(
    "net",
    [
        pc.Linear(4) >> pc.ReLU() >> pc.Linear(3),
        pc.Linear(6) >> (pc.ReLU() + pc.Identity()) >> pc.Linear(3),
        pc.Linear(6) >> (pc.Identity() + pc.ReLU()) >> pc.Linear(3),
        pc.Linear(6) >> (pc.ReLU() | pc.Tanh() | (pc.Identity() >> pc.ReLU())) >> pc.Linear(3),
        pc.Linear(6) * pc.ReLU() >> pc.Linear(3),
        pc.ReLU() >> pc.Linear(6) >> pc.ReLU() >> pc.ReLU() >> pc.Linear(3),
        pc.Repeat(pc.Linear(6) >> pc.ReLU(), 3),
        (pc.Linear(6) + (pc.Linear(6) >> pc.ReLU())) >> pc.ReLU(),
        Gate(pc.Linear(4), pc.ReLU()),
        Gate(pc.Linear(6) >> pc.ReLU(), pc.ReLU()) >> pc.Linear(4) >> pc.ReLU(),
    ],
    ids=repr,
)
def test_predictions_are_those_of_the_pass_that_keeps_everything(net):
    """A ReLU may write over its input where nobody else sees it; never over the caller's rows."""
    X = np.random.default_rng(0).normal(size=(50, 6))
    model = pc.Network(net, (6,), dtype="float64")
    rows = X.copy()
    expected, _ = get_engine("numpy").NumpyOps().forward(model.net, model.params, X, "net")
    np.testing.assert_array_equal(model(rows), expected)
    np.testing.assert_array_equal(rows, X)


# -------------------------------------------------------------------- mini-batches, however they come
@pytest.mark.parametrize("kind", ["classes", "numbers", "sequences"])
def test_mini_batches_gathered_as_for_a_gpu_are_the_same(kind, monkeypatch):
    """There, what is one number a row is gathered before the loop; the last mini-batch is a smaller one."""
    monkeypatch.setattr("pellucid.engines.jax.on_cpu", lambda: False)
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 3)) for n in rng.integers(1, 6, 53)] if kind == "sequences" else rng.normal(size=(53, 9))
    y = rng.normal(size=(53, 2)) if kind == "numbers" else rng.integers(0, 2, 53)
    shape, net = ((None, 3), pc.GRU(4)) if kind == "sequences" else ((9,), pc.Linear(5) >> pc.Tanh())
    loss = "squared_error" if kind == "numbers" else "softmax_cross_entropy"
    models = [pc.Network(net >> pc.Linear(2), shape, loss, dtype="float64") for _ in range(2)]
    options = {"epochs": 3, "batch_size": 8, "validation": 0.2, "sample_weight": rng.random(53), "progress": False}
    rows = [model.fit(X, y, engine=engine, **options).rows for model, engine in zip(models, ("numpy", "jax"), strict=True)]
    for a, b in zip(*rows, strict=True):
        np.testing.assert_allclose([b[k] for k in a if k != "seconds"], [a[k] for k in a if k != "seconds"], rtol=1e-9)
    for name, value in models[0].parameters.items():
        np.testing.assert_allclose(models[1].parameters[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


# -------------------------------------------------------------------- products, however they are laid out
@pytest.mark.parametrize("shape", [(128, 256, 10), (200, 64, 100), (64, 256, 256), (1, 30, 64), (40, 3, 500)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_numpys(shape, dtype):
    check_products(shape, dtype)


@pytest.mark.parametrize("shape", [(512, 600, 700), (512, 600, 20)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_laid_out_for_a_gpu_are_numpys(shape, dtype, monkeypatch):
    monkeypatch.setattr("pellucid.engines.jax.on_cpu", lambda: False)
    text = check_products(shape, dtype)
    assert ("LayoutConstraint" in text) == (min(shape) >= 512 and dtype == "float32")


def check_products(shape, dtype):
    import jax

    ops, engine, rng = get_engine("jax").JaxOps(), get_engine("jax"), np.random.default_rng(0)
    rows, n, m = shape
    x, dz, W = (rng.normal(size=s).astype(dtype) for s in ((rows, n), (rows, m), (n, m)))
    program = jax.jit(lambda x, dz, W: (ops.matmul(x, W), ops.crossprod(x, dz), ops.matmul(dz, W.T)))
    with engine.precision(dtype):
        found, text = program(x, dz, W), program.lower(x, dz, W).as_text()
    for value, expected, terms in zip(found, (x @ W, x.T @ dz, dz @ W.T), (n, rows, m), strict=True):
        single = 6 * terms**0.5 * 2**-11 if has_gpu() else 1e-3  # a GPU's TF32 has 11 bits
        np.testing.assert_allclose(value, expected, rtol=0, atol=single if dtype == "float32" else 1e-11)
    return text


def test_weights_are_updated_where_they_lie():
    """On CPU, XLA copied those that the backward pass reads, in every step, unless told to look closer."""
    engine = get_engine("jax")
    if engine.OPTIONS is None:
        pytest.skip("this version of XLA has no such option, or there is a GPU")
    model = pc.Network(pc.Linear(48) >> pc.ReLU() >> pc.Linear(56) >> pc.ReLU() >> pc.Linear(4), (6,), "softmax_cross_entropy")
    optimizer = pc.SGD(0.1)
    state = State(model.params, optimizer.slots(model.params), optimizer.numbers(np.float32), np.int32(0), np.uint32(0))
    rows = np.zeros((50, 16), np.int32)
    plan = Plan(rows, np.full(50, 16, np.int32), np.full(50, 0.1, np.float32), np.int32(50))
    batch = Batch(np.zeros((16, 6), np.float32), np.zeros(16, np.int32), np.ones(16, np.float32))
    text = engine.chunk.lower(model.net, model.loss, optimizer.kind(), state, batch, plan).compile().as_text()
    copies = re.findall(r"= f32\[48,56\]\S* copy\((\S+)\)", text)
    assert all("state_params" in source for source in copies), copies  # once, before the loop


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (pc.LSTM(5, outputs="every") >> pc.GRU(4, reverse=True) >> pc.Linear(3), (7, 2)),
        (pc.Conv2d(3) >> pc.ReLU() >> pc.MaxPool2d() >> pc.Flatten() >> pc.Linear(3), (6, 6, 1)),
        (pc.Embedding(9, 4) >> pc.RNN(4) >> pc.Linear(3), (8,)),
        (pc.Linear(4) >> pc.ReLU() >> pc.Linear(3), (5,)),
    ],
)
def test_images_and_sequences_are_predicted_on_all_cores(net, shape, monkeypatch):
    """In blocks of rows, on threads; the outputs are those of one pass over all rows, which remembers everything."""
    model, x = pc.Network(net, shape, "half_squared_error", dtype="float64"), np.random.default_rng(0).normal(size=(1000, *shape))
    x = np.abs(x).astype(int) if shape == (8,) else x  # numbers of words
    monkeypatch.setattr(numpy_engine, "cores", lambda: 3)
    threads = set()
    forward = numpy_engine.forward
    monkeypatch.setattr(numpy_engine, "forward", lambda *args: threads.add(threading.current_thread().name) or forward(*args))
    whole = NumpyOps(weight=np.ones(len(x))).forward(model.net, model.params, x, "net")[0]
    np.testing.assert_allclose(model.predict(x), whole, rtol=1e-12, atol=1e-14)
    assert (threads == {threading.current_thread().name}) == (shape == (5,))
    loss = model.evaluate(x, np.zeros_like(whole))["loss"]
    np.testing.assert_allclose(loss, (whole**2).sum(1).mean() / 2, rtol=1e-12)


def test_a_pass_that_nobody_goes_back_keeps_no_steps():
    layer, x = pc.LSTM(5), np.ones((2, 7, 3))
    params, _ = layer.build(np.random.default_rng(0), (7, 3))
    for ops, kept in ((NumpyOps(), (2, 4)), (numpy_engine.Predicting(), (0, 0))):
        _, (_, _, states, gates, _) = ops.forward(layer, params, x, "net")
        assert (len(states), len(gates)) == kept


def test_the_limit_on_blas_threads_ends_with_its_last_user():
    """Whoever came first may leave first: predictions in several threads of a server."""

    def threads():
        return [library["num_threads"] for library in numpy_engine.blas().info() if library["user_api"] == "blas"]

    before = threads()
    first, second = numpy_engine.one_blas_thread(), numpy_engine.one_blas_thread()
    first.__enter__()
    second.__enter__()
    assert set(threads()) == {1}
    first.__exit__(None, None, None)
    assert set(threads()) == {1}
    second.__exit__(None, None, None)
    assert threads() == before


@pytest.mark.parametrize(("asked", "looks", "left"), [("enable", True, False), ("disable", False, "frozen"), ("freeze", True, "frozen")])
def test_import_of_jax_leaves_the_search_for_garbage_as_it_was(asked: str, looks: bool, left: bool | str) -> None:
    code = f"""
import gc
from pellucid.engines import get_engine
get_engine("numpy"), gc.collect()
gc.{asked}()
before, frozen = gc.get_stats(), bool(gc.get_freeze_count())
get_engine("jax")
assert gc.isenabled() is {looks}
assert bool(gc.get_freeze_count()) is {left}
assert {asked == "freeze"} or gc.get_stats() == before, "it looked while JAX was imported"
class Loop: pass
import weakref
loop = Loop(); loop.loop = loop; there = weakref.ref(loop); del loop
gc.collect()
assert there() is None
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("platforms", "devices", "expected"),
    [("", None, True), ("cuda", "0", True), ("cuda,cpu", "1,0", True), ("cpu,cuda", None, False), ("cpu", "0", False), ("", "", False)],
)
def test_a_gpu_counts_unless_jax_was_told_the_cpu_first_or_the_gpu_is_hidden(platforms, devices, expected, monkeypatch):
    """As JAX decides where there is a driver and a plugin; the expected values were seen on such a machine."""
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    assert has_gpu.__wrapped__() is expected


@pytest.mark.parametrize("here", [True, False])
def test_weights_in_another_order_of_bytes_are_the_same_weights(here, monkeypatch):
    """A program that is compiled already takes arrays as they lie in memory; they go to a GPU in the order it knows."""
    if not here:
        monkeypatch.setattr("pellucid.engines.jax.on_cpu", lambda: False)
    X = np.random.default_rng(0).normal(size=(32, 3)).astype("f4")
    losses = []
    for order in "<>":
        model = pc.Network(pc.Linear(4) >> pc.Tanh() >> pc.Linear(1), (3,))
        model.params = map_leaves(lambda a, order=order: a.astype(f"{order}f4"), model.params)
        losses.append(model.fit(X, X[:, :1], epochs=2, engine="jax", progress=False)["loss"])
    assert losses[0] == losses[1]
