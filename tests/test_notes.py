"""What the lecture notes state, row by row."""

import numpy as np
import pytest

import pellucid as pc
from pellucid.engines.numpy import NumpyOps


def logit(p):
    return np.log(p / (1 - p))


def worked_example():
    """N33: w₁₁² = 12, w₁₁¹ = 0.1, a₁¹ = 0.37, ŷ = 0.25, y = 1, x₁ = 60, η = 0.01; a = 0.37 needs z = −0.532."""
    net = pc.Linear(1).named("hidden") >> pc.Sigmoid() >> pc.Linear(1).named("output") >> pc.Sigmoid()
    model = pc.Network(net, (3,), "binary_cross_entropy", dtype="float64")
    x = np.array([[60.0, 5.0, 7.0]])
    W1 = np.array([[0.1], [0.2], [-0.3]])
    model.set_parameters({
        "hidden.W": W1, "hidden.b": [logit(0.37) - (x @ W1).item()], "output.W": [[12.0]], "output.b": [logit(0.25) - 12 * 0.37],
    })  # fmt: skip
    return model, x


def test_n33_the_worked_example_comes_out_with_the_notes_numbers():
    model, x = worked_example()
    np.testing.assert_allclose(model(x), 0.25)
    ops = NumpyOps()
    _, flow = pc.BinaryCrossEntropy()(ops, np.array([[0.25]]), np.array([[1.0]]))
    assert flow.item() == -4
    _, flow = pc.SigmoidCrossEntropy()(ops, np.array([[logit(0.25)]]), np.array([[1.0]]))
    assert flow.item() == pytest.approx(-0.75)
    _, grads = model.gradients(x, [1])
    assert grads["output.W"].item() == pytest.approx(-0.2775)
    assert grads["hidden.W"][0].item() == pytest.approx(-125.874)
    model.fit(x, [1], epochs=1, optimizer=pc.GradientDescent(0.01), engine="numpy")
    assert round(model.parameters["output.W"].item(), 4) == 12.0028
    assert round(model.parameters["hidden.W"][0].item(), 2) == 1.36  # the note prints 1.35


def test_n33_the_exercise_is_solved():
    model, x = worked_example()
    _, grads = model.gradients(x, [1])
    assert grads["hidden.W"][2].item() == pytest.approx(-2.0979 * x[0, 2])


def test_n17_the_activations_derivatives_are_those_of_the_table(rng):
    z = rng.normal(size=(1, 50)) * 3
    table = {
        pc.Sigmoid(): lambda z, y: y * (1 - y),
        pc.Tanh(): lambda z, y: 1 - y**2,
        pc.ReLU(): lambda z, y: (z > 0) * 1.0,
        pc.Identity(): lambda z, y: np.ones_like(z),
    }
    for layer, slope in table.items():
        y, cache = NumpyOps().forward(layer, {}, z, "net")
        dz, _ = NumpyOps().backward(layer, {}, cache, np.ones_like(z), "net")
        np.testing.assert_allclose(dz, slope(z, y), atol=1e-14)
    y, cache = NumpyOps().forward(pc.ReLU(), {}, np.zeros((1, 1)), "net")
    assert NumpyOps().backward(pc.ReLU(), {}, cache, np.ones((1, 1)), "net")[0].item() == 0  # ReLU′(0) = 0


def test_n18_the_augmented_form_has_the_same_outputs_and_gradients(rng):
    """x_a = [1; x], W_a = [bᵀ; W] without biases ≡ W and b."""
    X, Y = rng.normal(size=(9, 4)), rng.normal(size=(9, 3))
    plain = pc.Network(pc.Linear(3), (4,), dtype="float64")
    plain.set_parameters({"b": rng.normal(size=3)})
    augmented = pc.Network(pc.Linear(3, bias=False), (5,), dtype="float64")
    augmented.set_parameters({"W": np.vstack([plain.parameters["b"], plain.parameters["W"]])})
    Xa = np.c_[np.ones(9), X]
    np.testing.assert_allclose(augmented(Xa), plain(X), atol=1e-14)
    (_, g), (_, ga) = plain.gradients(X, Y), augmented.gradients(Xa, Y)
    np.testing.assert_allclose(ga["W"], np.vstack([g["b"], g["W"]]), atol=1e-14)


