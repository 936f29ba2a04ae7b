"""Every exported layer keeps every promise a layer makes."""

import copy
import pickle

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pellucid as pc
from pellucid.engines import get_engine
from pellucid.engines.numpy import NumpyOps
from pellucid.tree import is_buffer, leaves, map_leaves

from .table import BASES, LAYERS, THRESHOLDS, exported

CASES = [pytest.param(layer, shape, id=f"{layer!r}-{shape}") for cases in LAYERS.values() for layer, shape in cases]
every_layer = pytest.mark.parametrize(("layer", "shape"), CASES)


def test_the_table_holds_every_exported_layer():
    assert exported(pc.Layer) - BASES == set(LAYERS) | THRESHOLDS


def run(layer, shape, dtype=np.float64, flow=None, engine="numpy", seed=3, program=jax.jit):
    """Forward and backward with random numbers; returns y, dx, grads and what went in."""
    rng = np.random.default_rng(seed)
    params, out = layer.build(rng, shape)
    x = rng.normal(size=(4, *shape))
    dy = rng.normal(size=(4, *out)) if flow is None else flow
    x, dy, params = map_leaves(lambda a: np.asarray(a, dtype), (x, dy, params))
    module = get_engine(engine)

    def both(p, x, dy):
        Ops = NumpyOps if engine == "numpy" else module.JaxOps
        ops = Ops(training=True, seed=np.uint32(7), step=np.int32(2), weight=np.ones(4, dtype))
        y, cache = ops.forward(layer, p, x, "net")
        return y, *ops.backward(layer, p, cache, dy, "net")

    with module.precision(dtype):
        return module.get(program(both)(params, x, dy) if engine == "jax" else both(params, x, dy)), (params, x, dy), out


@every_layer
def test_gradients_agree_with_differences_and_autodiff(layer, shape):
    report = pc.check_layer(layer, shape, tolerance=1e-7)
    assert report, str(report)
    assert all(row.autodiff is not None for row in report.rows if row.checked)


def types_of(function):
    """A program that is traced, not compiled: zeros of the shapes and types it gives."""
    return lambda *args: map_leaves(lambda a: np.zeros(a.shape, a.dtype), jax.eval_shape(function, *args))


@every_layer
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_out_is_dtype_in(layer, shape, dtype):
    for engine in ("numpy", "jax"):
        (y, dx, grads), _, out = run(layer, shape, dtype, engine=engine, program=types_of)
        assert y.shape == (4, *out)
        assert {y.dtype, dx.dtype, *(g.dtype for _, g in leaves(grads))} == {np.dtype(dtype)}


@every_layer
def test_gradients_have_the_shapes_of_their_parameters(layer, shape):
    (_, dx, grads), (params, x, _), _ = run(layer, shape)
    shapes = {path: leaf.shape for path, leaf in leaves(params)}
    assert dx.shape == x.shape
    assert {path: g.shape for path, g in leaves(grads)} == {p: s for p, s in shapes.items() if not is_buffer(p)}


@every_layer
def test_backward_is_linear_in_the_flow(layer, shape):
    a, b = (
        run(layer, shape, flow=np.random.default_rng(s).normal(size=(4, *layer.build(np.random.default_rng(0), shape)[1])))[0]
        for s in (1, 2)
    )
    flow = sum(
        c * np.random.default_rng(s).normal(size=(4, *layer.build(np.random.default_rng(0), shape)[1])) for c, s in ((2.0, 1), (-3.0, 2))
    )
    both = run(layer, shape, flow=flow)[0]
    for (_, one), (_, two), (_, sum_) in zip(leaves(a[1:]), leaves(b[1:]), leaves(both[1:]), strict=True):
        np.testing.assert_allclose(sum_, 2 * one - 3 * two, atol=1e-12)


