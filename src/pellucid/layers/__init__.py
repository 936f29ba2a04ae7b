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
from .attention import MultiHeadAttention
from .base import Layer, ShapeError
from .combine import Chain, Concat, Product, Sum
from .convolution import ChannelsLast, Conv1d, Conv2d
from .embedding import Embedding, Positions
from .kernels import RBF
from .linear import Linear
from .normalise import BatchNorm, LayerNorm
from .pooling import AvgPool1d, AvgPool2d, GlobalAvgPool, GlobalMaxPool, MaxPool1d, MaxPool2d
from .recurrent import GRU, LSTM, RNN, Recurrent
from .shape import Dropout, Flatten, Reshape
from .wrap import Frozen, Penalty, Repeat

__all__ = [
    "GRU",
    "Activation",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm",
    "Chain",
    "ChannelsLast",
    "Concat",
    "Conv1d",
    "Conv2d",
    "Dropout",
    "ELU",
    "Elementwise",
    "Embedding",
    "Flatten",
    "Frozen",
    "GELU",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "Identity",
    "LSTM",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "MultiHeadAttention",
    "Penalty",
    "Positions",
    "Product",
    "RBF",
    "RNN",
    "ReLU",
    "Recurrent",
    "Repeat",
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
