"""scikit-learn's face: estimators that train networks."""

from __future__ import annotations

from .mlp import MLPClassifier, MLPRegressor
from .network import NetworkClassifier, NetworkRegressor
from .rbf import RBFClassifier, RBFRegressor

__all__ = ["MLPClassifier", "MLPRegressor", "NetworkClassifier", "NetworkRegressor", "RBFClassifier", "RBFRegressor"]
