"""scikit-learn's face: estimators that train networks."""

from __future__ import annotations

from .mlp import MLPClassifier, MLPRegressor

__all__ = ["MLPClassifier", "MLPRegressor"]
