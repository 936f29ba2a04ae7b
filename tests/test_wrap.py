"""Frozen, repeated and penalised layers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid as pc

from .judge import check_by_differences, without_autodiff


@pytest.fixture
def data(rng):
    X = rng.normal(size=(30, 4))
    return X, np.sin(X[:, :2])


def fitted(net, data, **options):
    model = pc.Network(net, (4,), "squared_error", dtype="float64")
    model.fit(*data, **{"epochs": 5, "optimizer": pc.SGD(0.05), "engine": "numpy", **options})
    return model


# -------------------------------------------------------------------- frozen
def test_nothing_in_a_frozen_layer_changes_and_it_counts_no_parameters(data):
    inner = pc.Linear(3) >> pc.BatchNorm() >> pc.Dropout(0.5)
    net = pc.Linear(4) >> pc.Frozen(inner) >> pc.Linear(2)
    before, after = pc.Network(net, (4,), dtype="float64").parameters, fitted(net, data, optimizer=pc.Adam(weight_decay=0.1)).parameters
    for name, value in before.items():
        assert (value == after[name]).all() == ("_frozen" in name), name
    assert pc.Frozen(inner).count((4,)) == 0


def test_layers_before_a_frozen_one_get_the_same_gradient_as_without(data):
    a, b = pc.Linear(3) >> pc.Tanh() >> pc.Linear(2), pc.Linear(3) >> pc.Frozen(pc.Tanh() >> pc.Linear(2))
    (_, mine), (_, frozen) = (pc.Network(net, (4,), "squared_error", dtype="float64").gradients(*data) for net in (a, b))
    assert set(frozen) == {"0.W", "0.b"}
    for name in frozen:
        np.testing.assert_array_equal(frozen[name], mine[name])


def test_a_frozen_first_layer_stops_the_flow_even_through_a_threshold(data):
    model = fitted(pc.Frozen(pc.Linear(8) >> pc.Sign()) >> pc.Linear(2), data, epochs=50)
    assert model.history["loss"][-1] < model.history["loss"][0]


def test_frozen_layers_run_as_when_not_training(data):
    net = pc.Frozen(pc.Dropout(0.9) >> pc.BatchNorm())
    model = pc.Network(net >> pc.Linear(2), (4,), "squared_error", dtype="float64")
    value, _ = model.gradients(*data)  # a training pass
    assert value == pytest.approx(model.evaluate(*data)["loss"], rel=1e-12)


# -------------------------------------------------------------------- repeat
def test_a_repeated_layer_is_a_chain_of_copies_whose_gradients_are_summed(data):
    step, times = pc.Linear(4) >> pc.Tanh(), 3
    one = pc.Network(pc.Repeat(step, times) >> pc.Linear(2), (4,), "squared_error", dtype="float64")
    long = pc.Network(pc.Chain(*[step.named(f"s{i}") for i in range(times)], pc.Linear(2)), (4,), "squared_error", dtype="float64")
    shared, last = ({k: v for k, v in one.parameters.items() if k.startswith(s)} for s in ("0", "1"))
    values = {f"s{i}.{k.removeprefix('0.0.')}": v for i in range(times) for k, v in shared.items()}
    long.set_parameters(values | {f"{times}.{k.removeprefix('1.')}": v for k, v in last.items()})
    (loss, mine), (other, theirs) = one.gradients(*data), long.gradients(*data)
    assert loss == pytest.approx(other, rel=1e-12)
    for name in shared:
        total = sum(theirs[f"s{i}.{name.removeprefix('0.0.')}"] for i in range(times))
        np.testing.assert_allclose(mine[name], total, atol=1e-12)
    assert one.count == long.count - (times - 1) * 20


def test_a_layer_that_changes_the_shape_cannot_be_repeated():
    with pytest.raises(pc.ShapeError, match=r"a layer that gives \(4,\) again, got \(3,\)"):
        pc.Network(pc.Repeat(pc.Linear(3), 2), (4,))


@settings(max_examples=10)
@given(times=st.integers(1, 4), n=st.integers(1, 4), seed=st.integers(0, 99))
def test_repeated_gradients_are_right(times, n, seed):
    report = check_by_differences(pc.Repeat(pc.Penalty(pc.Linear(n) >> pc.Sigmoid(), l1=0.1, l2=0.2), times), (n,), seed=seed)
    assert report, str(report)


# -------------------------------------------------------------------- penalty
def test_the_charge_is_the_formula_on_weights_alone(data):
    net = pc.Linear(3) >> pc.Tanh() >> pc.Linear(2)
    plain = pc.Network(net, (4,), "squared_error", dtype="float64")
    charged = pc.Network(pc.Penalty(net, l1=0.3, l2=0.7), (4,), "squared_error", dtype="float64")
    (value, grads), (more, theirs) = plain.gradients(*data), charged.gradients(*data)
    W = [plain.parameters["0.W"], plain.parameters["2.W"]]
    assert more - value == pytest.approx(sum(0.3 * np.abs(w).sum() + 0.35 * (w**2).sum() for w in W), rel=1e-12)
    for name, g in grads.items():
        w = plain.parameters[name]
        charge = 0.3 * np.sign(w) + 0.7 * w if name.endswith("W") else 0
        np.testing.assert_allclose(theirs[f"0.{name}"], g + charge, atol=1e-12)


def test_check_gradients_sees_the_charge(data):
    model = pc.Network(pc.Linear(3) >> pc.Penalty(pc.Linear(2), l1=0.2, l2=0.5) >> pc.Tanh(), (4,), "squared_error")
    report = without_autodiff(model.check_gradients, *data)
    assert report, str(report)


def test_the_strength_does_not_depend_on_the_batch_size(data):
    X, y = data
    model = pc.Network(pc.Penalty(pc.Linear(2), l2=1.0), (4,), "squared_error", dtype="float64")
    (few, a), (many, b) = model.gradients(X, y), model.gradients(np.tile(X, (5, 1)), np.tile(y, (5, 1)))
    assert few == pytest.approx(many, rel=1e-12)
    np.testing.assert_allclose(a["0.W"], b["0.W"], atol=1e-12)


def test_an_l2_charge_gives_ridge_regression(data):
    """Σ‖xW + b − y‖²/m + l2/2 ‖W‖² is scikit-learn's Ridge with alpha = m·l2/2."""
    from sklearn.linear_model import Ridge

    X, y = data
    model = fitted(pc.Penalty(pc.Linear(2), l2=0.4), data, optimizer=pc.LBFGS(tolerance=1e-10), epochs=200)
    theirs = Ridge(alpha=len(X) * 0.4 / 2).fit(X, y)
    np.testing.assert_allclose(model.parameters["0.W"], theirs.coef_.T, atol=1e-6)
    np.testing.assert_allclose(model.parameters["0.b"], theirs.intercept_, atol=1e-6)


