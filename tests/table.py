"""One table of everything exported: the suite fails if an exported layer, loss or optimizer is missing here."""

from __future__ import annotations

import numpy as np

import pellucid as pc

MASK = np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 0, 1]])


def cube(xp, z):
    return z**3


def cube_slope(xp, z):
    return 3 * z**2


def some_id(xp, z):
    return xp.floor(7 * xp.abs(z)) % 5


def flat(xp, z):
    return xp.zeros_like(z)


def psi(xp, e):
    return xp.sqrt(1 + e * e) - 1


def psi_slope(xp, e):
    return e / xp.sqrt(1 + e * e)


# every exported layer: (layer, input shape) pairs that together show its options
LAYERS: dict[str, list[tuple[pc.Layer, tuple[int, ...]]]] = {
    "Linear": [
        (pc.Linear(4), (3,)),
        (pc.Linear(4, bias=False), (3,)),
        (pc.Linear(4, mask=MASK), (3,)),
        (pc.Linear(2), (5, 3)),
        (pc.Linear(2, init=pc.Orthogonal()), (2, 2, 3)),
    ],
    "Sigmoid": [(pc.Sigmoid(), (5,))],
    "Tanh": [(pc.Tanh(), (5,))],
    "ReLU": [(pc.ReLU(), (5,))],
    "LeakyReLU": [(pc.LeakyReLU(), (5,)), (pc.LeakyReLU(0.3), (2, 3))],
    "ELU": [(pc.ELU(), (5,)), (pc.ELU(0.5), (5,))],
    "GELU": [(pc.GELU(), (5,))],
    "SiLU": [(pc.SiLU(), (5,))],
    "Softplus": [(pc.Softplus(), (5,))],
    "Identity": [(pc.Identity(), (5,))],
    "Elementwise": [(pc.Elementwise(cube, cube_slope), (5,))],
    "Softmax": [(pc.Softmax(), (5,)), (pc.Softmax(), (3, 4))],
    "LogSoftmax": [(pc.LogSoftmax(), (5,)), (pc.LogSoftmax(), (3, 4))],
    "Flatten": [(pc.Flatten(), (3, 4)), (pc.Flatten(), (5,))],
    "Reshape": [(pc.Reshape((3, 4)), (12,)), (pc.Reshape((2, -1)), (3, 4))],
    "Dropout": [(pc.Dropout(0.4), (9,)), (pc.Dropout(0.0), (9,))],
    "Conv1d": [(pc.Conv1d(3, 3), (5, 2)), (pc.Conv1d(2, 2, stride=2, padding="valid", dilation=2), (7, 1))],
    "Conv2d": [
        (pc.Conv2d(3, 3), (4, 5, 2)),
        (pc.Conv2d(4, (2, 3), stride=(2, 1), padding=1, groups=2, bias=False), (5, 4, 2)),
        (pc.Conv2d(2, 2, dilation=2, padding="valid"), (4, 4, 1)),
    ],
    "ChannelsLast": [(pc.ChannelsLast(), (2, 3, 4)), (pc.ChannelsLast(), (2, 5))],
    "MaxPool1d": [(pc.MaxPool1d(3, stride=2), (7, 2))],
    "MaxPool2d": [(pc.MaxPool2d(2), (4, 6, 2)), (pc.MaxPool2d(3, stride=2, padding=1), (5, 4, 1))],
    "AvgPool1d": [(pc.AvgPool1d(2, padding="same"), (7, 2))],
    "AvgPool2d": [(pc.AvgPool2d(2), (5, 4, 2)), (pc.AvgPool2d(3, stride=2, padding=1), (5, 4, 1))],
    "GlobalAvgPool": [(pc.GlobalAvgPool(), (3, 4, 2)), (pc.GlobalAvgPool(), (5, 2))],
    "GlobalMaxPool": [(pc.GlobalMaxPool(), (3, 4, 2)), (pc.GlobalMaxPool(), (5, 2))],
    "RNN": [
        (pc.RNN(3), (4, 2)),
        (pc.RNN(3, outputs="every", activation=pc.Softplus(), h0=[0.5, -1.0, 2.0]), (4, 2)),
        (pc.RNN(2, outputs="every", bidirectional=True, bias=False), (3, 2)),
    ],
    "LSTM": [
        (pc.LSTM(3), (4, 2)),
        (pc.LSTM(2, outputs="every", bidirectional=True), (3, 2)),
        (pc.LSTM(2, reverse=True, bias=False), (3, 1)),
    ],
    "GRU": [
        (pc.GRU(3), (4, 2)),
        (pc.GRU(2, outputs="every", bidirectional=True), (3, 2)),
        (pc.GRU(2, reverse=True, bias=False), (1, 3)),
    ],
    "RBF": [
        (pc.RBF(4, width="scalar"), (3,)),
        (pc.RBF(4, "multiquadric"), (3,)),
        (pc.RBF(4, "inverse_multiquadric", "per_axis"), (3,)),
        (pc.RBF(2, width="full", start="sample"), (2, 3)),
        (pc.RBF(1, trainable="none", start="random"), (1,)),
    ],
    "BatchNorm": [(pc.BatchNorm(), (5,)), (pc.BatchNorm(1e-2, momentum=1.0), (2, 3, 4))],
    "LayerNorm": [(pc.LayerNorm(), (5,)), (pc.LayerNorm(1e-2), (2, 3, 4))],
    "Embedding": [
        (pc.Elementwise(some_id, flat) >> pc.Embedding(5, 3), (4,)),
        (pc.Elementwise(some_id, flat) >> pc.Embedding(5, 1), (2, 3)),
    ],
    "Positions": [(pc.Positions(), (4, 6)), (pc.Positions(100.0), (4, 5))],
    "MultiHeadAttention": [
        (pc.MultiHeadAttention(4), (3, 2)),
        (pc.MultiHeadAttention(6, 3, causal=True), (4, 5)),
    ],
    "Frozen": [(pc.Frozen(pc.Linear(4) >> pc.BatchNorm() >> pc.Dropout(0.5)), (3,))],
    "Repeat": [
        (pc.Repeat(pc.Linear(4) >> pc.Tanh(), 3), (4,)),
        (pc.Repeat(pc.Linear(3, bias=False), 1), (3,)),
        (pc.Repeat(pc.Linear(3) >> pc.Tanh(), 18), (3,)),  # compiled as a loop
    ],
    "Penalty": [(pc.Penalty(pc.Linear(4) >> pc.Tanh() >> pc.Linear(2), l1=0.1, l2=0.2), (3,)), (pc.Penalty(pc.RBF(3), l2=0.1), (3,))],
    "Chain": [(pc.Linear(4) >> pc.Tanh() >> pc.Linear(2), (3,)), (pc.Chain(pc.Tanh()), (3,))],
    "Concat": [(pc.Linear(4) | (pc.Linear(3) >> pc.Tanh()) | pc.Identity(), (3,))],
    "Sum": [(pc.Linear(4) + (pc.Linear(4) >> pc.ReLU()), (3,)), (pc.Identity() + pc.Linear(3) + pc.Tanh(), (3,))],
    "Product": [
        ((pc.Linear(4) >> pc.Sigmoid()) * pc.Linear(4), (3,)),
        ((pc.Linear(4) >> pc.Softmax()) * pc.Linear(4), (3,)),
        (pc.Identity() * pc.Identity() * pc.Linear(3), (3,)),
    ],
}

