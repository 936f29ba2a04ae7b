"""Optimizers: how a gradient changes a parameter (N40 – N42).

`rule` is the formula for one array; the walk over all parameters exists once, in `Optimizer.update`.
In a rule, `n` holds the optimizer's settings as scalars, `rate` is the learning rate η of this step, and
`t` counts steps from 1.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from .schedules import Schedule
from .settings import Settings, did_you_mean
from .tree import leaves, map_leaves

__all__ = ["LBFGS", "SGD", "Adam", "AdamW", "GradientDescent", "Optimizer", "RMSProp"]


class Optimizer(Settings):
    """Base of all optimizers.

    Parameters
    ----------
    learning_rate : float or Schedule
        η, or how it changes over time.
    weight_decay : float
        λ: adds λp to the gradient of every parameter p, whatever the batch size.
    clip_norm : float
        Scale all gradients together so that their norm is at most this; 0 means never.
    """

    learning_rate: float | Schedule = 0.01
    weight_decay: float = 0.0
    clip_norm: float = 0.0

    #: how many arrays of memory a parameter needs
    memory: ClassVar[Any] = 0
    #: the batch size when fit is given none; None is the whole data set
    batch_size: ClassVar[int | None] = 32
    #: whether the rule applies weight decay itself
    decoupled: ClassVar[bool] = False
    #: whether the rule treats every entry of an array by itself, so that arrays may be joined or stacked; to be said beside each rule
    entrywise: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        if {"rule", "update", "slots"} & vars(cls).keys() and "entrywise" not in vars(cls):
            cls.entrywise = False
        super().__init_subclass__(**options)

    def check(self):
        rate = self.learning_rate
        self.require(isinstance(rate, Schedule) or 0 < rate < np.inf, "learning_rate", "a positive number or a Schedule")
        self.require(self.weight_decay >= 0, "weight_decay", "at least 0")
        self.require(self.clip_norm >= 0, "clip_norm", "positive, or 0 for no clipping")

    def rule(self, ops: Any, p: Any, g: Any, slots: tuple[Any, ...], n: Any, rate: Any, t: Any) -> tuple[Any, ...]:
        """Return the new parameter, followed by its new memory."""
        raise NotImplementedError

    def penalise(self, ops: Any, params: Any, value: Any, grads: Any, numbers: Any) -> tuple[Any, Any]:
        """Add a penalty on the parameters to the loss and its gradients; by default there is none."""
        return value, grads

    def slots(self, params: Any) -> Any:
        """Memory for every parameter, all zero; buffers get none."""
        if isinstance(params, tuple):
            return tuple(self.slots(child) for child in params)
        if isinstance(params, dict):
            return {key: self.slots(p) for key, p in params.items() if not key.startswith("_")}
        return tuple(np.zeros_like(params) for _ in range(self.memory))

    def update(self, ops: Any, params: Any, grads: Any, slots: Any, numbers: Any, rate: Any, step: Any) -> tuple[Any, Any]:
        """Walk over all parameters and apply `rule`. What has no gradient stays as it is."""
        n, t = SimpleNamespace(**numbers), step.astype(rate.dtype)
        if self.clip_norm:
            squares = [(g * g).sum() for _, g in leaves(grads)]
            scale = ops.xp.minimum(1, n.clip_norm / (sum(squares) ** 0.5 + 1e-30))
            grads = map_leaves(lambda g: g * scale, grads)

        def walk(p: Any, g: Any, s: Any) -> tuple[Any, Any]:
            if isinstance(p, tuple | dict) and not g:
                return p, s
            if isinstance(p, tuple):
                pairs = [walk(*child) for child in zip(p, g, s, strict=True)]
                return tuple(new for new, _ in pairs), tuple(memory for _, memory in pairs)
            if isinstance(p, dict):
                p, s = p.copy(), s.copy()
                for key in g:
                    p[key], s[key] = walk(p[key], g[key], s[key])
                return p, s
            if self.weight_decay and not self.decoupled:
                g = g + n.weight_decay * p
            value, *memory = self.rule(ops, p, g, s, n, rate, t)
            return value.astype(p.dtype, copy=False), tuple(memory)

        return walk(params, grads, slots)

    def numbers(self, dtype: Any) -> dict[str, Any]:
        """The settings that are numbers, as scalars a compiled program takes as arguments."""
        names = [name for name in self._declared() if type(getattr(self, name)) is float and name != "learning_rate"]
        return {name: np.asarray(getattr(self, name), dtype)[()] for name in names}

    def kind(self) -> Optimizer:
        """All that a compiled program depends on: which numbers are zero, not what the others are."""
        return self._kind

    @functools.cached_property
    def _kind(self) -> Optimizer:
        values = {name: getattr(self, name) for name in self._declared()}
        other = {name: 0.5 for name, value in values.items() if name == "learning_rate" or (type(value) is float and value)}
        return made(type(self), *(values | other).items())  # type: ignore[arg-type]


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if wanted (N41, N42).

    v ← μ v − η g,   p ← p + v;         with Nesterov's look ahead   p ← p + μ v − η g
    """

    momentum: float = 0.0
    nesterov: bool = False

    def check(self):
        super().check()
        self.require(0 <= self.momentum < 1, "momentum", "at least 0 and less than 1")

    @property
    def memory(self):
        return 1 if self.momentum else 0

    entrywise = True

    def rule(self, ops, p, g, slots, n, rate, t):
        if not self.momentum:
            return (p - rate * g,)
        v = n.momentum * slots[0] - rate * g
        return p + (n.momentum * v - rate * g if self.nesterov else v), v


