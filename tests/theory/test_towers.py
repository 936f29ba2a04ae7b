"""Sums of towers: within ε everywhere, proved and measured."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid import theory


def greatest_error(network, f, low, high, count=4000, seed=1):
    """Where the error is greatest: random points, and points searched around the worst of them."""
    rng = np.random.default_rng(seed)
    low, high = np.atleast_1d(low).astype(float), np.atleast_1d(high).astype(float)
    X = rng.uniform(low, high, (count, len(low)))
    worst = 0.0
    for spread in (0.1, 0.01, 1e-3, 1e-4, 1e-5):
        error = np.abs(network(X)[:, 0] - [f(*row) for row in X])
        worst = max(worst, error.max())
        best = X[np.argsort(error)[-20:]]
        X = np.clip(np.repeat(best, 40, axis=0) + spread * rng.normal(size=(800, len(low))), low, high)
    return worst


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.floats(0.02, 0.5), st.floats(-20, 20), st.floats(0.5, 3), st.floats(1, 6))
def test_one_input_is_within_epsilon_everywhere(epsilon, low, width, frequency):
    def f(x):
        return math.sin(frequency * x)

    network, certificate = theory.towers(f, low, low + width, epsilon, lipschitz=frequency)
    assert certificate
    assert greatest_error(network, f, low, low + width) <= certificate["bound"] <= epsilon


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.floats(0.2, 0.6), st.integers(0, 1000))
def test_two_inputs_are_within_epsilon_everywhere(epsilon, seed):
    a, b, c = np.random.default_rng(seed).uniform(-1, 1, 3)

    def f(x, y):  # kinks along a line, and a saddle
        return abs(a * x + b * y) + c * x * y

    lipschitz = math.hypot(a, b) + abs(c) * math.sqrt(2)
    network, certificate = theory.towers(f, [-1, -1], [1, 1], epsilon, lipschitz=lipschitz)
    assert certificate
    assert greatest_error(network, f, [-1, -1], [1, 1], 1500) <= certificate["bound"] <= epsilon


def test_where_four_towers_meet_the_error_stays_small():
    """Towers cut out one by one leave a hole at such a corner: four halves of ½ + ½ reach no threshold of 3/2."""
    network = theory.towers(lambda x, y: 5.0 + 0.2 * math.sin(x) * y, [0, 0], [1, 1], 0.1, lipschitz=0.4).network
    steep = network.parameters["0.W"].max()
    edges = sorted({round(float(e), 12) for e in -network.parameters["0.b"] / steep if e > 0})
    corners = np.array(list(itertools.product(edges, repeat=2)))
    near = np.concatenate([corners + shift / steep for shift in np.random.default_rng(0).normal(size=(50, 2))])
    target = 5.0 + 0.2 * np.sin(near[:, 0]) * near[:, 1]
    assert np.abs(network(near)[:, 0] - target).max() <= 0.1
    alone = [theory.tower([i, j], [i + 0.5, j + 0.5]).network for i in (0, 0.5) for j in (0, 0.5)]
    assert sum(one([[0.5, 0.5]])[0, 0] for one in alone) < 0.01


def test_three_inputs():
    def f(x, y, z):
        return max(x, y * z)

    network, certificate = theory.towers(f, [-1, -1, -1], [1, 1, 1], 0.6, lipschitz=math.sqrt(2))
    assert certificate
    assert greatest_error(network, f, [-1] * 3, [1] * 3, 1000) <= certificate["bound"] <= 0.6


def test_a_modulus_of_continuity_will_do_where_no_lipschitz_constant_exists():
    network, certificate = theory.towers(math.sqrt, 0, 1, 0.05, modulus=math.sqrt)
    assert certificate
    assert greatest_error(network, math.sqrt, 0, 1) <= 0.05


def test_a_constant_needs_one_tower():
    certificate = theory.towers("2", 0, 1, 0.1).certificate
    assert certificate
    assert certificate["units"] == 1


def test_units_grow_like_one_over_epsilon():
    units = [theory.towers("x", 0, 1, e).certificate["units"] for e in (0.1, 0.05, 0.025, 0.0125)]
    assert all(1.7 < b / a < 2.4 for a, b in itertools.pairwise(units))
    assert units[0] >= 5  # cells of height 2ε at most


def test_one_tower_is_two_sigmoids_and_a_step_lies_at_minus_b_over_w():
    network, certificate = theory.tower(1, 3, steepness=50)
    assert certificate
    assert np.allclose(-network.parameters["0.b"] / network.parameters["0.W"][0], [1, 3])
    assert math.isclose(network([[1.0]])[0, 0], 0.5, abs_tol=1e-9)
    step = 1e-6
    slope = (network([[1 + step]]) - network([[1 - step]]))[0, 0] / (2 * step)
    assert math.isclose(slope, 50 / 4, rel_tol=1e-3)


def test_four_sigmoids_make_a_cross_of_heights_0_1_2():
    network, certificate = theory.tower([0, 0], [1, 1])
    assert certificate
    p = network.parameters
    points = np.array([[-1, -1], [0.5, -1], [-1, 0.5], [0.5, 0.5], [2, 0.5]])
    cross = 1 / (1 + np.exp(-(points @ p["0.W"] + p["0.b"]))) @ [1, -1, 1, -1]
    assert np.allclose(cross, [0, 1, 1, 2, 1], atol=1e-6)
    assert np.allclose(network(points)[:, 0], [0, 0, 0, 1, 0], atol=1e-6)


def test_the_cost_is_exponential_in_n():
    table = theory.lipschitz_cost([0.5], most=3)
    units = table["units"]
    assert units[2] / units[1] > 4
    assert units[1] / units[0] > 4
    assert [theory.lipschitz_bits(n, 0.1) for n in (1, 2, 3)] == [9, 81, 729]
    assert all(row["measured error"] <= row["proved error"] <= row["epsilon"] for row in table)
    assert all(32 * row["units"] >= row["bits, at least"] for row in table)


@pytest.mark.parametrize(
    ("text", "f", "slope"),
    [
        ("sin(3*x)", lambda x: math.sin(3 * x), 3),
        ("x^2 - 2*x", lambda x: x * x - 2 * x, 4),
        ("abs(x)/(2+cos(x))", lambda x: abs(x) / (2 + math.cos(x)), None),
        ("exp(-x**2)*tanh(2*x)", lambda x: math.exp(-x * x) * math.tanh(2 * x), None),
        ("log(x+3) + sqrt(x+2) - e*pi", lambda x: math.log(x + 3) + math.sqrt(x + 2) - math.e * math.pi, None),
        ("-x**-2.0 + tan(x/4)", None, None),
    ],
)
def test_formulas_have_the_right_value_and_slope(text, f, slope):
    expression = theory.Expression(text)
    low, high = (-1, 1) if f else (1, 2)
    x = np.linspace(low, high, 2001)
    y = np.array([expression(v) for v in x])
    if f:
        assert np.allclose(y, [f(v) for v in x], rtol=1e-13)
    steepest = np.abs(np.diff(y) / np.diff(x)).max()
    bound = expression.lipschitz([low], [high])
    assert steepest <= bound * (1 + 1e-9) <= 1.1 * steepest + 1e-6
    if slope:
        assert math.isclose(bound, slope, rel_tol=1e-9)


def test_slopes_of_formulas_with_two_variables():
    bound = theory.Expression("3*x + 4*y", "xy").lipschitz([0, 0], [1, 1])
    assert math.isclose(bound, 5, rel_tol=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "x.__class__",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "open('file')",
        "'text'",
        "x if x else 1",
        "x and x",
        "f'{x}'",
        "sin(x, x)",
        "sin(*x)",
        "x := 3",
        "True",
        "1j",
        "x**x",
        "",
        "sin(",
        "y",
        "foo(x)",
        "(" * 500 + "x" + ")" * 500,
        "-" * 5000 + "x",
        "1e400",
    ],
)
def test_a_formula_is_never_run_as_python(text):
    with pytest.raises(ValueError, match=r"cannot read|not allowed|unknown|exponent must be|at most 1000"):
        theory.Expression(text)


def test_huge_powers_end_at_once():
    assert theory.Expression("9**9**9**9")(1.0) == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.towers("x", 0, 1, 0), "epsilon must be greater than 0"),
        (lambda: theory.towers("x", 0, 1, -1), "epsilon must be greater than 0"),
        (lambda: theory.towers("x", 0, 1, math.nan), "epsilon must be greater than 0"),
        (lambda: theory.towers("x", 1, 0, 0.1), "low must be less than high"),
        (lambda: theory.towers("x", 0, math.inf, 0.1), "both finite"),
        (lambda: theory.towers("x", [0, 0], [1], 0.1), "one number each"),
        (lambda: theory.towers(lambda x: math.nan, 0, 1, 0.1, lipschitz=1), "f is nan at"),
        (lambda: theory.towers(math.log, -1, 1, 0.1, lipschitz=1), "f has no value at"),
        (lambda: theory.towers(math.sin, 0, 1, 0.1), "give lipschitz= or modulus="),
        (lambda: theory.towers(lambda x: 9 * x, 0, 1, 0.1, lipschitz=1), "more than lipschitz= or modulus= allows"),
        (lambda: theory.towers("1/x", -1, 1, 0.1), "no finite bound for the slope"),
        (lambda: theory.towers("sqrt(x)", 0, 1, 0.1), "give modulus="),
        (lambda: theory.towers("log(x)", -2, -1, 0.1), "no finite bound"),
        (lambda: theory.towers("x", 0, 1, 1e-9), "about .* is possible"),
        (lambda: theory.towers("x+y", [0, 0], [1, 1], 1e-4), "about .* is possible"),
        (lambda: theory.towers("x", 1e12, 1e12 + 1, 1e-3), "too narrow so far from 0"),
        (lambda: theory.towers(math.sin, 0, 1, 0.1, lipschitz=-1), "lipschitz must be 0 or more"),
        (lambda: theory.towers(math.sin, 0, 1, 0.1, modulus=lambda t: -t), "modulus of continuity is 0 or more"),
        (lambda: theory.towers(math.sin, 0, 1, 0.1, modulus=lambda t: 1.0), "is possible"),
        (lambda: theory.tower(0, 1, steepness=3), "too small"),
        (lambda: theory.lipschitz_bits(2, 0), "greater than 0"),
    ],
)
def test_impossible_requests_say_what_is_possible(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_epsilon_named_as_possible_is_possible():
    with pytest.raises(ValueError, match="possible") as refused:
        theory.towers("x+y", [0, 0], [1, 1], 1e-4)
    named = float(str(refused.value).split("about ")[1].split(" ")[0])
    assert theory.towers("x+y", [0, 0], [1, 1], 1.05 * named).certificate
