"""Bounds that stand beside what the constructions measure, as exact whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .certificate import whole

__all__ = [
    "counting_bound",
    "dichotomies",
    "lipschitz_bits",
    "parity_exponent",
    "parity_threshold_depth",
    "regions_at_most",
    "regions_one_layer",
    "regions_reachable",
]

HUGE = 10**9


# -------------------------------------------------------------------- linear regions (N56)
def regions_one_layer(units: int, inputs: int) -> int:
    """The greatest number of regions of one hidden layer of ReLU units.   Σ_{i≤d} C(h, i)

    It is the number of regions into which h hyperplanes in general position cut d-dimensional space.

    Examples
    --------
    >>> regions_one_layer(3, 2), regions_one_layer(5, 1)
    (7, 6)
    """
    h, d = whole("units", units, 0, HUGE), whole("inputs", inputs, 1, HUGE)
    return sum(math.comb(h, i) for i in range(min(h, d) + 1))


def regions_reachable(units: int, inputs: int, layers: int) -> int:
    """What k layers of h units can reach.   ⌊h/d⌋^{(k−1)d} Σ_{i≤d} C(h, i)

    Montúfar, Pascanu, Cho and Bengio (2014); `folding` builds the network that reaches it.
    """
    k = whole("layers", layers, 1, HUGE)
    return (units // inputs) ** ((k - 1) * inputs) * regions_one_layer(units, inputs)


def regions_at_most(units: Sequence[int], inputs: int) -> int:
    """No network has more regions than this.   Π_l Σ_{i≤d} C(h_l, i), one factor per layer of ReLU units

    Each region of the layers before is cut by h_l hyperplanes at most. For k equal layers it is (Σ C(h, i))^k.
    """
    return math.prod(regions_one_layer(h, inputs) for h in units)


# -------------------------------------------------------------------- one graph for all Boolean functions (N58)
def dichotomies(points: int, inputs: int) -> int:
    """How many ways one sign unit can label N points in d dimensions, at most.   2 Σ_{i≤d} C(N−1, i)

    Examples
    --------
    Two inputs: 14 of the 16 Boolean functions, all but XOR and its complement.

    >>> dichotomies(4, 2)
    14
    """
    return 2 * sum(math.comb(points - 1, i) for i in range(min(points - 1, inputs) + 1))


def counting_bound(n: int) -> dict[str, int]:
    """How large a graph of sign units must be to hold every function {0,1}ⁿ → {0,1} by its weights alone.

    A unit with k inputs labels the N = 2ⁿ rows in at most 2Nᵏ ways, so V units with E connections hold at
    most 2^V·2^{nE} functions. There are 2^{2ⁿ}: hence V + nE ≥ 2ⁿ, and with V ≤ E also E ≥ 2ⁿ/(n+1).

    Returns
    -------
    dict
        "connections" and "units" that any graph must have; "hidden", for one hidden layer, with the sharper
        count of `dichotomies`.
    """
    n = whole("n", n, 1, 64)
    needed = 2**n

    def least(enough) -> int:  # the smallest v with enough(v), by doubling and bisection
        high = 1
        while not enough(high):
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    each = math.log2(dichotomies(needed, n))
    return {
        "connections": -(-needed // (n + 1)),
        "units": least(lambda v: v + n * (n * v + v * (v - 1) // 2) >= needed),  # E ≤ nV + V(V−1)/2
        "hidden": least(lambda m: m * each + (1 + m * n) >= needed),  # the output unit: at most 2·N^m ways
    }


# -------------------------------------------------------------------- Lipschitz functions (N54)
def lipschitz_bits(n: int, epsilon: float) -> int:
    """Bits that all weights together must hold to reach every 1-Lipschitz function on [−1,1]ⁿ within ε.

    (⌈1/ε⌉ − 1)ⁿ cubes of half side r > ε fit into the box. A cone of height ±r in each gives 2^cubes functions that
    differ by 2r > 2ε somewhere, so no network is within ε of two of them: one bit per cube, exponential in n.
    """
    n = whole("n", n, 1, 1000)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be greater than 0, got {epsilon}.")
    return max(0, math.ceil(1 / epsilon) - 1) ** n


# -------------------------------------------------------------------- parity (N52)
def parity_exponent(d: int, depth: int) -> float:
    """d^{1/(k−1)}: a parity circuit of depth k has at least exp(c·d^{1/(k−1)}) AND and OR gates (Håstad 1986).

    The constant c > 0 stands inside the exponent and depends on k only; for k = 2 the exact number is 2^{d−1} + 1.
    """
    return whole("d", d, 1, HUGE) ** (1 / (whole("depth", depth, 2, HUGE) - 1))


def parity_threshold_depth(d: int) -> float | None:
    """The depth k beyond which polynomially many gates suffice.   k − 1 = log d / (log log d + O(1))

    The O(1) is chosen so that d^{1/(k−1)} = log₂ d, where the lower bound turns polynomial in d: k = 1 + log₂d / log₂log₂d.
    None for d < 3, where the formula says nothing.
    """
    return None if whole("d", d, 1, HUGE) < 3 else 1 + math.log2(d) / math.log2(math.log2(d))
