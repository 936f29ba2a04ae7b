"""Losses: values and flows, targets of every kind, weights, extremes, information."""

import functools

import jax
import numpy as np
import pytest
from scipy.special import log_softmax, rel_entr, softmax, xlogy

import pellucid as pc
from pellucid.engines import get_engine
from pellucid.engines.numpy import NumpyOps
from pellucid.losses import NAMED

from .table import DISTRIBUTION, LABELS, LOSSES, ON_OFF, REAL, TARGET, UNIT, exported

CASES = [pytest.param(*case, id=f"{case[0]!r}-{case[2].ndim}d") for cases in LOSSES.values() for case in cases]
every_loss = pytest.mark.parametrize(("loss", "y", "target"), CASES)


def test_the_table_holds_every_exported_loss():
    assert exported(pc.Loss) == set(LOSSES)


def call(loss, y, target, engine="numpy", dtype=np.float64):
    module = get_engine(engine)
    target = loss.prepare(np.asarray(target), np.shape(y)[1:], np.dtype(dtype))
    with module.precision(dtype):
        ops = NumpyOps() if engine == "numpy" else module.JaxOps()
        run = functools.partial(loss, ops)
        return module.get((jax.jit(run) if engine == "jax" else run)(np.asarray(y, dtype), target))


@every_loss
def test_the_flow_is_the_derivative_of_the_value(loss, y, target):
    values, delta = call(loss, y, target)
    assert values.shape == (6,)
    h = 1e-6
    for index in np.ndindex(*y.shape):
        up, down = y.copy(), y.copy()
        up[index] += h
        down[index] -= h
        numeric = (call(loss, up, target)[0] - call(loss, down, target)[0]) / (2 * h)
        np.testing.assert_allclose(numeric[index[0]], delta[index], rtol=1e-6, atol=1e-8)
    prepared = loss.prepare(np.asarray(target), y.shape[1:], np.dtype(float))
    with jax.enable_x64(True):
        auto = jax.jit(jax.grad(lambda v: loss(get_engine("jax").JaxOps(), v, prepared)[0].sum()))(y)
        np.testing.assert_allclose(auto, delta, rtol=1e-12, atol=1e-14)


@every_loss
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_engines_agree_and_keep_the_dtype(loss, y, target, dtype):
    mine, theirs = call(loss, y, target, dtype=dtype), call(loss, y, target, "jax", dtype)
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == b.dtype == np.dtype(dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5 if dtype is np.float32 else 1e-12)


def test_values_are_those_of_the_formulas():
    """Against SciPy and closed forms, N20 – N22."""
    e = TARGET - REAL
    expected = [
        (pc.SquaredError(), REAL, TARGET, (e**2).sum(1)),
        (pc.HalfSquaredError(), REAL, TARGET, (e**2).sum(1) / 2),
        (pc.Poisson(), REAL, ON_OFF, (xlogy(ON_OFF, ON_OFF / np.exp(REAL)) - ON_OFF + np.exp(REAL)).sum(1)),
        (pc.AbsoluteError(), REAL, TARGET, abs(e).sum(1)),
        (pc.Huber(0.5), REAL, TARGET, np.where(abs(e) <= 0.5, e**2 / 2, 0.5 * (abs(e) - 0.25)).sum(1)),
        (pc.LogCosh(), REAL, TARGET, np.log(np.cosh(e)).sum(1)),
        (pc.SoftmaxCrossEntropy(), REAL, TARGET, -(TARGET * log_softmax(REAL, axis=1)).sum(1)),
        (pc.SoftmaxCrossEntropy(), REAL, LABELS, -log_softmax(REAL, axis=1)[np.arange(6), LABELS]),
        (pc.CrossEntropy(), DISTRIBUTION, TARGET, (rel_entr(TARGET, DISTRIBUTION) - xlogy(TARGET, TARGET)).sum(1)),
        (pc.BinaryCrossEntropy(), UNIT, ON_OFF, -(xlogy(ON_OFF, UNIT) + xlogy(1 - ON_OFF, 1 - UNIT)).sum(1)),
        (pc.Brier(), DISTRIBUTION, LABELS, ((np.eye(4)[LABELS] - DISTRIBUTION) ** 2).sum(1)),
    ]
    for loss, y, target, value in expected:
        np.testing.assert_allclose(call(loss, y, target)[0], value, rtol=1e-12, err_msg=repr(loss))