@every_layer
def test_the_engines_agree(layer, shape):
    (mine, _, _), (theirs, _, _) = run(layer, shape), run(layer, shape, engine="jax")
    for (_, a), (_, b) in zip(leaves(mine), leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@every_layer
def test_inputs_are_never_changed_in_place(layer, shape):
    rng = np.random.default_rng(3)
    params, out = layer.build(rng, shape)
    x, dy = rng.normal(size=(4, *shape)), rng.normal(size=(4, *out))
    before = copy.deepcopy((params, x, dy))
    for _, leaf in leaves((params, x, dy)):
        leaf.setflags(write=False)
    ops = NumpyOps(training=True, weight=np.ones(4))
    _, cache = ops.forward(layer, params, x, "net")
    ops.backward(layer, params, cache, dy, "net")
    for (_, a), (_, b) in zip(leaves(before), leaves((params, x, dy)), strict=True):
        np.testing.assert_array_equal(a, b)


@every_layer
def test_survives_pickle_copy_and_eval_of_repr(layer, shape):
    from . import table

    names = {**vars(pc), **vars(table)}
    for twin in (pickle.loads(pickle.dumps(layer)), copy.copy(layer), copy.deepcopy(layer), eval(repr(layer), names)):
        assert twin == layer
        assert hash(twin) == hash(layer)


@every_layer
def test_without_the_input_gradient_parameters_learn_the_same(layer, shape):
    rng = np.random.default_rng(3)
    params, out = layer.build(rng, shape)
    x, dy = rng.normal(size=(4, *shape)), rng.normal(size=(4, *out))
    ops = NumpyOps(training=True, weight=np.ones(4))
    _, cache = ops.forward(layer, params, x, "net")
    (_, full), (_, part) = (ops.backward(layer, params, cache, dy, "net", wrt) for wrt in (True, False))
    for path, g in leaves(full):
        np.testing.assert_array_equal(dict(leaves(part))[path], g)


@st.composite
def expressions(draw, depth=3):
    """Random expressions with input and output (4,)."""
    if depth == 0:
        return draw(
            st.sampled_from([pc.Linear(4), pc.Tanh(), pc.Sigmoid(), pc.Softmax(), pc.Identity(), pc.SiLU(), pc.Dropout(0.3), pc.ELU()])
        )
    a, b = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    kind = draw(st.sampled_from(["leaf", ">>", "|", "+", "*"]))
    return {"leaf": a, ">>": a >> b, "|": (a | b) >> pc.Linear(4), "+": a + b, "*": a * b}[kind]


@given(expressions())
def test_any_expression_has_right_gradients_and_survives_eval_of_repr(net):
    assert eval(repr(net), vars(pc)) == net
    report = pc.check_layer(net >> pc.Linear(2), (4,), entries=12)
    assert report, f"{net!r}\n{report}"


@given(n=st.integers(1, 6), units=st.integers(1, 6), lead=st.lists(st.integers(1, 3), max_size=2), bias=st.booleans())
def test_linear_works_on_the_last_axis_of_any_shape(n, units, lead, bias):
    (y, dx, grads), (p, x, dy), _ = run(pc.Linear(units, bias=bias), (*lead, n))
    np.testing.assert_allclose(y, np.einsum("...i,ij->...j", x, p["W"]) + (p["b"] if bias else 0), atol=1e-12)
    np.testing.assert_allclose(grads["W"], np.einsum("bi,bj->ij", x.reshape(-1, n), dy.reshape(-1, units)), atol=1e-12)
    np.testing.assert_allclose(dx, np.einsum("...j,ij->...i", dy, p["W"]), atol=1e-12)
    assert bias == ("b" in grads)


# -------------------------------------------------------------------- sign and step
@pytest.mark.parametrize(("layer", "expected"), [(pc.Sign(), [-1, -1, 1, 1]), (pc.Step(), [0, 0, 1, 1])])
def test_thresholds_run_forward_and_refuse_their_gradient(layer, expected):
    ops, z = NumpyOps(), np.array([[-2.0, -0.1, 0.0, 3.0]])
    y, cache = ops.forward(layer, {}, z, "net")
    assert y.tolist() == [expected]
    with pytest.raises(ValueError, match="surrogate='clip'"):
        ops.backward(layer, {}, cache, z, "net")


@pytest.mark.parametrize("layer", [pc.Sign, pc.Step])
@pytest.mark.parametrize(
    ("surrogate", "slopes"), [("identity", [1, 1, 1]), ("clip", [0, 1, 0]), ("logistic", [0.1049935854, 0.25, 0.0451766597])]
)
def test_a_surrogate_takes_the_place_of_the_derivative(layer, surrogate, slopes):
    ops, z = NumpyOps(), np.array([[-2.0, 0.0, 3.0]])
    _, cache = ops.forward(layer(surrogate), {}, z, "net")
    dx, _ = ops.backward(layer(surrogate), {}, cache, np.ones((1, 3)), "net")
    np.testing.assert_allclose(dx, [slopes], atol=1e-9)


def test_layers_after_a_threshold_learn_without_a_surrogate(rng):
    model = pc.Network(pc.Sign() >> pc.Linear(1), (3,))
    _, grads = model.gradients(rng.normal(size=(5, 3)), rng.normal(size=5))
    assert set(grads) == {"1.W", "1.b"}


# -------------------------------------------------------------------- values from outside
def test_activations_have_the_values_and_slopes_of_the_table():
    """N17: logistic y(1−y), tanh 1−y², ReLU, linear, and what SciPy says of the others."""
    from scipy.special import expit, log_expit
    from scipy.stats import norm

    z = np.linspace(-4, 4, 9)[None]
    expected = {
        pc.Sigmoid(): (expit(z), expit(z) * (1 - expit(z))),
        pc.Tanh(): (np.tanh(z), 1 / np.cosh(z) ** 2),
        pc.ReLU(): (np.where(z > 0, z, 0), np.where(z > 0, 1, 0)),
        pc.Identity(): (z, np.ones_like(z)),
        pc.LeakyReLU(0.1): (np.where(z > 0, z, 0.1 * z), np.where(z > 0, 1, 0.1)),
        pc.ELU(2.0): (np.where(z > 0, z, 2 * (np.exp(z) - 1)), np.where(z > 0, 1, 2 * np.exp(z))),
        pc.GELU(): (z * norm.cdf(z), norm.cdf(z) + z * norm.pdf(z)),
        pc.SiLU(): (z * expit(z), expit(z) * (1 + z * (1 - expit(z)))),
        pc.Softplus(): (-log_expit(-z), expit(z)),
    }
    for layer, (value, slope) in expected.items():
        ops = NumpyOps()
        y, cache = ops.forward(layer, {}, z, "net")
        dx, _ = ops.backward(layer, {}, cache, np.ones_like(z), "net")
        np.testing.assert_allclose(y, value, atol=1e-12, err_msg=repr(layer))
        np.testing.assert_allclose(dx, slope, atol=1e-12, err_msg=repr(layer))


def test_softmax_gives_the_notes_numbers_and_stays_finite():
    """N23: [10, 20, −30] gives [4.54e−5, 0.99995, 1.93e−22]; ±1e4 too."""
    for dtype in (np.float32, np.float64):
        y, _ = NumpyOps().forward(pc.Softmax(), {}, np.array([[10, 20, -30]], dtype), "net")
        np.testing.assert_allclose(y, [[4.5398e-5, 0.9999546, 1.9287e-22]], rtol=1e-4)
        for layer in (pc.Softmax(), pc.LogSoftmax(), pc.Sigmoid(), pc.Softplus(), pc.SiLU(), pc.GELU(), pc.ELU()):
            z = np.array([[1e4, -1e4, 0.0]], dtype)
            y, cache = NumpyOps().forward(layer, {}, z, "net")
            dx, _ = NumpyOps().backward(layer, {}, cache, np.ones_like(z), "net")
            assert np.isfinite(y).all(), layer
            assert np.isfinite(dx).all(), layer


def test_log_softmax_slopes_are_those_of_the_note(rng):
    """N24: ∂log p_j/∂b_r = δ_rj − p_r."""
    z = rng.normal(size=(1, 5))
    y, cache = NumpyOps().forward(pc.LogSoftmax(), {}, z, "net")
    jacobian = [NumpyOps().backward(pc.LogSoftmax(), {}, cache, np.eye(5)[[j]], "net")[0][0] for j in range(5)]
    np.testing.assert_allclose(jacobian, np.eye(5) - np.exp(y), atol=1e-12)


def test_dropout_keeps_the_mean_and_is_off_when_not_training(rng):
    x = np.ones((200, 500))
    y, _ = NumpyOps(training=True, seed=np.uint32(1), step=np.int32(1)).forward(pc.Dropout(0.3), {}, x, "net")
    assert set(np.unique(y)) == {0.0, 1 / 0.7}
    assert abs((y == 0).mean() - 0.3) < 0.01
    y, _ = NumpyOps().forward(pc.Dropout(0.3), {}, x, "net")
    np.testing.assert_array_equal(y, x)


def test_uniform_numbers_are_uniform_and_differ_by_seed_step_and_place():
    draws = []
    for seed, step, place in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]:
        ops = NumpyOps(seed=np.uint32(seed), step=np.int32(step))
        ops.path = ["net", place]
        draws.append(ops.uniform((40000,)))
    for u in draws:
        counts, _ = np.histogram(u, 20, (0, 1))
        assert ((counts - 2000) ** 2 / 2000).sum() < 45  # chi-square with 19 degrees: 45 is beyond 99.9 %
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.02
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 0.02


