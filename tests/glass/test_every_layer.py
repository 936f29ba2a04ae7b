"""The glass box works for every exported layer, whatever it is."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import pellucid as pc
from pellucid.glass.notation import Matrix

from ..table import LAYERS
from .arithmetic import evaluate

CASES = [pytest.param(layer, shape, id=f"{layer!r} on {shape}") for cases in LAYERS.values() for layer, shape in cases]


def pass_of(layer, shape, rows=2):
    rng = np.random.default_rng(0)
    model = pc.Network(layer, shape, pc.SquaredError(), dtype="float64")
    return model, rng.normal(size=(rows, *shape)), rng.normal(size=(rows, *model.output_shape))


@pytest.mark.parametrize(("layer", "shape"), CASES)
def test_every_layer_can_be_traced_and_explained(layer, shape):
    model, X, y = pass_of(layer, shape)
    trace = model.trace(X, y)
    own = model.gradients(X, y)[1]
    assert set(trace.gradients) == set(own)
    if "Penalty" not in repr(layer):  # a charge for weights belongs to no row
        for name, rows in trace.per_sample().items():
            np.testing.assert_allclose(rows.sum(0), own[name], rtol=1e-9, atol=1e-12)
    page = model.explain(X, y, check=False)
    assert "not finite" not in page.text()
    assert page.latex().count("{") == page.latex().count("}")
    assert page.latex().isascii()  # what pdflatex takes without further packages
    for math in re.findall("<math>.*?</math>", page.html()):
        ElementTree.fromstring(math)
    update = next(section for section in page.sections if section.title == "Update").lines
    assert {line.where for line in update} == set(own)
    if "RBF" not in repr(layer):  # the first fit moves its centres to the data
        model.fit(X, y, epochs=1, batch_size=2, order="given", optimizer=pc.SGD(0.1), engine="numpy", progress=False)
    for line in update if "RBF" not in repr(layer) else ():  # the page's update is what fit does
        new = model.parameters[line.where]
        expected = new.T if line.result.turned else new.reshape(line.result.values.shape)
        np.testing.assert_allclose(line.result.values, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(("layer", "shape"), CASES)
def test_every_layer_has_symbolic_formulas(layer, shape):
    page = layer.formula()
    assert any("=" in line.formula for line in page.sections[0].lines)
    assert layer.draw().startswith("x") or "x ─" in layer.draw()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("layer", "shape"), CASES)
def test_every_equation_of_every_layer_is_worked_out_in_numbers(layer, shape, rows):
    """Formula, formula with numbers, result: and the numbers, evaluated here on their own, give the result."""
    before = pc.Linear(shape[-1], name="before")  # something that learns below it, so that dx is on the page
    model, X, y = pass_of(before >> layer if "Embedding" not in repr(layer) else layer, shape, rows)
    page = model.explain(X, y, check=False)
    for title in ("Forward", "Backward"):
        lines = next(section for section in page.sections if section.title == title).lines
        for line in lines:
            if line.numbers:
                near = {"err_msg": line.formula, "rtol": 1e-9, "atol": 1e-9}
                np.testing.assert_allclose(np.atleast_2d(evaluate(line.numbers)), line.result.values, **near)
                digits = np.atleast_2d(evaluate([Matrix(line.result.values)] if line.result.cells is None else line.numbers, shown=True))
                scale = max(1.0, float(np.abs(line.result.values[np.isfinite(line.result.values)]).max()))
                np.testing.assert_allclose(digits, line.result.values, rtol=0, atol=0.02 * scale, err_msg=line.formula)
        said = [line for line in lines if " = " in line.formula and not line.numbers and "in all" not in line.formula]
        for line in said:  # a general formula: the next lines have it with numbers
            left = re.split(r"[\[ ]|_t\b|_k\b", line.formula)[0]
            worked = [other for other in lines if other.numbers and re.match(re.escape(left) + r"(\[|₀|₁|₂|₃|₄|₅| )", other.formula)]
            copied = re.fullmatch(r"\S+ = \S+", line.formula)  # a flow handed on as it is
            assert worked or copied, line.formula
        assert any(line.numbers for line in lines)


def worked(page):
    """Every line with numbers, after checking that they give its result."""
    lines = [line for s in page.sections if s.title in ("Forward", "Backward") for line in s.lines if line.numbers]
    for line in lines:
        near = {"rtol": 1e-9, "atol": 1e-9, "err_msg": line.formula}
        np.testing.assert_allclose(np.atleast_2d(evaluate(line.numbers)), line.result.values, **near)
    return {line.formula: line for line in lines}


@pytest.mark.parametrize("surrogate", [None, "identity", "clip", "logistic"])
@pytest.mark.parametrize("jump", [pc.Sign, pc.Step])
def test_a_jump_is_shown_with_what_stands_for_its_derivative(jump, surrogate):
    model, X, y = pass_of(pc.Linear(3) >> jump(surrogate) >> pc.Linear(2), (4,))
    page = model.explain(X, y, check=False)
    line = next(line for formula, line in worked(page).items() if formula.startswith("δ¹"))
    plain = "flat on both sides: its derivative is 0, nothing before it learns"
    assert (plain in page.text()) == (plain in page.html()) == (not line.result.values.any()) == (surrogate is None)


def test_large_arrays_are_worked_out_at_one_entry():
    model, X, y = pass_of(pc.Linear(60) >> pc.Tanh() >> pc.BatchNorm() >> pc.Linear(20) >> pc.Softmax(), (70,), rows=30)
    lines = worked(model.explain(X, y, check=False))
    at = np.unravel_index(np.abs(model.trace(X, y)["0.dW"].T).argmax(), (60, 70))
    assert f"∇W¹[{at[0]}, {at[1]}]" in lines
    assert sum("[" in formula for formula in lines) >= 15
    assert "more: " in str(lines[f"∇W¹[{at[0]}, {at[1]}]"].numbers)


def test_long_sequences_are_shown_by_their_first_and_last_steps():
    model, X, y = pass_of(pc.RNN(2) >> pc.Linear(1), (30, 2))
    lines = worked(model.explain(X, y, check=False))
    ahead, back = ([f.split(" ")[0] for f in lines if re.match(f"{sign}¹[₀-₉]", f)] for sign in "hδ")
    assert (ahead, back) == (["h¹₁", "h¹₂", "h¹₃₀"], ["δ¹₃₀", "δ¹₂₉", "δ¹₁"])
    assert "(25 more: " in str(lines["∇b¹ = Σ_t Σ δ¹_t"].numbers)


def test_numbers_that_do_not_give_the_result_are_not_shown():
    """A formula is computed, not trusted: one that does not say what its layer does stands alone."""
    model, X, y = pass_of(Liar() >> pc.Linear(1), (3,))
    page = model.explain(X, y, check=False)
    assert not any(line.numbers for line in page.sections[1].lines if "Liar" in line.where)
    shown = next(line for line in page.sections[1].lines if "Liar" in line.where)
    np.testing.assert_array_equal(shown.result.values, 2 * X.T)


class Liar(pc.Layer):
    """Doubles.   y = 3 x,   dx = 2 dy."""

    def forward(self, ops, p, x):
        return 2 * x, None

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return 2 * dy, {}


class Cubic(pc.Activation):
    """A user's activation: it states no formula, and pages still compute it."""

    def g(self, xp, z):
        return z**3

    def derivative(self, xp, z, y):
        return 3 * z**2


