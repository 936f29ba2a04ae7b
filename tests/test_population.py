"""Many networks at once: each is the one that its own fit would give."""

import signal
import threading
import time

import numpy as np
import pytest

import pellucid as pc
from pellucid.engines import jax as engine
from pellucid.engines import numpy as numpy_engine
from pellucid.engines import pile
from pellucid.population import fit_all

NET = pc.Linear(6) >> pc.Tanh() >> pc.Linear(3)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4))
Y = np.argmax(X[:, :3] + 0.3 * RNG.normal(size=(90, 3)), 1)
HOW = pytest.mark.parametrize("how", ["threads", "batched"])


def alone(population, i, X, Y, **options):
    """The member as a network of its own, fitted by itself."""
    member, like = population.members[i], population[i]
    network = pc.Network(like.net, X.shape[1:], like.loss, seed=member["seed"], dtype=str(like.dtype))
    rows = member.get("rows", np.arange(len(X)))
    network.fit(X[rows], Y[rows], optimizer=population.optimizers[i], progress=False, engine="jax", **options)
    return network


def assert_members_are_alone(population, exact, X=X, Y=Y, **options):
    for i, network in enumerate(population):
        other = alone(population, i, X, Y, **options)
        assert len(network.history) == len(other.history)
        assert network.history.stopped == other.history.stopped
        for name, value in other.parameters.items():
            if exact:
                np.testing.assert_array_equal(network.parameters[name], value, err_msg=f"member {i}, {name}")
            else:
                np.testing.assert_allclose(network.parameters[name], value, rtol=1e-9, atol=1e-11, err_msg=f"member {i}, {name}")


@HOW
@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("adam", {"learning_rate": [0.01, 0.02, 0.001, pc.Cosine(0.05)]}),
        (pc.SGD(0.1), {"momentum": [0.5, 0.9, 0.0, 0.0], "weight_decay": [0.0, 0.1, 0.1, 0.2], "clip_norm": 1.0}),
    ],
)
def test_members_differ_in_seed_rows_and_settings_and_are_those_of_their_own_fits(how, optimizer, settings):
    """Folds of 45 and 80 rows have different numbers of steps."""
    rows = [np.arange(45), np.arange(80), np.arange(10, 90), RNG.integers(0, 90, 45)]
    population = pc.Population(
        NET, (4,), "softmax_cross_entropy", seed=[0, 1, 2, 2], rows=rows, optimizer=optimizer, dtype="float64", **settings
    )
    options = {"epochs": 5, "batch_size": 16}
    population.fit(X, Y, how=how, engine="jax", **options)
    assert_members_are_alone(population, how == "threads", **options)


@HOW
def test_validation_early_stopping_and_weights_take_the_same_path(how):
    population = pc.Population(NET, (4,), "softmax_cross_entropy", seed=range(4), optimizer=pc.Adam(0.1), dtype="float64")
    options = {"epochs": 30, "validation": 0.3, "early_stopping": 2, "class_weight": "balanced", "sample_weight": 1.0 + Y}
    population.fit(X, Y, how=how, engine="jax", **options)
    assert len({len(history) for history in population.histories}) > 1  # they end at different epochs
    assert_members_are_alone(population, how == "threads", **options)


@HOW
def test_dropout_and_batch_statistics_take_the_same_path(how):
    # no bias before the normalisation: its gradient is zero, and Adam would make steps of the rounding
    net = pc.Linear(8, bias=False) >> pc.BatchNorm() >> pc.ReLU() >> pc.Dropout(0.3) >> pc.Linear(3)
    population = pc.Population(net, (4,), "softmax_cross_entropy", seed=range(3), dtype="float64")
    population.fit(X, Y, how=how, engine="jax", epochs=3)
    assert_members_are_alone(population, how == "threads", epochs=3)


@HOW
def test_float32_stays_close(how):
    population = pc.Population(NET, (4,), "softmax_cross_entropy", seed=range(3), learning_rate=0.01)
    population.fit(X, Y, how=how, engine="jax", epochs=3)
    for i in range(3):
        other = alone(population, i, X.astype(np.float32), Y, epochs=3)
        np.testing.assert_allclose(population[i].parameters["0.W"], other.parameters["0.W"], rtol=0, atol=1e-5)


def test_another_population_of_the_same_shapes_compiles_nothing():
    def fit(rate):
        pc.Population(NET, (4,), "softmax_cross_entropy", seed=range(3), learning_rate=rate).fit(
            X, Y, epochs=4, engine="jax", how="threads"
        )

    fit(0.01)
    before = engine.chunk._cache_size()
    fit([0.02, 0.03, 0.04])
    assert engine.chunk._cache_size() == before