def test_losses_agree_with_pytorch():
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    z, d, t, on = (torch.tensor(a) for a in (REAL, TARGET, LABELS, ON_OFF))
    pairs = [
        (pc.SoftmaxCrossEntropy(), REAL, LABELS, F.cross_entropy(z, t, reduction="none")),
        (pc.SoftmaxCrossEntropy(), REAL, TARGET, F.cross_entropy(z, d, reduction="none")),
        (pc.SigmoidCrossEntropy(), REAL, ON_OFF, F.binary_cross_entropy_with_logits(z, on, reduction="none").sum(1)),
        (pc.BinaryCrossEntropy(), UNIT, ON_OFF, F.binary_cross_entropy(torch.tensor(UNIT), on, reduction="none").sum(1)),
        (pc.Huber(0.5), REAL, TARGET, F.huber_loss(z, d, reduction="none", delta=0.5).sum(1)),
    ]
    for loss, y, target, value in pairs:
        np.testing.assert_allclose(call(loss, y, target)[0], value.numpy(), rtol=1e-12, err_msg=repr(loss))


def test_the_notes_example_of_cross_entropy():
    """N22: p = [.05 .7 .1 .1 .05], class 2 gives 0.3567 nats; 0 at p = 1, ∞ at p = 0."""
    p = np.array([[0.05, 0.7, 0.1, 0.1, 0.05], [0, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    with np.errstate(all="ignore"):
        values, delta = call(pc.CrossEntropy(), p, np.array([1, 1, 1]))
    assert round(values[0], 4) == 0.3567
    assert values[1] == 0
    assert values[2] == np.inf
    np.testing.assert_allclose(delta[0], [0, -1 / 0.7, 0, 0, 0])


def test_softmax_then_cross_entropy_gives_the_flow_y_minus_d_through_the_jacobian(rng):
    """N22: (diag(y) − yyᵀ)(−d/y) = y − d, for one-hot and for smooth targets."""
    z = rng.normal(size=(6, 4))
    for target in (LABELS, TARGET):
        d = np.eye(4)[LABELS] if target is LABELS else TARGET
        ops = NumpyOps()
        y, cache = ops.forward(pc.Softmax(), {}, z, "net")
        dz, _ = ops.backward(pc.Softmax(), {}, cache, call(pc.CrossEntropy(), y, target)[1], "net")
        np.testing.assert_allclose(dz, y - d, atol=1e-12)
        np.testing.assert_allclose(call(pc.SoftmaxCrossEntropy(), z, target)[1], softmax(z, axis=1) - d, atol=1e-12)


def test_quadratic_loss_on_a_saturated_sigmoid_learns_slowly(rng):
    """N26: ∂L/∂w = 2(ŷ − y) ŷ(1 − ŷ) x; cross-entropy leaves out ŷ(1 − ŷ)."""
    x, w = 1.0, 6.0
    y = 1 / (1 + np.exp(-w * x))
    slopes = []
    for loss in ("squared_error", "binary_cross_entropy"):
        model = pc.Network(pc.Linear(1, bias=False) >> pc.Sigmoid(), (1,), loss, dtype="float64")
        model.set_parameters({"0.W": [[w]]})
        slopes.append(model.gradients([[x]], [0.0])[1]["0.W"].item())
    np.testing.assert_allclose(slopes, [2 * y * y * (1 - y) * x, y * x])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_fused_losses_stay_exact_for_extreme_logits(dtype, engine):
    z = np.array([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]])
    values, delta = call(pc.SoftmaxCrossEntropy(), z, np.array([0, 0]), engine, dtype)
    np.testing.assert_allclose(values, [0, 2e4])
    np.testing.assert_allclose(delta, [[0, 0, 0], [-1, 1, 0]])
    values, delta = call(pc.SigmoidCrossEntropy(), z, np.array([[1, 0, 1], [1, 0, 0]]), engine, dtype)
    np.testing.assert_allclose(values, [np.log(2), 2e4 + np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(delta, [[0, 0, -0.5], [-1, 1, 0.5]], atol=1e-7)
    values, delta = call(pc.LogCosh(), z, np.zeros((2, 3)), engine, dtype)
    np.testing.assert_allclose(values, 2e4 - 2 * np.log(2), rtol=1e-6)


# -------------------------------------------------------------------- weights
def train(X, y, weight=None, loss="softmax_cross_entropy", engine="numpy", **options):
    model = pc.Network(pc.Linear(6) >> pc.Tanh() >> pc.Linear(3), X.shape[1:], loss, dtype="float64")
    history = model.fit(X, y, sample_weight=weight, epochs=8, engine=engine, **options)
    return model, history


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_an_integer_weight_equals_a_repeated_row(rng, engine):
    X, y, w = rng.normal(size=(20, 4)), rng.integers(0, 3, 20), rng.integers(1, 4, 20)
    a, ha = train(X, y, w, engine=engine, optimizer=pc.GradientDescent(0.5))
    b, hb = train(np.repeat(X, w, 0), np.repeat(y, w), engine=engine, optimizer=pc.GradientDescent(0.5))
    for name, value in a.parameters.items():
        np.testing.assert_allclose(value, b.parameters[name], atol=1e-12)
    np.testing.assert_allclose(ha["loss"], hb["loss"], rtol=1e-12)
    np.testing.assert_allclose(ha["accuracy"], hb["accuracy"], rtol=1e-12)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_a_weight_of_zero_equals_an_absent_row(rng, engine):
    X, y, w = rng.normal(size=(40, 4)), rng.integers(0, 3, 40), rng.choice([0.0, 0.5, 2.0], 40)
    X[w == 0] = 1e6  # what is in such a row does not matter
    a, _ = train(X, y, w, engine=engine, batch_size=7, validation=0.25)
    b, _ = train(X[w > 0], y[w > 0], w[w > 0], engine=engine, batch_size=7, validation=0.25)
    for name, value in a.parameters.items():
        np.testing.assert_array_equal(value, b.parameters[name])


def test_the_scale_of_all_weights_does_not_matter(rng):
    X, y, w = rng.normal(size=(20, 4)), rng.integers(0, 3, 20), rng.uniform(0.1, 2, 20)
    a, b = train(X, y, w)[0], train(X, y, 1000 * w)[0]
    np.testing.assert_allclose(a.parameters["0.W"], b.parameters["0.W"], atol=1e-10)


def test_balanced_class_weights_are_those_of_scikit_learn(rng):
    from sklearn.utils.class_weight import compute_sample_weight

    X, y = rng.normal(size=(30, 4)), np.array([0] * 20 + [1] * 7 + [2] * 3)
    options = {"optimizer": pc.GradientDescent(0.3)}
    a = train(X, y, class_weight="balanced", **options)[0]
    b = train(X, y, compute_sample_weight("balanced", y), **options)[0]
    c = train(X, y, class_weight={1: 2.0, 2: 5.0}, **options)[0]
    d = train(X, y, np.array([1.0, 2.0, 5.0])[y], **options)[0]
    np.testing.assert_allclose(a.parameters["0.W"], b.parameters["0.W"], atol=1e-12)
    np.testing.assert_allclose(c.parameters["0.W"], d.parameters["0.W"], atol=1e-12)


# -------------------------------------------------------------------- targets
def test_integer_and_one_hot_targets_train_alike(rng):
    """N28."""
    X, y = rng.normal(size=(30, 4)), rng.integers(0, 3, 30)
    for loss, last in [("softmax_cross_entropy", pc.Identity()), ("cross_entropy", pc.Softmax()), ("brier", pc.Softmax())]:
        runs = []
        for target in (y, np.eye(3)[y], y.astype(float), y.astype(np.uint8), list(y)):
            model = pc.Network(pc.Linear(3) >> last, (4,), loss, dtype="float64")
            model.fit(X, target, epochs=3, engine="numpy")
            runs.append(model.parameters["0.W"])
        for run in runs[1:]:
            np.testing.assert_allclose(run, runs[0], atol=1e-14)


def test_the_default_loss_follows_the_last_layer():
    """N25."""
    assert pc.Network(pc.Linear(2) >> pc.Softmax()).loss == pc.CrossEntropy()
    assert pc.Network(pc.Linear(2) >> pc.Sigmoid()).loss == pc.BinaryCrossEntropy()
    assert pc.Network(pc.Linear(2)).loss == pc.SquaredError()


def test_softmax_before_a_loss_on_logits_warns():
    with pytest.warns(UserWarning, match="leave that out"):
        pc.Network(pc.Linear(3) >> pc.Softmax(), (2,), "softmax_cross_entropy")


def test_predictions_follow_the_loss(rng):
    X = rng.normal(size=(5, 3))
    z = pc.Network(pc.Linear(4), (3,))(X)
    soft = pc.Network(pc.Linear(4), (3,), "softmax_cross_entropy")
    np.testing.assert_array_equal(soft.predict(X), z.argmax(1))
    np.testing.assert_allclose(soft.predict_proba(X), softmax(z, axis=1), rtol=1e-5)
    many = pc.Network(pc.Linear(4), (3,), "sigmoid_cross_entropy")
    np.testing.assert_array_equal(many.predict(X), z > 0)
    np.testing.assert_allclose(many.predict_proba(X), 1 / (1 + np.exp(-z)), rtol=1e-5)
    with pytest.raises(TypeError, match="no probabilities"):
        pc.Network(pc.Linear(4), (3,)).predict_proba(X)


def test_every_named_loss_is_the_class_of_that_name():
    for name, loss in NAMED.items():
        assert type(loss).__name__.lower() == name.replace("_", "")


# -------------------------------------------------------------------- information
def test_information_in_bits_gives_the_notes_example():
    """N27: H(ŷ) = 1.846 bits, cross-entropy 3.322 bits, H(y) = 0, expected profit 6.0 K."""
    y, prediction, profit = np.array([0, 1, 0, 0]), np.array([0.2, 0.1, 0.4, 0.3]), np.array([10, 5, 8, 1])
    assert round(float(pc.entropy_bits(prediction)), 3) == 1.846
    assert round(float(pc.cross_entropy_bits(y, prediction)), 3) == 3.322
    assert pc.entropy_bits(y) == 0
    assert round(float(prediction @ profit), 6) == 6.0
    np.testing.assert_allclose(pc.information_bits([1.0, 0.5, 0.125]), [0, 1, 3])
    assert pc.information_bits(0.0) == np.inf


def test_information_agrees_with_scipy_and_with_the_loss_in_nats():
    from scipy.stats import entropy

    np.testing.assert_allclose(pc.entropy_bits(TARGET), entropy(TARGET, axis=1, base=2))
    np.testing.assert_allclose(pc.cross_entropy_bits(TARGET, DISTRIBUTION), call(pc.CrossEntropy(), DISTRIBUTION, TARGET)[0] / np.log(2))
    for bad in ([0.5, 0.6], [-0.1, 1.1], [0.2, np.nan]):
        with pytest.raises(ValueError, match="probabilities"):
            pc.entropy_bits(bad)
