"""What networks can represent: constructions you can run (notes, section E).

Every construction returns an ordinary :class:`pellucid.Network` and a certificate that says what was promised, what was
measured and how it was checked::

    network, certificate = theory.zigzag(5)
"""

from __future__ import annotations

from .boolean import and_unit, boolean, boolean_growth, or_unit
from .bounds import (
    counting_bound,
    dichotomies,
    lipschitz_bits,
    parity_exponent,
    parity_threshold_depth,
    regions_at_most,
    regions_one_layer,
    regions_reachable,
)
from .certificate import Built, Certificate, Table
from .expressions import Expression
from .folds import deep_against_shallow, folding, random_network, shallow, zigzag
from .information import expected_value, information, saturation
from .order import permuted
from .parity import parity, parity_table
from .piecewise import Pieces, pieces
from .plots import plot_pieces, plot_regions, plot_table, plot_towers
from .regions import Regions, regions
from .towers import lipschitz_cost, tower, towers

__all__ = [
    "Built",
    "Certificate",
    "Expression",
    "Pieces",
    "Regions",
    "Table",
    "and_unit",
    "boolean",
    "boolean_growth",
    "counting_bound",
    "deep_against_shallow",
    "dichotomies",
    "expected_value",
    "folding",
    "information",
    "lipschitz_bits",
    "lipschitz_cost",
    "or_unit",
    "parity",
    "parity_exponent",
    "parity_table",
    "parity_threshold_depth",
    "permuted",
    "pieces",
    "plot_pieces",
    "plot_regions",
    "plot_table",
    "plot_towers",
    "random_network",
    "regions",
    "regions_at_most",
    "regions_one_layer",
    "regions_reachable",
    "saturation",
    "shallow",
    "tower",
    "towers",
    "zigzag",
]
