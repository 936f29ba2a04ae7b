"""Network.fit: validation, early stopping, callbacks, history, Ctrl-C, checkpoints, values that are not finite."""

import signal

import numpy as np
import pytest

import pellucid as pc
from pellucid.training.data import split

ENGINES = pytest.mark.parametrize("engine", ["numpy", "jax"])


def data(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    return X, (X[:, 0] + X[:, 1] ** 2 > 0.7).astype(int) + (X[:, 2] > 1)


def model(dtype="float32", **options):
    return pc.Network(pc.Linear(12) >> pc.Tanh() >> pc.Dropout(0.2) >> pc.Linear(3), (5,), "softmax_cross_entropy", dtype=dtype, **options)


def test_learns_digits(digits):
    X, y = digits
    net = pc.Network(pc.Linear(64) >> pc.ReLU() >> pc.Linear(10), (64,), "softmax_cross_entropy")
    history = net.fit(X[:1400], y[:1400], epochs=30, validation=(X[1400:], y[1400:]))
    assert net.evaluate(X[1400:], y[1400:])["accuracy"] > 0.9
    assert history["val_accuracy"][-1] == pytest.approx(net.evaluate(X[1400:], y[1400:])["accuracy"])


@ENGINES
def test_the_history_is_data(engine):
    net = model()
    history = net.fit(*data(), epochs=4, engine=engine, validation=0.25)
    assert history is net.history
    assert history.columns == ["epoch", "loss", "accuracy", "val_loss", "val_accuracy", "seconds"]
    assert history["epoch"] == [1, 2, 3, 4]
    assert len(history) == len(history["loss"]) == 4
    assert history.engine == engine
    assert history.stopped == "all epochs done"
    assert f"4 epochs on {engine}" in repr(history)
    with pytest.raises(KeyError, match="val_loss"):
        history["validation_loss"]


def test_the_training_loss_is_the_weighted_mean_over_all_rows():
    """With η tiny the loss of an epoch is the loss of the fixed network, smaller last batch and weights included."""
    X, y = data(50)
    w = np.random.default_rng(2).uniform(0.1, 3, 50)
    net = pc.Network(pc.Linear(3), (5,), "softmax_cross_entropy", dtype="float64")
    before = net.evaluate(X, y, sample_weight=w)
    # a batch is a weighted mean and batches count by their weight, so the sum is the mean over all
    history = net.fit(X, y, sample_weight=w, epochs=1, batch_size=8, optimizer=pc.SGD(1e-12), engine="numpy")
    assert history["loss"][0] == pytest.approx(before["loss"], rel=1e-9)
    assert history["accuracy"][0] == pytest.approx(before["accuracy"])


def test_a_validation_fraction_is_stratified():
    labels = np.array([0] * 80 + [1] * 15 + [2] * 5)
    train, valid = split(100, 0.2, labels, 0)
    assert np.bincount(labels[valid]).tolist() == [16, 3, 1]
    assert sorted([*train, *valid]) == list(range(100))


def test_validation_rows_are_not_learned_from():
    X, y = data()
    a, b = model(), model()
    _, held = split(120, 0.25, y, 0)
    a.fit(X, y, epochs=3, validation=0.25, engine="numpy")
    X = X.copy()
    X[held] += 100
    b.fit(X, y, epochs=3, validation=0.25, engine="numpy")
    np.testing.assert_array_equal(a.parameters["0.W"], b.parameters["0.W"])
    assert a.history["val_loss"] != b.history["val_loss"]


@ENGINES
def test_early_stopping_restores_the_best_weights(engine, in_float32):
    X, y = data(60)
    X_val, y_val = data(60, seed=1)
    net = pc.Network(pc.Linear(64) >> pc.Tanh() >> pc.Linear(3), (5,), "softmax_cross_entropy")
    history = net.fit(X, y, epochs=400, optimizer=pc.Adam(0.02), validation=(X_val, y_val), early_stopping=5, engine=engine)
    best = int(np.argmin(history["val_loss"]))
    assert history.best_epoch == best + 1
    assert len(history) == best + 1 + 5
    assert "no improvement" in history.stopped
    assert net.evaluate(X_val, y_val)["loss"] == pytest.approx(history["val_loss"][best], rel=1e-5)


def test_early_stopping_can_watch_a_score_and_keep_the_last_weights():
    X, y = data(60)
    watch = pc.EarlyStopping(patience=3, monitor="val_accuracy", restore_best=False)
    net = model()
    history = net.fit(X, y, epochs=300, validation=0.3, early_stopping=watch, engine="numpy", optimizer=pc.Adam(0.01))
    assert len(history) == int(np.argmax(history["val_accuracy"])) + 4
    assert history.best_epoch is None
    with pytest.raises(ValueError, match="history has only"):
        net.fit(X, y, epochs=3, early_stopping=pc.EarlyStopping(monitor="val_f1"), engine="numpy")


@ENGINES
def test_callbacks_see_the_run_and_can_stop_it(engine):
    events = []

    class Log(pc.Callback):
        def fit_begin(self, run):
            events.append("begin")

        def epoch_end(self, run):
            events.append((run.epoch, run.history["loss"][-1], run.params[0]["W"].copy()))

        def fit_end(self, run):
            events.append("end")

    net = model()
    net.fit(*data(), epochs=10, engine=engine, callbacks=[Log(), lambda run: run.stop("enough") if run.epoch == 3 else None])
    assert [events[0], events[-1]] == ["begin", "end"]
    assert [e[0] for e in events[1:-1]] == [1, 2, 3]
    np.testing.assert_array_equal(events[-2][2], net.parameters["0.W"])
    assert net.history.stopped == "enough"


def test_metrics_of_the_user_are_measured_on_validation_data():
    net = pc.Network(pc.Linear(1), (5,))
    X = data()[0]
    history = net.fit(X, X[:, 0], epochs=2, validation=0.2, engine="numpy", metrics={"worst": lambda d, y: np.abs(d - y).max()})
    assert len(history["val_worst"]) == 2
    assert history["val_worst"][1] > 0


def test_a_second_fit_goes_on_from_the_weights():
    net = model()
    first = net.fit(*data(), epochs=20, engine="numpy")["loss"]
    assert net.fit(*data(), epochs=1, engine="numpy")["loss"][0] < first[0]


def test_the_shape_is_taken_from_the_first_data():
    net = pc.Network(pc.Linear(3), loss="softmax_cross_entropy")
    with pytest.raises(ValueError, match="no parameters yet"):
        net.predict(data()[0])
    net.fit(*data(), epochs=1, engine="numpy")
    assert net.input_shape == (5,)
    assert net.count == 18


@ENGINES
def test_ctrl_c_ends_the_fit_cleanly_with_the_weights_so_far(engine):
    class Interrupt(pc.Callback):
        def batch_end(self, run, batch, loss):
            if run.epoch == 1 and batch == 2:
                signal.raise_signal(signal.SIGINT)

    net, handler = model(), signal.getsignal(signal.SIGINT)
    start = net.parameters["0.W"].copy()
    history = net.fit(*data(), epochs=50, engine=engine, callbacks=Interrupt())
    assert history.stopped == "interrupted by Ctrl-C"
    assert len(history) == 2
    assert not np.array_equal(net.parameters["0.W"], start)
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_error_in_a_callback_keeps_the_weights_so_far():
    def fail(run):
        raise RuntimeError("mine")

    net = model()
    start = net.parameters["0.W"].copy()
    with pytest.raises(RuntimeError, match="mine"):
        net.fit(*data(), epochs=2, engine="numpy", callbacks=fail)
    assert not np.array_equal(net.parameters["0.W"], start)


# -------------------------------------------------------------------- checkpoints
OPTIMIZERS = [
    pc.SGD(pc.ReduceOnPlateau(0.3, factor=0.5, patience=1, min_delta=0.05), momentum=0.9),
    pc.Adam(pc.WarmUp(pc.Exponential(0.05, 0.8), epochs=3), clip_norm=0.5),
    pc.RMSProp(pc.Cosine(0.01, epochs=9)),
]


@ENGINES
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_resuming_is_exact_to_the_bit(tmp_path, engine, optimizer):
    """k epochs, then resumed to N: weights, history, best weights as in N epochs at once; dropout and shuffling included."""
    options = {"optimizer": optimizer, "engine": engine, "validation": 0.2, "early_stopping": 6, "batch_size": 16}
    whole = model()
    whole.fit(*data(), epochs=9, **options)
    path = tmp_path / "run.ckpt"
    model().fit(*data(), epochs=4, checkpoint=path, **options)
    resumed = model()
    resumed.fit(*data(), epochs=9, checkpoint=path, resume=True, **options)
    for name, value in whole.parameters.items():
        np.testing.assert_array_equal(value, resumed.parameters[name])
    for column in ("loss", "accuracy", "val_loss", "val_accuracy", "epoch"):
        assert whole.history[column] == resumed.history[column]
    assert whole.history.best_epoch == resumed.history.best_epoch
    assert whole.history.stopped == resumed.history.stopped


def test_a_rate_that_spans_the_fit_is_resumed_with_the_same_number_of_epochs_only(tmp_path):
    path, options = tmp_path / "run.ckpt", {"engine": "numpy", "optimizer": pc.Adam(pc.WarmUp(pc.Cosine(0.02), epochs=2))}
    whole, resumed = model(), model()
    whole.fit(*data(), epochs=6, **options)
    model().fit(*data(), epochs=6, checkpoint=path, callbacks=lambda run: run.stop() if run.epoch == 3 else None, **options)
    with pytest.raises(ValueError, match=r"epochs .* is 6, here it is 9"):
        model().fit(*data(), epochs=9, checkpoint=path, resume=True, **options)
    resumed.fit(*data(), epochs=6, checkpoint=path, resume=True, **options)
    np.testing.assert_array_equal(whole.parameters["0.W"], resumed.parameters["0.W"])


def test_an_interrupted_epoch_is_done_again_exactly(tmp_path):
    class Interrupt(pc.Callback):
        def batch_end(self, run, batch, loss):
            if run.epoch == 2 and batch == 3:
                run.stop("cut off in the middle of epoch 3")

    path, whole, resumed = tmp_path / "run.ckpt", model(), model()
    whole.fit(*data(), epochs=6, engine="numpy")
    model().fit(*data(), epochs=6, engine="numpy", checkpoint=path, callbacks=Interrupt())
    resumed.fit(*data(), epochs=6, engine="numpy", checkpoint=path, resume=True)
    np.testing.assert_array_equal(whole.parameters["0.W"], resumed.parameters["0.W"])
    assert whole.history["loss"] == resumed.history["loss"]


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    model().fit(*data(), epochs=2, engine="numpy", checkpoint=path)
    go_on = {"epochs": 3, "engine": "numpy", "checkpoint": path, "resume": True}
    with pytest.raises(ValueError, match="optimizer"):
        model().fit(*data(), optimizer=pc.Adam(0.1), **go_on)
    with pytest.raises(ValueError, match="data"):
        model().fit(*data(seed=4), **go_on)
    with pytest.raises(ValueError, match="seed"):
        model(seed=1).fit(*data(), **go_on)
    with pytest.raises(ValueError, match="network"):
        pc.Network(pc.Linear(3), (5,), "softmax_cross_entropy").fit(*data(), **go_on)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"not a checkpoint at all", content[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|no checkpoint"):
            model().fit(*data(), **go_on)


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    import os

    path = tmp_path / "run.ckpt"
    model().fit(*data(), epochs=1, engine="numpy", checkpoint=path)
    before = path.read_bytes()

    def crash(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="disk full"):
        model().fit(*data(), epochs=1, engine="numpy", checkpoint=path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.ckpt"]


# -------------------------------------------------------------------- not finite
@ENGINES
def test_a_loss_that_is_not_finite_names_epoch_batch_layer_and_rows(engine):
    X, y = data(40)
    X[17, 2] = 3e38  # finite, but not after a product in float32
    net = pc.Network(pc.Linear(8, init=pc.Constant(2.0)).named("first") >> pc.ReLU() >> pc.Linear(3), (5,), "softmax_cross_entropy")
    with pytest.raises(pc.NonFiniteError) as caught:
        net.fit(X, y, epochs=2, batch_size=10, order="given", engine=engine)
    error = caught.value
    assert (error.epoch, error.batch, error.layer, error.rows) == (1, 2, "net.first", [17])
    for words in ("Epoch 1, batch 2", "output of net.first", "rows 17", "smaller learning rate"):
        assert words in str(error)


@ENGINES
def test_the_last_good_weights_are_kept(engine, in_float32):
    X, y = data(40)
    net = pc.Network(pc.Linear(30) >> pc.Linear(30) >> pc.Linear(1), (5,))
    with pytest.raises(pc.NonFiniteError) as caught:
        net.fit(X, y, epochs=200, optimizer=pc.SGD(3.0), batch_size=10, engine=engine)
    assert all(np.isfinite(value).all() for value in net.parameters.values())
    steps = (caught.value.epoch - 1) * 4 + caught.value.batch - 1
    assert steps > 0
    twin = pc.Network(pc.Linear(30) >> pc.Linear(30) >> pc.Linear(1), (5,))  # the same run, stopped before the bad batch
    seen = []

    class Stop(pc.Callback):
        def batch_end(self, run, batch, loss):
            seen.append(batch)
            if len(seen) == steps:
                run.stop()

    twin.fit(X, y, epochs=200, optimizer=pc.SGD(3.0), batch_size=10, engine=engine, callbacks=Stop())
    for name, value in net.parameters.items():
        np.testing.assert_allclose(value, twin.parameters[name], rtol=1e-3)


def test_a_bad_gradient_is_told_from_a_bad_output():
    net = pc.Network(pc.Linear(2) >> pc.Elementwise(root, root_slope), (2,), "squared_error")
    net.set_parameters({"0.W": np.zeros((2, 2))})
    with pytest.raises(pc.NonFiniteError, match=r"gradient by the input of net\.1"):
        net.fit(np.ones((4, 2)), np.ones((4, 2)), epochs=1, engine="numpy")


def root(xp, z):
    return xp.sqrt(z)


def root_slope(xp, z):
    return 0.5 / xp.sqrt(z)


def test_dead_certain_and_wrong_probabilities_point_to_the_loss():
    net = pc.Network(pc.Softmax() >> pc.Linear(2, bias=False, init=pc.Constant(np.eye(2))), (2,), "cross_entropy")
    with pytest.raises(pc.NonFiniteError, match="a loss on logits"):
        net.fit(np.array([[500.0, -500.0]] * 4), np.ones(4, int) * [1, 0, 1, 1], epochs=1, engine="numpy")


# -------------------------------------------------------------------- the progress bar
@pytest.fixture
def screen(monkeypatch):
    """A terminal for the progress bar."""
    import io

    import rich.console

    real, text = rich.console.Console, io.StringIO()
    monkeypatch.setattr(rich.console, "Console", lambda **_: real(file=text, force_terminal=True, width=140))
    return text


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_the_progress_bar_of_a_short_fit_ends_with_the_last_epochs_numbers(screen, engine):
    history = model().fit(*data(), epochs=30, engine=engine, optimizer=pc.Adam(0.05))
    end = screen.getvalue()[-1000:]
    assert f"loss {history['loss'][-1]:.4f}" in end
    assert "epoch 30/30" in end
    assert "starting" not in end.rpartition("epoch 30/30")[2]


def test_the_progress_bar_shows_epoch_loss_score_speed_and_time(screen):
    model().fit(*data(), epochs=3, engine="numpy", validation=0.2)
    text = screen.getvalue()
    for word in ("epoch 3/3", "loss", "accuracy", "val_loss", "samples/s", "0:00:00"):
        assert word in text


def test_the_progress_bar_is_silent_when_nobody_watches(capfd):
    model().fit(*data(), epochs=2, engine="numpy")
    out, err = capfd.readouterr()
    assert out == err == ""


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_a_callback_that_fails_leaves_the_weights_of_its_epoch(engine):
    """Also where several epochs were run ahead, because it looks at no weights."""

    class Budget(pc.Callback):
        looks_at_weights = False

        def epoch_end(self, run):
            if run.epoch == 3:
                raise RuntimeError("enough")

    X = np.random.default_rng(0).normal(size=(60, 4))
    y = (X[:, 0] > 0).astype(int)

    net = pc.Linear(8) >> pc.ReLU() >> pc.Linear(2)
    model, expected = (pc.Network(net, (4,), "softmax_cross_entropy", dtype="float64") for _ in range(2))
    with pytest.raises(RuntimeError, match="enough"):
        model.fit(X, y, epochs=50, engine=engine, callbacks=Budget(), progress=False)
    expected.fit(X, y, epochs=3, engine=engine, progress=False)
    assert model.history["loss"] == expected.history["loss"]
    for name, value in expected.parameters.items():
        np.testing.assert_array_equal(model.parameters[name], value)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_losses_whose_sum_overflows_are_finite(engine):
    X = np.random.default_rng(1).normal(size=(61, 6)).astype(np.float32)
    model = pc.Network(pc.Linear(1), (6,), "squared_error")
    history = model.fit(X, np.full(61, 1e18, "f4"), epochs=100, batch_size=32, optimizer=pc.SGD(1e-30), engine=engine, progress=False)
    assert history["loss"][-1] == pytest.approx(1e36)


def test_rows_of_weight_zero_count_as_none_in_an_evaluation_of_many_rows():
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(3000, 6)), np.repeat([0.0, 1.0], [2500, 500])
    y = (X[:, 0] > 0).astype(int)
    model = pc.Network(pc.Linear(2), (6,), "softmax_cross_entropy", dtype="float64")
    assert model.evaluate(X, y, sample_weight=weight) == pytest.approx(model.evaluate(X[2500:], y[2500:]))
