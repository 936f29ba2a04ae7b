"""Exercises: a page with one quantity blank, and a grader that says what kind of mistake an answer is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..engines.numpy import NumpyOps
from ..layers.activations import Activation, log_softmax
from ..layers.linear import Linear
from ..losses import SoftmaxCrossEntropy
from ..settings import did_you_mean
from .explain import sections
from .notation import LOWERED, RAISED, Matrix
from .page import Line, Page, Section
from .trace import Recorder, observe

__all__ = ["Exercise", "Grade", "exercise"]


@dataclass(frozen=True)
class Grade:
    """Whether an answer is right (its truth value), and if not, what kind of mistake it is."""

    right: bool
    mistake: str
    message: str

    def __bool__(self) -> bool:
        return self.right

    def __str__(self) -> str:
        return self.message


@dataclass
class Exercise:
    """A page with a blank: prints as the page; `grade(answer)` judges an answer in the shape the page shows."""

    page: Page
    symbol: str
    solution: np.ndarray
    rows: int
    mistakes: dict[str, np.ndarray]

    def __str__(self) -> str:
        return self.page.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.page.html()

    def grade(self, answer: Any) -> Grade:
        """Judge an answer; what was rounded to the page's decimals counts as right."""
        given = np.atleast_1d(np.asarray(answer, np.float64))
        given = given.reshape(-1, 1) if given.ndim == 1 and self.solution.shape == (len(given), 1) else np.atleast_2d(given)
        for mistake, value in self.candidates():
            if given.shape == value.shape and close(given, value):
                words = f"Right: this is {self.symbol}." if not mistake else f"Not right: {mistake}."
                return Grade(not mistake, mistake, words)
        if given.shape != self.solution.shape:
            return Grade(False, "shape", f"Not right: {self.symbol} has shape {self.solution.shape}, the answer {given.shape}.")
        entries = np.isclose(given, self.solution, rtol=2e-3, atol=6e-5)
        return Grade(
            False, "unknown", f"Not right: {int(entries.sum())} of {entries.size} entries are; no common mistake explains the others."
        )

    def candidates(self) -> Iterator[tuple[str, np.ndarray]]:
        """The solution, then what common mistakes make of it, the simplest first."""
        bases = [("", self.solution), *self.mistakes.items()]
        changes = [
            ("", lambda a: a),
            ("the sign is wrong", lambda a: -a),
            ("a transpose is missing", lambda a: a.T),
            (f"the mean over the {self.rows} examples is missing: divide by n", lambda a: self.rows * a),
            ("the factor 2 of the squared error is missing", lambda a: a / 2),
            ("the sign is wrong and a transpose is missing", lambda a: -a.T),
            ("the sign is wrong and the division by n is missing", lambda a: -self.rows * a),
            ("a transpose and the division by n are missing", lambda a: self.rows * a.T),
        ]
        for change, apply in changes:
            for mistake, value in bases:
                yield " and ".join(word for word in (mistake, change) if word), apply(value)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, rtol=0, atol=max(6e-5, 2e-3 * float(np.abs(b).max(initial=0.0)))))


def exercise(model: Any, X: Any, y: Any, blank: str = "dW1") -> Exercise:
    """A page of the pass over X, y with one quantity left blank.

    `blank` names it as one types it: ``"z1"``, ``"a1"``, ``"dW1"`` (∇W¹), ``"db2"``, ``"delta1"`` (δ¹), ``"da1"``, ``"y"``, ``"L"``.
    """
    batch = model.as_batch(X, y)
    trace = observe(model.net, model.loss, model.params, batch, model.seed)
    writer, parts = sections(trace)
    shown = writer.shown | {"L": Matrix(np.array([[trace.loss]]))}
    names = {typed(symbol): symbol for symbol in shown if symbol not in ("a⁰", "d", "L_i")}
    symbol = names.get(typed(blank)) or names.get(typed(blank).replace("dz", "delta"))
    if symbol is None or (symbol in writer.places and not symbol.startswith("∇")):
        known = [name for name, s in names.items() if s not in writer.places or s.startswith("∇")]
        raise KeyError(f"nothing called {blank!r} can be left blank.{did_you_mean(blank, known)} There are: {', '.join(sorted(known))}.")
    solution = np.asarray(shown[symbol].values, np.float64)
    hidden = [replace(part, lines=[hide(line, solution) for line in part.lines]) for part in parts]
    lead = f"Find {symbol}, an array of {' × '.join(map(str, solution.shape))}, from what is given. Columns are examples."
    rows = int(trace.values.size)
    wrong = {}
    for mistake, Ops, loss in mutants(model):
        seen, _ = sections(observe(model.net, loss, model.params, batch, model.seed, 0, Ops))
        value = seen.shown.get(symbol)
        if value is not None and value.values.shape == solution.shape and not close(value.values, solution):
            wrong[mistake] = np.asarray(value.values, np.float64)
    if symbol == "L":
        wrong["the logarithm to base 2 was used in place of the natural one"] = solution / np.log(2)
    question = Section("Question", [Line(f"{symbol} = ?")], "exercise.grade(answer) judges it and names the mistake.")
    return Exercise(Page(f"Exercise: {symbol} of {model.net!r}", lead, [*hidden, question]), symbol, solution, rows, wrong)


