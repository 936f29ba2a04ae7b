"""Sequences of different length: lists, padding, lengths."""

import numpy as np
import pytest

import pellucid as pc
from pellucid import GRU, LSTM, RNN, Linear, Network

KINDS = [RNN, LSTM, GRU]
LENGTHS = [4, 1, 6, 3]


def some(dtype="float32", outputs="every", kind=GRU, loss="softmax_cross_entropy"):
    """A model, sequences of different length, and a label for every step."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 2)).astype(dtype) for n in LENGTHS]
    y = [rng.integers(0, 3, n) for n in LENGTHS]
    net = kind(4, outputs="every", bidirectional=True) >> kind(3, outputs=outputs) >> Linear(3)
    return Network(net, (None, 2), loss, dtype=dtype), X, y


def padded(sequences, steps, fill):
    out = np.full((len(sequences), steps, *np.shape(sequences[0])[1:]), fill, sequences[0].dtype)
    for row, s in zip(out, sequences, strict=True):
        row[: len(s)] = s
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", ["every", "last"])
def test_what_the_padding_contains_changes_nothing_by_a_bit(kind, outputs):
    model, X, y = some(kind=kind, outputs=outputs)
    target = (np.array([t[0] for t in y]),) * 3 if outputs == "last" else (y, padded(y, 6, -1), padded(y, 6, 99))
    ways = [(X, {}), (padded(X, 6, 7.0), {"lengths": LENGTHS}), (padded(X, 6, np.nan), {"lengths": LENGTHS})]
    results = [(model.gradients(x, t, **o), model.evaluate(x, t, **o), model(x, **o)) for (x, o), t in zip(ways, target, strict=True)]
    (loss, grads), scores, out = results[0]
    for (other_loss, other_grads), other_scores, other_out in results[1:]:
        assert other_loss == loss
        assert other_scores == scores
        assert all(np.array_equal(other_grads[name], g) for name, g in grads.items())
        if outputs == "every":
            other_out = [row[:n] for row, n in zip(other_out, LENGTHS, strict=True)]
        assert all(np.array_equal(a, b) for a, b in zip(out, other_out, strict=True))


@pytest.mark.parametrize(("kind", "engine"), [(RNN, "numpy"), (LSTM, "numpy"), (GRU, "numpy"), (GRU, "jax")])
def test_how_much_padding_there_is_changes_almost_nothing(kind, engine, in_float32):
    model, X, y = some(kind=kind)
    short, long = padded(X, 6, 0), padded(X, 40, 0)
    options = {"lengths": LENGTHS}
    loss, grads = model.gradients(short, padded(y, 6, 0), **options)
    other, others = model.gradients(long, padded(y, 40, 0), **options)
    assert other == pytest.approx(loss, abs=1e-6)
    for name, g in grads.items():
        np.testing.assert_allclose(others[name], g, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(model(long, **options)[:, :6], model(short, **options), atol=1e-6)
    model.fit(short, padded(y, 6, 0), epochs=2, batch_size=3, engine=engine, **options)
    again, _, _ = some(kind=kind)
    again.fit(long, padded(y, 40, 0), epochs=2, batch_size=3, engine=engine, **options)
    np.testing.assert_allclose(again.history["loss"], model.history["loss"], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_sequence_is_read_as_if_it_were_alone(kind):
    model, X, _ = some("float64", kind=kind)
    for together, x in zip(model(X), X, strict=True):
        np.testing.assert_allclose(together, model(x[None])[0], atol=1e-12)
    last, X, _ = some("float64", "last", kind)
    np.testing.assert_allclose(last(X), np.concatenate([last(x[None]) for x in X]), atol=1e-12)


def test_the_mean_loss_is_over_all_real_steps():
    model, X, y = some("float64")
    p = [np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in model(X)]
    values = np.concatenate([-np.log(q[np.arange(len(t)), t]) for q, t in zip(p, y, strict=True)])
    assert model.evaluate(X, y)["loss"] == pytest.approx(values.mean(), rel=1e-12)
    assert model.gradients(X, y)[0] == pytest.approx(values.mean(), rel=1e-12)


def test_a_list_gives_a_list_and_a_padded_array_an_array_with_zeros():
    model, X, _ = some()
    assert [len(p) for p in model.predict(X)] == LENGTHS
    assert [p.shape for p in model.predict_proba(X)] == [(n, 3) for n in LENGTHS]
    z = model(padded(X, 6, 0), lengths=LENGTHS)
    assert z.shape == (4, 6, 3)
    assert not z[0, 4:].any()
    assert z[0, :4].all()
    equal = model.predict([X[0], X[0]])  # of equal length, still a list
    assert [len(p) for p in equal] == [4, 4]


def test_one_hot_and_real_valued_targets_at_every_step():
    model, X, y = some("float64")
    one_hot = [np.eye(3)[t] for t in y]
    assert model.evaluate(X, one_hot)["loss"] == pytest.approx(model.evaluate(X, y)["loss"], rel=1e-12)
    series = Network(RNN(3, outputs="every") >> Linear(1), (None, 2), dtype="float64")
    d = [x[:, 0] for x in X]
    expected = np.concatenate([(t - z[:, 0]) ** 2 for t, z in zip(d, series(X), strict=True)]).mean()
    assert series.evaluate(X, d)["loss"] == pytest.approx(expected, rel=1e-12)
    assert series.evaluate(padded(X, 6, 0), padded(d, 6, np.nan), lengths=LENGTHS)["loss"] == pytest.approx(expected, rel=1e-12)


def test_a_network_takes_its_shape_from_a_list_and_then_any_length():
    model = Network(GRU(3) >> Linear(2), loss="softmax_cross_entropy")
    _, X, _ = some()
    model.fit(X, [0, 1, 0, 1], epochs=1, engine="numpy")
    assert model.input_shape == (None, 2)
    assert model.predict(np.zeros((5, 9, 2))).shape == (5,)
    assert eval(repr(model), vars(pc)).input_shape == (None, 2)


def test_sequences_that_differ_in_length_are_learned():
    """Is the first entry of the sequence positive? The state must carry it to the end, whatever comes between."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 1)) for n in rng.integers(2, 12, 300)]
    y = [int(x[0, 0] > 0) for x in X]
    model = Network(LSTM(16) >> Linear(2), (None, 1), "softmax_cross_entropy")
    history = model.fit(X[:200], y[:200], epochs=40, optimizer=pc.Adam(0.02, clip_norm=1.0), validation=(X[200:], y[200:]))
    assert history["val_accuracy"][-1] > 0.95