class GradientDescent(Optimizer):
    """Gradient descent over the whole data set (N40).   p ← p − η g.

    The loss is the mean over the m rows; the notes' sum is the same with η/m in place of η.
    """

    learning_rate: float | Schedule = 0.1

    batch_size = None

    entrywise = True

    def rule(self, ops, p, g, slots, n, rate, t):
        return (p - rate * g,)


class RMSProp(Optimizer):
    """Divides by a running root mean square of the gradient.

    v ← ρ v + (1 − ρ) g²,   p ← p − η g / (√v + ε)
    """

    learning_rate: float | Schedule = 0.001
    decay: float = 0.99
    epsilon: float = 1e-8

    memory = 1

    def check(self):
        super().check()
        self.require(0 <= self.decay < 1, "decay", "at least 0 and less than 1")
        self.require(self.epsilon > 0, "epsilon", "positive")

    entrywise = True

    def rule(self, ops, p, g, slots, n, rate, t):
        v = n.decay * slots[0] + (1 - n.decay) * (g * g)
        return p - rate * g / (ops.xp.sqrt(v) + n.epsilon), v


class Adam(Optimizer):
    """Running means of the gradient and of its square, freed of their start at zero (Kingma and Ba, 2015).

    m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²,   p ← p − η m̂ / (√v̂ + ε),
    m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)
    """

    learning_rate: float | Schedule = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    memory = 2

    def check(self):
        super().check()
        self.require(0 <= self.beta1 < 1, "beta1", "at least 0 and less than 1")
        self.require(0 <= self.beta2 < 1, "beta2", "at least 0 and less than 1")
        self.require(self.epsilon > 0, "epsilon", "positive")

    entrywise = True

    def rule(self, ops, p, g, slots, n, rate, t):
        m, v = slots
        m = n.beta1 * m + (1 - n.beta1) * g
        v = n.beta2 * v + (1 - n.beta2) * (g * g)
        m_hat, v_hat = m / (1 - n.beta1**t), v / (1 - n.beta2**t)
        return p - rate * m_hat / (ops.xp.sqrt(v_hat) + n.epsilon), m, v


class AdamW(Adam):
    """Adam whose weight decay acts on the parameter itself (Loshchilov and Hutter, 2019).

    p ← p − η λ p, then Adam's step
    """

    weight_decay: float = 0.01

    decoupled = True

    entrywise = True

    def rule(self, ops, p, g, slots, n, rate, t):
        return super().rule(ops, p - rate * n.weight_decay * p, g, slots, n, rate, t)


class LBFGS(Optimizer):
    """Limited-memory BFGS over the whole data set, from SciPy. An epoch is one of its iterations.

    The learning rate is found by line search; `weight_decay` adds λ‖p‖²/2 to the loss. Stops before the last
    epoch when no entry of the gradient is larger than `tolerance`.
    """

    pairs: int = 10
    tolerance: float = 1e-5

    batch_size = None

    def check(self):
        super().check()
        self.require(self.pairs >= 1, "pairs", "at least 1")
        self.require(self.tolerance >= 0, "tolerance", "at least 0")
        self.require(self.clip_norm == 0, "clip_norm", "0: L-BFGS needs the true gradient")

    def options(self, epochs: int) -> dict[str, Any]:
        """What SciPy is told."""
        ftol = 64 * float(np.finfo(float).eps)
        return {"maxiter": epochs, "maxcor": self.pairs, "gtol": self.tolerance, "ftol": ftol, "maxfun": 100 * epochs}


NAMED: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "gradient_descent": GradientDescent,
    "rmsprop": RMSProp,
    "adam": Adam,
    "adamw": AdamW,
    "lbfgs": LBFGS,
}


def get_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """Return the optimizer of that name with its usual settings, or the optimizer itself."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str) and optimizer in NAMED:
        return NAMED[optimizer]()
    if isinstance(optimizer, type) and issubclass(optimizer, Optimizer):
        raise TypeError(f"optimizer got the class {optimizer.__name__}; write {optimizer.__name__}() to make one.")
    raise ValueError(
        f"optimizer must be an Optimizer or one of {', '.join(map(repr, NAMED))}, got {optimizer!r}.{did_you_mean(optimizer, NAMED)}"
    )


@functools.lru_cache(256)
def made(of: type[Optimizer], *settings: tuple[str, Any]) -> Optimizer:
    """An optimizer with these settings, whether or not they make sense together; equal ones are made once."""
    one = object.__new__(of)
    for name, value in settings:
        object.__setattr__(one, name, value)
    return one