@HOW
def test_a_member_that_fails_does_not_disturb_the_others(how):
    net = pc.Linear(6) >> pc.ReLU() >> pc.Linear(3)
    population = pc.Population(net, (4,), "softmax_cross_entropy", optimizer="sgd", learning_rate=[0.1, 1e30, 0.2], dtype="float64")
    with pytest.warns(UserWarning, match=r"1 of 3 members failed.* member 1 \(seed=0, learning_rate=1e\+30\): Epoch"):
        population.fit(X, Y, epochs=20, engine="jax", how=how)
    assert isinstance(population.errors[1], pc.NonFiniteError)
    assert population.errors[0] is population.errors[2] is None
    other = alone(population, 2, X, Y, epochs=20)
    np.testing.assert_allclose(population[2].parameters["0.W"], other.parameters["0.W"], rtol=1e-9)
    assert "NonFiniteError" in population.summary().splitlines()[2]
    with pytest.raises(pc.NonFiniteError):
        pc.Population(net, (4,), "softmax_cross_entropy", optimizer="sgd", learning_rate=[1e30, 1e30], dtype="float64").fit(X, Y, how=how)


def test_predictions_have_the_members_in_front_and_the_best_is_found():
    population = pc.Population(NET, (4,), "softmax_cross_entropy", learning_rate=[1e-5, 0.05], dtype="float64")
    population.fit(X, Y, epochs=20, engine="numpy")
    assert population.predict(X).shape == (2, 90)
    assert population.predict_proba(X).shape == (2, 90, 3)
    np.testing.assert_array_equal(population.predict(X)[1], population[1].predict(X))
    scores = population.evaluate(X, Y)["accuracy"]
    assert scores[1] == np.mean(population.predict(X)[1] == Y)
    assert population.best is population[1]
    lines = repr(population).splitlines()
    assert lines[0] == "Population of 2: Linear(6) >> Tanh() >> Linear(3), SoftmaxCrossEntropy(), Adam"
    assert lines[1].split() == ["member", "learning_rate", "epochs", "loss", "accuracy", "ended"]
    assert lines[2].startswith("0       1e-05")


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_validation_loss_that_is_no_number_is_not_the_best():
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y, far = (X[:, 0] > 0).astype(int), X[:10].copy()
    far[0] = 1e38
    population = pc.Population(pc.Linear(2), (3,), "softmax_cross_entropy", optimizer="sgd", learning_rate=[500.0, 0.01])
    population.fit(X, y, epochs=5, validation=(far, y[:10]), engine="numpy", progress=False)
    assert np.isnan(population[0].history["val_loss"][-1])
    assert population.best is population[1]


def test_what_is_wrong_is_said():
    make = lambda **options: pc.Population(NET, (4,), **options)  # noqa: E731
    with pytest.raises(TypeError, match=r"no option 'learning_rat'. Did you mean 'learning_rate'"):
        make(learning_rat=[0.1, 0.2])
    with pytest.raises(TypeError, match="Population with Adam has no option 'momentum'"):
        make(momentum=[0.1, 0.2])
    with pytest.raises(ValueError, match="one entry for every member, but their lengths are: seed 2, learning_rate 3"):
        make(seed=[0, 1], learning_rate=[0.1, 0.2, 0.3])
    with pytest.raises(TypeError, match=r"one architecture, got 2.*PopulationSearchCV"):
        pc.Population([NET, pc.Linear(3)], (4,))
    with pytest.raises(TypeError, match=r"no option 'epoch'. Did you mean 'epochs'"):
        make().fit(X, Y, epoch=3)
    with pytest.raises(TypeError, match="no option 'checkpoint'"):
        make().fit(X, Y, checkpoint="here")
    with pytest.raises(ValueError, match=r"how must be one of 'auto', 'threads', 'batched', got 'batch'. Did you mean 'batched'"):
        make().fit(X, Y, how="batch")


@HOW
def test_all_fits_run_even_if_they_are_more_than_run_at_once(how, monkeypatch):
    monkeypatch.setattr("pellucid.population.AT_ONCE", 3)
    population = pc.Population(NET, (4,), "softmax_cross_entropy", seed=range(8), dtype="float64")
    population.fit(X, Y, how=how, engine="jax", epochs=2, threads=3)
    assert_members_are_alone(population, how == "threads", epochs=2)


