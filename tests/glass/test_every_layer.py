"""The glass box works for every exported layer, whatever it is."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import pellucid as pc

from ..table import LAYERS

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
