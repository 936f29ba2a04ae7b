"""PyTorch as its users write it: step by step, compiled, or as one CUDA graph; the data already lies in tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from work import LEARNING_RATE, THREADS, Work

from peers.serve import Trainer, only, serve, timed

torch.set_num_threads(THREADS)
torch.backends.cuda.matmul.allow_tf32 = True  # as JAX does by default
torch.backends.cudnn.allow_tf32 = True
LAYOUTS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def forward(self, out: Any) -> Any:
        return out[0][:, -1]


def network(work: Work) -> nn.Module:
    if work.kind == "conv":
        channels, pixels = (1, *work.hidden), work.shape[0] // 2 ** len(work.hidden)
        pairs = zip(channels, work.hidden, strict=False)
        layers = [layer for c, d in pairs for layer in (nn.Conv2d(c, d, 3, padding="same"), nn.ReLU(), nn.AvgPool2d(2))]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(pixels**2 * channels[-1], work.classes))
    if work.kind in ("rnn", "lstm"):
        (units,), layer = work.hidden, nn.RNN if work.kind == "rnn" else nn.LSTM
        return nn.Sequential(layer(work.shape[1], units, batch_first=True), Last(), nn.Linear(units, work.classes))
    layers = [layer for pair in zip(work.sizes, work.sizes[1:], strict=False) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def variants(work: Work) -> list[tuple[str, ...]]:
    """Images are tried with both layouts in memory."""
    return [(name,) for name in LAYOUTS] if work.kind == "conv" else [()]


def prepare(work: Work, X: Any, y: Any, mode: str, layout: str = "") -> Trainer:
    only(mode != "graph" or work.gpu, "CUDA graphs need a GPU")
    only(not work.gpu or torch.cuda.is_available(), "torch has no GPU here")
    torch.manual_seed(0)
    device = torch.device("cuda" if work.gpu else "cpu")
    x, y = torch.from_numpy(X).to(device), torch.from_numpy(y).to(device)
    model = network(work).to(device)
    if layout:
        model = model.to(memory_format=LAYOUTS[layout])
        x = x.movedim(-1, 1).contiguous(memory_format=LAYOUTS[layout])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def loss(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(model(x), y)

    if mode == "compile":
        loss = torch.compile(loss)

    def eager(rows: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(x[rows], y[rows]).backward()
        optimizer.step()

    step = captured(eager, torch.zeros(work.batch, dtype=torch.int64, device=device)) if mode == "graph" else eager

    def one() -> None:
        for rows in torch.randperm(work.rows, device=device).split(work.batch):
            step(rows)

    return Trainer(timed(one, torch.cuda.synchronize) if work.gpu else timed(one), layout)


def captured(step: Callable[[Any], None], rows: Any) -> Callable[[Any], None]:
    """The whole step as one CUDA graph, from gathering the rows to the update; only the row numbers are copied in."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # a graph must not contain what happens at the first steps only
        for _ in range(3):
            step(rows)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # gradients are set to None first: they are made in the graph's own memory
        step(rows)

    def replay(chosen: Any, keep: Any = step) -> None:  # `keep`: the graph reads the memory of what the step holds
        rows.copy_(chosen)
        graph.replay()

    return replay


if __name__ == "__main__":
    serve(prepare, variants)
