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
