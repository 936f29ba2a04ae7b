"""Radial basis function networks as estimators (N11, N12)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..layers import RBF, Layer
from ..network import Network
from ..training.data import row_weights
from .base import keep
from .network import BaseNetworkEstimator, NetworkClassifier, NetworkRegressor

__all__ = ["RBFClassifier", "RBFRegressor"]

ROWS = 20_000  # are enough to see where the data lie

PARAMETERS = """
    The centres begin at the (weighted) k-means centres of X, the widths at d_max/√(2 N_E), d_max the greatest distance
    between centres; then everything in `trainable`, and the output layer, is learned by back-propagation.

    Parameters
    ----------
    units : int
        N_E, the number of centres; fewer where X has fewer different rows.
    kernel : "gaussian", "multiquadric" or "inverse_multiquadric"
    width : "scalar", "per_unit", "per_axis" or "full"
        One width for all units, one each, one per unit and axis, or rotated ellipsoids.
    trainable : "all", "centres", "widths" or "none"
    width_factor : float
        Multiplies the widths at the start.
    loss, optimizer, epochs, batch_size, validation, early_stopping, callbacks, engine, random_state, dtype, warm_start, progress
        As those of NetworkClassifier; the optimizer is L-BFGS by default.
"""


class BaseRBF(BaseNetworkEstimator):
    """What the classifier and the regressor share: where the centres begin."""

    head = "auto"

    def _embedding(self) -> Layer:
        return self._layer

    def _network(self, x: Any, y: Any, sample_weight: Any) -> Network:
        if np.ndim(x) != 2:
            raise ValueError(f"{type(self).__name__} takes tables (n_samples, n_features), got an array of shape {np.shape(x)}.")
        weight = np.ones(len(x)) if sample_weight is None else row_weights(sample_weight, len(x), np.float64)
        centres, h = self._start(x, weight)
        self._layer = RBF(len(centres), self.kernel, self.width, self.trainable, "random", self.width_factor)
        network = super()._network(x, y, sample_weight)
        placed = {key: np.asarray(value, network.dtype) for key, value in self._layer.place(centres, h).items()}
        network.params = (placed, *network.params[1:])
        return network

    def _start(self, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float]:
        """Centres by weighted k-means on the different rows, so that a weight of 2 is two equal rows; and the width."""
        from scipy.spatial.distance import pdist
        from sklearn.cluster import KMeans
        from sklearn.utils import check_random_state

        if self.units < 1:
            raise ValueError(f"units must be at least 1, got {self.units!r}.")
        random = check_random_state(self.random_state if isinstance(self.random_state, int | np.integer) else None)
        there = np.flatnonzero(weight)
        chosen = there if len(there) <= ROWS else np.sort(random.choice(there, ROWS, replace=False))
        rows, which = np.unique(np.asarray(x[chosen], np.float64), axis=0, return_inverse=True)
        weight = np.bincount(which.ravel(), weight[chosen])
        centres = rows
        if len(rows) > self.units:
            centres = KMeans(self.units, random_state=random).fit(rows, sample_weight=weight).cluster_centers_
        spread = math.sqrt(np.average(np.square(rows - np.average(rows, axis=0, weights=weight)).sum(1), weights=weight))
        h = pdist(centres).max() / math.sqrt(2 * len(centres)) if len(centres) > 1 else 0.0
        return centres, h or spread or 1.0


class RBFClassifier(BaseRBF, NetworkClassifier):
    """A classifier of radial units."""

    __doc__ = (
        f"{__doc__}\n{PARAMETERS}"
        + """    class_weight : "balanced" or dict, optional
        Weights by class label, multiplied with `sample_weight`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> RBFClassifier(20, random_state=0).fit(X, y).score(X, y) > 0.95
    True
    """
    )

    def __init__(
        self,
        units: int = 50,
        *,
        kernel: str = "gaussian",
        width: str = "per_unit",
        trainable: str = "all",
        width_factor: float = 1.0,
        loss: Any = "auto",
        optimizer: Any = "lbfgs",
        epochs: int = 100,
        batch_size: Any = "auto",
        validation: float | None = None,
        early_stopping: Any = False,
        class_weight: Any = None,
        callbacks: Any = None,
        engine: str = "auto",
        random_state: Any = None,
        dtype: str = "auto",
        warm_start: bool = False,
        progress: bool = False,
    ) -> None:
        keep(self, locals())


class RBFRegressor(BaseRBF, NetworkRegressor):
    """A regressor of radial units, for one output or several."""

    __doc__ = (
        f"{__doc__}\n{PARAMETERS}"
        + """
    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(-3, 3, 200)[:, None]
    >>> RBFRegressor(12, random_state=0).fit(x, np.sin(x[:, 0])).score(x, np.sin(x[:, 0])) > 0.99
    True
    """
    )

    def __init__(
        self,
        units: int = 50,
        *,
        kernel: str = "gaussian",
        width: str = "per_unit",
        trainable: str = "all",
        width_factor: float = 1.0,
        loss: Any = "auto",
        optimizer: Any = "lbfgs",
        epochs: int = 100,
        batch_size: Any = "auto",
        validation: float | None = None,
        early_stopping: Any = False,
        callbacks: Any = None,
        engine: str = "auto",
        random_state: Any = None,
        dtype: str = "auto",
        warm_start: bool = False,
        progress: bool = False,
    ) -> None:
        keep(self, locals())