def test_a_users_activation_is_worked_out():
    model, X, y = pass_of(pc.Linear(2) >> Cubic() >> pc.Linear(1), (3,))
    lines = {line.formula: line for s in model.explain(X, y, check=False).sections for line in s.lines if line.numbers}
    z = lines["z¹ = W¹ a⁰ + b¹"].result.values
    np.testing.assert_allclose(lines["a¹ = g(z¹)"].result.values, z**3)
    assert lines["δ¹ = ∂L/∂a¹ ⊙ g′(z¹)"].numbers


def test_padding_is_never_shown_with_wrong_numbers():
    model = pc.Network(pc.LSTM(2) >> pc.Linear(1), (None, 2), pc.SquaredError(), dtype="float64")
    X, y = np.random.default_rng(0).normal(size=(2, 4, 2)), np.ones((2, 1))
    lines = worked(model.explain(X, y, lengths=[4, 2], check=False))
    steps = [f[:3] for f in lines if re.match("h¹[₀-₉]", f)]
    assert steps == ["h¹₁", "h¹₂"]  # then one of the two sequences has ended, and its state is kept
    for name in ("∇W_xh¹", "∇W_hh¹", "∇b¹"):
        assert any(formula.startswith(name) for formula in lines), name


def test_padding_has_no_share_in_what_batch_norm_is_shown_to_compute():
    model = pc.Network(pc.BatchNorm() >> pc.Linear(1), (3, 2), pc.SquaredError(), dtype="float64")
    X, y = np.random.default_rng(0).normal(size=(2, 3, 2)), np.ones((2, 3, 1))
    lines = worked(model.explain(X, y, lengths=[2, 3], check=False))
    mean = np.mean([*X[0, :2], *X[1]], axis=0)
    np.testing.assert_allclose(lines["m¹ = Σ ω ⊙ a⁰"].result.values[:, 0], mean)
    assert "z¹ = scale¹ ⊙ x̂¹ + shift¹" in lines


def test_a_row_of_weight_zero_is_shown_as_batch_norm_takes_it():
    model = pc.Network(pc.BatchNorm() >> pc.Linear(1), (2,), pc.SquaredError(), dtype="float64")
    X, y = np.random.default_rng(0).normal(size=(3, 2)), np.ones((3, 1))
    page = model.explain(X, y, sample_weight=[1.0, 0.0, 2.0], check=False)
    assert "z¹ = scale¹ ⊙ x̂¹ + shift¹" in worked(page)
    shown = next(line for s in page.sections for line in s.lines if line.formula.startswith("x̂¹")).result.values
    np.testing.assert_array_equal((shown == 0).all(0), [False, True, False])
    assert "x̂¹ = r¹ ⊙ (a⁰ − m¹)" in worked(model.explain(X[:1], y[:1], check=False))  # a single row is 0 by what is shown
