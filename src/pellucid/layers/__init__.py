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
from .embedding import Embedding, Positions
from .kernels import RBF
from .linear import Linear
from .normalise import BatchNorm, LayerNorm
from .shape import Dropout, Flatten, Reshape
from .wrap import Frozen, Penalty, Repeat

__all__ = [
    "ELU",
    "GELU",
    "Activation",
    "BatchNorm",
    "Chain",
    "Concat",
    "Dropout",
    "Elementwise",
    "Embedding",
    "Flatten",
    "Frozen",
    "Identity",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MultiHeadAttention",
    "Penalty",
    "Positions",
    "Product",
    "RBF",
    "ReLU",
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
