"""The same network in PyTorch, trained the same way: a translation of expressions into torch modules.

Only what the examples use is translated. Weights begin as PyTorch likes them.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

import pellucid as pc

ACTIVATIONS = {pc.ReLU: nn.ReLU, pc.SiLU: nn.SiLU, pc.Tanh: nn.Tanh, pc.Sigmoid: nn.Sigmoid}


class Sequence(nn.Module):
    """A recurrent layer that takes sequences of different length, or carries its state on."""

    def __init__(self, layer: Any, features: int) -> None:
        super().__init__()
        kind = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}[type(layer).__name__]
        self.rnn = kind(features, layer.units, batch_first=True, bidirectional=layer.bidirectional)
        self.every, self.carries, self.lengths = layer.outputs == "every", bool(layer.streams), None
        self.state: Any = None

    def forward(self, x: Any) -> Any:
        if self.every:
            y, state = self.rnn(x, self.state if self.carries and self.training else None)
            if self.carries and self.training:
                self.state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
            return y
        packed = nn.utils.rnn.pack_padded_sequence(x, self.lengths, batch_first=True, enforce_sorted=False)
        _, state = self.rnn(packed)
        state = state[0] if isinstance(state, tuple) else state
        return torch.cat(list(state), dim=-1)


def translate(layer: Any, shape: tuple[Any, ...]) -> tuple[nn.Module, tuple[Any, ...]]:
    """A torch module for `layer`, and the shape of its output (images stay channels last outside, channels first inside)."""
    if isinstance(layer, pc.Chain):
        modules = []
        for child in layer.children:
            module, shape = translate(child, shape)
            modules.append(module)
        return nn.Sequential(*modules), shape
    _, out = layer.build(np.random.default_rng(0), shape)
    kind = type(layer)
    if kind in ACTIVATIONS:
        return ACTIVATIONS[kind](), out
    if kind is pc.Linear:
        return nn.Linear(shape[-1], layer.units, bias=layer.bias), out
    if kind is pc.Dropout:
        return nn.Dropout(layer.rate), out
    if kind is pc.Flatten:
        return nn.Flatten(), out
    if kind is pc.Embedding:
        return nn.Embedding(layer.symbols, layer.units), out
    if kind is pc.Conv2d:
        return nn.Conv2d(shape[-1], layer.units, layer.kernel, padding="same", bias=layer.bias), out
    if kind is pc.MaxPool2d:
        return nn.MaxPool2d(2), out
    if isinstance(layer, pc.RNN | pc.LSTM | pc.GRU):
        return Sequence(layer, shape[-1]), out
    raise TypeError(f"{layer!r} has no translation.")


def train(module: nn.Module, optimizer: Any, loss: Any, batches: Any, epochs: int, steps: int, rates: np.ndarray) -> float:
    """Train as a good user would; `batches(epoch)` yields (x, target, lengths). Returns seconds."""
    began, step = time.perf_counter(), 0
    module.train()
    recurrent = [m for m in module.modules() if isinstance(m, Sequence)]
    for epoch in range(epochs):
        for m in recurrent:
            m.state = None
        for x, target, lengths in batches(epoch):
            for group in optimizer.param_groups:
                group["lr"] = float(rates[step])
            for m in recurrent:
                m.lengths = lengths
            optimizer.zero_grad(set_to_none=True)
            loss(module(x), target).backward()
            if recurrent:
                nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            step += 1
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began
