"""Forward accumulation gives the gradients of back-propagation (N32), at a higher price."""

from __future__ import annotations

import numpy as np
import pytest

import pellucid as pc
from pellucid.glass import forward_accumulation

RNG = np.random.default_rng(0)
L = pc.Linear


@pytest.mark.parametrize(
    "net",
    [
        L(4) >> pc.Tanh() >> L(3) >> pc.Sigmoid() >> L(2),
        L(4) >> (pc.Identity() + (L(4) >> pc.Tanh())) >> L(2),
        (L(3) | (L(3) >> pc.ReLU())) >> L(2),
        ((L(4) >> pc.Softmax()) * L(4)).named("gate") >> L(2),
        (L(4) >> pc.Tanh()).named("first") >> L(3, mask=np.ones((4, 3))) >> L(2),
        L(2),
        L(4) >> pc.BatchNorm() >> pc.Tanh() >> L(2),  # rows that influence each other
        L(4) >> (pc.Identity() | (pc.BatchNorm() >> pc.ReLU())) >> L(2),
        L(4) >> pc.Frozen(pc.BatchNorm()) >> L(2),
    ],
    ids=str,
)
def test_forward_accumulation_gives_the_same_gradients(net):
    model = pc.Network(net, 3, "softmax_cross_entropy", dtype="float64")
    X, y = RNG.normal(size=(5, 3)), RNG.integers(0, 2, 5)
    found = forward_accumulation(model, X, y)
    loss, own = model.gradients(X, y)
    assert found.loss == loss
    assert list(found.gradients) == list(own)
    for name in own:
        np.testing.assert_allclose(found.gradients[name], own[name], rtol=1e-9, atol=1e-14)
    assert found.error < 1e-12


def test_multiplications_are_counted_as_by_hand():
    """Layers 3 → 4 → 4 → 2: forward carries 16 columns through tanh (4×4) and 4 → 2; back goes one row."""
    model = pc.Network(L(4) >> pc.Tanh() >> L(2), 3, dtype="float64")
    found = forward_accumulation(model, RNG.normal(size=(1, 3)), RNG.normal(size=(1, 2)))
    assert found.multiplications["forward"] == 4 * 4 * 16 + 2 * 4 * 16 + 2 * 26
    assert found.multiplications["backward"] == 4 * 4 + 2 * 4 + 4 * 16 + 2 * 10


def test_forward_costs_more_the_more_parameters_there_are():
    def ratio(units):
        model = pc.Network(L(units) >> pc.Tanh() >> L(units) >> pc.Tanh() >> L(1), 4, dtype="float64")
        m = forward_accumulation(model, RNG.normal(size=(2, 4)), RNG.normal(size=(2, 1))).multiplications
        return m["forward"] / m["backward"]

    assert ratio(16) > 1.5 * ratio(8) > 1.5 * ratio(4) > 5


def test_a_network_never_built_is_refused():
    with pytest.raises(ValueError, match="no parameters yet"):
        forward_accumulation(pc.Network(L(2)), np.ones((1, 3)), [1])
