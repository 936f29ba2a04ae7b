"""The fully connected layer."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..initializers import Glorot, Initializer
from ..settings import Fixed
from .base import Layer, ShapeError

__all__ = ["Linear"]


class Linear(Layer):
    """Fully connected layer.

    Forward   z = x W + b
    Backward  dx = dz Wᵀ,   dW = xᵀ dz,   db = Σ dz          (N01, N31)

    With a fixed connectivity `mask` M, W ⊙ M stands in place of W and dW = xᵀ dz ⊙ M  (N07).

    Parameters
    ----------
    units : int
        Number of outputs.
    bias : bool
        Whether b is there (N03 has none).
    mask : array of shape (inputs, units), optional
        1 where a connection exists, 0 where it does not.
    init : Initializer
        How W begins; b begins at zero (N48).

    Input (batch, …, n), output (batch, …, units).

    Examples
    --------
    >>> Linear(8).count((3,))
    32
    """

    units: int
    bias: bool = True
    mask: Fixed | None = None
    init: Initializer = Glorot()

    half: ClassVar[bool] = True

    def check(self):
        self.require(self.units >= 1, "units", "at least 1")

    def build(self, rng, shape):
        if not shape:
            raise ShapeError(self, "at least one feature axis", "(batch,)", "Give input_shape=(1,) for single numbers.")
        *lead, n = shape
        p = {"W": self.init(rng, (n, self.units), n, self.units)}
        if self.bias:
            p["b"] = np.zeros(self.units)
        if self.mask is not None:
            if self.mask.array.shape != (n, self.units):
                raise ShapeError(self, f"a mask of shape {(n, self.units)}", self.mask.array.shape)
            p["_mask"] = self.mask.array
            p["W"] = p["W"] * self.mask.array  # a weight that is not there weighs nothing, in a Penalty too
        return p, (*lead, self.units)

    def forward(self, ops, p, x):
        z = ops.matmul(x, self.weights(p))  # (..., n) @ (n, units)
        if self.bias:
            z += p["b"]  # z is new: no copy is needed
        return z, x

    def backward(self, ops, p, x, dz, wrt_input=True):
        rows, flow = x.reshape(-1, x.shape[-1]), dz.reshape(-1, self.units)
        dW = ops.crossprod(rows, flow)  # (n, N) @ (N, units)
        grads = {"W": dW if self.mask is None else dW * p["_mask"]}
        if self.bias:
            grads["b"] = flow.sum(0)
        return (ops.matmul(dz, self.weights(p).T) if wrt_input else None), grads  # (..., units) @ (units, n)

    def formulas(self):  # as the notes write it, for columns: W is units × inputs
        W, M = ("W", "") if self.mask is None else ("(W ⊙ M)", " ⊙ M")
        bias = ["db = Σ dz"] if self.bias else []
        return [f"z = {W} x" + (" + b" if self.bias else "")], [f"dW = dz xᵀ{M}", *bias, f"dx = {W}ᵀ dz"]

    def weights(self, p):
        return p["W"] if self.mask is None else p["W"] * p["_mask"]