# -------------------------------------------------------------------- the algebra
def test_operators_flatten_and_print_as_the_code_that_makes_them():
    a, b, c = pc.Linear(2), pc.Tanh(), pc.Linear(3, bias=False)
    assert (a >> b) >> c == a >> (b >> c) == pc.Chain(a, b, c)
    assert repr(a >> b >> c) == "Linear(2) >> Tanh() >> Linear(3, bias=False)"
    assert repr((a | (a >> b)) >> c) == "(Linear(2) | (Linear(2) >> Tanh())) >> Linear(3, bias=False)"
    assert repr((a >> b) * a + a) == "((Linear(2) >> Tanh()) * Linear(2)) + Linear(2)"
    assert repr((a >> b).named("gate") >> c) == "(Linear(2) >> Tanh()).named('gate') >> Linear(3, bias=False)"


def test_a_named_part_is_kept_whole_and_names_its_parameters():
    net = (pc.Linear(2) >> pc.Tanh()).named("hidden") >> pc.Linear(1).named("out")
    assert set(pc.Network(net, (3,)).parameters) == {"hidden.0.W", "hidden.0.b", "out.W", "out.b"}
    assert eval(repr(net), vars(pc)) == net


def test_the_count_of_parameters_is_that_of_the_notes():
    """N02: Σ nᵢ₋₁ nᵢ + nᵢ; N03 has no biases."""
    assert (pc.Linear(5) >> pc.ReLU() >> pc.Linear(3)).count((4,)) == 4 * 5 + 5 + 5 * 3 + 3
    digits = pc.Linear(512, bias=False) >> pc.ReLU() >> pc.Linear(256, bias=False) >> pc.ReLU() >> pc.Linear(10, bias=False)
    assert digits.count((784,)) == 784 * 512 + 512 * 256 + 256 * 10
    assert pc.Linear(4, mask=np.ones((3, 4))).count((3,)) == 16


