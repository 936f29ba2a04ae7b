"""Parity of d bits: as a tree of XORs, as an AND/OR/NOT formula, as a disjunctive normal form (N52)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from ..layers import Layer, Linear, Sign
from ..network import Network
from .boolean import MOST_ENUMERATED, Coding, and_weights, bits, check_coding, disagreements, dnf_network, first_layer, literals, or_weights
from .boolean import output_layer as last
from .bounds import parity_exponent, parity_threshold_depth
from .certificate import Built, Certificate, Table, network_of, whole

__all__ = ["parity", "parity_table"]

Weights = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # and_weights or or_weights
FORMS = ("tree", "formula", "dnf")


class Gate(NamedTuple):
    """An AND or OR of earlier wires; −1 negates (NOT is free). Wires 0 … d−1 are the inputs, d+i is gate i."""

    weights: Weights
    inputs: tuple[int, ...]
    signs: tuple[int, ...]


def parity(d: int, form: Literal["tree", "formula", "dnf"] = "tree", *, coding: Coding = "binary") -> Built:
    """A network of sign units whose output is 1 when an odd number of its d inputs is 1.

    x ⊕ y = (x ∧ ¬y) ∨ (¬x ∧ y): three gates, two layers.

    Parameters
    ----------
    d : int
        Number of bits, up to 16.
    form : "tree", "formula" or "dnf"
        "tree": a balanced tree of XORs in which every result is used twice, 3(d−1) gates. "formula": the same written
        out in AND, OR and NOT without sharing, d²−1 gates when d is a power of two. "dnf": one AND per odd row and
        one OR, 2^{d−1}+1 gates, depth 2.
    coding : "binary" or "sign"
        Whether inputs and output are 0/1 or −1/+1.

    Examples
    --------
    >>> for form in ("tree", "formula", "dnf"):
    ...     certificate = parity(4, form).certificate
    ...     print(form, certificate["gates"], certificate["depth"], bool(certificate))
    tree 9 4 True
    formula 15 4 True
    dnf 9 2 True
    """
    d = whole("d", d, 2, MOST_ENUMERATED, f"All 2ᵈ inputs are tried: {MOST_ENUMERATED} bits are 65,536.")
    check_coding(coding)
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(map(repr, FORMS))}, got {form!r}.")
    odd = bits(d).sum(1) % 2 == 1
    if form == "dnf":
        network = dnf_network(literals(bits(d)[odd]), negated=False, coding=coding)
        gates, depth, units = 2 ** (d - 1) + 1, 2, 2 ** (d - 1) + 1
    else:
        circuit: list[Gate] = []
        build(circuit, d, list(range(d)), share=form == "tree")
        network, depth, units = circuit_network(circuit, d, coding)
        gates = len(circuit)
    wrong = disagreements(network, odd, coding)
    promised = {"tree": 3 * (d - 1), "formula": formula_gates(d), "dnf": 2 ** (d - 1) + 1}[form]
    return Built(
        network,
        Certificate(
            what=f"parity of {d} bits as {form}",
            promised=f"exact on all {2**d:,} inputs with {promised:,} gates",
            measured=f"{wrong:,} wrong outputs, {gates:,} gates",
            checked="every input, by enumeration",
            holds=wrong == 0 and gates == promised,
            facts={
                "gates": gates,
                "depth": depth,
                "units": units,
                "depth 2 needs exactly": 2 ** (d - 1) + 1,
                "depth k needs": f"exp(c·{d}^(1/(k−1))) gates or more (Håstad)",
                "polynomial from depth": parity_threshold_depth(d),
            },
        ),
    )


def build(circuit: list[Gate], d: int, wires: list[int], share: bool) -> int:
    """Add gates for the parity of some wires; returns the wire of the result."""
    if len(wires) == 1:
        return wires[0]
    halves = wires[: (len(wires) + 1) // 2], wires[(len(wires) + 1) // 2 :]
    first = [build(circuit, d, half, share) for half in halves]
    second = first if share else [build(circuit, d, half, share) for half in halves]
    left = add(circuit, d, and_weights, first, (1, -1))
    right = add(circuit, d, and_weights, second, (-1, 1))
    return add(circuit, d, or_weights, [left, right], (1, 1))


def add(circuit: list[Gate], d: int, weights: Weights, inputs: list[int], signs: tuple[int, ...]) -> int:
    circuit.append(Gate(weights, tuple(inputs), signs))
    return d + len(circuit) - 1


def formula_gates(d: int) -> int:
    """G(d) = 2G(⌈d/2⌉) + 2G(⌊d/2⌋) + 3, G(1) = 0."""
    return 0 if d == 1 else 2 * formula_gates((d + 1) // 2) + 2 * formula_gates(d // 2) + 3


def circuit_network(circuit: list[Gate], d: int, coding: str) -> tuple[Network, int, int]:
    """The circuit layer by layer; a wire that is needed further up passes through a sign unit, sign(±1) = ±1.

    Returns the network, its depth and its number of units, passing ones included.
    """
    level = [0] * d
    for gate in circuit:
        level.append(1 + max(level[i] for i in gate.inputs))
    depth, output = level[-1], d + len(circuit) - 1
    until = [0] * len(level)  # the last level that reads a wire
    until[output] = depth + 1
    for number, gate in enumerate(circuit):
        for i in gate.inputs:
            until[i] = max(until[i], level[d + number])
    net: Layer | None = None
    weights, below = [], list(range(d))
    for current in range(1, depth + 1):
        here = [w for w in range(len(level)) if level[w] <= current < until[w]]
        W, b = np.zeros((len(below), len(here)), dtype=int), np.zeros(len(here), dtype=int)
        for column, wire in enumerate(here):
            gate = circuit[wire - d] if level[wire] == current else Gate(and_weights, (wire,), (1,))
            rows = [below.index(i) for i in gate.inputs]
            column_weights, bias = gate.weights(np.array([gate.signs]))
            W[rows, column], b[column] = column_weights[:, 0], bias[0]
        weights.append(first_layer(W, b, coding) if current == 1 else (W, b))
        layer = Linear(len(here)) >> (Sign() if current < depth else last(coding))
        net, below = layer if net is None else net >> layer, here
    assert net is not None
    return network_of(net, d, weights, dtype="float32"), depth, sum(len(b) for _, b in weights)


def parity_table(most: int = 8) -> Table:
    """Gates and depth of the three forms for d = 2 … most, every network checked on all inputs, and the bounds beside."""
    rows = []
    for d in range(2, whole("most", most, 2, MOST_ENUMERATED) + 1):
        tree, formula, dnf = (parity(d, form).certificate for form in ("tree", "formula", "dnf"))
        rows.append(
            {
                "d": d,
                "tree": tree["gates"],
                "depth": tree["depth"],
                "formula": formula["gates"],
                "DNF, depth 2": dnf["gates"],
                "fewest": min((c["gates"], name) for c, name in ((tree, "tree"), (dnf, "DNF")))[1],
                "exponent, depth 3": parity_exponent(d, 3),
                "exponent, depth 4": parity_exponent(d, 4),
                "polynomial from depth": parity_threshold_depth(d),
                "exact": bool(tree and formula and dnf),
            }
        )
    return Table("AND and OR gates for the parity of d bits (NOT is free); depth k needs at least exp(c · exponent)", rows)
