"""Any Boolean function by one hidden layer of sign units, exactly (N50, N51)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from ..layers import Linear, Sign, Step
from ..network import Network
from .bounds import counting_bound
from .certificate import Built, Certificate, Table, evaluate, network_of, whole

__all__ = ["and_unit", "boolean", "boolean_growth", "or_unit"]

MOST_ENUMERATED = 16
MOST_MINIMISED = 9
Coding = Literal["binary", "sign"]


def bits(n: int) -> np.ndarray:
    """All 2ⁿ rows of a truth table, (2ⁿ, n), as 0 and 1; x₁ changes slowest."""
    return (np.arange(2**n)[:, None] >> np.arange(n - 1, -1, -1)) & 1


def boolean(
    f: Callable[..., Any] | Sequence[Any], n: int | None = None, *, coding: Coding = "binary", minimise: bool | None = None
) -> Built:
    """A network of one hidden layer of sign units that equals a Boolean function on all 2ⁿ inputs.

    Truth table → disjunctive normal form → network: one AND unit per term, and an OR of them. Where the false rows
    need fewer terms they are taken instead and the output is negated, so 2^{n−1} + 1 units always suffice.

    Parameters
    ----------
    f : function or table
        A function of n bits, or its 2ⁿ values in the order 0…00, 0…01, 0…10, …
    n : int, optional
        Number of inputs, at most 16; a table tells it by its length.
    coding : "binary" or "sign"
        Whether inputs and output are 0/1 or −1/+1.
    minimise : bool, optional
        Merge terms with Quine–McCluskey (needs sympy). By default up to n = 9.

    Returns
    -------
    Built
        The network, and a certificate with the unit count before and after.

    Examples
    --------
    >>> network, certificate = boolean(lambda a, b, c: a and (b or c), 3)
    >>> certificate["units before"], certificate["units after"], bool(certificate)
    (4, 3, True)
    """
    table, n = truth_table(f, n)
    check_coding(coding)
    if minimise and n > MOST_MINIMISED:
        raise ValueError(f"minimising takes too long beyond n = {MOST_MINIMISED}, got n = {n}. Leave minimise out.")
    # one unit per row of the rarer value, before; the fewer terms of both sides, after
    sides = {True: literals(bits(n)[table]), False: literals(bits(n)[~table])}
    if len(sides[bool(table[0])]) == 2**n:  # a constant: the AND of nothing is true
        sides[bool(table[0])] = np.zeros((1, n), dtype=int)
    before = min(len(terms) for terms in sides.values() if len(terms))
    if n <= MOST_MINIMISED if minimise is None else minimise:
        sides = {value: minimised(terms) for value, terms in sides.items()}
    value = min((v for v in sides if len(sides[v])), key=lambda v: len(sides[v]))
    network = dnf_network(sides[value], negated=not value, coding=coding)
    wrong = disagreements(network, table, coding)
    m = len(sides[value])
    return Built(
        network,
        Certificate(
            what=f"Boolean function of {n} inputs",
            promised=f"one hidden layer of sign units, exact on all {2**n:,} inputs, at most {2 ** (n - 1) + 1:,} units",
            measured=f"{wrong:,} wrong outputs, {m + 1:,} units",
            checked="every input, by enumeration",
            holds=wrong == 0 and m <= 2 ** (n - 1),
            facts={
                "true rows": int(table.sum()),
                "form": "OR of ANDs" if value else "NOT of an OR of ANDs",
                "units before": before + 1,
                "units after": m + 1,
                "any graph for all functions": f"at least {counting_bound(n)['units']:,} units (N58)",
            },
        ),
    )


def truth_table(f: Any, n: int | None) -> tuple[np.ndarray, int]:
    if not callable(f):
        f = list(f) if isinstance(f, Iterable) else f
        if not isinstance(f, list) or len(f) < 2 or len(f) & (len(f) - 1):
            raise ValueError(f"a truth table has 2ⁿ values, 2, 4, 8, …; got {len(f) if isinstance(f, list) else repr(f)}.")
        if n is not None and len(f) != 2**n:
            raise ValueError(f"a truth table of {n} inputs has {2**n:,} values, got {len(f):,}.")
        n = len(f).bit_length() - 1
    elif n is None:
        raise TypeError("a function needs n, the number of its inputs: boolean(f, n).")
    n = whole("n", n, 1, MOST_ENUMERATED, f"All 2ⁿ inputs are tried: {MOST_ENUMERATED} inputs are 65,536.")
    values = [f(*map(int, row)) for row in bits(n)] if callable(f) else f
    for i, value in enumerate(values):
        if not (isinstance(value, bool | int | float | np.generic) and value in (0, 1)):
            raise ValueError(f"a Boolean function gives 0 or 1 (False or True), got {value!r} for input {i:0{n}b}.")
    return np.array(values, dtype=bool), n


def check_coding(coding: str) -> None:
    if coding not in ("binary", "sign"):
        raise ValueError(f"coding must be 'binary' (0 and 1) or 'sign' (−1 and +1), got {coding!r}.")


def literals(rows: np.ndarray) -> np.ndarray:
    """Terms as signs: +1 for x, −1 for ¬x, 0 where an input does not occur. A row of bits is a term with all of them."""
    return 2 * rows - 1


def minimised(terms: np.ndarray) -> np.ndarray:
    """Fewer terms for the same function, by sympy's Quine–McCluskey."""
    n = terms.shape[1]
    rows = (terms > 0) @ (1 << np.arange(n - 1, -1, -1))
    neighbours = np.isin(rows[:, None] ^ (1 << np.arange(n)), rows)  # (m, n): rows that differ in one bit
    if not neighbours.any():  # as in parity: nothing can be merged
        return terms
    try:
        from sympy import Not, symbols
        from sympy.logic.boolalg import And, Or, SOPform
    except ImportError as error:
        raise ImportError("minimising needs sympy: pip install 'pellucid[theory]', or pass minimise=False.") from error
    names = symbols(f"x:{n}")
    form = SOPform(names, [int(row) for row in rows])
    result = []
    for term in Or.make_args(form):
        signs = np.zeros(n, dtype=int)
        for factor in [] if term == True else And.make_args(term):  # noqa: E712  sympy's own true
            signs[names.index(factor.args[0] if isinstance(factor, Not) else factor)] = -1 if isinstance(factor, Not) else 1
        result.append(signs)
    return np.array(result)


