"""PyTorch, step by step, as its users write it; the data already lies in tensors."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn
from work import LEARNING_RATE, THREADS, Work, data_of

from peers.serve import only_mlp, serve

torch.set_num_threads(THREADS)


def mlp(work: Work) -> nn.Module:
    pairs = list(zip(work.sizes, work.sizes[1:], strict=False))
    layers = [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def prepare(work: Work, mode: str) -> Callable[[int], float]:
    only_mlp(work)
    x, y = map(torch.from_numpy, data_of(work))
    model, loss = mlp(work), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    if mode == "compile":
        model = torch.compile(model)

    def train(epochs: int) -> float:
        began = time.perf_counter()
        for _ in range(epochs):
            for rows in torch.randperm(work.rows).split(work.batch):
                optimizer.zero_grad(set_to_none=True)
                loss(model(x[rows]), y[rows]).backward()
                optimizer.step()
        return (time.perf_counter() - began) / epochs / work.steps_per_epoch

    return train


serve(prepare)
