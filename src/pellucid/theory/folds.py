"""Networks that fold: zig-zags and the network with the most regions, deep against shallow (N55, N56)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..layers import Layer, Linear, ReLU
from ..network import Network
from .bounds import regions_reachable
from .certificate import Built, Certificate, Table, network_of, whole
from .piecewise import MOST_BREAKPOINTS, pieces
from .regions import regions

__all__ = ["deep_against_shallow", "folding", "random_network", "shallow", "zigzag"]


def fold(p: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p units that fold [0, 1/scale] onto [0, 1] p times: W, b of z = Wx + b and the signs of the sum Σ ± max(0, z).

    For p = 2 they are the note's max(0, 2x) − max(0, 4(x − ½)), and with scale = ½ its first layer.
    """
    slopes = np.full(p, 2.0 * p)
    slopes[0] = p
    return slopes * scale, -slopes * np.arange(p) / p, (-1.0) ** np.arange(p)


def zigzag(k: int, *, folds: int = 2) -> Built:
    """A zig-zag of foldsᵏ pieces on [0, 2] from k layers of `folds` units.

    h̃² ∘ … ∘ h̃² ∘ h̃¹, with h̃¹(x) = max(0, x) − max(0, 2(x−1)) on [0, 2] and h̃²(x) = max(0, 2x) − max(0, 4(x−½)) on
    [0, 1]. Every further layer folds what is there once more and doubles the pieces.

    Examples
    --------
    >>> [zigzag(k).certificate["pieces"] for k in (1, 2, 3)]
    [2, 4, 8]
    """
    m = whole("folds", folds, 2, 1000)
    k = whole("k", k, 1, int(math.log(MOST_BREAKPOINTS / 2, m)), "More layers have more pieces than can be listed.")
    W, b, signs = fold(m, scale=0.5)
    net: Layer = Linear(m) >> ReLU()
    weights: list[tuple[Any, Any]] = [(W[None, :], b)]
    for _ in range(k - 1):
        W, b, signs = fold(m)
        net = net >> Linear(m) >> ReLU()
        weights.append((np.outer(signs, W), b))  # the sum Σ ± h, then the next fold
    network = network_of(net >> Linear(1), 1, [*weights, (signs[:, None], [0.0])])
    counted = pieces(network, 0.0, 2.0)
    corners = np.linspace(0, 2, m**k + 1)
    expected = np.arange(m**k + 1) % 2
    error = float(np.abs(network(corners[:, None])[:, 0] - expected).max())
    return Built(
        network,
        Certificate(
            what=f"zig-zag of {k} layer{'s' if k > 1 else ''}",
            promised=f"{m**k:,} linear pieces on [0, 2] with {m * k:,} units",
            measured=f"{counted.count:,} linear pieces; {error:.2g} off at the corners",
            checked="breakpoints followed through the layers; the value at every corner",
            holds=counted.count == m**k and error < 1e-9,
            facts={
                "pieces": counted.count,
                "units": m * k,
                "layers": k,
                "one layer of as many units, at most": m * k + 1,
                "one layer for as many pieces": m**k - 1,
            },
        ),
    )


def shallow(knots: Any, values: Any) -> Built:
    """The continuous function that is linear between knots, by one hidden layer with one ReLU unit per kink.

    y = v₀ + s₁(x − x₀) + Σ (sᵢ₊₁ − sᵢ) max(0, x − xᵢ), with slopes s; the first term is one unit more, max(0, x − x₀).

    Examples
    --------
    >>> network, certificate = shallow([0, 1, 2], [0, 1, 0])
    >>> float(network([[1.5]])[0, 0]), certificate["units"]
    (0.5, 2)
    """
    x, v = np.asarray(knots, dtype=float), np.asarray(values, dtype=float)
    if x.ndim != 1 or x.shape != v.shape or len(x) < 2 or not (np.diff(x) > 0).all() or not np.isfinite([*x, *v]).all():
        raise ValueError("knots must be two or more finite numbers in increasing order, with one finite value each.")
    slopes = np.diff(v) / np.diff(x)
    change = np.diff(slopes, prepend=0.0)
    m = len(change)
    network = network_of(Linear(m) >> ReLU() >> Linear(1), 1, [(np.ones((1, m)), -x[:-1]), (change[:, None], [v[0]])])
    error = float(np.abs(network(x[:, None])[:, 0] - v).max())
    size = max(1.0, float(np.abs(v).max()), float(np.abs(change).sum() * (x[-1] - x[0])))
    return Built(
        network,
        Certificate(
            what=f"{m} linear pieces by one hidden layer",
            promised="equal to the given values at all knots, linear between them",
            measured=f"{error:.2g} off at the knots",
            checked="the value at every knot",
            holds=error < 1e-12 * size * m,
            facts={"units": m, "kinks": m - 1},
        ),
    )


