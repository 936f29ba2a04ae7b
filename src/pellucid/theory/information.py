"""Losses and information: bits, expected value, and why squared error does not learn on a saturated sigmoid (N26, N27)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..layers import Linear, Sigmoid
from ..losses import BinaryCrossEntropy, SquaredError, cross_entropy_bits, entropy_bits
from ..network import Network
from .certificate import Table

__all__ = ["expected_value", "information", "saturation"]


def expected_value(p: Any, values: Any) -> float:
    """Σ pᵢ vᵢ: what to expect when the outcomes have the probabilities p and the values v.

    Examples
    --------
    >>> round(expected_value([0.2, 0.1, 0.4, 0.3], [10, 5, 8, 1]), 10)
    6.0
    """
    entropy_bits(p)  # refuses what is no distribution
    p, values = np.asarray(p, dtype=float), np.asarray(values, dtype=float)
    if p.shape != values.shape:
        raise ValueError(f"one value per outcome is needed: {p.shape} probabilities, {values.shape} values.")
    return float(p @ values)


def information(
    truth: Sequence[float] = (0, 1, 0, 0), prediction: Sequence[float] = (0.2, 0.1, 0.4, 0.3), values: Sequence[float] = (10, 5, 8, 1)
) -> Table:
    """The note's example: four teams, what we predict, what happens, and what each win is worth.

    H(p) = −Σ p log₂ p,   H(p, q) = −Σ p log₂ q,   both in bits.
    """
    measures = {
        "expected value": expected_value(prediction, values),
        "entropy of the prediction (bits)": float(entropy_bits(prediction)),
        "entropy of the truth (bits)": float(entropy_bits(truth)) + 0.0,
        "cross-entropy (bits)": float(cross_entropy_bits(truth, prediction)),
    }
    return Table("truth and prediction", [{"measure": name, "value": value} for name, value in measures.items()])


def saturation(z: Sequence[float] = (-8, -6, -4, -2, 0, 2, 4, 6, 8), y: float = 1.0, x: float = 1.0) -> Table:
    """The gradient ∂L/∂w of one sigmoid unit ŷ = σ(wx), z = wx, under two losses.

    squared error   ∂L/∂w = 2(ŷ − y) ŷ(1 − ŷ) x:   nothing where ŷ is saturated, right or wrong
    cross-entropy   ∂L/∂w = (ŷ − y) x:             nothing only where ŷ is right

    The gradients are those of the network itself, by back-propagation.
    """
    if not 0 <= y <= 1 or x == 0:
        raise ValueError(f"y must be between 0 and 1 and x not 0, got y = {y}, x = {x}.")
    rows = []
    for value in z:
        row = {"z": float(value), "ŷ": 0.0}
        for name, loss in (("squared error", SquaredError()), ("cross-entropy", BinaryCrossEntropy())):
            network = Network(Linear(1, bias=False) >> Sigmoid(), (1,), loss, dtype="float64")
            network.set_parameters({"0.W": [[value / x]]})
            row["ŷ"] = float(network([[x]])[0, 0])
            row[name] = float(network.gradients([[x]], [[y]])[1]["0.W"][0, 0])
        rows.append(row)
    return Table(f"∂L/∂w of a sigmoid unit, y = {y:g}, x = {x:g}", rows)