@HOW
def test_ctrl_c_ends_all_members_and_keeps_their_weights(how):
    """The main thread is interrupted while it waits; members end before their next chunk."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
    population = pc.Population(NET, (4,), "softmax_cross_entropy", seed=range(3), dtype="float64")
    main = threading.main_thread().ident

    def interrupt(run):
        if run.model.seed == 0 and run.epoch == 5:
            signal.pthread_kill(main, signal.SIGINT)

    try:
        population.fit(X, Y, how=how, engine="jax", epochs=10_000, threads=3, callbacks=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    for network in population:
        assert len(network.history) < 10_000
        assert network.history.stopped == "interrupted by Ctrl-C"
        assert np.isfinite(network.parameters["0.W"]).all()


@pytest.mark.parametrize(("there", "allowed"), [(3, 2), (2, 4)])
def test_no_more_train_at_once_than_asked_for(there, allowed, monkeypatch):
    """Spare threads prepare fits, and wait; where all cores are asked for, their programs wait for a core instead."""
    monkeypatch.setattr("pellucid.engines.together.cores", lambda: there)
    most = most_at_once(engine, monkeypatch)
    population = pc.Population(NET, (4,), "softmax_cross_entropy", seed=range(9), dtype="float64")
    population.fit(X, Y, how="threads", engine="jax", epochs=2, threads=2)
    assert most == [allowed]


@pytest.mark.parametrize(
    ("net", "dtype", "allowed"),
    [
        (NET, "float64", 1),
        (pc.Linear(20_000) >> pc.Tanh() >> pc.Linear(3), "float32", 2),
        (pc.Linear(900) >> pc.Linear(3), "float32", 1),
        (pc.Linear(900) >> pc.Linear(3), "float64", 2),  # its numbers take twice the time
        (pc.Linear(900) >> pc.GELU() >> pc.GELU() >> pc.Linear(3), "float32", 2),  # work without weights
    ],
)
def test_short_steps_on_numpy_train_one_fit_at_a_time(net, dtype, allowed, monkeypatch):
    """Two such loops would wait for Python's lock at every operation."""
    most = most_at_once(numpy_engine, monkeypatch)
    population = pc.Population(net, (4,), "softmax_cross_entropy", seed=range(9), dtype=dtype)
    population.fit(X, Y, how="threads", engine="numpy", epochs=2, threads=2)
    assert most == [allowed]


@pytest.mark.parametrize(
    ("how", "inner", "units"), [("threads", "numpy", 1), ("threads", "numpy", 20_000), ("batched", "numpy", 1), ("batched", "jax", 1)]
)
def test_a_fit_may_train_another_while_it_trains(how, inner, units):
    net = pc.Linear(units) >> pc.Linear(1)

    class Busy(pc.SquaredError):
        def __call__(self, ops, y, target):
            pc.Network(net, (4,), "squared_error").fit(X[:8], X[:8, :1], epochs=1, engine=inner, progress=False)
            return super().__call__(ops, y, target)

    population = pc.Population(net, (4,), Busy(), seed=range(4))
    population.fit(X[:8], X[:8, :1], epochs=2, engine="numpy", how=how, threads=2)
    assert [len(history) for history in population.histories] == [2] * 4


def test_small_and_large_networks_together_are_no_more_than_asked_for(monkeypatch):
    most = most_at_once(numpy_engine, monkeypatch)
    model = pc.NetworkClassifier(epochs=3, engine="numpy", random_state=0, progress=False)
    nets = [pc.Linear(units) >> pc.Tanh() for _ in range(3) for units in (8, 20_000)]
    pc.PopulationSearchCV(model, {"net": nets}, cv=3, n_jobs=2, refit=False, how="threads", progress=False).fit(X, Y)
    assert most == [2]


def most_at_once(engine, monkeypatch):
    """How many fits train on an engine at the same time, at most, from here on."""
    lock, now, most, train = threading.Lock(), [0], [0], engine.train

    def counted(*args):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        try:
            time.sleep(0.02)
            return train(*args)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(engine, "train", counted)
    return most


def test_fits_on_threads_see_the_engine_of_their_own_thread_only():
    from pellucid.engines import get_engine

    seen = fit_all([lambda: get_engine("jax")] * 3, "batched")
    assert all(e is not engine for e in seen)
    assert get_engine("jax") is engine