def test_validation_parts_metrics_and_weights_work_on_sequences():
    model, X, y = some()
    held = (padded(X, 8, 0), padded(y, 8, 0), None, LENGTHS)
    history = model.fit(X, y, epochs=1, validation=held, metrics={"steps": lambda t, z: len(t)}, engine="numpy")
    assert history["val_steps"] == [sum(LENGTHS)]
    assert history["val_loss"][0] == pytest.approx(model.evaluate(X, y)["loss"], abs=1e-6)
    assert model.evaluate(X, y, sample_weight=[1, 0, 0, 0]) == pytest.approx(model.evaluate(X[:1], y[:1]))
    assert len(model.fit(X * 3, y * 3, epochs=1, validation=0.25, engine="numpy")["val_loss"]) == 1


# -------------------------------------------------------------------- wrong use
FIRST = r"GRU\(4, outputs='every', bidirectional=True\)"


@pytest.mark.parametrize("method", ["fit", "evaluate", "gradients", "check_gradients"])
def test_wrong_sequences_get_an_error_that_names_layer_expectation_and_remedy(method):
    model, X, y = some()
    run, P, Y = getattr(model, method), padded(X, 6, 0), padded(y, 6, 0)
    with pytest.raises(ValueError, match=FIRST + ": expected at least one step in every sequence, got none in row 1. Leave"):
        run([X[0], X[1][:0]], y[:2])
    with pytest.raises(ValueError, match=FIRST + ": expected at least one step in every sequence, got none in row 2. Leave"):
        run(P, Y, lengths=[4, 1, 0, 3])
    with pytest.raises(ValueError, match=FIRST + ": expected lengths of at most 6, .* got 9 in row 2. Pad X further"):
        run(P, Y, lengths=[4, 1, 9, 3])
    with pytest.raises(ValueError, match=FIRST + ": expected lengths as 4 whole numbers"):
        run(P, Y, lengths=[4, 1])
    with pytest.raises(ValueError, match=FIRST + ".*expected 6 targets for sequence 2, got 5. Give one target per step"):
        run(X, [*y[:2], y[2][:5], y[3]])
    with pytest.raises(ValueError, match=FIRST + r".*expected targets of shape \(4, 6, …\), got \(4, 5\). Give one target per step"):
        run(P, Y[:, :5], lengths=LENGTHS)
    with pytest.raises(ValueError, match=FIRST + r".*expected targets of shape \(4, 6, …\), got \(4,\).*outputs='last'"):
        run(X, [0, 1, 0, 1])


def test_more_wrong_sequences():
    model, X, _ = some()
    with pytest.raises(ValueError, match="Leave lengths out"):
        model.predict(X, lengths=LENGTHS)
    with pytest.raises(ValueError, match=r"\(2,\) in X\[0\], \(3,\) in X\[1\]"):
        model.predict([X[0], np.zeros((3, 3))])
    with pytest.raises(ValueError, match=r"built for \(batch, None, 2\), got \(4, 5, 3\)"):
        model.predict(np.zeros((4, 5, 3)))
    with pytest.raises(ValueError, match=r"single row pass X\[None\]"):
        model.predict(X[0])
    with pytest.raises(ValueError, match="X has 1 values that are not finite"):
        model.predict([np.full((1, 2), [np.nan, 0]), X[0]])
    with pytest.raises(ValueError, match="expected at least one step in every sequence"):
        model.predict(np.zeros((2, 0, 2)))
    with pytest.raises(ValueError, match=r"For sequences of any length build it for \(None, 2\)"):
        Network(RNN(2), (4, 2)).predict(np.zeros((3, 5, 2)))
    with pytest.raises(ValueError, match=r"or \(None, 12\) for sequences of any length"):
        Network(RNN(2), (4, None))
