"""The kernel layer (N11), its start from data (N12), the closed-form output layer and the density (N13)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid as pc
from pellucid.engines.numpy import NumpyOps
from pellucid.layers.kernels import triangular
from pellucid.training.prime import prime
from pellucid.training.step import Batch

from .judge import check_by_differences

KERNELS = ("gaussian", "multiquadric", "inverse_multiquadric")
WIDTHS = ("scalar", "per_unit", "per_axis", "full")


def pass_through(layer, p, x, dy=None):
    ops = NumpyOps()
    y, cache = ops.forward(layer, p, x, "net")
    return (y, None, None) if dy is None else (y, *ops.backward(layer, p, cache, dy, "net"))


@pytest.fixture
def blobs(rng):
    """Three clusters in the plane and a smooth function on them."""
    centres = np.array([[-4.0, 0.0], [3.0, 3.0], [2.0, -5.0]])
    X = np.concatenate([c + 0.3 * rng.normal(size=(40, 2)) for c in centres])
    return X, np.sin(X[:, 0]) + 0.1 * X[:, 1] ** 2, centres


# -------------------------------------------------------------------- formulas
@settings(max_examples=40)
@given(
    kernel=st.sampled_from(KERNELS), width=st.sampled_from(WIDTHS), trainable=st.sampled_from(["all", "centres", "widths"]),
    units=st.integers(1, 5), n=st.integers(1, 4), lead=st.lists(st.integers(1, 3), max_size=2), seed=st.integers(0, 99),
)  # fmt: skip
def test_gradients_are_right_for_every_kernel_width_and_shape(kernel, width, trainable, units, n, lead, seed):
    report = check_by_differences(pc.RBF(units, kernel, width, trainable), (*lead, n), seed=seed, entries=15)
    assert report, str(report)
    assert {row.name for row in report.rows} == {"input"} | ({"centres", "widths"} if trainable == "all" else {trainable})


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("width", ["scalar", "per_unit"])
def test_responses_and_slopes_are_the_notes_formulas_unit_by_unit(kernel, width, rng):
    """N11, with the slips mended: the multiquadric divides by K where the note multiplies."""
    layer = pc.RBF(3, kernel, width)
    p, _ = layer.build(rng, (2,))
    p["widths"] = rng.uniform(0.5, 2, p["widths"].shape)
    x, dy = rng.normal(size=(5, 2)), rng.normal(size=(5, 3))
    y, dx, grads = pass_through(layer, p, x, dy)
    dmu, dh, flow = np.zeros((3, 2)), np.zeros(3), np.zeros((5, 2))
    for b in range(5):
        for i in range(3):
            mu, h = p["centres"][i], np.broadcast_to(p["widths"], 3)[i]
            s = ((x[b] - mu) ** 2).sum()
            if kernel == "gaussian":
                K = math.exp(-s / (2 * h**2))
                by_mu, by_h = K * (x[b] - mu) / h**2, K * s / h**3
            elif kernel == "multiquadric":
                K = math.sqrt(s + h**2)
                by_mu, by_h = -(x[b] - mu) / K, h / K
            else:
                K = 1 / math.sqrt(s + h**2)
                by_mu, by_h = K**3 * (x[b] - mu), -(K**3) * h
            assert y[b, i] == pytest.approx(K, rel=1e-12)
            dmu[i] += dy[b, i] * by_mu
            flow[b] -= dy[b, i] * by_mu
            dh[i] += dy[b, i] * by_h
    np.testing.assert_allclose(grads["centres"], dmu, atol=1e-12)
    np.testing.assert_allclose(grads["widths"], dh if width == "per_unit" else dh.sum(), atol=1e-12)
    np.testing.assert_allclose(dx, flow, atol=1e-12)


def test_ellipsoids_with_equal_axes_are_spheres(rng):
    x, centres, h = rng.normal(size=(6, 3)), rng.normal(size=(4, 3)), rng.uniform(0.5, 2, 4)
    sphere, _, _ = pass_through(pc.RBF(4), {"centres": centres, "widths": h}, x)
    axes, _, _ = pass_through(pc.RBF(4, width="per_axis"), {"centres": centres, "widths": np.repeat(h[:, None], 3, 1)}, x)
    factors = (np.eye(3) / h[:, None, None])[:, *np.tril_indices(3)]
    full, _, _ = pass_through(pc.RBF(4, width="full"), {"centres": centres, "widths": factors}, x)
    np.testing.assert_allclose(axes, sphere, rtol=1e-12)
    np.testing.assert_allclose(full, sphere, rtol=1e-12)


def test_a_full_width_is_the_mahalanobis_distance(rng):
    """Against SciPy, for any positive definite shape."""
    from scipy.spatial.distance import cdist
    from scipy.stats import wishart

    x, centres = rng.normal(size=(7, 3)), rng.normal(size=(2, 3))
    precision = wishart.rvs(5, np.eye(3), size=2, random_state=1)
    packed = np.linalg.cholesky(precision)[:, *np.tril_indices(3)]
    y, _, _ = pass_through(pc.RBF(2, width="full"), {"centres": centres, "widths": packed}, x)
    for i in range(2):
        distance = cdist(x, centres[[i]], "mahalanobis", VI=precision[i])[:, 0]
        np.testing.assert_allclose(y[:, i], np.exp(-(distance**2) / 2), rtol=1e-10)


def test_packed_triangles_unpack_to_lower_triangular_matrices():
    L = triangular(np, np.arange(1.0, 7.0)[None], 3)
    np.testing.assert_array_equal(L[0], [[1, 0, 0], [2, 3, 0], [4, 5, 6]])


def test_parameter_counts_are_those_of_the_notes():
    """N11: n centres' coordinates and 1/N_E, 1, n or n(n+1)/2 numbers of width per unit."""
    n, units = 4, 10
    counts = [pc.RBF(units, width=w).count((n,)) for w in WIDTHS]
    assert counts == [units * n + 1, units * (n + 1), units * 2 * n, units * (n + n * (n + 1) // 2)]
    assert [pc.RBF(units, trainable=t).count((n,)) for t in ("centres", "widths", "none")] == [units * n, units, 0]


def test_far_from_the_origin_float32_distances_stay_exact(rng):
    x = 1000 + rng.normal(size=(50, 3))
    p = {"centres": x[:5], "widths": np.ones(5)}
    exact, _, _ = pass_through(pc.RBF(5), p, x)
    single, _, _ = pass_through(pc.RBF(5), {k: v.astype(np.float32) for k, v in p.items()}, x.astype(np.float32))
    np.testing.assert_allclose(single, exact, atol=2e-3)  # float32 holds 1000.0 to 6e-5
    assert (single <= 1).all()


@pytest.mark.parametrize("width", ["scalar", "per_unit", "per_axis"])
def test_no_array_of_batch_times_units_times_features_is_made(width, rng):
    import jax

    from pellucid.engines.jax import JaxOps

    layer, batch, units, n = pc.RBF(7, width=width), 11, 7, 13
    p, _ = layer.build(rng, (n,))

    def both(p, x, dy):
        ops = JaxOps()
        _, cache = ops.forward(layer, p, x, "net")
        return ops.backward(layer, p, cache, dy, "net")

    program = jax.make_jaxpr(both)(p, np.ones((batch, n)), np.ones((batch, units)))
    sizes = [math.prod(v.aval.shape) for equation in program.jaxpr.eqns for v in equation.outvars]
    assert max(sizes) == batch * n  # nothing larger than the inputs themselves
    assert batch * n < batch * units * n


# -------------------------------------------------------------------- the start from data (N12)
def test_kmeans_finds_the_clusters_and_the_width_rule_holds(blobs):
    X, y, truth = blobs
    model = pc.Network(pc.RBF(3) >> pc.Linear(1), (2,))
    model.fit(X, y, epochs=1, optimizer=pc.SGD(1e-12), engine="numpy")
    centres = model.parameters["0.centres"]
    distances = np.linalg.norm(centres[:, None] - truth, axis=-1)
    assert (distances.min(0) < 0.2).all()
    d_max = np.linalg.norm(centres[:, None] - centres, axis=-1).max()
    np.testing.assert_allclose(model.parameters["0.widths"], d_max / math.sqrt(2 * 3), rtol=1e-5)


def test_sampled_centres_are_rows_and_one_unit_takes_the_spread_as_width(blobs):
    X, y, _ = blobs
    model = pc.Network(pc.RBF(5, start="sample", trainable="none") >> pc.Linear(1), (2,), dtype="float64")
    model.fit(X, y, epochs=1, engine="numpy")
    assert all((c == X).all(1).any() for c in model.parameters["0._centres"])
    one = pc.Network(pc.RBF(1, trainable="none") >> pc.Linear(1), (2,), dtype="float64")
    one.fit(X, y, epochs=1, engine="numpy")
    assert one.parameters["0._widths"][0] == pytest.approx(math.sqrt(X.var(0).sum()), rel=1e-9)


def test_the_start_is_taken_once_and_only_from_training_rows(blobs):
    X, y, _ = blobs
    far = np.full((30, 2), 1e3)
    model = pc.Network(pc.RBF(3, trainable="none") >> pc.Linear(1), (2,))
    model.fit(X, y, epochs=1, validation=(far, np.zeros(30)), engine="numpy")
    first = model.parameters
    assert np.abs(first["0._centres"]).max() < 10
    model.fit(far, np.zeros(30), epochs=1, engine="numpy")
    np.testing.assert_array_equal(model.parameters["0._centres"], first["0._centres"])


@pytest.mark.parametrize(
    "make",
    [
        lambda rbf: pc.BatchNorm() >> pc.Linear(2) >> rbf,
        lambda rbf: pc.Linear(2) | (pc.Tanh() >> rbf),
        lambda rbf: pc.Frozen(rbf) + pc.Linear(4),
        lambda rbf: pc.Penalty(pc.Linear(3) >> rbf, l2=0.1),
    ],
)
def test_the_start_reaches_layers_inside_combinators(make, blobs):
    X, y, _ = blobs
    model = pc.Network(make(pc.RBF(4, trainable="none")) >> pc.Linear(1), (2,))
    before = {k: v for k, v in model.parameters.items() if "_centres" in k or "_primed" in k}
    model.fit(X, y, epochs=1, engine="numpy")
    after = model.parameters
    assert len(before) == 2
    assert all((after[k] != v).any() for k, v in before.items())


def test_the_inputs_of_a_later_kernel_layer_are_the_outputs_of_the_earlier_ones(blobs):
    X, y, _ = blobs
    model = pc.Network(pc.Linear(2, init=pc.Constant(10 * np.eye(2))) >> pc.RBF(3, trainable="none") >> pc.Linear(1), (2,))
    model.fit(X, y, epochs=1, optimizer=pc.SGD(1e-12), engine="numpy")
    alone = pc.Network(pc.RBF(3, trainable="none") >> pc.Linear(1), (2,))
    alone.fit(10 * X, y, epochs=1, optimizer=pc.SGD(1e-12), engine="numpy")
    np.testing.assert_allclose(model.parameters["1._centres"], alone.parameters["0._centres"], rtol=1e-4)


def test_padding_plays_no_part_in_the_start(rng):
    x, lengths = 5 + rng.normal(size=(20, 4, 2)), rng.integers(1, 4, 20).astype(np.int32)
    x *= (np.arange(4) < lengths[:, None])[..., None]
    net = pc.RBF(3)
    p = prime(net, net.build(rng, (4, 2))[0], Batch(x, None, np.ones(20), lengths), seed=0)
    assert p["centres"].min() > 2


def test_a_layer_of_ones_own_can_start_from_data(rng):
    class Centred(pc.Layer):
        def build(self, rng, shape):
            return {"_mean": np.zeros(shape)}, shape

        def prime(self, rng, p, x):
            return {"_mean": x.mean(0)}

        def forward(self, ops, p, x):
            return x - p["_mean"], None

        def backward(self, ops, p, cache, dy, wrt_input=True):
            return dy, {}

    X = 7 + rng.normal(size=(30, 2))
    model = pc.Network(pc.Linear(2, init=pc.Constant(2 * np.eye(2))) >> Centred() >> pc.Linear(1), (2,), dtype="float64")
    model.fit(X, X[:, 0], epochs=1, engine="numpy")
    np.testing.assert_allclose(model.parameters["1._mean"], 2 * X.mean(0), rtol=1e-12)


def test_a_resumed_fit_goes_on_from_the_saved_centres(blobs, tmp_path):
    X, y, _ = blobs
    make = lambda: pc.Network(pc.RBF(4) >> pc.Linear(1), (2,), dtype="float64")  # noqa: E731
    whole, part, rest = make(), make(), make()
    whole.fit(X, y, epochs=4, engine="numpy")
    part.fit(X, y, epochs=2, engine="numpy", checkpoint=tmp_path / "c")
    rest.fit(X, y, epochs=4, engine="numpy", checkpoint=tmp_path / "c", resume=True)
    for name, value in whole.parameters.items():
        np.testing.assert_array_equal(rest.parameters[name], value)


def test_fewer_rows_than_units_are_refused():
    model = pc.Network(pc.RBF(10) >> pc.Linear(1), (2,))
    with pytest.raises(ValueError, match=r"RBF\(10\).*3 rows.*fewer units"):
        model.fit(np.eye(3, 2), np.zeros(3), epochs=1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_both_engines_walk_the_same_path_and_learn(kernel, blobs):
    X, y, _ = blobs
    models = []
    for engine in ("numpy", "jax"):
        model = pc.Network(pc.RBF(6, kernel, "per_axis") >> pc.Linear(1), (2,), dtype="float64")
        history = model.fit(X, y, epochs=10, optimizer=pc.Adam(0.02), engine=engine)
        assert history["loss"][-1] < 0.7 * history["loss"][0]
        models.append(model.parameters)
    for name, value in models[0].items():
        np.testing.assert_allclose(models[1][name], value, rtol=1e-10, atol=1e-10, err_msg=name)


# -------------------------------------------------------------------- the closed-form output layer
@pytest.mark.parametrize("bias", [True, False])
def test_the_ridge_output_is_a_stationary_point_of_its_own_loss(bias, blobs):
    """N12: there the gradient of Σ‖hW + b − y‖² + α‖W‖² is zero; ours says it of the first part."""
    X, y, _ = blobs
    alpha, model = 0.3, pc.Network(pc.RBF(8) >> pc.Linear(2, bias=bias), (2,), dtype="float64")
    Y = np.stack([y, X[:, 0]], 1)
    assert pc.ridge_output(model, X, Y, alpha) is model
    _, grads = model.gradients(X, Y)
    np.testing.assert_allclose(len(X) * grads["1.W"] + 2 * alpha * model.parameters["1.W"], 0, atol=1e-8)
    if bias:
        np.testing.assert_allclose(grads["1.b"], 0, atol=1e-10)


def test_weights_in_ridge_output_count_as_repeated_rows(blobs):
    X, y, _ = blobs
    w = np.arange(len(X)) % 3
    models = [pc.Network(pc.RBF(4, start="random") >> pc.Linear(1), (2,), dtype="float64") for _ in range(2)]
    pc.ridge_output(models[0], X, y, 0.1, sample_weight=w)
    pc.ridge_output(models[1], np.repeat(X, w, 0), np.repeat(y, w), 0.1)
    np.testing.assert_allclose(models[0].parameters["1.W"], models[1].parameters["1.W"], rtol=1e-8)


def test_ridge_output_takes_every_real_position_of_sequences_as_a_row(rng):
    """As Batch.lengths says: what stands in the padding does not count."""
    lengths, X = np.array([3, 1, 2]), rng.normal(size=(3, 3, 2))
    Y, real = rng.normal(size=(3, 3, 1)), np.arange(3) < lengths[:, None]
    layers = pc.RBF(2, start="random") >> pc.Linear(1)
    padded, rows = pc.Network(layers, (3, 2), dtype="float64"), pc.Network(layers, (2,), dtype="float64")
    whole = padded.as_batch
    padded.as_batch = lambda *args, **options: whole(*args, **options)._replace(lengths=lengths)
    pc.ridge_output(padded, X, Y, 0.1)
    pc.ridge_output(rows, X[real], Y[real], 0.1)
    np.testing.assert_allclose(padded.parameters["1.W"], rows.parameters["1.W"], rtol=1e-8)


def test_back_propagation_goes_on_from_the_closed_form_start(blobs):
    """Everything by back-propagation after that start: the loss falls below what the output layer alone can reach."""
    X, y, _ = blobs
    model = pc.ridge_output(pc.Network(pc.RBF(4) >> pc.Linear(1), (2,), dtype="float64"), X, y, 1e-8)
    start = model.evaluate(X, y)["loss"]
    centres = model.parameters["0.centres"]
    model.fit(X, y, epochs=60, optimizer=pc.LBFGS(), engine="numpy")
    assert model.evaluate(X, y)["loss"] < 0.5 * start
    assert np.abs(model.parameters["0.centres"] - centres).max() > 1e-3


@pytest.mark.parametrize("layer", [pc.RBF(150, "multiquadric"), pc.RBF(150, width_factor=10)])
def test_digits_by_kmeans_and_ridge_alone(layer, digits):
    X, y = digits
    model = pc.Network(layer >> pc.Linear(10), (64,), "softmax_cross_entropy")
    pc.ridge_output(model, X[:1300], y[:1300], 1e-3)
    assert (model.predict(X[1300:]) == y[1300:]).mean() > 0.93


def test_ridge_output_refuses_what_does_not_end_linearly():
    model = pc.Network(pc.Linear(2) >> pc.Softmax(), (2,))
    with pytest.raises(ValueError, match=r"ends with a Linear layer.*Softmax\(\)"):
        pc.ridge_output(model, np.eye(2), [0, 1])


# -------------------------------------------------------------------- density (N13)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_density_agrees_with_scikit_learn(n, rng):
    from scipy.special import logsumexp
    from sklearn.neighbors import KernelDensity

    samples, x, weights = 50 + rng.normal(size=(300, n)), 50 + 2 * rng.normal(size=(200, n)), rng.uniform(0, 3, 300)
    theirs = np.exp(KernelDensity(bandwidth=0.4).fit(samples, sample_weight=weights).score_samples(x))
    ours = pc.kernel_density(samples, 0.4, weights=weights)(x)[:, 0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * theirs.max())  # its trees lose digits far from all samples
    s = ((x[:, None] - samples) ** 2).sum(-1)
    brute = np.exp(logsumexp(-s / (2 * 0.4**2), b=weights / weights.sum(), axis=1) - n * math.log(0.4 * math.sqrt(2 * math.pi)))
    np.testing.assert_allclose(ours, brute, rtol=1e-10)  # ours does not


def test_the_density_integrates_to_one_with_a_width_for_each_sample(rng):
    density = pc.kernel_density(rng.normal(size=(9, 1)), rng.uniform(0.2, 1, 9))
    x = np.linspace(-12, 12, 20001)[:, None]
    assert np.trapezoid(density(x)[:, 0], x[:, 0]) == pytest.approx(1, abs=1e-9)
    assert (density(x) >= 0).all()


@pytest.mark.parametrize("kernel", ["multiquadric", "inverse_multiquadric"])
def test_multiquadrics_are_refused_as_densities_with_the_reason(kernel):
    with pytest.raises(ValueError, match="integral of a multiquadric over the whole space is infinite"):
        pc.kernel_density([[0.0], [1.0]], 1.0, kernel=kernel)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0.0}, "width must be a positive number"),
        ({"width": [1.0, 2.0, 3.0]}, "one per sample"),
        ({"width": 1.0, "weights": [1.0, -1.0]}, "must not be negative"),
    ],
)
def test_what_makes_no_density_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        pc.kernel_density([[0.0], [1.0]], **options)
