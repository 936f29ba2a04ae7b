"""Layers and the combinators that join them: one family a file."""

from __future__ import annotations

from .activations import (
    ELU,
    GELU,
    Activation,
    Elementwise,
    Identity,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    Sign,
    SiLU,
    Softmax,
    Softplus,
    Step,
    Tanh,
)
from .base import Layer, ShapeError
from .combine import Chain, Concat, Product, Sum
from .linear import Linear
from .shape import Dropout, Flatten, Reshape

__all__ = [
    "ELU",
    "GELU",
    "Activation",
    "Chain",
    "Concat",
    "Dropout",
    "Elementwise",
    "Flatten",
    "Identity",
    "Layer",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "Product",
    "ReLU",
    "Reshape",
    "ShapeError",
    "SiLU",
    "Sigmoid",
    "Sign",
    "Softmax",
    "Softplus",
    "Step",
    "Sum",
    "Tanh",
]