# exported layers whose derivative is no derivative of their output: tested on their own
THRESHOLDS = {"Sign", "Step"}
# names that are bases or errors, not layers to run
BASES = {"Layer", "Activation", "Recurrent", "ShapeError"}

UNIT = np.random.default_rng(5).uniform(0.05, 0.95, (6, 4))
DISTRIBUTION = UNIT / UNIT.sum(-1, keepdims=True)
REAL = np.random.default_rng(6).normal(size=(6, 4))
TARGET = np.random.default_rng(7).dirichlet(np.ones(4), 6)
LABELS = np.array([0, 3, 1, 2, 2, 0])
ON_OFF = np.array([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0.3, 0.7], [0, 0, 1, 0], [1, 0, 0, 1.0]])

# every exported loss: (loss, outputs, targets)
LOSSES: dict[str, list[tuple[pc.Loss, np.ndarray, np.ndarray]]] = {
    "SquaredError": [(pc.SquaredError(), REAL, TARGET)],
    "HalfSquaredError": [(pc.HalfSquaredError(), REAL, TARGET)],
    "Poisson": [(pc.Poisson(), REAL, 3 * ON_OFF)],
    "AbsoluteError": [(pc.AbsoluteError(), REAL, TARGET)],
    "Huber": [(pc.Huber(), 3 * REAL, TARGET), (pc.Huber(0.2), REAL, TARGET)],
    "LogCosh": [(pc.LogCosh(), REAL, TARGET)],
    "ResidualLoss": [(pc.ResidualLoss(psi, psi_slope), REAL, TARGET)],
    "CrossEntropy": [(pc.CrossEntropy(), DISTRIBUTION, TARGET), (pc.CrossEntropy(), DISTRIBUTION, LABELS)],
    "SoftmaxCrossEntropy": [(pc.SoftmaxCrossEntropy(), REAL, TARGET), (pc.SoftmaxCrossEntropy(), REAL, LABELS)],
    "Brier": [(pc.Brier(), DISTRIBUTION, TARGET), (pc.Brier(), DISTRIBUTION, LABELS)],
    "BinaryCrossEntropy": [(pc.BinaryCrossEntropy(), UNIT, ON_OFF)],
    "SigmoidCrossEntropy": [(pc.SigmoidCrossEntropy(), REAL, ON_OFF)],
}

# every exported optimizer, with and without its options
OPTIMIZERS: dict[str, list[pc.Optimizer]] = {
    "SGD": [
        pc.SGD(0.05),
        pc.SGD(0.05, momentum=0.9),
        pc.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
        pc.SGD(pc.InverseTime(0.1, 0.5), clip_norm=0.1),
    ],
    "GradientDescent": [pc.GradientDescent(0.05)],
    "RMSProp": [pc.RMSProp(0.01), pc.RMSProp(0.01, decay=0.9, weight_decay=0.01)],
    "Adam": [pc.Adam(0.01), pc.Adam(0.01, beta1=0.8, beta2=0.99, weight_decay=0.1, clip_norm=0.5)],
    "AdamW": [pc.AdamW(0.01, weight_decay=0.1)],
    "LBFGS": [pc.LBFGS(), pc.LBFGS(weight_decay=0.01, pairs=5)],
}


def exported(base: type) -> set[str]:
    """The names in pellucid's public face that are classes derived from `base`."""
    return {n for n in pc.__all__ if isinstance(getattr(pc, n), type) and issubclass(getattr(pc, n), base) and getattr(pc, n) is not base}
