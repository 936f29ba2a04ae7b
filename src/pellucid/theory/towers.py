"""Sums of sigmoid towers approximate a continuous function within ε, on the whole box (N53, N54)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..layers import Linear, Sigmoid
from ..network import Network
from .bounds import lipschitz_bits
from .certificate import Built, Certificate, Table, evaluate, network_of, whole
from .expressions import Expression

__all__ = ["lipschitz_cost", "tower", "towers"]

MOST_CELLS = {1: 100_000, 2: 10_000, 3: 8_000}
ZONE = 1 / 50  # half the width of a step, as a part of a cell
SHARE = 0.97  # of ε for the height of the cells; the rest is for what the sigmoids and rounding add
ROUNDING = 2.0**-52


# -------------------------------------------------------------------- one tower
def tower(low: Any, high: Any, *, steepness: float | None = None) -> Built:
    """One tower: height 1 between low and high, 0 elsewhere.

    One input: σ(w(x−low)) − σ(w(x−high)), two steps at x = −b/w with slope w/4.
    Two inputs: four sigmoids add up to a cross of heights 0, 1 and 2; a sigmoid in a second hidden layer with its threshold
    at 3/2 cuts the tower out. In n dimensions the threshold is n − ½.

    Parameters
    ----------
    low, high : number, or one number per input (up to three)
    steepness : float, optional
        The weight w; by default 100 divided by the narrowest side.
    """
    low, high = box(low, high)
    n = len(low)
    w = 100 / float((high - low).min()) if steepness is None else float(steepness)
    if not 0 < w < math.inf:
        raise ValueError(f"steepness must be greater than 0, got {steepness}.")
    W = np.zeros((n, 2 * n))
    W[range(n), range(0, 2 * n, 2)] = W[range(n), range(1, 2 * n, 2)] = w
    edges = np.stack([low, high], axis=1).ravel()
    subtract = np.tile([1.0, -1.0], n)[:, None]
    first: tuple[Any, Any] = (W, -w * edges)
    if n == 1:
        network = network_of(Linear(2) >> Sigmoid() >> Linear(1), 1, [first, (subtract, [0.0])])
    else:
        net = Linear(2 * n) >> Sigmoid() >> Linear(1) >> Sigmoid() >> Linear(1)
        network = network_of(net, n, [first, (40 * subtract, [-40 * (n - 0.5)]), ([[1.0]], [0.0])])
    # away from the walls by 10/w every sigmoid of the first layer is within e⁻¹⁰ of 0 or 1
    margin, side = 10 / w, high - low
    if (side <= 2 * margin).any():
        raise ValueError(f"steepness {w:g} is too small for a tower as narrow as {side.min():g}: more than {20 / side.min():g} is needed.")
    places = [(low - side, low - margin), (low + margin, high - margin), (high + margin, high + side)]
    samples = [np.linspace(a, b, 5) for a, b in places]
    inside, outside = 1.0, 0.0
    for zone in itertools.product(range(3), repeat=n):
        y = network(np.array(list(itertools.product(*(samples[k][:, axis] for axis, k in enumerate(zone))))))
        if set(zone) == {1}:
            inside = float(y.min())
        else:
            outside = max(outside, float(np.abs(y).max()))
    return Built(
        network,
        Certificate(
            what=f"tower in {n} dimension{'s' if n > 1 else ''}",
            promised="1 inside and 0 outside within 0.001, except closer than 10/w to a wall",
            measured=f"at least {inside:.6f} inside, at most {outside:.6f} outside",
            checked=f"on 5 points per axis in each of the {3**n} zones",
            holds=inside > 0.999 and outside < 0.001,
            facts={"steepness": w, "sigmoids": 2 * n + (n > 1)},
        ),
    )


# -------------------------------------------------------------------- sums of towers
class Plan(NamedTuple):
    """A grid of cells, the steps of the sum, and the parts of its error bound."""

    edges: list[np.ndarray]  # left edges per axis; the first lies outside the box, so its step is always on
    steps: np.ndarray  # height of the step at each corner: the mixed difference of the cells' heights
    zone: float  # half the width of a step
    steep: float  # w of the first layer
    cut: float  # v of the second layer
    bound: float  # on the error anywhere in the box


def towers(
    f: Callable[..., float] | str,
    low: Any,
    high: Any,
    epsilon: float,
    *,
    lipschitz: float | None = None,
    modulus: Callable[[float], float] | None = None,
) -> Built:
    """A sigmoid network within ε of f on the whole box from low to high.

    The box is cut into cells of height f(centre). Towers that stand side by side share their walls, so the sum of all
    towers is a sum of steps: y = Σ Δᵢ Xᵢ(x), Xᵢ = σ(w(x − edgeᵢ)). With more inputs a second hidden layer takes
    the AND of one step per axis, σ(v(Σ X − (n − ½))), and Δ is the mixed difference of the heights.

    The bound holds between grid points too. Where ω is the modulus of continuity, r the distance from a cell's centre to its
    corner, τ half the width of a step, and ξ = σ(−wτ):

    error ≤ ω(r + √n τ) + overshoot + Σ|Δ|·δ + rounding,

    δ = ξ for one input, else σ(−v(½ − nξ)) + nvξ/4. In the zones where two or more walls meet, an AND may switch
    before or after its neighbours; `overshoot` is how far that can carry the sum beyond the heights around (0 for one input).

    Parameters
    ----------
    f : function of n numbers, or str
        A formula in x (and y, z), such as ``"sin(3*x)"``, needs nothing else: its slope is bounded by interval arithmetic.
    low, high : number, or one number per input (up to three)
    epsilon : float
        The greatest error allowed.
    lipschitz : float, optional
        A constant L with |f(u) − f(v)| ≤ L‖u − v‖.
    modulus : function, optional
        In its place any ω with |f(u) − f(v)| ≤ ω(‖u − v‖), such as ``math.sqrt``.

    Examples
    --------
    >>> network, certificate = towers(math.sqrt, 0, 1, 0.1, modulus=math.sqrt)
    >>> certificate["greatest error"] <= certificate["bound"] <= 0.1
    True
    """
    low, high = box(low, high)
    n = len(low)
    if isinstance(epsilon, bool) or not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be greater than 0, got {epsilon}.")
    if isinstance(f, str):
        f = Expression(f, "xyz"[:n])
    if lipschitz is None and modulus is None:
        if not isinstance(f, Expression):
            raise ValueError(
                "between grid points nothing is known about f: give lipschitz= or modulus=, or f as a formula such as 'sin(3*x)'."
            )
        lipschitz = f.lipschitz(low, high)
    if lipschitz is not None and not 0 <= lipschitz < math.inf:
        raise ValueError(f"lipschitz must be 0 or more, and finite, got {lipschitz}.")
    omega = modulus if modulus is not None else (lambda t: float(lipschitz) * t)  # type: ignore[arg-type]
    plan = plan_towers(f, low, high, float(epsilon), omega)
    network, units = build_towers(plan)
    measured = measure(network, f, low, high, plan)
    return Built(
        network,
        Certificate(
            what=f"sum of towers on {' × '.join(f'[{a:g}, {b:g}]' for a, b in zip(low, high, strict=True))}",
            promised=f"error at most {epsilon:g} everywhere",
            measured=f"{measured:.3g} at most on the points tried; {plan.bound:.3g} proved for all points",
            checked="the bound from the modulus of continuity, the steps' width and rounding; and a dense set of points",
            holds=measured <= plan.bound <= epsilon,
            facts={
                "epsilon": float(epsilon),
                "bound": plan.bound,
                "greatest error": measured,
                "cells": plan.steps.size,
                "units": units,
                "steepness": plan.steep,
            }
            | ({} if lipschitz is None else {"lipschitz": float(lipschitz)}),
        ),
    )


def plan_towers(f: Callable[..., float], low: np.ndarray, high: np.ndarray, epsilon: float, omega: Callable[[float], float]) -> Plan:
    """The coarsest grid whose bound is at most ε."""
    n, side = len(low), high - low
    width = float(side.max())

    def counts(size: float) -> np.ndarray:
        return np.maximum(1, np.ceil(side / size - 1e-9)).astype(int)

    def reach(size: float) -> float:  # from a cell's centre to the far end of the zone at its corner
        cell = side / counts(size)
        return float(0.5 * math.sqrt((cell**2).sum()) + math.sqrt(n) * ZONE * cell.min())

    def too_many(size: float) -> bool:
        return math.prod(map(int, counts(size))) > MOST_CELLS[n]

    def refuse() -> NoReturn:
        size = width
        while not too_many(size * 0.97):
            size *= 0.97
        raise ValueError(
            f"epsilon = {epsilon:g} needs more than {MOST_CELLS[n]:,} towers here; about {omega(reach(size)) / SHARE:.3g} is possible. "
            "Choose a greater epsilon or a smaller box."
        )

    size = width
    while not modulus_at(omega, reach(size)) <= SHARE * epsilon:
        if too_many(size):
            refuse()
        size *= 0.97
    while True:
        if too_many(size):
            refuse()
        plan = lay_out(f, low, high, counts(size), epsilon, omega, reach(size))
        if plan.bound <= epsilon:
            return plan
        size *= 0.95


def lay_out(f: Any, low: np.ndarray, high: np.ndarray, counts: np.ndarray, epsilon: float, omega: Any, reach: float) -> Plan:
    n, cell = len(low), (high - low) / counts
    zone = ZONE * float(cell.min())
    shift = 4 * ROUNDING * float(max(np.abs(low).max(), np.abs(high).max()))  # what rounding moves a wall by
    if zone < 4 * shift:
        raise ValueError(f"cells of width {cell.min():.3g} are too narrow so far from 0 for double precision: choose a greater epsilon.")
    centres = [a + c * (np.arange(m) + 0.5) for a, c, m in zip(low, cell, counts, strict=True)]
    edges = [a + c * np.arange(m) for a, c, m in zip(low, cell, counts, strict=True)]
    for axis, e in enumerate(edges):
        e[0] -= cell[axis]
    heights = values(f, np.array(list(itertools.product(*centres)))).reshape(counts)
    for axis in range(n):
        jump, allowed = np.abs(np.diff(heights, axis=axis)).max(initial=0), modulus_at(omega, cell[axis])
        if jump > allowed * (1 + 1e-9) + 1e-12:
            raise ValueError(
                f"f changes by {jump:.4g} over a distance of {cell[axis]:.4g}, more than lipschitz= or modulus= allows ({allowed:.4g})."
            )
    steps = heights
    for axis in range(n):
        steps = np.diff(steps, axis=axis, prepend=0.0)
    total = float(np.abs(steps).sum())
    tiny = 0.01 * epsilon / max(total, epsilon)  # what one unit may deviate by
    cut = 0.0 if n == 1 else 2 * math.log(2 / tiny) + 1
    steep = math.log((2 + n * cut) / tiny) / (zone - shift)
    xi = math.exp(-steep * (zone - shift))
    deviation = xi if n == 1 else math.exp(-cut * (0.5 - n * xi)) + n * cut * xi / 4
    rounding = (steps.size + sum(counts) + 8) * ROUNDING * total
    bound = modulus_at(omega, reach) + overshoot(heights) + total * deviation + rounding
    return Plan(edges, steps, zone, steep, cut, float(bound))


def build_towers(plan: Plan) -> tuple[Network, int]:
    n, m = len(plan.edges), sum(map(len, plan.edges))
    W = np.zeros((n, m))
    start = np.cumsum([0, *map(len, plan.edges)])
    for axis in range(n):
        W[axis, start[axis] : start[axis + 1]] = plan.steep
    first: tuple[Any, Any] = (W, -plan.steep * np.concatenate(plan.edges))
    last: tuple[Any, Any] = (plan.steps.reshape(-1, 1), [0.0])
    if n == 1:
        return network_of(Linear(m) >> Sigmoid() >> Linear(1), 1, [first, last]), m
    units = plan.steps.size
    V = np.zeros((m, units))
    for axis, index in enumerate(np.unravel_index(np.arange(units), plan.steps.shape)):
        V[start[axis] + index, np.arange(units)] = plan.cut
    net = Linear(m) >> Sigmoid() >> Linear(units) >> Sigmoid() >> Linear(1)
    return network_of(net, n, [first, (V, np.full(units, -plan.cut * (n - 0.5))), last]), m + units


def overshoot(heights: np.ndarray) -> float:
    """How far the sum can leave the range of the heights around a place where walls of two or more axes meet.

    There the sum is Σ_S c_S Δ_S over sets S of those axes, where c_S is the AND of the steps in S. All that is known is
    that 1 = c_∅ ≥ c_S ≥ c_T ≥ 0 for S ⊂ T; a linear function on such c is extreme where every c is 0 or 1, on a
    family of sets that contains the subsets of its members. All those families are tried, at all places at once.
    """
    n, worst = heights.ndim, 0.0
    for k in range(2, n + 1):
        for axes in itertools.combinations(range(n), k):
            if any(heights.shape[a] < 2 for a in axes):
                continue
            around = {}
            for corner in itertools.product((0, 1), repeat=k):
                cut: list[slice] = [slice(None)] * n
                for axis, far in zip(axes, corner, strict=True):
                    cut[axis] = slice(1, None) if far else slice(None, -1)
                around[corner] = heights[tuple(cut)]
            stack = np.stack(list(around.values()))
            least, greatest = stack.min(0), stack.max(0)
            differences = {s: sum((-1) ** (sum(s) - sum(t)) * around[t] for t in around if below(t, s)) for s in around}
            for family in families(k):
                y = sum(differences[s] for s in family)
                worst = max(worst, float(np.maximum(y - greatest, least - y).max()))
    return worst


def below(t: tuple[int, ...], s: tuple[int, ...]) -> bool:
    return all(a <= b for a, b in zip(t, s, strict=True))


def families(k: int) -> Iterator[list[tuple[int, ...]]]:
    """All families of subsets of k axes that contain, with a set, all its subsets."""
    sets = list(itertools.product((0, 1), repeat=k))
    for chosen in itertools.product((False, True), repeat=len(sets) - 1):
        family = [s for s, there in zip(sets, (True, *chosen), strict=True) if there]
        if all(t in family for s in family for t in sets if below(t, s)):
            yield family


def measure(network: Network, f: Any, low: np.ndarray, high: np.ndarray, plan: Plan) -> float:
    """The greatest error on the walls, beside them, and on points spread over the box."""
    n = len(low)
    widest = max(plan.steps.size, *map(len, plan.edges))
    count = int(max(500, min(20_000, 2e8 // (widest * (1 if n == 1 else sum(map(len, plan.edges)))))))
    rng = np.random.default_rng(0)
    X = rng.uniform(low, high, (count, n))
    for axis, e in enumerate(plan.edges):  # half of the points on or beside a wall in every axis
        beside = rng.choice(e, count // 2) + plan.zone * rng.choice([-1.0, -0.1, 0.0, 0.1, 1.0], count // 2)
        X[: count // 2, axis] = np.clip(beside, low[axis], high[axis])
    X = np.concatenate([X, [low, high]])
    return float(np.abs(evaluate(network, X, widest)[:, 0] - values(f, X)).max())


def values(f: Callable[..., float], X: np.ndarray) -> np.ndarray:
    """f at every row, or an error that names the point where it is no number."""
    y = np.empty(len(X))
    for i, row in enumerate(X.tolist()):
        try:
            y[i] = f(*row)
        except (ArithmeticError, ValueError) as error:
            raise ValueError(f"f has no value at {tuple(row)}: {error}.") from error
        if not math.isfinite(y[i]):
            raise ValueError(f"f is {y[i]} at {tuple(row)}: it must be finite on the whole box.")
    return y


def modulus_at(omega: Callable[[float], float], t: float) -> float:
    value = float(omega(float(t)))
    if not value >= 0:
        raise ValueError(f"a modulus of continuity is 0 or more, got {value} at {t:g}.")
    return value


def box(low: Any, high: Any) -> tuple[np.ndarray, np.ndarray]:
    a, b = (np.atleast_1d(np.asarray(v, dtype=float)) for v in (low, high))
    if a.ndim != 1 or a.shape != b.shape or not 1 <= len(a) <= 3:
        raise ValueError(f"low and high must be one number each, or one per input for up to three inputs, got {low!r} and {high!r}.")
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a < b).all()):
        raise ValueError(f"low must be less than high, and both finite, got {low!r} and {high!r}.")
    return a, b


# -------------------------------------------------------------------- what it costs (N54)
def distance(*x: float) -> float:
    return math.hypot(*x)


def lipschitz_cost(
    epsilons: Sequence[float] = (0.5, 0.25), most: int = 3, f: Callable[..., float] = distance, lipschitz: float = 1.0
) -> Table:
    """Units that towers need for a 1-Lipschitz f on [−1,1]ⁿ within ε, built and measured, beside the exponential bound.

    Cells are at most (√n·L/ε)ⁿ up to rounding up; every network needs `lipschitz_bits` bits in its weights at least.
    """
    rows = []
    for n in range(1, whole("most", most, 1, 3) + 1):
        for epsilon in epsilons:
            certificate = towers(f, [-1.0] * n, [1.0] * n, epsilon, lipschitz=lipschitz).certificate
            rows.append(
                {
                    "n": n,
                    "epsilon": epsilon,
                    "cells": certificate["cells"],
                    "units": certificate["units"],
                    "measured error": certificate["greatest error"],
                    "proved error": certificate["bound"],
                    "(√n/ε)ⁿ": (math.sqrt(n) * lipschitz / epsilon) ** n,
                    "bits, at least": lipschitz_bits(n, epsilon / lipschitz) if lipschitz else 0,
                }
            )
    return Table(f"towers for a {lipschitz:g}-Lipschitz function on [−1,1]ⁿ", rows)
