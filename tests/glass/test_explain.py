"""Promises of `model.explain` and `net.formula`."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import pellucid as pc
from pellucid.glass.notation import Matrix, latex, mathml, number, text

from ..table import LAYERS
from .arithmetic import evaluate

RNG = np.random.default_rng(0)


def worked_example():
    """The network of N33: x₁ = 60, w¹₁₁ = 0.1, w²₁₁ = 12, biases such that a = 0.37 and ŷ = 0.25."""
    model = pc.Network(pc.Linear(1) >> pc.Sigmoid() >> pc.Linear(1) >> pc.Sigmoid(), 3, dtype="float64")
    x, W = np.array([[60.0, 5.0, 2.0]]), np.array([[0.1], [0.2], [-0.3]])
    logit = lambda p: np.log(p / (1 - p))  # noqa: E731
    model.set_parameters({"0.W": W, "0.b": logit(0.37) - (x @ W)[0], "2.W": [[12.0]], "2.b": [logit(0.25) - 12 * 0.37]})
    return model, x, [1]


def test_worked_example_of_the_notes_has_the_notes_numbers():
    """N33: −4, −0.75, −0.2775, 12.0028, −125.874, 1.36, and the exercise −2.0979 x₃."""
    model, x, y = worked_example()
    page = model.explain(x, y, optimizer=pc.SGD(0.01)).text()
    for value in ("−4", "−0.75", "−0.2775", "12.0028", "−125.874", "1.3587"):
        assert re.search(rf"(?<![\d.]){value}0*(?!\d)", page), value
    np.testing.assert_allclose(model.trace(x, y)["0.dW"][2, 0], -2.0979 * x[0, 2], rtol=1e-12)
    assert "all gradients agree" in page


def test_page_uses_the_notation_of_the_notes():
    model = pc.Network(pc.Linear(3) >> pc.Sigmoid() >> pc.Linear(2), 4, "softmax_cross_entropy")
    page = model.explain(RNG.normal(size=(2, 4)), [0, 1]).text()
    for formula in (
        "z¹ = W¹ a⁰ + b¹", "a¹ = σ(z¹)", "z² = W² a¹ + b²", "y = softmax(z²)", "L_i = −Σ d log y", "δ² = (y − d) / n",
        "∇W² = δ² (a¹)ᵀ", "∇b² = Σ δ²", "∂L/∂a¹ = (W²)ᵀ δ²", "δ¹ = ∂L/∂a¹ ⊙ a¹ ⊙ (1 − a¹)", "∇W¹ = δ¹ (a⁰)ᵀ", "W¹ ← W¹ − η ∇W¹",
    ):  # fmt: skip
        assert formula in page, formula


@pytest.mark.parametrize(
    "net",
    [
        pc.Linear(3) >> pc.Sigmoid() >> pc.Linear(2),
        pc.Linear(3) >> pc.Tanh() >> pc.Linear(4, bias=False) >> pc.ReLU() >> pc.Linear(2),
        (pc.Linear(3) + (pc.Linear(3) >> pc.ReLU())) >> pc.Linear(2) >> pc.Softmax(),
        (pc.Linear(3) >> pc.Sigmoid()) * pc.Linear(3) >> pc.Linear(2),
        pc.Linear(3) >> (pc.Linear(2) | (pc.Linear(2) >> pc.Tanh())) >> pc.Linear(2),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [1, 3])
def test_the_numbers_of_every_line_give_its_result(net, rows):
    loss = "cross_entropy" if isinstance(net.children[-1], pc.Softmax) else "softmax_cross_entropy"
    model = pc.Network(net, 4, loss, dtype="float64", seed=2)
    page = model.explain(RNG.normal(size=(rows, 4)), np.arange(rows) % 2, check=False)
    checked = 0
    for section in page.sections:
        for line in section.lines:
            if line.numbers and not any(isinstance(p, str) and "log" in p for p in line.numbers):
                near = {"rtol": 1e-9, "atol": 1e-12, "err_msg": line.formula}
                np.testing.assert_allclose(evaluate(line.numbers), line.result.values, **near)
                checked += 1
    assert checked >= 14


def test_gradients_on_the_page_are_those_of_the_model():
    model = pc.Network(pc.Linear(3) >> pc.Tanh() >> pc.Linear(1), 4, dtype="float64")
    X, y = RNG.normal(size=(5, 4)), RNG.normal(size=5)
    page = model.explain(X, y, check=False)
    shown = {line.formula.split(" ")[0]: line.result.values for s in page.sections for line in s.lines if line.result is not None}
    _, grads = model.gradients(X, y)
    np.testing.assert_array_equal(shown["∇W¹"], grads["0.W"].T)
    np.testing.assert_array_equal(shown["∇b²"].ravel(), grads["2.b"])
    model.fit(X, y, epochs=1, optimizer=pc.SGD(0.1), engine="numpy", batch_size=5, progress=False)
    update = next(s for s in page.sections if s.title == "Update")
    np.testing.assert_allclose(update.lines[0].result.values, model.parameters["0.W"].T, rtol=1e-12)


@pytest.mark.parametrize(
    "loss", [pc.SquaredError(), pc.AbsoluteError(), pc.Huber(), pc.LogCosh(), pc.SigmoidCrossEntropy(), pc.BinaryCrossEntropy()], ids=repr
)
def test_every_loss_is_explained(loss):
    net = pc.Linear(3) >> pc.Tanh() >> pc.Linear(1)
    net = net >> pc.Sigmoid() if isinstance(loss, pc.BinaryCrossEntropy) else net
    model, X = pc.Network(net, 4, loss), RNG.normal(size=(2, 4))
    page = model.explain(X, [0, 1], check=False)
    lines = {line.formula.split(" ")[0]: line for section in page.sections for line in section.lines}
    np.testing.assert_allclose(lines["L"].result.values, model.gradients(X, [0, 1])[0], rtol=1e-6)
    assert lines["δ²"].result.values.shape == (1, 2)


def test_probabilities_do_not_take_the_name_of_the_output():
    page = pc.Network(pc.Linear(2) >> pc.Tanh(), 4, "softmax_cross_entropy").explain(RNG.normal(size=(2, 4)), [0, 1], check=False).text()
    for formula in ("y = tanh(z¹)", "p = softmax(y)", "L_i = −Σ d log p", "∂L/∂y = (p − d) / n"):
        assert formula in page, formula


def test_html_is_whole_and_needs_no_network():
    page = pc.Network(pc.Linear(3) >> pc.Sigmoid() >> pc.Linear(2), 4, "softmax_cross_entropy").explain(RNG.normal(size=(1, 4)), [1])
    source = page.html()
    assert "<script" not in source
    assert not re.search(r"(src|href|url)\s*[=(]", source)
    assert "http" not in source
    for math in re.findall("<math>.*?</math>", source):
        ElementTree.fromstring(math)
    assert source.count("<math>") > 30
    assert "✓ ok" in source


def test_latex_has_balanced_braces_and_only_ascii_mathematics():
    page = pc.Network(pc.Linear(3) >> pc.SiLU() >> pc.Linear(1) >> pc.Sigmoid(), 4).explain(RNG.normal(size=(2, 4)), [1, 0])
    source = page.latex()
    assert source.count("{") == source.count("}")
    assert source.count(r"\begin{align*}") == source.count(r"\end{align*}") >= 4
    assert source.isascii(), sorted({c for c in source if not c.isascii()})
    assert r"z^{1} &= W^{1} a^{0} + b^{1}" in source


def test_large_networks_are_shown_by_shape_norm_and_chosen_entries():
    model = pc.Network(pc.Linear(50) >> pc.ReLU() >> pc.Linear(10), 64, "softmax_cross_entropy", dtype="float64")
    X, y = RNG.normal(size=(40, 64)), RNG.integers(0, 10, 40)
    page = model.explain(X, y, show=["0.W[3, 7]"], check=False).text()
    assert "50 × 64" in page
    assert number(float(np.linalg.norm(model.gradients(X, y)[1]["0.W"]))) in page
    assert f"∇W¹[3, 7] = {number(model.gradients(X, y)[1]['0.W'][3, 7])}" in page
    assert len(page.splitlines()) < 120
    with pytest.raises(KeyError, match="Did you mean"):
        model.explain(X, y, show="0.w[1]", check=False)
    with pytest.raises(IndexError, match=r"has shape \(64, 50\)"):
        model.explain(X, y, show="0.W[99, 0]", check=False)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
@pytest.mark.parametrize("name", ["Conv2d", "RBF", "GRU", "BatchNorm", "MultiHeadAttention", "Product"])
def test_latex_compiles(tmp_path, name):
    layer, shape = LAYERS[name][0]
    model = pc.Network(layer, shape, pc.SquaredError())
    page = model.explain(RNG.normal(size=(2, *shape)), RNG.normal(size=(2, *model.output_shape)))
    page.save(tmp_path / "page.tex")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_page_is_saved_by_suffix(tmp_path):
    page = (pc.Linear(2) >> pc.Tanh()).formula()
    assert page.save(tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert page.save(tmp_path / "a.tex").read_text().startswith(r"\documentclass")
    assert page.save(tmp_path / "a.txt").read_text() == str(page)


# -------------------------------------------------------------------- symbolic
def formulas(net):
    return [line.formula for section in net.formula().sections for line in section.lines]


def test_formula_of_a_skip_connection():
    lines = formulas((pc.Linear(8) | (pc.Linear(8) >> pc.Tanh())) >> pc.Linear(2))
    assert lines[:5] == ["z¹ = W¹ a⁰ + b¹", "z² = W² a⁰ + b²", "a² = tanh(z²)", "u² = [z¹ ; a²]", "z³ = W³ u² + b³"]
    assert "∂L/∂a⁰ = (∂L/∂a⁰)₁ + (∂L/∂a⁰)₂" in lines


def test_formula_of_a_gate_sends_each_side_the_flow_times_the_other():
    lines = formulas((pc.Linear(8) >> pc.Sigmoid()) * pc.Linear(8))
    assert "y = a¹ ⊙ z²" in lines
    assert "∂L/∂a¹ = ∂L/∂y ⊙ z²" in lines
    assert "δ² = ∂L/∂y ⊙ a¹" in lines


def test_a_name_becomes_the_mark_of_its_symbols():
    assert "z^gate = W^gate a⁰ + b^gate" in formulas(pc.Linear(3).named("gate") >> pc.Sigmoid() >> pc.Linear(1))


class Kernel(pc.Layer):
    """A layer the writer has never seen.

    Forward   y = exp(−‖x − C‖² / 2)                     (N11)
    Backward  dC = Σ dy y (x − C),   dx = −dy y (x − C)
    """

    units: int

    def build(self, rng, shape):
        return {"C": rng.normal(size=(self.units, *shape))}, (self.units,)

    def forward(self, ops, p, x):
        e = x[:, None, :] - p["C"]
        y = ops.xp.exp(-0.5 * (e * e).sum(-1))
        return y, (e, y)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        e, y = cache
        flow = (dy * y)[..., None] * e
        return -flow.sum(1), {"C": flow.sum(0)}


def test_a_layer_never_seen_before_is_explained_from_its_docstring():
    net = Kernel(3) >> pc.Linear(2)
    lines = formulas(net)
    assert lines[0] == "z¹ = exp(−‖a⁰ − C¹‖² / 2)"
    assert "∇C¹ = Σ δ¹ z¹ (a⁰ − C¹)" in lines
    page = pc.Network(net, 4, "softmax_cross_entropy", dtype="float64").explain(RNG.normal(size=(1, 4)), [1])
    assert "all gradients agree" in page.text()
    assert "∇C¹ = Σ δ¹ z¹ (a⁰ − C¹) = " in page.text().replace("\n", " ").replace("  ", " ") or "∇C¹" in page.text()


def test_every_layer_of_the_library_has_formulas():
    for name in pc.layers.__all__:
        cls = getattr(pc, name)
        if isinstance(cls, type) and issubclass(cls, pc.Layer) and cls is not pc.Layer and "formulas" not in vars(cls):
            forward, _ = pc.Layer.formulas(object.__new__(cls))
            assert any("=" in e for e in forward), name


# -------------------------------------------------------------------- notation
def test_numbers_are_short():
    assert [number(v) for v in (0, 1, -0.75, 12.00277, 1e-7, -123456, np.inf)] == ["0", "1", "−0.75", "12.0028", "1e−7", "−1.23e5", "∞"]


def test_matrices_stand_side_by_side():
    lines = text(["z = ", Matrix(np.array([[1.0, 2.0], [3.0, 4.0]])), " + ", Matrix(np.array([[5.0]]))])
    assert lines == ["z = ⎡ 1  2 ⎤ + 5", "    ⎣ 3  4 ⎦"]


def test_scripts_are_read_in_all_notations():
    assert latex(["δ¹ = (W²)ᵀ δ² ⊙ σ′(z¹)"]) == r"\delta ^{1} = (W^{2})^{\top} \delta ^{2} \odot  \sigma '(z^{1})"
    root = ElementTree.fromstring(mathml(["h_t = tanh(W_xh x_t)"]))
    assert [e.tag for e in root] == ["msub", "mo", "mi", "mspace", "mo", "msub", "msub", "mo"]
