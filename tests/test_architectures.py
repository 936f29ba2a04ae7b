"""What the notes claim of the two-layer architectures, N04 – N10 and N18."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag, subspace_angles
from scipy.special import expit

import pellucid as pc
from pellucid.engines.numpy import NumpyOps

from .judge import without_autodiff


def network(net, n, **values):
    model = pc.Network(net, (n,), "squared_error", dtype="float64")
    model.set_parameters(values)
    return model


def random_values(net, n, rng):
    return {k: rng.normal(size=v.shape) for k, v in pc.Network(net, (n,), "squared_error").parameters.items() if "_" not in k}


# -------------------------------------------------------------------- N04 bottleneck
def test_n04_two_linear_layers_are_one_of_rank_at_most_their_bottleneck(rng):
    net = pc.Linear(2) >> pc.Linear(6)
    model = network(net, 5, **random_values(net, 5, rng))
    p = model.parameters
    W = p["0.W"] @ p["1.W"]
    one = network(pc.Linear(6), 5, W=W, b=p["0.b"] @ p["1.W"] + p["1.b"])
    X = rng.normal(size=(7, 5))
    np.testing.assert_allclose(model(X), one(X), atol=1e-12)
    assert np.linalg.matrix_rank(W) == 2


def test_n04_a_linear_autoencoder_finds_the_principal_subspace(rng):
    from sklearn.decomposition import PCA

    axes, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    X = rng.normal(size=(200, 6)) * [3, 2, 1, 0.7, 0.5, 0.3] @ axes + rng.normal(size=6)
    model = pc.Network(pc.Linear(2) >> pc.Linear(6), (6,), "squared_error", dtype="float64")
    model.fit(X, X, epochs=200, optimizer=pc.LBFGS(tolerance=1e-9), engine="numpy")
    pca = PCA(2).fit(X)
    assert np.rad2deg(subspace_angles(model.parameters["1.W"].T, pca.components_.T).max()) < 0.01
    left_over = ((X - pca.inverse_transform(pca.transform(X))) ** 2).sum(1).mean()
    assert model.evaluate(X, X)["loss"] == pytest.approx(left_over, rel=1e-7)


# -------------------------------------------------------------------- N05 skip connection
def test_n05_a_skip_network_contains_the_linear_model(rng):
    net = (pc.Linear(3) | (pc.Linear(4) >> pc.Tanh())) >> pc.Linear(2)
    W, b, X = rng.normal(size=(3, 2)), rng.normal(size=2), rng.normal(size=(8, 3))
    values = random_values(net, 3, rng)
    values |= {"0.0.W": np.eye(3), "0.0.b": np.zeros(3), "1.W": np.vstack([W, np.zeros((4, 2))]), "1.b": b}
    np.testing.assert_allclose(network(net, 3, **values)(X), X @ W + b, atol=1e-12)


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), activation=st.sampled_from([pc.Tanh(), pc.ReLU(), pc.Sigmoid()]))
def test_n05_trained_from_there_it_is_never_worse_than_linear(seed, activation):
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 3))
    y = X @ rng.normal(size=(3, 1)) + rng.uniform(0, 1) * np.sin(3 * X[:, :1])
    best = LinearRegression().fit(X, y)
    linear = ((best.predict(X) - y) ** 2).mean()
    net = (pc.Linear(3) | (pc.Linear(5) >> activation)) >> pc.Linear(1)
    values = {k: v for k, v in random_values(net, 3, rng).items() if k.startswith("0.1")}
    values |= {"0.0.W": np.eye(3), "1.W": np.vstack([best.coef_.T, np.zeros((5, 1))]), "1.b": best.intercept_}
    model = network(net, 3, **values)
    assert model.evaluate(X, y)["loss"] == pytest.approx(linear, rel=1e-9)
    model.fit(X, y, epochs=20, optimizer=pc.LBFGS(), engine="numpy")
    assert model.evaluate(X, y)["loss"] <= linear


# -------------------------------------------------------------------- N06 residual
def test_n06_a_residual_layer_is_a_skip_layer_with_tied_output_weights(rng):
    """Equal outputs; equal gradients before the output layer, and there the tied halves add up."""
    n, m, k = 4, 3, 2
    branch, nonlinear = pc.Linear(m), pc.Linear(m) >> pc.Tanh()
    residual, skip = (branch + nonlinear) >> pc.Linear(k), (branch | nonlinear) >> pc.Linear(k)
    values = random_values(residual, n, rng)
    one, two = network(residual, n, **values), network(skip, n, **(values | {"1.W": np.vstack([values["1.W"]] * 2)}))
    X, y = rng.normal(size=(9, n)), rng.normal(size=(9, k))
    np.testing.assert_allclose(one(X), two(X), atol=1e-12)
    (_, mine), (_, theirs) = one.gradients(X, y), two.gradients(X, y)
    for name in ("0.0.W", "0.0.b", "0.1.0.W", "0.1.0.b", "1.b"):
        np.testing.assert_allclose(mine[name], theirs[name], atol=1e-12)
    np.testing.assert_allclose(mine["1.W"], theirs["1.W"][:m] + theirs["1.W"][m:], atol=1e-12)


def test_n06_sizes_must_agree_and_layers_can_be_stacked(rng):
    with pytest.raises(pc.ShapeError, match=r"branches of equal output shape for \+"):
        pc.Network(pc.Linear(3) + (pc.Linear(4) >> pc.ReLU()), (2,))
    block = pc.Identity() + (pc.Linear(4) >> pc.Tanh())
    net = block >> block >> block >> pc.Linear(1)
    assert without_autodiff(pc.Network(net, (4,)).check_gradients, rng.normal(size=(3, 4)), rng.normal(size=3))


# -------------------------------------------------------------------- N07 parallel
def test_n07_equal_branches_are_one_network_with_block_connectivity(rng):
    """Side by side, or as one network whose second layer is masked: the same path through a whole training."""
    n, hidden, out, L = 5, 3, 2, 3
    branch = pc.Linear(hidden) >> pc.Tanh() >> pc.Linear(out) >> pc.Tanh()
    parallel = pc.Concat(*[branch] * L) >> pc.Linear(1)
    mask = block_diag(*[np.ones((hidden, out))] * L)
    masked = pc.Linear(L * hidden) >> pc.Tanh() >> pc.Linear(L * out, mask=mask) >> pc.Tanh() >> pc.Linear(1)

    def joined(p):
        return {
            "0.W": np.hstack([p[f"0.{i}.0.W"] for i in range(L)]),
            "0.b": np.hstack([p[f"0.{i}.0.b"] for i in range(L)]),
            "2.W": block_diag(*[p[f"0.{i}.2.W"] for i in range(L)]),
            "2.b": np.hstack([p[f"0.{i}.2.b"] for i in range(L)]),
            "4.W": p["1.W"],
            "4.b": p["1.b"],
        }

    one = network(parallel, n)
    two = network(masked, n, **joined(one.parameters))
    X, y = rng.normal(size=(40, n)), rng.normal(size=(40, 1))
    np.testing.assert_allclose(one(X), two(X), atol=1e-12)
    for model in (one, two):
        model.fit(X, y, epochs=10, batch_size=8, optimizer=pc.Adam(0.01), engine="numpy")
    for name, value in joined(one.parameters).items():
        np.testing.assert_allclose(two.parameters[name], value, atol=1e-10, err_msg=name)


# -------------------------------------------------------------------- N08 product nodes
def test_n08_a_product_node_multiplies_and_its_flow_is_crossed(rng):
    """c = x·y, ∂c/∂x = y, ∂c/∂y = x."""
    first, second = (pc.Linear(1, bias=False, init=pc.Constant(w)) for w in ([[1.0], [0.0]], [[0.0], [1.0]]))
    node, x = first * second, rng.normal(size=(6, 2))
    p, _ = node.build(rng, (2,))
    ops = NumpyOps()
    c, cache = ops.forward(node, p, x, "net")
    dx, _ = ops.backward(node, p, cache, np.ones((6, 1)), "net")
    np.testing.assert_allclose(c[:, 0], x[:, 0] * x[:, 1], atol=1e-15)
    np.testing.assert_allclose(dx, x[:, ::-1], atol=1e-15)


def test_n08_with_product_nodes_a_product_is_learned_everywhere_not_only_where_data_were(rng):
    X, far = rng.uniform(-1, 1, (200, 2)), rng.uniform(5, 9, (200, 2))
    errors = []
    for net in ((pc.Linear(2) * pc.Linear(2)) >> pc.Linear(1), pc.Linear(12) >> pc.Tanh() >> pc.Linear(1)):
        model = network(net, 2)
        model.fit(X, X.prod(1), epochs=60, optimizer=pc.LBFGS(tolerance=1e-10), engine="numpy")
        errors.append(np.abs(model(far)[:, 0] - far.prod(1)).max())
    assert errors[0] < 1e-2 < 10 < errors[1]


# -------------------------------------------------------------------- N09 sigmoid gates
def gated(G, d, C, b, gate):
    net = (pc.Linear(len(d)) >> gate) * pc.Linear(len(b))
    return network(net, len(G), **{"0.0.W": G, "0.0.b": d, "1.W": C, "1.b": b})


def test_n09_a_saturated_gate_turns_a_linear_output_on_or_off(rng):
    G, C, b, X = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.normal(size=3), rng.normal(size=(50, 2))
    z, linear = 1e3 * (X @ G), X @ C + b
    y = gated(1e3 * G, np.zeros(3), C, b, pc.Sigmoid())(X)
    decided = np.abs(z) > 40
    assert decided.mean() > 0.9
    np.testing.assert_allclose(y[decided], np.where(z > 0, linear, 0)[decided], atol=1e-12)


def test_n09_in_its_linear_range_a_gate_makes_a_quadratic_function(rng):
    """u ≈ ½ + (gᵀx + d)/4 (the note leaves out ½ and ¼); what is left over shrinks with the third power of the scale."""
    G, d, C, b, X = rng.normal(size=(2, 3)), rng.normal(size=3), rng.normal(size=(2, 3)), rng.normal(size=3), rng.normal(size=(50, 2))
    left = []
    for scale in (1e-2, 1e-3):
        z = scale * (X @ G + d)
        quadratic = (0.5 + z / 4) * (X @ C + b)
        left.append(np.abs(gated(scale * G, scale * d, C, b, pc.Sigmoid())(X) - quadratic).max())
    assert left[0] / left[1] == pytest.approx(1000, rel=0.01)
    np.testing.assert_allclose(expit(1e-3) - (0.5 + 1e-3 / 4), -(1e-3**3) / 48, rtol=1e-3)  # where the third power comes from


# -------------------------------------------------------------------- N10 softmax gates
def test_n10_in_each_decision_region_one_output_is_active_and_linear(rng):
    G, C, b, X = rng.normal(size=(2, 4)), rng.normal(size=(2, 4)), rng.normal(size=4), rng.normal(size=(200, 2))
    y = gated(1e4 * G, np.zeros(4), C, b, pc.Softmax())(X)
    scores = np.sort(X @ G, axis=1)
    inside = scores[:, -1] - scores[:, -2] > 0.01  # not on a border between regions
    winner = (X @ G).argmax(1)
    assert set(winner[inside]) == set(np.flatnonzero(np.bincount(winner, minlength=4)))
    active = np.zeros_like(y)
    active[np.arange(200), winner] = (X @ C + b)[np.arange(200), winner]
    assert inside.mean() > 0.9
    np.testing.assert_allclose(y[inside], active[inside], atol=1e-12)


def test_n10_the_gate_learns_through_the_flow_times_the_linear_part(rng):
    """The note multiplies by g; differences say ⊙ (Cᵀx + b)."""
    model = gated(*(rng.normal(size=s) for s in ((2, 3), 3, (2, 3), 3)), pc.Softmax())
    X, y = rng.normal(size=(5, 2)), rng.normal(size=(5, 3))
    assert without_autodiff(model.check_gradients, X, y)
    p, (_, grads) = model.parameters, model.gradients(X, y)
    z = X @ p["0.0.W"] + p["0.0.b"]
    g = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    linear = X @ p["1.W"] + p["1.b"]
    flow = 2 * (g * linear - y) / len(X)

    def by_gate(into):  # (diag(g) − ggᵀ) into, then the augmented input
        return X.T @ (g * (into - (g * into).sum(1, keepdims=True)))

    np.testing.assert_allclose(grads["0.0.W"], by_gate(flow * linear), atol=1e-12)
    assert np.abs(grads["0.0.W"] - by_gate(flow * g)).max() > 1e-3


# -------------------------------------------------------------------- N18 augmented form
@given(n=st.integers(1, 5), units=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_n18_a_bias_is_the_weight_of_a_constant_input(n, units, seed):
    """x_a = [1; x], W_a = [bᵀ; W]: equal outputs and gradients."""
    rng = np.random.default_rng(seed)
    W, b, X, y = (rng.normal(size=s) for s in ((n, units), units, (6, n), (6, units)))
    plain = network(pc.Linear(units), n, W=W, b=b)
    augmented = network(pc.Linear(units, bias=False), n + 1, W=np.vstack([b, W]))
    Xa = np.hstack([np.ones((6, 1)), X])
    np.testing.assert_allclose(plain(X), augmented(Xa), atol=1e-12)
    (_, g), (_, ga) = plain.gradients(X, y), augmented.gradients(Xa, y)
    np.testing.assert_allclose(np.vstack([g["b"], g["W"]]), ga["W"], atol=1e-12)