def typed(symbol: str) -> str:
    """A symbol as one types it: ∇W¹ is dW1, δ² is delta2, ∂L/∂a¹ is da1."""
    for sign, word in (("∂L/∂", "d"), ("∇", "d"), ("δ", "delta"), ("^", ""), ("_", "")):
        symbol = symbol.replace(sign, word)
    return re.sub(".", lambda m: (RAISED | LOWERED).get(m.group(), m.group()), symbol)


def hide(line: Line, solution: np.ndarray) -> Line:
    """The line with every matrix blank that would give the solution away."""

    def cover(part: Any) -> Any:
        ways = (part.values, part.values.T) if isinstance(part, Matrix) else ()
        same = any(a.shape == solution.shape and np.allclose(a, solution) for a in ways)
        return replace(part, blank=True) if same else part

    return replace(line, numbers=[cover(p) for p in line.numbers] if line.numbers else None, result=cover(line.result))


# -------------------------------------------------------------------- passes with a mistake in them
class NoSlope(NumpyOps):
    def backward(self, layer, p, cache, dy, key, wrt_input=True):
        return (dy, {}) if isinstance(layer, Activation) else super().backward(layer, p, cache, dy, key, wrt_input)


class ValueForSlope(NumpyOps):
    def backward(self, layer, p, cache, dy, key, wrt_input=True):
        return (dy * cache[1], {}) if isinstance(layer, Activation) else super().backward(layer, p, cache, dy, key, wrt_input)


class SlopeOfOutput(NumpyOps):
    def backward(self, layer, p, cache, dy, key, wrt_input=True):
        if not isinstance(layer, Activation):
            return super().backward(layer, p, cache, dy, key, wrt_input)
        y = cache[1]
        return dy * layer.derivative(np, y, layer.g(np, y)), {}


class NoTranspose(NumpyOps):
    def backward(self, layer, p, cache, dy, key, wrt_input=True):
        dx, grads = super().backward(layer, p, cache, dy, key, wrt_input)
        square = isinstance(layer, Linear) and p["W"].shape[0] == p["W"].shape[1]
        return (dy @ layer.weights(p) if square and dx is not None else dx), grads


class NoBias(NumpyOps):
    def forward(self, layer, p, x, key):
        p = {**p, "b": 0 * p["b"]} if isinstance(layer, Linear) and layer.bias else p
        return super().forward(layer, p, x, key)


class TwiceSoftmax(SoftmaxCrossEntropy):
    """L = −Σ d log softmax(z),   ∂L/∂z = softmax(z) − d, of what softmax has been applied to already."""

    def __call__(self, ops, z, target):
        return super().__call__(ops, ops.xp.exp(log_softmax(ops.xp, z)), target)


def mutants(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Passes that each make one common mistake: its description, the operations, the loss."""
    kinds = [
        ("wrong derivative: the factor g′(z) is missing", NoSlope),
        ("wrong derivative: g(z) stands where g′(z) belongs", ValueForSlope),
        ("wrong derivative: g′ was taken at a in place of z", SlopeOfOutput),
        ("a transpose is missing: Wᵀδ, not Wδ", NoTranspose),
        ("the bias is left out", NoBias),
    ]
    for mistake, Base in kinds:
        yield mistake, type(Base.__name__, (Recorder, Base), {}), model.loss
    if isinstance(model.loss, SoftmaxCrossEntropy):
        yield "softmax is applied twice", None, TwiceSoftmax()
