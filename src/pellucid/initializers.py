"""How weights begin (N48).

An initializer is called with the generator, the shape, and how many inputs feed a unit (`fan_in`) and
how many units an input feeds (`fan_out`). To use your own, derive from :class:`Initializer`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from .settings import Fixed, Settings

__all__ = ["Constant", "Glorot", "He", "Initializer", "LeCun", "Orthogonal", "Zeros"]


class Initializer(Settings):
    """Base of all initializers: `__call__(rng, shape, fan_in, fan_out)` returns a float64 array."""

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...], fan_in: int, fan_out: int) -> np.ndarray:
        raise NotImplementedError


class Scaled(Initializer):
    """Zero mean and variance 1/`fan`, drawn from a uniform or a normal distribution."""

    distribution: Literal["uniform", "normal"] = "uniform"

    def variance(self, fan_in: int, fan_out: int) -> float:
        raise NotImplementedError

    def __call__(self, rng, shape, fan_in, fan_out):
        deviation = math.sqrt(self.variance(fan_in, fan_out))
        if self.distribution == "normal":
            return rng.normal(0.0, deviation, shape)
        return rng.uniform(-math.sqrt(3) * deviation, math.sqrt(3) * deviation, shape)


class Glorot(Scaled):
    """Variance 2/(fan_in + fan_out): keeps the size of signals and flows alike (Glorot and Bengio, 2010)."""

    def variance(self, fan_in, fan_out):
        return 2 / (fan_in + fan_out)


class He(Scaled):
    """Variance 2/fan_in: for ReLU, which silences half of its inputs (He et al., 2015)."""

    def variance(self, fan_in, fan_out):
        return 2 / fan_in


class LeCun(Scaled):
    """Variance 1/fan_in: keeps the size of signals (LeCun et al., 1998)."""

    def variance(self, fan_in, fan_out):
        return 1 / fan_in


class Orthogonal(Initializer):
    """Orthonormal rows or columns, times `gain`: repeated multiplication keeps lengths (Saxe et al., 2014)."""

    gain: float = 1.0

    def __call__(self, rng, shape, fan_in, fan_out):
        tall = (math.prod(shape[:-1]), shape[-1])
        q, r = np.linalg.qr(rng.normal(size=(max(tall), min(tall))))
        q = q * np.sign(np.diag(r))  # makes the draw uniform over orthogonal matrices
        return self.gain * (q if tall[0] >= tall[1] else q.T).reshape(shape)


class Zeros(Initializer):
    """All zero."""

    def __call__(self, rng, shape, fan_in, fan_out):
        return np.zeros(shape)


class Constant(Initializer):
    """The given values: one number, or an array of the parameter's shape."""

    values: Fixed

    def __call__(self, rng, shape, fan_in, fan_out):
        values: Any = self.values.array
        if values.shape not in ((), shape):
            raise ValueError(f"Constant: expected one number or values of shape {shape}, got shape {values.shape}.")
        return np.broadcast_to(values, shape).copy()