def and_weights(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AND of k literals over ±1: Σ ± x − (k − 1) is 1 when all hold, at most −1 when one does not (N51)."""
    return terms.T, 1 - np.abs(terms).sum(1)


def or_weights(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """OR of k literals over ±1: Σ ± x + (k − 1) is −1 when none holds, at least 1 when one does (N51)."""
    return terms.T, np.abs(terms).sum(1) - 1


def first_layer(W: np.ndarray, b: np.ndarray, coding: str) -> tuple[np.ndarray, np.ndarray]:
    """The same units for inputs 0 and 1: put 2x − 1 where ±1 stood."""
    return (W, b) if coding == "sign" else (2 * W, b - W.sum(0))


def output_layer(coding: str) -> Any:
    return Sign() if coding == "sign" else Step()


def dnf_network(terms: np.ndarray, negated: bool, coding: str) -> Network:
    m, n = terms.shape
    W, b = or_weights(np.ones((1, m), dtype=int))
    sign = -1 if negated else 1
    net = Linear(m) >> Sign() >> Linear(1) >> output_layer(coding)
    # whole numbers below 2²⁴: single precision is exact here, and half the work
    return network_of(net, n, [first_layer(*and_weights(terms), coding), (sign * W, sign * b)], dtype="float32")


def disagreements(network: Network, table: np.ndarray, coding: str) -> int:
    """On how many of the 2ⁿ inputs the network differs from the table."""
    X = bits(int(network.input_shape[0]))  # type: ignore[index]
    widest = max(len(p) for name, p in network.parameters.items() if name.endswith(".b"))
    y = evaluate(network, X if coding == "binary" else 2 * X - 1, widest)[:, 0]
    return int((y != (table if coding == "binary" else 2 * table - 1)).sum())


# -------------------------------------------------------------------- single units (N51)
def and_unit(inputs: int | Sequence[int], *, coding: Coding = "sign") -> Built:
    """AND as one sign unit with bias −(k − 1).

    Parameters
    ----------
    inputs : int or signs
        How many inputs; or one sign per input, −1 for a negated one: ``[1, -1]`` is x₁ ∧ ¬x₂.

    Examples
    --------
    >>> network, certificate = and_unit(3)
    >>> network.parameters["0.b"], network([[1, 1, 1], [1, -1, 1]])[:, 0]
    (array([-2.], dtype=float32), array([ 1., -1.], dtype=float32))
    """
    return unit("AND", inputs, and_weights, np.all, coding)


def or_unit(inputs: int | Sequence[int], *, coding: Coding = "sign") -> Built:
    """OR as one sign unit with bias +(k − 1). Parameters as in `and_unit`.

    Examples
    --------
    >>> network, certificate = or_unit([1, -1])
    >>> network([[-1, 1], [-1, -1]])[:, 0]
    array([-1.,  1.], dtype=float32)
    """
    return unit("OR", inputs, or_weights, np.any, coding)


def unit(name: str, inputs: Any, weights: Callable[..., Any], truth: Callable[..., Any], coding: str) -> Built:
    check_coding(coding)
    signs = [1] * whole("inputs", inputs, 1, MOST_ENUMERATED) if np.ndim(inputs) == 0 else list(inputs)
    k = whole("the number of inputs", len(signs), 1, MOST_ENUMERATED)
    if any(s not in (1, -1) for s in signs):
        raise ValueError(f"signs must be 1 or -1, got {signs}.")
    term = np.array([signs])
    W, b = weights(term)
    network = network_of(Linear(1) >> output_layer(coding), k, [first_layer(W, b, coding)], dtype="float32")
    wrong = disagreements(network, truth((2 * bits(k) - 1) == term, axis=1), coding)
    return Built(
        network,
        Certificate(
            what=f"{name} of {k} inputs",
            promised=f"one sign unit, exact on all {2**k:,} inputs",
            measured=f"{wrong} wrong outputs",
            checked="every input, by enumeration",
            holds=wrong == 0,
            facts={"bias over ±1": int(b[0])},
        ),
    )


# -------------------------------------------------------------------- growth with n
def boolean_growth(most: int = 7, *, seed: int = 0) -> Table:
    """How the units grow with n: parity (the worst case), a random function before and after minimising, and the bound.

    All networks are built and checked on all inputs. Past n = 9 nothing is minimised.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for n in range(1, whole("most", most, 1, 12) + 1):
        parity = boolean(bits(n).sum(1) % 2)
        other = boolean(rng.integers(0, 2, 2**n))
        bound = counting_bound(n)
        rows.append(
            {
                "n": n,
                "rows": 2**n,
                "parity": parity.certificate["units after"],
                "random": other.certificate["units before"],
                "minimised": other.certificate["units after"] if n <= MOST_MINIMISED else None,
                "one layer for all ≥": bound["hidden"] + 1,
                "any graph for all ≥": bound["units"],
            }
        )
    return Table("units to hold a Boolean function of n inputs", rows)