@pytest.mark.parametrize("schedule", [0.05, pc.OneCycle(0.05), pc.ReduceOnPlateau(0.05, patience=1)])
def test_epochs_run_ahead_are_those_run_one_by_one(schedule, monkeypatch):
    """Also where the learning rate follows from losses that are not known yet."""

    def fit(**options):
        model = pc.Network(NET, (4,), "softmax_cross_entropy", dtype="float64")
        model.fit(X, Y, epochs=40, optimizer=pc.SGD(schedule), engine="jax", progress=False, **options)
        return model

    calls = []
    train = engine.train
    monkeypatch.setattr(engine, "train", lambda *args: calls.append(1) or train(*args))
    ahead_of_time = fit()
    few = len(calls)
    one_by_one = fit(callbacks=lambda run: None)  # somebody may look: an epoch at a time
    assert len(calls) - few == 40
    assert few < 40
    assert ahead_of_time.history["loss"] == one_by_one.history["loss"]
    for name, value in one_by_one.parameters.items():
        np.testing.assert_array_equal(ahead_of_time.parameters[name], value)


def test_a_fit_that_fails_while_running_ahead_tells_the_same_place():
    def error(**options):
        model = pc.Network(pc.Linear(6) >> pc.ReLU() >> pc.Linear(3), (4,), "softmax_cross_entropy", dtype="float64")
        with pytest.raises(pc.NonFiniteError) as caught:
            model.fit(X, Y, epochs=20, optimizer=pc.SGD(1e30), engine="jax", progress=False, **options)
        return str(caught.value), model.history["loss"]

    assert error() == error(callbacks=lambda run: None)


def test_how_far_ahead_follows_from_shapes_alone():
    before = None
    for epochs in (1, 3, 40):
        model = pc.Network(pc.Linear(5) >> pc.Tanh() >> pc.Linear(3), (4,), "softmax_cross_entropy")
        model.fit(X, Y, epochs=epochs, engine="jax", progress=False)
        assert before in (None, engine.chunk._cache_size())
        before = engine.chunk._cache_size()


def test_data_sets_that_differ_in_one_value_are_told_apart():
    other = X.copy()
    other[1, 2] += 1.0  # in a row that the digest leaves out
    stacked, rows = np.concatenate([X, other]), np.arange(len(X))
    picks = [rows, rows + len(X), rows.copy()]
    population = pc.Population(NET, (4,), "softmax_cross_entropy", rows=picks, dtype="float64")
    population.fit(stacked, np.concatenate([Y, Y]), how="batched", engine="jax", epochs=3)
    assert_members_are_alone(population, False, stacked, np.concatenate([Y, Y]), epochs=3)
    first, second, third = (network.parameters["0.W"] for network in population)
    np.testing.assert_array_equal(first, third)
    assert not np.array_equal(first, second)


def test_equal_folds_go_to_the_device_once(monkeypatch):
    piles = piles_made(monkeypatch)
    folds = [np.arange(60), np.arange(30, 90)]
    pc.Population(NET, (4,), "softmax_cross_entropy", rows=[f.copy() for f in folds * 3], learning_rate=[0.01] * 6).fit(
        X, Y, how="batched", engine="jax", epochs=2
    )
    assert [len(pile.data.x) for pile in piles] == [120]
    assert sorted(piles[0].starts) == [0] * 3 + [60] * 3


def test_fits_of_different_numbers_of_steps_are_one_program(monkeypatch):
    piles, picks = piles_made(monkeypatch), [np.arange(90), np.arange(32), np.arange(60)]  # 3, 1 and 2 steps in an epoch
    population = pc.Population(NET, (4,), "softmax_cross_entropy", rows=picks, dtype="float64")
    population.fit(X, Y, how="batched", engine="jax", epochs=4)
    assert len(piles) == 1
    assert_members_are_alone(population, False, epochs=4)


def test_members_that_stop_one_after_the_other_need_few_programs():
    def stop(run):
        if run.epoch > run.model.seed:
            run.stop("enough")

    before = pile.spread()._cache_size()
    population = pc.Population(NET, (4,), "softmax_cross_entropy", seed=range(16))
    population.fit(X, Y, how="batched", engine="jax", epochs=20, callbacks=stop)
    assert [len(history) for history in population.histories] == list(range(1, 17))
    assert pile.spread()._cache_size() - before <= 5  # 16, 8, 4, 2 and 1 orders of rows


def test_equal_orders_of_rows_are_found():
    first, second = np.arange(12).reshape(4, 3), np.arange(12).reshape(4, 3)
    second[3] = second[3, ::-1]  # begins like the first
    different, numbers = pile.alike([first, second, first.copy(), second + 1, second.copy()])
    assert numbers == [0, 1, 0, 2, 1]
    np.testing.assert_array_equal(different, [first, second, second + 1])


def piles_made(monkeypatch):
    """Every pile of fits that is trained from here on."""
    piles, of = [], pile.Pile.of
    monkeypatch.setattr(pile.Pile, "of", lambda group: piles.append(of(group)) or piles[-1])
    return piles