def folding(layers: int, units: int, inputs: int = 1) -> Built:
    """The network of Montúfar et al. that reaches ⌊h/d⌋^{(k−1)d} Σ_{i≤d} C(h, i) regions on [0, 1]ᵈ, for d = 1 or 2.

    All layers but the last fold every axis ⌊h/d⌋ times, so that the last layer, whose h lines lie in general position,
    draws its regions into every copy.
    """
    d = whole("inputs", inputs, 1, 2)
    k, h = whole("layers", layers, 1, 20), whole("units", units, d, 200)
    p, promised = h // d, regions_reachable(h, d, k)
    if promised > 100_000:
        raise ValueError(f"{promised:,} regions are too many to count: at most 100,000. Take fewer layers or units.")
    W, b, signs = fold(p)
    spread = np.kron(np.eye(d), W)  # (d, p·d): p units for each axis
    gather = np.kron(np.eye(d), signs[:, None])  # (p·d, d): the folded axes
    net: Layer | None = None
    weights: list[tuple[Any, Any]] = []
    collect = np.eye(d)
    for _ in range(k - 1):
        weights.append((collect @ spread, np.tile(b, d)))
        block = Linear(p * d) >> ReLU()
        net, collect = block if net is None else net >> block, gather
    lines, offsets = general_lines(h, d)
    weights += [(collect @ lines, offsets), (np.cos(1.0 + np.arange(h))[:, None], [0.0])]
    final = Linear(h) >> ReLU() >> Linear(1)
    network = network_of(final if net is None else net >> final, d, weights)
    found = pieces(network, 0.0, 1.0).activation_regions if d == 1 else regions(network, ((0.0, 1.0), (0.0, 1.0))).count
    return Built(
        network,
        Certificate(
            what=f"folding network of {k} layers of {h} units, {d} input{'s' if d > 1 else ''}",
            promised=f"{promised:,} activation regions on the unit box",
            measured=f"{found:,} activation regions",
            checked="breakpoints followed through the layers" if d == 1 else "all polygons enumerated",
            holds=found == promised,
            facts={"regions": found, "units": p * d * (k - 1) + h},
        ),
    )


def general_lines(h: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """h points inside (0, 1), or h lines that cross each other pairwise inside the unit square, no three in one point."""
    if d == 1:
        return np.ones((1, h)), -(np.arange(h) + 1) / (h + 1)
    angles = math.pi * np.arange(h) / h
    normals = np.array([np.cos(angles), np.sin(angles)])
    radius = 0.45 * math.sin(math.pi / (2 * h))  # tangents of a small circle; those of the first and last angle meet farthest out
    return normals, -(normals.T @ [0.5, 0.5]) - radius


def deep_against_shallow(most: int = 8) -> Table:
    """Pieces of k layers of two units against one layer of as many units: counted, not estimated."""
    rows = []
    for k in range(1, whole("most", most, 1, 16) + 1):
        deep = zigzag(k).certificate
        one = shallow(np.arange(2 * k + 1), np.arange(2 * k + 1) % 2)
        found = pieces(one.network, -1.0, 2.0 * k)
        rows.append(
            {
                "units": 2 * k,
                "deep: pieces": deep["pieces"],
                "one layer: pieces": found.count,
                "one layer, at most": found.at_most,
                "one layer needs": deep["one layer for as many pieces"],
            }
        )
    return Table("linear pieces: k layers of two units against one layer of 2k units", rows)


def random_network(*widths: int, seed: int = 0, outputs: int = 1) -> Network:
    """A ReLU network inputs – widths – outputs with random weights and biases, as they are before training."""
    inputs, *hidden = widths
    net: Layer | None = None
    for h in hidden:
        block = Linear(h) >> ReLU()
        net = block if net is None else net >> block
    last = Linear(outputs)
    network = Network(last if net is None else net >> last, (inputs,), seed=seed, dtype="float64")
    rng = np.random.default_rng(seed)
    network.set_parameters({name: rng.normal(size=p.shape) for name, p in network.parameters.items() if name.endswith(".b")})
    return network
