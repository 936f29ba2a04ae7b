"""pellucid: neural networks you can see through.

Every layer states its forward and its backward formula once. The same lines run step by step under
NumPy, where every number can be looked at, and compiled as one program under JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .initializers import Constant, Glorot, He, Initializer, LeCun, Orthogonal, Zeros
from .kernel_methods import kernel_density, ridge_output
from .layers import *  # noqa: F403
from .layers import __all__ as _layers
from .losses import (
    AbsoluteError,
    BinaryCrossEntropy,
    Brier,
    CrossEntropy,
    HalfSquaredError,
    Huber,
    LogCosh,
    Loss,
    Poisson,
    ResidualLoss,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    SquaredError,
    cross_entropy_bits,
    entropy_bits,
    information_bits,
)
from .network import Network
from .optimizers import LBFGS, SGD, Adam, AdamW, GradientDescent, Optimizer, RMSProp
from .population import Population
from .proof import GradientCheck, check_layer
from .schedules import Cosine, Exponential, InverseTime, OneCycle, ReduceOnPlateau, Schedule, StepDecay, WarmUp
from .settings import Fixed
from .training.callbacks import Callback, EarlyStopping, History
from .training.finite import NonFiniteError
from .training.sequences import cut_streams

if TYPE_CHECKING:
    from .estimators import (
        MLPClassifier,
        MLPRegressor,
        NetworkClassifier,
        NetworkRegressor,
        PopulationSearchCV,
        RBFClassifier,
        RBFRegressor,
    )
    from .files import load, save
    from .glass import Doctor, FlightRecorder

__version__ = "0.1.0"

#: names that are imported when they are first used, because they need more than NumPy
LATER = {
    "Doctor": "glass",
    "FlightRecorder": "glass",
    "MLPClassifier": "estimators",
    "MLPRegressor": "estimators",
    "NetworkClassifier": "estimators",
    "NetworkRegressor": "estimators",
    "PopulationSearchCV": "estimators",
    "RBFClassifier": "estimators",
    "RBFRegressor": "estimators",
    "load": "files",
    "save": "files",
}

__all__ = [
    *_layers,
    "AbsoluteError",
    "Adam",
    "AdamW",
    "BinaryCrossEntropy",
    "Brier",
    "Callback",
    "Constant",
    "Cosine",
    "CrossEntropy",
    "Doctor",
    "EarlyStopping",
    "Exponential",
    "Fixed",
    "FlightRecorder",
    "Glorot",
    "GradientCheck",
    "GradientDescent",
    "HalfSquaredError",
    "He",
    "History",
    "Huber",
    "Initializer",
    "InverseTime",
    "LBFGS",
    "LeCun",
    "LogCosh",
    "Loss",
    "MLPClassifier",
    "MLPRegressor",
    "Network",
    "NetworkClassifier",
    "NetworkRegressor",
    "NonFiniteError",
    "OneCycle",
    "Optimizer",
    "Orthogonal",
    "Poisson",
    "Population",
    "PopulationSearchCV",
    "RBFClassifier",
    "RBFRegressor",
    "RMSProp",
    "ReduceOnPlateau",
    "ResidualLoss",
    "SGD",
    "Schedule",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "SquaredError",
    "StepDecay",
    "WarmUp",
    "Zeros",
    "check_layer",
    "cross_entropy_bits",
    "cut_streams",
    "entropy_bits",
    "information_bits",
    "kernel_density",
    "load",
    "ridge_output",
    "save",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "glass":
        return import_module(".glass", __name__)
    if name not in LATER:
        raise AttributeError(f"module 'pellucid' has no attribute {name!r}")
    return getattr(import_module(f".{LATER[name]}", __name__), name)
