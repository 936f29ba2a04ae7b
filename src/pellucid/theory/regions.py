"""Enumerating the linear regions of a ReLU network on a two-dimensional box, exactly, as polygons (N56)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..network import Network
from .bounds import regions_at_most, regions_one_layer
from .piecewise import Traced

__all__ = ["Regions", "regions"]

ON_LINE = 1e-10  # a corner with |z| below this part of its layer's largest lies on the line z = 0
EQUAL = 1e-9  # gradients nearer than this part of the largest are one
MOST_REGIONS = 200_000


@dataclass(frozen=True)
class Regions:
    """The linear regions of a network on a box.

    Attributes
    ----------
    count : int
        Activation regions: polygons on which the same units are on.
    pieces : int
        Linear pieces of the function: neighbouring regions with the same gradient are one.
    polygons : list of arrays (corners, 2)
        The activation regions, corners in order.
    piece : array (count,)
        The number of the piece each region belongs to.
    gradients : array (count, outputs, 2), values : array (count, outputs)
        The function on each region: value at the mean of its corners, and gradient.
    at_most, one_layer : int
        The upper bounds Π (1 + h + C(h, 2)) over the layers of ReLU units, and for one layer of as many units.
    """

    count: int
    pieces: int
    polygons: list[np.ndarray]
    piece: np.ndarray
    gradients: np.ndarray
    values: np.ndarray
    at_most: int
    one_layer: int
    box: tuple[tuple[float, float], tuple[float, float]]

    def __str__(self) -> str:
        (a, b), (c, d) = self.box
        return (
            f"{self.count:,} activation regions on [{a:g}, {b:g}] × [{c:g}, {d:g}], "
            f"{self.pieces:,} linear pieces of the function, "
            f"at most {self.at_most:,} possible, {self.one_layer:,} with all units in one layer"
        )

    __repr__ = __str__

    @property
    def areas(self) -> np.ndarray:
        """The area of every region; together they are the area of the box."""
        return np.array([area(p) for p in self.polygons])


def regions(network: Network, box: Any = ((-1.0, 1.0), (-1.0, 1.0))) -> Regions:
    """Enumerate the linear regions of a ReLU network with two inputs.

    Layer by layer: on each polygon every z of the next layer is linear, so its values at the corners say whether the line z = 0
    cuts the polygon, and where. Any network of Linear, ReLU and LeakyReLU joined by >>, | and + is taken.

    Computed in double precision: a corner whose z is below 10⁻¹⁰ of its layer's largest counts as lying on the line.

    Parameters
    ----------
    network : Network
        Two inputs; up to about 200 units.
    box : ((x low, x high), (y low, y high))

    Examples
    --------
    >>> import pellucid as pc
    >>> lines = pc.Network(pc.Linear(3) >> pc.ReLU() >> pc.Linear(1), (2,), seed=1)
    >>> regions(lines).count <= 7
    True
    """
    sides = np.asarray(box, dtype=float)
    if sides.shape != (2, 2) or not np.isfinite(sides).all() or not (sides[:, 0] < sides[:, 1]).all():
        raise ValueError(f"box must be ((x low, x high), (y low, y high)) with low < high, got {box!r}.")
    traced = Traced(network, 2)
    (x0, x1), (y0, y1) = sides
    polygons = [np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])]
    for layer in range(len(traced.widths)):
        polygons = cut_all(polygons, traced.kinks(np.concatenate(polygons))[layer])
    centres = np.array([p.mean(0) for p in polygons])
    values, gradients = traced.jacobian(centres)
    piece = join(polygons, gradients, float((sides[:, 1] - sides[:, 0]).max()))
    return Regions(
        count=len(polygons),
        pieces=int(piece.max()) + 1,
        polygons=polygons,
        piece=piece,
        gradients=gradients,
        values=values,
        at_most=regions_at_most(traced.widths, 2),
        one_layer=regions_one_layer(sum(traced.widths), 2),
        box=((float(x0), float(x1)), (float(y0), float(y1))),
    )


def cut_all(polygons: list[np.ndarray], z: np.ndarray) -> list[np.ndarray]:
    """Cut polygons along the lines z = 0 of one layer; z is (corners of all polygons, units)."""
    z = np.where(np.abs(z) <= ON_LINE * np.abs(z).max(initial=0.0), 0.0, z)
    ends = np.cumsum([len(p) for p in polygons])
    starts = np.concatenate([[0], ends[:-1]])
    crossed = (np.minimum.reduceat(z, starts) < 0) & (np.maximum.reduceat(z, starts) > 0)  # (polygons, units)
    result: list[np.ndarray] = []
    for polygon, start, end, units in zip(polygons, starts, ends, crossed, strict=True):
        lines = np.flatnonzero(units)
        if not len(lines):
            result.append(polygon)
            continue
        todo = [np.concatenate([polygon, z[start:end, lines]], axis=1)]  # corners with the z of the lines that cross
        while todo:
            corners = todo.pop()
            mixed = (corners[:, 2:].min(0) < 0) & (corners[:, 2:].max(0) > 0)
            if not mixed.any():
                result.append(corners[:, :2])
                continue
            todo += cut(corners, 2 + int(np.argmax(mixed)))
        if len(result) > MOST_REGIONS:
            raise ValueError(f"more than {MOST_REGIONS:,} regions: choose a smaller box or a smaller network.")
    return result


def cut(corners: np.ndarray, column: int) -> list[np.ndarray]:
    """The two parts of a convex polygon on either side of the line on which `column` is zero."""
    z, following = corners[:, column], np.roll(corners, -1, axis=0)
    crossing = np.flatnonzero(z * following[:, column] < 0)
    share = z[crossing] / (z[crossing] - following[crossing, column])
    new = corners[crossing] + share[:, None] * (following[crossing] - corners[crossing])
    new[:, column] = 0.0
    ring = np.insert(corners, crossing + 1, new, axis=0)
    ring[:, 2:][np.abs(ring[:, 2:]) <= ON_LINE * np.abs(ring[:, 2:]).max()] = 0.0
    return [ring[ring[:, column] >= 0], ring[ring[:, column] <= 0]]


def join(polygons: list[np.ndarray], gradients: np.ndarray, size: float) -> np.ndarray:
    """Number the pieces of the function: regions that share an edge and have the same gradient belong together."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    owner = np.repeat(np.arange(len(polygons)), [len(p) for p in polygons])
    middles = np.concatenate([(p + np.roll(p, -1, axis=0)) / 2 for p in polygons])
    a, b = cKDTree(middles).query_pairs(EQUAL * size, output_type="ndarray").T  # the two sides of an edge
    a, b = owner[a], owner[b]
    same = (np.abs(gradients[a] - gradients[b]) <= EQUAL * np.abs(gradients).max(initial=0.0)).all(axis=(1, 2)) & (a != b)
    n = len(polygons)
    return connected_components(coo_array((np.ones(same.sum()), (a[same], b[same])), shape=(n, n)), directed=False)[1]


def area(polygon: np.ndarray) -> float:
    x, y = polygon.T
    return float(0.5 * abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)))
