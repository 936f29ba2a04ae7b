"""Batch and layer normalisation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid as pc
from pellucid.engines.numpy import NumpyOps
from pellucid.proof import Probe, check_gradients
from pellucid.training.step import Batch

from .judge import check_by_differences, without_autodiff


def built(layer, shape, rng):
    """Parameters that are not all zero or one, as after some training."""
    p, _ = layer.build(rng, shape)
    return {k: v + rng.uniform(0.1, 0.5, v.shape) for k, v in p.items()}


def passes(layer, p, x, dy, weight=None, lengths=None, training=True):
    ops = NumpyOps(training=training, weight=np.ones(len(x)) if weight is None else weight, lengths=lengths)
    y, cache = ops.forward(layer, p, x, "net")
    return (y, *ops.backward(layer, p, cache, dy, "net")), {path[-1]: v for path, v in ops.kept.items()}


@settings(max_examples=30)
@given(
    layer=st.sampled_from([pc.BatchNorm(), pc.BatchNorm(0.1), pc.LayerNorm(), pc.LayerNorm(0.1)]),
    lead=st.lists(st.integers(1, 3), max_size=2), n=st.integers(1, 4), batch=st.integers(1, 4), seed=st.integers(0, 99),
)  # fmt: skip
def test_gradients_are_right_for_random_shapes(layer, lead, n, batch, seed):
    # a row of two features, or two rows, is normalised to ±1 whatever it is: the slope then is all cancellation
    layer = layer if (n if isinstance(layer, pc.LayerNorm) else batch) > 2 else layer.replace(epsilon=0.5)
    report = check_by_differences(layer, (*lead, n), batch=batch, seed=seed, entries=12)
    assert report, str(report)


# -------------------------------------------------------------------- against PyTorch
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("lead", [(), (3,), (3, 2)])
def test_batch_norm_agrees_with_pytorch(lead, training, rng):
    torch = pytest.importorskip("torch")
    n = 4
    p = built(pc.BatchNorm(), (*lead, n), rng)
    x, dy = rng.normal(size=(2, 6, *lead, n))
    (y, dx, grads), kept = passes(pc.BatchNorm(), p, x, dy, training=training)
    theirs = {0: torch.nn.BatchNorm1d, 1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d}[len(lead)](n, dtype=torch.float64)
    theirs.train(training)
    with torch.no_grad():
        for name, value in (("weight", "scale"), ("bias", "shift"), ("running_mean", "_mean"), ("running_var", "_var")):
            getattr(theirs, name).copy_(torch.tensor(p[value]))
    t = torch.tensor(np.moveaxis(x, -1, 1), requires_grad=True)
    out = theirs(t)
    out.backward(torch.tensor(np.moveaxis(dy, -1, 1)))
    np.testing.assert_allclose(y, np.moveaxis(out.detach().numpy(), 1, -1), atol=1e-10)
    np.testing.assert_allclose(dx, np.moveaxis(t.grad.numpy(), 1, -1), atol=1e-10)
    np.testing.assert_allclose(grads["scale"], theirs.weight.grad, atol=1e-10)
    np.testing.assert_allclose(grads["shift"], theirs.bias.grad, atol=1e-10)
    if not training:
        assert not kept
        return
    count = x.size // n  # PyTorch keeps the variance times N/(N − 1)
    unbiased = (theirs.running_var.numpy() - 0.9 * p["_var"]) * (count - 1) / count + 0.9 * p["_var"]
    np.testing.assert_allclose(kept["_mean"], theirs.running_mean, atol=1e-10)
    np.testing.assert_allclose(kept["_var"], unbiased, atol=1e-10)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_layer_norm_agrees_with_pytorch(lead, rng):
    torch = pytest.importorskip("torch")
    p = built(pc.LayerNorm(), (*lead, 5), rng)
    x, dy = rng.normal(size=(2, 4, *lead, 5))
    (y, dx, grads), _ = passes(pc.LayerNorm(), p, x, dy)
    theirs = torch.nn.LayerNorm(5, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight.copy_(torch.tensor(p["scale"]))
        theirs.bias.copy_(torch.tensor(p["shift"]))
    t = torch.tensor(x, requires_grad=True)
    out = theirs(t)
    out.backward(torch.tensor(dy))
    for mine, other in ((y, out.detach()), (dx, t.grad), (grads["scale"], theirs.weight.grad), (grads["shift"], theirs.bias.grad)):
        np.testing.assert_allclose(mine, other, atol=1e-10)


# -------------------------------------------------------------------- weights and padding
@given(weights=st.lists(st.integers(0, 3), min_size=4, max_size=6).filter(lambda w: sum(w) > 0), seed=st.integers(0, 99))
def test_a_weight_is_a_number_of_rows(weights, seed):
    """Integer weight = repeated row, weight 0 = absent row: outputs, statistics, gradients."""
    rng = np.random.default_rng(seed)
    w, n, layer = np.array(weights, float), 3, pc.BatchNorm()
    p = built(layer, (n,), rng)
    x, flow = rng.normal(size=(2, len(w), n))
    (y, dx, grads), kept = passes(layer, p, x, flow * w[:, None], w)
    again = np.repeat(np.arange(len(w)), weights)
    (y2, dx2, grads2), kept2 = passes(layer, p, x[again], flow[again])
    np.testing.assert_allclose(y[again], y2, atol=1e-12)
    for name in grads:
        np.testing.assert_allclose(grads[name], grads2[name], atol=1e-12)
    for name in ("_mean", "_var"):
        np.testing.assert_allclose(kept[name], kept2[name], atol=1e-12)
    summed = np.zeros_like(x)
    np.add.at(summed, again, dx2)
    np.testing.assert_allclose(dx, summed, atol=1e-12)
    assert (dx[w == 0] == 0).all()


def test_padding_changes_nothing(rng):
    lengths, p = np.array([2, 4, 1]), built(pc.BatchNorm(), (4, 3), rng)
    real = np.arange(4) < lengths[:, None]
    x, dy = rng.normal(size=(2, 3, 4, 3)) * real[..., None]
    results = []
    for filling in (0.0, 7.0):
        padded = np.where(real[..., None], x, filling)
        (y, dx, grads), kept = passes(pc.BatchNorm(), p, padded, dy, lengths=lengths)
        results.append((y[real], dx[real], grads["scale"], kept["_mean"], kept["_var"]))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(results[0][3], 0.9 * p["_mean"] + 0.1 * x[real].mean(0), atol=1e-12)


def test_gradients_are_right_with_weights_and_padding(rng):
    layer = pc.BatchNorm()
    p = built(layer, (4, 3), rng)
    batch = Batch(rng.normal(size=(3, 4, 3)), rng.normal(size=(3, 4, 3)), np.array([1.0, 2.5, 0.5]), np.array([2, 4, 3], np.int32))
    report = without_autodiff(check_gradients, layer, Probe(), p, batch, wrt_input=True)
    assert report, str(report)


# -------------------------------------------------------------------- in training
def test_training_with_weights_equals_training_with_repeated_rows(rng):
    X, y, w = rng.normal(size=(20, 3)), rng.normal(size=(20, 1)), rng.integers(0, 4, 20)
    net = pc.Linear(5) >> pc.BatchNorm() >> pc.Tanh() >> pc.Linear(1)
    weighted, repeated = (pc.Network(net, (3,), dtype="float64") for _ in range(2))
    options = {"epochs": 20, "optimizer": pc.GradientDescent(0.1), "engine": "numpy"}
    weighted.fit(X, y, sample_weight=w, **options)
    repeated.fit(np.repeat(X, w, 0), np.repeat(y, w, 0), **options)
    for name, value in weighted.parameters.items():
        np.testing.assert_allclose(value, repeated.parameters[name], atol=1e-12, err_msg=name)


def test_both_engines_train_alike_with_a_short_last_batch(rng):
    """53 rows in batches of 8: the compiled engine fills the last one up with rows of weight 0.

    Not by Adam: what comes before a BatchNorm can have gradient zero, and Adam makes steps of the noise around it.
    """
    X, y = rng.normal(size=(53, 3)) * 5 + 2, rng.normal(size=(53, 1))
    net = pc.BatchNorm() >> pc.Linear(4) >> pc.BatchNorm(momentum=0.5) >> pc.Tanh() >> pc.LayerNorm() >> pc.Linear(1)
    models = []
    for engine in ("numpy", "jax"):
        models.append(pc.Network(net, (3,), dtype="float64"))
        models[-1].fit(X, y, epochs=5, batch_size=8, optimizer=pc.SGD(0.05, momentum=0.9), engine=engine, validation=(X[:9], y[:9]))
    for name, value in models[0].parameters.items():
        np.testing.assert_allclose(models[1].parameters[name], value, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(models[0].history["val_loss"], models[1].history["val_loss"], rtol=1e-10)


def test_a_deep_network_trains_when_the_last_batch_has_one_row(rng):
    """All deviations are 0 there: rows that are not there would grow √(1/ε)-fold in each layer, beyond float32 in the twelfth."""
    X, y = rng.normal(size=(33, 8)), rng.integers(0, 3, 33)
    net = pc.Chain(*(pc.Linear(16), pc.BatchNorm(), pc.ReLU()) * 12, pc.Linear(3))
    losses = []
    for engine in ("numpy", "jax"):
        model = pc.Network(net, (8,), "softmax_cross_entropy")
        losses.append(model.fit(X, y, epochs=3, batch_size=32, optimizer=pc.SGD(0.01), engine=engine)["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_running_statistics_become_those_of_the_data(rng):
    X = rng.normal(size=(400, 2)) * [3.0, 0.1] + [5.0, -2.0]
    model = pc.Network(pc.BatchNorm() >> pc.Linear(1), (2,))
    model.fit(X, X.sum(1), epochs=20, batch_size=100, engine="numpy")
    np.testing.assert_allclose(model.parameters["0._mean"], X.mean(0), rtol=0.05)
    np.testing.assert_allclose(model.parameters["0._var"], X.var(0), rtol=0.1)


def test_lbfgs_refuses_batch_norm_and_takes_layer_norm(rng):
    X, y = rng.normal(size=(20, 3)), rng.normal(size=(20, 1))
    with pytest.raises(ValueError, match=r"LBFGS.*0\._mean.*LayerNorm"):
        pc.Network(pc.BatchNorm() >> pc.Linear(1), (3,)).fit(X, y, optimizer=pc.LBFGS(), engine="numpy")
    history = pc.Network(pc.LayerNorm() >> pc.Linear(1), (3,)).fit(X, y, optimizer=pc.LBFGS(), engine="numpy")
    assert history["loss"][-1] < history["loss"][0]
