"""Boolean functions and parity by networks of sign units: exact on every input."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid import theory


@st.composite
def tables(draw):
    n = draw(st.integers(1, 6))
    return draw(st.lists(st.integers(0, 1), min_size=2**n, max_size=2**n))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(tables(), st.sampled_from(["binary", "sign"]), st.booleans())
def test_every_function_is_exact_on_every_input(table, coding, minimise):
    network, certificate = theory.boolean(table, coding=coding, minimise=minimise)
    n = len(table).bit_length() - 1
    low, high = (0, 1) if coding == "binary" else (-1, 1)
    rows = np.array(list(itertools.product([low, high], repeat=n)))
    assert network(rows)[:, 0].tolist() == [high if v else low for v in table]
    assert certificate
    assert certificate["units after"] <= certificate["units before"] <= 2 ** (n - 1) + 1


def fewest_terms(rows):
    """The fewest products whose sum is true on just these rows of three inputs, by trying all combinations."""
    cubes = []
    for signs in itertools.product((None, 0, 1), repeat=3):
        covered = {i for i in range(8) if all(s is None or (i >> (2 - k) & 1) == s for k, s in enumerate(signs))}
        if covered <= rows:
            cubes.append(covered)
    for size in range(1, 5):
        if any(set().union(*chosen) == rows for chosen in itertools.combinations(cubes, size)):
            return size
    return math.inf


def test_all_functions_of_three_inputs_take_the_fewest_units():
    for number in range(256):
        rows = {i for i in range(8) if number >> i & 1}
        certificate = theory.boolean([int(i in rows) for i in range(8)]).certificate
        assert certificate
        assert certificate["units after"] - 1 == min(fewest_terms(rows), fewest_terms(set(range(8)) - rows))


def test_minimising_merges_rows():
    """x₁ alone: half of the rows before, one unit and the output after."""
    certificate = theory.boolean(lambda *x: x[0], 5).certificate
    assert (certificate["units before"], certificate["units after"]) == (17, 2)


def test_parity_is_minimal_already():
    certificate = theory.boolean(lambda *x: sum(x) % 2, 9).certificate
    assert certificate["units before"] == certificate["units after"] == 2**8 + 1


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_and_and_or_have_the_biases_of_the_note(k):
    assert theory.and_unit(k).certificate["bias over ±1"] == -(k - 1)
    assert theory.or_unit(k).certificate["bias over ±1"] == k - 1


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([-1, 1]), min_size=1, max_size=8), st.sampled_from(["binary", "sign"]))
def test_units_with_negated_inputs(signs, coding):
    for built in (theory.and_unit(signs, coding=coding), theory.or_unit(signs, coding=coding)):
        assert built.certificate
    low = 0 if coding == "binary" else -1
    matching = np.array([[1 if s > 0 else low for s in signs]])
    assert theory.and_unit(signs, coding=coding).network(matching)[0, 0] == 1
    assert theory.or_unit(signs, coding=coding).network(1 + low - matching)[0, 0] == low


def test_the_growth_is_exponential():
    table = theory.boolean_growth(6)
    assert table["parity"] == [2 ** (n - 1) + 1 for n in range(1, 7)]
    assert all(row["minimised"] <= row["random"] <= row["parity"] for row in table)


def test_a_sign_unit_cannot_do_more_than_counted():
    """Threshold functions of 1 … 4 inputs: 4, 14, 104, 1882 (OEIS A000609); the bound is reached for two."""
    for n, known in ((1, 4), (2, 14), (3, 104), (4, 1882)):
        assert theory.dichotomies(2**n, n) >= known
    assert theory.dichotomies(4, 2) == 14
    rows = np.array(list(itertools.product([0, 1], repeat=3)))
    found = {tuple((rows @ w + b >= 0).tolist()) for *w, b in itertools.product(np.arange(-3, 3.5, 0.5), repeat=4)}
    assert len(found) == 104 <= theory.dichotomies(8, 3)


def test_the_counting_bound_is_exponential_and_below_what_suffices():
    for n in range(1, 17):
        bound = theory.counting_bound(n)
        assert bound["connections"] == math.ceil(2**n / (n + 1))
        assert bound["units"] <= 2 ** (n - 1) + 1
        assert bound["hidden"] <= 2 ** (n - 1)
    assert theory.counting_bound(40)["units"] > 2 * theory.counting_bound(36)["units"]


@pytest.mark.parametrize("d", range(2, 11))
@pytest.mark.parametrize("form", ["tree", "formula", "dnf"])
@pytest.mark.parametrize("coding", ["binary", "sign"])
def test_parity_is_exact(d, form, coding):
    network, certificate = theory.parity(d, form, coding=coding)
    low = 0 if coding == "binary" else -1
    rows = np.random.default_rng(d).integers(0, 2, (50, d))
    expected = [xor(row) for row in rows.tolist()]
    assert network(np.where(rows, 1, low))[:, 0].tolist() == [1 if e else low for e in expected]
    assert certificate


def xor(row):
    result = 0
    for bit in row:
        result ^= bit
    return result


def test_gates_and_depth_of_the_note():
    four = {form: theory.parity(4, form).certificate for form in ("tree", "formula", "dnf")}
    assert (four["formula"]["gates"], four["formula"]["depth"]) == (15, 4)
    assert (four["dnf"]["gates"], four["dnf"]["depth"]) == (9, 2)
    assert four["tree"]["gates"] == 9
    for d in range(2, 13):
        assert theory.parity(d, "tree").certificate["gates"] == 3 * (d - 1)
        assert theory.parity(d, "tree").certificate["depth"] == 2 * math.ceil(math.log2(d))
    assert [theory.parity(d, "formula").certificate["gates"] for d in (2, 4, 8, 16)] == [d * d - 1 for d in (2, 4, 8, 16)]


def test_deep_wins_from_five_bits():
    table = theory.parity_table(7)
    assert [row["d"] for row in table if row["tree"] < row["DNF, depth 2"]] == [5, 6, 7]
    assert all(table["exact"])


def test_the_threshold_depth_makes_the_bound_polynomial():
    for d in (3, 4, 16, 256):
        k = theory.parity_threshold_depth(d)
        assert math.isclose(d ** (1 / (k - 1)), math.log2(d))
    assert theory.parity_exponent(16, 2) == 16
    assert theory.parity_exponent(16, 3) == 4


def test_twelve_bits_as_dnf_under_five_seconds():
    start = time.perf_counter()
    assert theory.parity(12, "dnf").certificate["gates"] == 2049
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("d", [13, 16])
def test_sixteen_bits(d):
    assert theory.parity(d, "tree").certificate
    assert theory.parity(d, "formula").certificate


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: theory.boolean([0, 1, 1]), ValueError, "2ⁿ values"),
        (lambda: theory.boolean([0, 1, 1, 2]), ValueError, "gives 0 or 1.*for input 11"),
        (lambda: theory.boolean([0, 1, 1, math.nan]), ValueError, "gives 0 or 1"),
        (lambda: theory.boolean([0, 1, 1, 0], 3), ValueError, "has 8 values"),
        (lambda: theory.boolean(lambda *x: 0), TypeError, "needs n"),
        (lambda: theory.boolean(lambda *x: 0, 17), ValueError, "between 1 and 16"),
        (lambda: theory.boolean(lambda *x: x[0], 12, minimise=True), ValueError, "beyond n = 9"),
        (lambda: theory.boolean([0, 1], coding="gray"), ValueError, "coding must be"),
        (lambda: theory.parity(1), ValueError, "between 2 and 16"),
        (lambda: theory.parity(17), ValueError, "65,536"),
        (lambda: theory.parity(4, "cnf"), ValueError, "form must be one of"),
        (lambda: theory.parity(4.5), TypeError, "whole number"),
        (lambda: theory.and_unit([1, 0]), ValueError, "signs must be"),
    ],
)
def test_impossible_requests_say_what_is_possible(call, error, message):
    with pytest.raises(error, match=message):
        call()