def test_n36_the_chain_of_jacobians_and_its_kronecker_form(rng):
    """∂L/∂θ = (∂y_E/∂θ)ᵀ W (∂y/∂z)ᵀ ∂L/∂y with every Jacobian written out, and ∂L/∂C_a = (∂L/∂v)ᵀ ⊗ x_a."""
    x, d = rng.normal(size=3), np.array([0.2, 0.5, 0.3])
    net = pc.Linear(4) >> pc.Tanh() >> pc.Linear(3) >> pc.Softmax()
    model = pc.Network(net, (3,), "cross_entropy", dtype="float64")
    model.set_parameters({"0.b": rng.normal(size=4), "2.b": rng.normal(size=3)})
    p = model.parameters
    C, b, W, c = p["0.W"], p["0.b"], p["2.W"], p["2.b"]
    y_E = np.tanh(x @ C + b)
    y = np.exp(y_E @ W + c)
    y /= y.sum()
    dL_dy = -d / y
    dy_dz = np.diag(y) - np.outer(y, y)
    dyE_dv = np.diag(1 - y_E**2)
    x_a = np.r_[1, x]
    dv_dC = np.kron(np.eye(4), x_a)  # 4 × 20: parameters of one unit lie side by side
    dL_dtheta = (dyE_dv @ dv_dC).T @ W @ dy_dz.T @ dL_dy
    dL_dv = dyE_dv.T @ W @ dy_dz.T @ dL_dy
    _, grads = model.gradients(x[None], d[None])
    ours = np.vstack([grads["0.b"], grads["0.W"]])  # ∂L/∂C_a
    np.testing.assert_allclose(ours.T.ravel(), dL_dtheta, atol=1e-12)
    np.testing.assert_allclose(ours, np.kron(dL_dv[None, :], x_a[:, None]), atol=1e-12)


def test_n37_the_derivative_is_the_row_that_predicts_small_changes(rng):
    """f(x + Δx) − f(x) − aΔx vanishes faster than Δx: halving Δx quarters it."""
    net = pc.Linear(5) >> pc.Tanh() >> pc.Linear(1)
    params, _ = net.build(rng, (4,))
    x, dx = rng.normal(size=(1, 4)), rng.normal(size=(1, 4))

    def f(x):
        return NumpyOps().forward(net, params, x, "net")[0].item()

    ops = NumpyOps()
    _, cache = ops.forward(net, params, x, "net")
    a, _ = ops.backward(net, params, cache, np.ones((1, 1)), "net")
    assert a.shape == x.shape
    rest = [f(x + h * dx) - f(x) - h * (a @ dx.T).item() for h in (1e-2, 5e-3, 2.5e-3)]
    np.testing.assert_allclose([rest[0] / rest[1], rest[1] / rest[2]], 4, rtol=0.1)


def test_n01_to_n03_networks_compute_what_the_notes_write(rng):
    x = rng.normal(size=(6, 4))
    model = pc.Network(pc.Linear(5) >> pc.Sigmoid() >> pc.Linear(2), (4,), dtype="float64")
    p = model.parameters
    np.testing.assert_allclose(model(x), 1 / (1 + np.exp(-(x @ p["0.W"] + p["0.b"]))) @ p["2.W"] + p["2.b"])
    net = pc.Linear(5, bias=False) >> pc.ReLU() >> pc.Linear(4, bias=False) >> pc.ReLU() >> pc.Linear(3, bias=False) >> pc.Softmax()
    model = pc.Network(net, (4,), dtype="float64")
    W0, W1, W2 = model.parameters.values()
    z = np.maximum(np.maximum(x @ W0, 0) @ W1, 0) @ W2
    np.testing.assert_allclose(model(x), np.exp(z) / np.exp(z).sum(1, keepdims=True))


def test_n30_the_chain_rule_sums_over_every_path(rng):
    """x affects the output along four paths; the derivative is the sum, written out by hand."""
    net = pc.Identity() + pc.Tanh() + pc.Identity() * pc.Sigmoid()
    x = rng.normal(size=(3, 4))
    _, cache = NumpyOps().forward(net, ({}, {}, ({}, {})), x, "net")
    dx, _ = NumpyOps().backward(net, ({}, {}, ({}, {})), cache, np.ones_like(x), "net")
    s = 1 / (1 + np.exp(-x))
    np.testing.assert_allclose(dx, 1 + (1 - np.tanh(x) ** 2) + s + x * s * (1 - s), atol=1e-14)


def test_n31_layerwise_deltas_give_the_gradients(rng):
    """δᴸ = ŷ − y, δˡ = (Wˡ⁺¹)ᵀδˡ⁺¹ ⊙ g′(zˡ), ∂L/∂W = δaᵀ, ∂L/∂b = δ, for one row, in the notes' column form."""
    model = pc.Network(
        pc.Linear(5) >> pc.Sigmoid() >> pc.Linear(4) >> pc.Tanh() >> pc.Linear(3), (2,), "softmax_cross_entropy", dtype="float64"
    )
    p, x = model.parameters, rng.normal(size=2)
    W1, W2, W3 = (p[k].T for k in ("0.W", "2.W", "4.W"))
    a1 = 1 / (1 + np.exp(-(W1 @ x + p["0.b"])))
    a2 = np.tanh(W2 @ a1 + p["2.b"])
    z3 = W3 @ a2 + p["4.b"]
    d3 = np.exp(z3) / np.exp(z3).sum() - np.eye(3)[1]
    d2 = W3.T @ d3 * (1 - a2**2)
    d1 = W2.T @ d2 * a1 * (1 - a1)
    _, g = model.gradients(x[None], [1])
    for name, delta, a in (("0", d1, x), ("2", d2, a1), ("4", d3, a2)):
        np.testing.assert_allclose(g[f"{name}.W"].T, np.outer(delta, a), atol=1e-12)
        np.testing.assert_allclose(g[f"{name}.b"], delta, atol=1e-12)