def test_summary_shows_every_layer():
    text = ((pc.Linear(8) | pc.Tanh()) >> pc.Linear(2)).named("net").summary((3,))
    for word in ("Linear(8)", "Tanh()", "(11,)", "Linear(2)", "24", "56 parameters"):
        assert word in text


def test_a_layer_without_backward_gets_one_from_jax(rng):
    class Cube(pc.Layer):
        scale: float = 2.0

        def build(self, rng, shape):
            return {"k": np.ones(shape)}, shape

        def forward(self, ops, p, x):
            return self.scale * p["k"] * x**3, None

    assert pc.check_layer(pc.Linear(3) >> Cube(), (2,))
    X, y = rng.normal(size=(40, 2)), rng.normal(size=(40, 3))
    model = pc.Network(pc.Linear(3) >> Cube(), (2,), "squared_error")
    history = model.fit(X, y, epochs=5)
    assert history.engine == "jax"
    assert history["loss"][-1] < history["loss"][0]
    with pytest.raises(NotImplementedError, match="engine='jax'"):
        model.fit(X, y, engine="numpy")


def test_a_check_compiles_a_layer_that_jax_derives_instead_of_running_it_for_every_difference():
    runs = []

    class Cube(pc.Layer):
        def forward(self, ops, p, x):
            runs.append(x)
            return x**3, None

    report = pc.check_layer(Cube(), (5,))
    assert report.rows[0].checked == 15  # four differences each, and the middle
    assert len(runs) <= 4


