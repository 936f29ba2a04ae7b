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
from .convolution import ChannelsLast, Conv1d, Conv2d
from .linear import Linear
from .pooling import AvgPool1d, AvgPool2d, GlobalAvgPool, GlobalMaxPool, MaxPool1d, MaxPool2d
from .shape import Dropout, Flatten, Reshape

__all__ = [
    "Activation",
    "AvgPool1d",
    "AvgPool2d",
    "Chain",
    "ChannelsLast",
    "Concat",
    "Conv1d",
    "Conv2d",
    "Dropout",
    "ELU",
    "Elementwise",
    "Flatten",
    "GELU",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "Identity",
    "Layer",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
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
