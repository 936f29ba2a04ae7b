"""pellucid: neural networks you can see through.

Every layer states its forward and its backward formula once. The same lines run step by step under
NumPy, where every number can be looked at, and compiled as one program under JAX.
"""

from __future__ import annotations

from .initializers import Constant, Glorot, He, Initializer, LeCun, Orthogonal, Zeros
from .kernel_methods import kernel_density, ridge_output
from .layers import *  # noqa: F403
from .layers import __all__ as _layers
from .losses import (
    AbsoluteError,
    BinaryCrossEntropy,
    Brier,
    CrossEntropy,
    Huber,
    LogCosh,
    Loss,
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
from .proof import GradientCheck, check_layer
from .schedules import Cosine, Exponential, InverseTime, OneCycle, ReduceOnPlateau, Schedule, StepDecay, WarmUp
from .settings import Fixed
from .training.callbacks import Callback, EarlyStopping, History
from .training.finite import NonFiniteError

__version__ = "0.1.0"

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
    "EarlyStopping",
    "Exponential",
    "Fixed",
    "Glorot",
    "GradientCheck",
    "GradientDescent",
    "He",
    "History",
    "Huber",
    "Initializer",
    "InverseTime",
    "LBFGS",
    "LeCun",
    "LogCosh",
    "Loss",
    "Network",
    "NonFiniteError",
    "OneCycle",
    "Optimizer",
    "Orthogonal",
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
    "entropy_bits",
    "information_bits",
    "kernel_density",
    "ridge_output",
]