class Scale(pc.Layer):
    """y = x ⊙ s; each of the classes below makes one mistake."""

    def build(self, rng, shape):
        return {"s": rng.normal(size=shape)}, shape

    def forward(self, ops, p, x):
        return x * p["s"], x

    def backward(self, ops, p, x, dy, wrt_input=True):
        return dy * p["s"], {"s": (dy * x).sum(0)}


def test_a_check_finds_a_parameter_that_backward_forgets():
    class Forgets(Scale):
        def backward(self, ops, p, x, dy, wrt_input=True):
            return dy * p["s"], {}

    assert pc.check_layer(Scale(), 4)
    with pytest.raises(TypeError, match=r"layer must be a layer .* Write Scale\(\.\.\.\)"):
        pc.check_layer(Scale, 4)
    report = pc.check_layer(Forgets(), (4,))
    assert not report
    assert report.worst.name == "s"
    assert pc.check_layer(pc.Frozen(Forgets()), (4,))


def test_a_check_refuses_a_layer_that_writes_into_what_it_is_given():
    class Writes(Scale):
        def forward(self, ops, p, x):
            x *= p["s"]
            return x, x

    with pytest.raises(ValueError, match=r"read-only") as error:
        pc.check_layer(Writes(), (4,))
    assert error.value.__notes__ == ["in net: Writes()"]


def test_a_check_says_which_gradient_has_the_wrong_shape_or_name():
    class EveryRow(Scale):
        def backward(self, ops, p, x, dy, wrt_input=True):
            return dy * p["s"], {"s": dy * x}

    class OtherName(Scale):
        def backward(self, ops, p, x, dy, wrt_input=True):
            return dy * p["s"], {"S": (dy * x).sum(0)}

    with pytest.raises(ValueError, match=r"gradient of s must have .* \(4,\), got \(3, 4\)\. Sum it over the rows"):
        pc.check_layer(EveryRow(), (4,))
    with pytest.raises(ValueError, match="gradient for S, but build made s"):
        pc.check_layer(OtherName(), (4,))


def test_a_layer_for_numpy_alone_that_looks_at_values_can_be_checked():
    class Checked(pc.Layer):
        def forward(self, ops, p, x):
            if not (abs(x) < 1e3).all():
                raise ValueError("too large")
            return x**2, x

        def backward(self, ops, p, x, dy, wrt_input=True):
            return 2 * x * dy, {}

    report = pc.check_layer(Checked(), (4,))
    assert report
    assert report.rows[0].autodiff is not None
