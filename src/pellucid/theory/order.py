"""A dense network does not know the order of its inputs (N57)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..layers import Chain, Concat, Layer, Linear, Product, Sum
from ..network import Network
from .certificate import Built, Certificate

__all__ = ["permuted"]


def permuted(network: Network, order: Sequence[int]) -> Built:
    """The same network for inputs in another order: its first weights take the order of the inputs.

    Outputs on X[:, order] equal those of the old network on X. Back-propagation permutes in the same way, so a network
    trained on shuffled columns from shuffled weights walks the same path: the order carries no information for it.
    """
    network.require_built()
    columns = list(order)
    if len(network.input_shape or ()) != 1 or sorted(columns) != list(range((network.input_shape or (0,))[0])):
        raise ValueError(f"order must name each of the inputs 0 … n−1 once, for a network of n inputs; got {order!r}.")
    twin = Network(network.net, network.input_shape, network.loss, seed=network.seed, dtype=str(network.dtype))  # type: ignore[arg-type]
    twin.params = reorder(network.net, network.params, columns)
    X = np.random.default_rng(0).normal(size=(1000, len(columns)))
    expected = network(X)
    error = float(np.abs(twin(X[:, columns]) - expected).max() / max(1e-300, np.abs(expected).max()))
    return Built(
        twin,
        Certificate(
            what="network with its inputs in another order",
            promised="the same outputs, up to the rounding of sums in another order",
            measured=f"{error:.2g} relative difference at most",
            checked="on 1,000 random inputs",
            holds=error < 1000 * float(np.finfo(network.dtype).eps),
            facts={"order": columns},
        ),
    )


def reorder(net: Layer, p: Any, order: list[int]) -> Any:
    if isinstance(net, Linear):
        return {key: value[order] if key in ("W", "_mask") else value for key, value in p.items()}
    if isinstance(net, Chain):
        return (reorder(net.children[0], p[0], order), *p[1:])
    if isinstance(net, Concat | Sum | Product):
        return tuple(reorder(child, q, order) for child, q in zip(net.children, p, strict=True))
    raise ValueError(f"{net!r} stands first and is not a dense layer: only Linear layers do not know the order of their inputs.")
