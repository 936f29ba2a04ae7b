"""Exercises: the blank hides the answer, and the grader names the mistake."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid as pc
from pellucid.glass import exercise

RNG = np.random.default_rng(1)
X, LABELS = RNG.normal(size=(3, 4)), np.array([0, 1, 1])
TARGETS = RNG.normal(size=(3, 2))


def network(loss="softmax_cross_entropy", units=3, activation=None):
    model = pc.Network(pc.Linear(units) >> (activation or pc.Sigmoid()) >> pc.Linear(2), 4, loss, dtype="float64", seed=1)
    model.set_parameters({"0.b": RNG.normal(size=units), "2.b": [0.3, -0.4]})
    return model


def by_hand(model, n=3, derivative=lambda z, a: a * (1 - a), twice=False):
    """A second implementation of the pass, in columns, as in the notes."""
    W1, b1, W2, b2 = (model.parameters[k] for k in ("0.W", "0.b", "2.W", "2.b"))
    softmax = lambda z: np.exp(z) / np.exp(z).sum(0)  # noqa: E731
    z1 = W1.T @ X.T + b1[:, None]
    a1 = 1 / (1 + np.exp(-z1))
    z2 = W2.T @ a1 + b2[:, None]
    y = softmax(softmax(z2)) if twice else softmax(z2)
    delta2 = (y - np.eye(2)[LABELS].T) / n
    delta1 = W2 @ delta2 * derivative(z1, a1)
    return {"z1": z1, "a1": a1, "z2": z2, "delta2": delta2, "delta1": delta1, "dW1": delta1 @ X, "dW2": delta2 @ a1.T, "db1": delta1.sum(1)}


@pytest.mark.parametrize("blank", ["z1", "a1", "z2", "delta2", "delta1", "dW1", "dW2", "db1"])
def test_the_right_answer_is_right(blank):
    model = network()
    answer = by_hand(model)[blank]
    assert exercise(model, X, LABELS, blank).grade(answer)
    assert exercise(model, X, LABELS, blank).grade(np.round(answer, 4))


def test_kinds_of_mistakes_are_told_apart():
    model = network()
    sheet = exercise(model, X, LABELS, "dW1")
    right = by_hand(model)["dW1"]
    cases = {
        "transpose is missing": right.T,
        "divide by n": 3 * right,
        "sign is wrong": -right,
        "g′(z) is missing": by_hand(model, derivative=lambda z, a: 1.0)["dW1"],
        "g(z) stands where": by_hand(model, derivative=lambda z, a: a)["dW1"],
        "taken at a": by_hand(model, derivative=lambda z, a: np.exp(-a) / (1 + np.exp(-a)) ** 2)["dW1"],
        "softmax is applied twice": by_hand(model, twice=True)["dW1"],
    }
    for words, answer in cases.items():
        grade = sheet.grade(answer)
        assert not grade
        assert words in grade.message, (words, grade.message)
    both = sheet.grade(-by_hand(model, derivative=lambda z, a: 1.0)["dW1"])
    assert "g′(z) is missing" in both.mistake
    assert "sign" in both.mistake


def test_unexplained_answers_and_shapes_are_said_to_be_so():
    model = network()
    sheet = exercise(model, X, LABELS, "dW1")
    wrong = by_hand(model)["dW1"].copy()
    wrong[0, 0] += 1
    assert "11 of 12 entries" in sheet.grade(wrong).message
    assert sheet.grade(np.ones((2, 2))).mistake == "shape"


def test_wrong_way_round_through_a_square_matrix_is_seen():
    model = pc.Network(pc.Linear(2) >> pc.Sigmoid() >> pc.Linear(2), 4, "softmax_cross_entropy", dtype="float64", seed=2)
    call = model.trace(X, LABELS)["2"]
    answer = call.params["W"].T @ call.dy.T
    assert "Wᵀδ, not Wδ" in exercise(model, X, LABELS, "da1").grade(answer).message


def test_missing_factor_two_and_base_two_logarithm_are_seen():
    model = network("squared_error")
    assert "factor 2" in exercise(model, X, TARGETS, "dW2").grade(model.gradients(X, TARGETS)[1]["2.W"].T / 2).message
    model = network()
    assert "base 2" in exercise(model, X, LABELS, "L").grade(model.gradients(X, LABELS)[0] / np.log(2)).message


def test_missing_bias_is_seen():
    model = network()
    assert "bias is left out" in exercise(model, X, LABELS, "z1").grade(model.parameters["0.W"].T @ X.T).message


def test_the_page_hides_the_answer_and_shows_a_blank():
    model = network()
    sheet = exercise(model, X, LABELS, "dW1")
    assert "?" in str(sheet)
    assert f"{by_hand(model)['dW1'][0, 0]:.4f}".replace("-", "−") not in str(sheet)
    assert "blank" in sheet.page.html()
    single = exercise(model, X[:1], LABELS[:1], "delta1")  # with one example ∇b¹ = δ¹ would give it away
    shown = by_hand(model, n=1)["delta1"][:, 0]
    assert f"{shown[0]:.4f}".replace("-", "−") not in str(single)


def test_an_unknown_blank_is_answered_with_the_known_ones():
    with pytest.raises(KeyError, match="There are: L, a1, dW1, dW2, da1, db1, db2, delta1, delta2, y, z1, z2"):
        exercise(network(), X, LABELS, "dw1")
    with pytest.raises(KeyError, match="can be left blank"):
        exercise(network(), X, LABELS, "W1")