def test_an_l1_charge_drives_useless_weights_to_zero_as_the_lasso_does(rng):
    from sklearn.linear_model import Lasso

    X = rng.normal(size=(200, 6))
    y = X[:, :1] * 2 - X[:, 1:2]
    model = pc.Network(pc.Penalty(pc.Linear(1), l1=0.2), (6,), dtype="float64")
    model.fit(X, y, epochs=800, optimizer=pc.GradientDescent(pc.Exponential(0.1, 0.99)), engine="numpy")
    theirs = Lasso(alpha=0.1).fit(X, y[:, 0])  # its loss is Σ/2m, so half the strength
    np.testing.assert_allclose(model.parameters["0.W"][:, 0], theirs.coef_, atol=1e-3)


def test_the_training_loss_holds_the_charge_and_validation_does_not(data):
    X, y = data
    model = fitted(pc.Penalty(pc.Linear(2, init=pc.Constant(1.0)), l2=3.0), data, epochs=1, optimizer=pc.SGD(1e-12), validation=(X, y))
    charge = 1.5 * (model.parameters["0.W"] ** 2).sum()
    assert model.history["loss"][0] - model.history["val_loss"][0] == pytest.approx(charge, rel=1e-9)


@pytest.mark.parametrize(
    "net", [pc.Penalty(pc.Linear(3), l1=0.01, l2=0.1), pc.Frozen(pc.Linear(3)), pc.Repeat(pc.Linear(4) >> pc.Tanh(), 2)]
)
def test_both_engines_train_alike(net, data):
    mine, theirs = (fitted((net | pc.Linear(2)) >> pc.Linear(2), data, optimizer=pc.Adam(0.01), engine=e) for e in ("numpy", "jax"))
    for name, value in mine.parameters.items():
        np.testing.assert_allclose(theirs.parameters[name], value, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(mine.history["loss"], theirs.history["loss"], rtol=1e-10)


def test_errors_inside_name_the_place():
    with pytest.raises(pc.ShapeError, match=r"at net\.1\.0"):
        pc.Network(pc.Linear(3) >> pc.Penalty(pc.Reshape((2, 2)), l2=0.1), (4,))
    with pytest.raises(ValueError, match="l2 must be at least 0"):
        pc.Penalty(pc.Linear(2), l2=-1)
