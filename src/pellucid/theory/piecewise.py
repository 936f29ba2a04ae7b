"""Counting the linear pieces of a ReLU network on an interval, exactly, by following its breakpoints (N56)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import layers
from ..engines.numpy import NumpyOps
from ..layers import Chain, Concat, Dropout, Flatten, Identity, LeakyReLU, Linear, ReLU, Reshape, Sum
from ..network import Network
from ..tree import map_leaves
from .bounds import regions_at_most, regions_one_layer

__all__ = ["Pieces", "pieces"]

KINKED = (ReLU, LeakyReLU)
WRAPPERS = tuple(getattr(layers, name) for name in ("Frozen", "Penalty", "Repeat") if hasattr(layers, name))
AFFINE = (Chain, Concat, Dropout, Flatten, Identity, Linear, Reshape, Sum, *WRAPPERS)
CLOSE = 1e-12  # breakpoints nearer than this part of the interval are one; z smaller than this part of its layer's largest is 0
EQUAL = 1e-10  # slopes nearer than this part of the largest are one
MOST_BREAKPOINTS = 2_000_000


class Tracer(NumpyOps):
    """Runs a piecewise linear network and keeps the z of every ReLU layer, in the order in which they run."""

    def __init__(self) -> None:
        super().__init__()
        self.kinks: list[np.ndarray] = []

    def forward(self, layer: Any, p: Any, x: Any, key: str | int) -> tuple[Any, Any]:
        if isinstance(layer, KINKED):
            self.kinks.append(x.reshape(len(x), -1))
        elif not isinstance(layer, AFFINE):
            raise ValueError(
                f"{layer!r} is not piecewise linear: linear pieces exist for networks of Linear, ReLU, LeakyReLU, Identity, "
                "Flatten, Reshape and Dropout, joined by >>, | and +."
            )
        return super().forward(layer, p, x, key)


class Traced:
    """A network to be cut into linear pieces, in double precision."""

    def __init__(self, network: Network, inputs: int) -> None:
        if not isinstance(network, Network):
            raise TypeError(f"expected a Network, got {type(network).__name__}. Write pc.Network(expression, ({inputs},)).")
        network.require_built()
        if network.input_shape != (inputs,):
            raise ValueError(f"expected a network of {inputs} input{'s' if inputs > 1 else ''}, got one of shape {network.input_shape}.")
        self.net, self.params = network.net, map_leaves(lambda a: np.asarray(a, np.float64), network.params)
        self.widths = [z.shape[1] for z in self.kinks(np.zeros((1, inputs)))]

    def kinks(self, X: np.ndarray) -> list[np.ndarray]:
        """The z of every ReLU layer at the rows X."""
        tracer = Tracer()
        tracer.forward(self.net, self.params, X, "net")
        return tracer.kinks

    def active(self, X: np.ndarray) -> np.ndarray:
        """Which units are on, (rows, units)."""
        on = [z > CLOSE * np.abs(z).max(initial=0.0) for z in self.kinks(X)]
        return np.concatenate(on, axis=1) if on else np.zeros((len(X), 0), dtype=bool)

    def jacobian(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Outputs (rows, outputs) and slopes (rows, outputs, inputs), by the network's own backward pass."""
        ops = NumpyOps()
        y, cache = ops.forward(self.net, self.params, X, "net")
        flat = y.reshape(len(y), -1)
        slopes = []
        for i in range(flat.shape[1]):
            dy = np.zeros_like(flat)
            dy[:, i] = 1
            slopes.append(ops.backward(self.net, self.params, cache, dy.reshape(y.shape), "net")[0])
        return flat, np.stack(slopes, axis=1)


@dataclass(frozen=True)
class Pieces:
    """The linear pieces of a network on an interval.

    Attributes
    ----------
    count : int
        Linear pieces of the function: neighbours with the same slope are one.
    activation_regions : int
        Intervals on which the same units are on. A unit may switch without bending the output.
    breakpoints : array (count + 1,)
        Where the pieces begin and end, the ends of the interval included.
    slopes, intercepts : array (count, outputs)
        y = slope·x + intercept on each piece.
    at_most, one_layer : int
        The upper bounds Π (h + 1) over the layers of ReLU units, and Σh + 1 for one layer of as many units.
    """

    count: int
    activation_regions: int
    breakpoints: np.ndarray
    slopes: np.ndarray
    intercepts: np.ndarray
    at_most: int
    one_layer: int

    def __str__(self) -> str:
        low, high = self.breakpoints[0], self.breakpoints[-1]
        return (
            f"{self.count:,} linear pieces on [{low:g}, {high:g}], {self.activation_regions:,} activation regions, "
            f"at most {self.at_most:,} possible, {self.one_layer:,} with all units in one layer"
        )

    __repr__ = __str__


def pieces(network: Network, low: float, high: float) -> Pieces:
    """Count the linear pieces of a ReLU network with one input between low and high.

    Nothing is sampled. Between two breakpoints every z of the first ReLU layer is linear, so its zeros are known from its values
    at the breakpoints; they become breakpoints themselves, and then the same holds for the next layer. Skip, residual and
    parallel connections need nothing special: layers are taken in the order in which they run.

    Computed in double precision: breakpoints nearer to each other than 10⁻¹² of the interval count as one.

    Examples
    --------
    >>> from pellucid.theory import zigzag
    >>> pieces(zigzag(5).network, 0, 2).count
    32
    """
    low, high = float(low), float(high)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"low must be less than high, and both finite, got {low:g} and {high:g}.")
    traced = Traced(network, 1)
    t = np.array([low, high])
    for layer in range(len(traced.widths)):
        t = with_zeros(t, traced.kinks(t[:, None])[layer])
        if len(t) > MOST_BREAKPOINTS:
            raise ValueError(f"more than {MOST_BREAKPOINTS:,} breakpoints: choose a shorter interval or a smaller network.")
    middle = ((t[1:] + t[:-1]) / 2)[:, None]
    on = traced.active(middle)
    y, slopes = traced.jacobian(middle)
    slopes = slopes[..., 0]
    bends = (np.abs(np.diff(slopes, axis=0)) > EQUAL * np.abs(slopes).max(initial=0.0)).any(1)
    switches = (on[1:] != on[:-1]).any(1)
    first = np.concatenate([[0], 1 + np.flatnonzero(bends)])
    return Pieces(
        count=len(first),
        activation_regions=1 + int(switches.sum()),
        breakpoints=np.concatenate([t[first], [high]]),
        slopes=slopes[first],
        intercepts=(y - slopes * middle)[first],
        at_most=regions_at_most(traced.widths, 1),
        one_layer=regions_one_layer(sum(traced.widths), 1),
    )


def with_zeros(t: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The breakpoints t and the places between them where one of the z, (len(t), units), changes sign."""
    z = np.where(np.abs(z) <= CLOSE * np.abs(z).max(initial=0.0), 0.0, z)
    segment, unit = np.nonzero(z[:-1] * z[1:] < 0)
    a, b = z[segment, unit], z[segment + 1, unit]
    zeros = t[segment] + (t[segment + 1] - t[segment]) * (a / (a - b))
    merged = np.sort(np.concatenate([t, zeros]))
    apart = CLOSE * (t[-1] - t[0])
    keep = np.concatenate([[True], np.diff(merged) > apart])
    if merged[-1] - merged[keep][-1] > 0:  # the right end itself must stay
        keep[np.flatnonzero(keep)[-1]] = False
        keep[-1] = True
    return merged[keep]
