"""scikit-learn's face: estimators that train networks."""

from __future__ import annotations

from .mlp import MLPClassifier, MLPRegressor
from .network import NetworkClassifier, NetworkRegressor
from .rbf import RBFClassifier, RBFRegressor
from .search import PopulationSearchCV

__all__ = ["MLPClassifier", "MLPRegressor", "NetworkClassifier", "NetworkRegressor", "PopulationSearchCV", "RBFClassifier", "RBFRegressor"]
