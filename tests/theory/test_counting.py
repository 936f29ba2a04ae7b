"""Pieces and regions, counted exactly, against enumeration in fractions and against the literature."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid as pc
from pellucid import theory

from .brute import brute_pieces, brute_regions


def relu_layers(*widths):
    net = None
    for h in widths:
        block = pc.Linear(h) >> pc.ReLU()
        net = block if net is None else net >> block
    return net


def skip(h):
    return pc.Linear(1) | (pc.Linear(h) >> pc.ReLU())


def residual(h):
    return pc.Linear(h) + (pc.Linear(h) >> pc.ReLU())


SHAPES = [
    (3, lambda: relu_layers(3)),
    (6, lambda: relu_layers(3, 3)),
    (6, lambda: relu_layers(2, 2, 2)),
    (4, lambda: skip(2) >> skip(2)),
    (4, lambda: residual(2) >> residual(2)),
    (5, lambda: relu_layers(2) | relu_layers(1, 2)),
    (5, lambda: (pc.Identity() | relu_layers(2)) >> relu_layers(3)),
]


def network(shape, inputs, draw_weights):
    count, make = SHAPES[shape]
    made = pc.Network(make() >> pc.Linear(1), (inputs,), dtype="float64")
    made.set_parameters({name: draw_weights(p.shape) for name, p in made.parameters.items()})
    return count, made


def small_whole(seed):
    """Weights −2 … 2: many lines through one point, many units that are never on."""
    rng = np.random.default_rng(seed)
    return lambda shape: rng.integers(-2, 3, shape).astype(float)


def normal(seed):
    rng = np.random.default_rng(seed)
    return lambda shape: rng.normal(size=shape)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, len(SHAPES) - 1), st.integers(0, 10**6), st.sampled_from([small_whole, normal]))
def test_pieces_agree_with_brute_force(shape, seed, weights):
    count, made = network(shape, 1, weights(seed))
    found = theory.pieces(made, -3, 3)
    cells = brute_regions(made.net, made.params, [(-3,), (3,)], count)
    assert found.activation_regions == len(cells)
    assert found.count == brute_pieces(cells)
    assert found.count <= found.activation_regions <= found.at_most


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.integers(0, len(SHAPES) - 1), st.integers(0, 10**6), st.sampled_from([small_whole, normal]))
def test_regions_agree_with_brute_force(shape, seed, weights):
    count, made = network(shape, 2, weights(seed))
    found = theory.regions(made, ((-3, 3), (-2, 2)))
    cells = brute_regions(made.net, made.params, [(-3, -2), (3, -2), (3, 2), (-3, 2)], count)
    assert found.count == len(cells)
    assert found.pieces == brute_pieces(cells)
    assert math.isclose(found.areas.sum(), 24)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_a_network_is_linear_on_every_piece(seed):
    made = theory.random_network(1, 12, 12, seed=seed)
    found = theory.pieces(made, -5, 5)
    x = np.random.default_rng(seed).uniform(-5, 5, 200)
    i = np.searchsorted(found.breakpoints, x) - 1
    assert np.allclose(found.slopes[i, 0] * x + found.intercepts[i, 0], made(x[:, None])[:, 0], atol=1e-9)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_a_network_is_linear_on_every_polygon(seed):
    made = theory.random_network(2, 8, 8, seed=seed)
    found = theory.regions(made, ((-2, 2), (-2, 2)))
    for polygon, gradient, value in zip(found.polygons, found.gradients, found.values, strict=True):
        assert np.allclose(value + (polygon - polygon.mean(0)) @ gradient[0], made(polygon)[:, 0], atol=1e-9)


def test_the_two_counts_differ_where_a_unit_switches_unseen():
    made = pc.Network(pc.Linear(2) >> pc.ReLU() >> pc.Linear(1), (1,), dtype="float64")
    made.set_parameters({"0.W": [[1, 1]], "0.b": [0, 0], "2.W": [[1], [-1]], "2.b": [0]})
    found = theory.pieces(made, -1, 1)
    assert (found.count, found.activation_regions) == (1, 2)
    flat = pc.Network(pc.Linear(2) >> pc.ReLU() >> pc.Linear(1), (2,), dtype="float64")
    flat.set_parameters({"0.W": [[1, 0], [0, 1]], "0.b": [0, 0], "2.W": [[1], [0]], "2.b": [0]})
    plane = theory.regions(flat, ((-1, 1), (-1, 1)))
    assert (plane.count, plane.pieces) == (4, 2)


def test_leaky_units_bend_where_relu_units_do():
    leaky = pc.Network(pc.Linear(5) >> pc.LeakyReLU(0.1) >> pc.Linear(1), (1,), dtype="float64")
    plain = pc.Network(pc.Linear(5) >> pc.ReLU() >> pc.Linear(1), (1,), dtype="float64")
    rng = np.random.default_rng(0)
    plain.set_parameters({name: rng.normal(size=p.shape) for name, p in plain.parameters.items()})
    leaky.set_parameters(plain.parameters)
    assert np.allclose(theory.pieces(leaky, -9, 9).breakpoints, theory.pieces(plain, -9, 9).breakpoints)


@pytest.mark.parametrize("h", [1, 2, 3, 5, 8])
def test_lines_in_general_position_reach_the_bound_of_one_layer(h):
    angles = np.pi * (np.arange(h) + 0.5) / h
    made = pc.Network(pc.Linear(h) >> pc.ReLU() >> pc.Linear(1), (2,), dtype="float64")
    made.set_parameters({"0.W": [np.cos(angles), np.sin(angles)], "0.b": np.full(h, -0.1), "2.W": np.ones((h, 1)), "2.b": [0]})
    found = theory.regions(made, ((-9, 9), (-9, 9)))
    assert found.count == 1 + h + h * (h - 1) // 2 == theory.regions_one_layer(h, 2)


def test_zigzags_have_the_pieces_the_note_draws():
    assert [theory.pieces(theory.zigzag(k).network, 0, 2).count for k in (1, 2, 3)] == [2, 4, 8]


@pytest.mark.parametrize(("k", "folds"), [(1, 2), (10, 2), (16, 2), (4, 3), (6, 3), (3, 7)])
def test_zigzags_are_certified(k, folds):
    certificate = theory.zigzag(k, folds=folds).certificate
    assert certificate
    assert certificate["pieces"] == folds**k


def test_the_zigzag_is_the_note_s_composition():
    def relu(v):
        return np.maximum(0, v)

    x = np.linspace(0, 2, 777)
    h = relu(x) - relu(2 * (x - 1))
    for _ in range(3):
        h = relu(2 * h) - relu(4 * (h - 1 / 2))
    assert np.array_equal(theory.zigzag(4).network(x[:, None])[:, 0], h)


def test_two_to_the_k_is_no_upper_bound():
    """The note's O(2^k): three units a layer give 3^k pieces."""
    assert theory.zigzag(5, folds=3).certificate["pieces"] == 3**5 > 2**5


