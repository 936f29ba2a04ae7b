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
from .recurrent import GRU, LSTM, RNN, Recurrent
from .shape import Dropout, Flatten, Reshape

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "Activation",
    "Chain",
    "Concat",
    "Dropout",
    "Elementwise",
    "Flatten",
    "Identity",
    "LSTM",
    "Layer",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "Product",
    "RNN",
    "ReLU",
    "Recurrent",
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