def test_h_to_the_d_is_no_upper_bound_for_one_input():
    """The note's Σ C(h, i) ≤ h^d fails for d = 1; (h + 1)^d holds."""
    for h in range(1, 12):
        assert theory.regions_one_layer(h, 1) == h + 1 > h
        assert all(theory.regions_one_layer(h, d) <= (h + 1) ** d for d in range(1, 6))


@pytest.mark.parametrize(("layers", "units", "inputs"), [(1, 4, 1), (3, 3, 1), (2, 4, 2), (3, 4, 2), (2, 7, 2), (1, 6, 2)])
def test_the_bound_of_montufar_is_reached(layers, units, inputs):
    certificate = theory.folding(layers, units, inputs).certificate
    expected = (units // inputs) ** ((layers - 1) * inputs) * sum(math.comb(units, i) for i in range(inputs + 1))
    assert certificate
    assert certificate["regions"] == expected
    assert expected <= theory.regions_at_most([units] * layers, inputs)


def test_one_hidden_layer_needs_a_unit_per_kink():
    knots = np.linspace(0, 2, 17)
    deep = theory.zigzag(4).network
    one, certificate = theory.shallow(knots, np.arange(17) % 2)
    x = np.linspace(0, 2, 501)[:, None]
    assert np.allclose(one(x), deep(x), atol=1e-12)
    assert certificate["units"] == 16


def test_deep_against_shallow_counts():
    table = theory.deep_against_shallow(6)
    assert table["deep: pieces"] == [2, 4, 8, 16, 32, 64]
    assert table["one layer: pieces"] == [3, 5, 7, 9, 11, 13] == table["one layer, at most"]


def test_single_precision_networks_are_counted_too():
    made = pc.Network(relu_layers(6, 6) >> pc.Linear(2), (1,), seed=3)
    assert 1 <= theory.pieces(made, -4, 4).count <= 49
    assert theory.pieces(made, -4, 4).slopes.shape[1] == 2


def test_counting_is_fast_enough():
    line, plane = theory.random_network(1, 64, 64, 64), theory.random_network(2, 32, 32)
    start = time.perf_counter()
    theory.pieces(line, -10, 10)
    middle = time.perf_counter()
    theory.regions(plane, ((-3, 3), (-3, 3)))
    assert middle - start < 1
    assert time.perf_counter() - middle < 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.pieces(theory.random_network(1, 3), 1, 1), "low must be less than high"),
        (lambda: theory.pieces(theory.random_network(1, 3), 0, math.nan), "low must be less than high"),
        (lambda: theory.pieces(theory.random_network(2, 3), 0, 1), "network of 1 input, got one of shape"),
        (lambda: theory.pieces(pc.Network(pc.Linear(3) >> pc.Tanh(), (1,)), 0, 1), "not piecewise linear"),
        (lambda: theory.pieces(pc.Network((pc.Linear(3) * pc.Linear(3)), (1,)), 0, 1), "not piecewise linear"),
        (lambda: theory.pieces(pc.Network(pc.Linear(3)), 0, 1), "no parameters yet"),
        (lambda: theory.regions(theory.random_network(2, 3), ((0, 0), (0, 1))), "box must be"),
        (lambda: theory.regions(theory.random_network(2, 3), (0, 1)), "box must be"),
        (lambda: theory.zigzag(0), "between 1 and 19"),
        (lambda: theory.zigzag(40), "between 1 and 19"),
        (lambda: theory.shallow([0, 0], [1, 2]), "increasing order"),
        (lambda: theory.folding(9, 9, 2), "too many to count"),
    ],
)
def test_impossible_requests_say_what_is_possible(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_expression_is_no_network():
    with pytest.raises(TypeError, match="expected a Network"):
        theory.pieces(pc.Linear(3), 0, 1)
