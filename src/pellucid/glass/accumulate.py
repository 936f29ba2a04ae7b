"""Forward accumulation: the same gradients the other way round (N32), with what it costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engines.numpy import NumpyOps
from ..layers.combine import Chain
from ..training.step import weights
from ..tree import flatten, leaves, readable

__all__ = ["ForwardAccumulation", "forward_accumulation"]


@dataclass(frozen=True)
class ForwardAccumulation:
    """Gradients found forward, beside those found backward.

    Attributes
    ----------
    loss : float
    gradients : dict of name: array
        As ``model.gradients`` gives them.
    error : float
        The largest difference from back-propagation, relative to the largest entry of the gradient.
    multiplications : dict
        "forward" for carrying every ∂h/∂ϑ through the Jacobians, "backward" for carrying the one flow δ through them.
    seconds : dict
        What each way took here.
    """

    loss: float
    gradients: dict[str, np.ndarray]
    error: float
    multiplications: dict[str, int]
    seconds: dict[str, float]

    def __str__(self) -> str:
        m, s = self.multiplications, self.seconds
        rows = [
            ("", "multiplications by Jacobians", "seconds"),
            ("forward, ∂h/∂ϑ for every ϑ", f"{m['forward']:,}", f"{s['forward']:.2g}"),
            ("backward, one flow δ", f"{m['backward']:,}", f"{s['backward']:.2g}"),
            ("forward / backward", f"{m['forward'] / max(1, m['backward']):,.0f}", f"{s['forward'] / s['backward']:,.0f}"),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}" for row in rows]
        table = "\n".join(lines)
        return f"{table}\nthe gradients differ by {self.error:.1e} at most, relative to the largest entry"

    __repr__ = __str__


def forward_accumulation(model: Any, X: Any, y: Any) -> ForwardAccumulation:
    """Compute every gradient by going forward (N32).

    With h[i] the output of layer i and ϑ[j] the parameters of layer j::

        ∂h[i]/∂ϑ[j] = directly,                          j = i
                    = ∂h[i]/∂h[i−1] · ∂h[i−1]/∂ϑ[j],     j < i

    and at the end ∂L/∂ϑ = ∂L/∂h · ∂h/∂ϑ. A block that is no chain counts as one layer. Where a layer lets rows influence
    each other (batch normalisation does), the batch is carried as one long row, which costs that much more.
    """
    model.require_built()
    batch = model.as_batch(X, y)
    tries = []
    for _ in range(3):  # the first call pays for what later ones find ready
        began = time.perf_counter()
        loss, own = model.gradients(X, y)
        tries.append(time.perf_counter() - began)
    began = time.perf_counter()
    ops = NumpyOps(training=True, seed=np.uint32(model.seed), step=np.int32(0), weight=batch.weight, lengths=batch.lengths)
    h, S, counts, rows = batch.x, None, {"forward": 0, "backward": 0}, 1 if mixes_rows(ops, model, batch.x) else len(batch.x)
    names: list[tuple[str, tuple[int, ...]]] = []
    for path, layer, p in blocks(model.net, model.params, ()):
        ops.path = ["net", *path[:-1]] if path else []
        h, J, D = jacobians(ops, layer, p, h, path[-1] if path else "net", S is not None, rows)
        if S is not None:
            counts["forward"] += J.shape[0] * J.shape[1] * J.shape[2] * S.shape[2]
            S = J @ S  # (rows, out, in) @ (rows, in, parameters)
        counts["backward"] += J.size + D.size
        if D.shape[2]:
            S = D if S is None else np.concatenate([S, D], axis=2)
            names += [(".".join(readable((*path, *key), model.net)), leaf.shape) for key, leaf in learned(p)]
    values, delta = model.loss(ops, h, batch.target)
    w = weights(ops, values, batch)
    flow = (delta * (w / w.sum())[..., None]).reshape(rows, -1)  # (rows, out)
    total = np.einsum("bo,bop->p", flow, S) if S is not None else np.zeros(0)
    counts["forward"] += S.size if S is not None else 0
    parts = np.split(total, np.cumsum([int(np.prod(shape)) for _, shape in names])[:-1])
    found = {name: part.reshape(shape) for (name, shape), part in zip(names, parts, strict=True)}
    forward = time.perf_counter() - began
    scale = max((float(np.abs(g).max()) for g in own.values()), default=1.0) or 1.0
    error = max((float(np.abs(found[name] - g).max()) for name, g in own.items()), default=0.0) / scale
    return ForwardAccumulation(loss, {name: found[name] for name in own}, error, counts, {"forward": forward, "backward": min(tries)})


def blocks(net: Any, p: Any, path: tuple[Any, ...]) -> Any:
    """The layers of a chain, one after the other; chains inside chains are opened, too."""
    if isinstance(net, Chain):
        for i, layer in enumerate(net.layers):
            yield from blocks(layer, p[i], (*path, i))
    else:
        yield path, net, p


def learned(p: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Paths and arrays of what is learned, in a fixed order."""
    return [(key, leaf) for key, leaf in leaves(p) if not any(isinstance(k, str) and k.startswith("_") for k in key)]


def mixes_rows(ops: Any, model: Any, x: np.ndarray) -> bool:
    """Whether in some block the flow into one row's output goes back into other rows."""
    for path, layer, p in blocks(model.net, model.params, ()):
        ops.path = ["net", *path[:-1]] if path else []
        key = path[-1] if path else "net"
        x, cache = ops.forward(layer, p, x, key)
        flow = np.zeros_like(x)
        flow[:1] = np.random.default_rng(0).normal(size=x[:1].shape)
        if np.any(ops.backward(layer, p, cache, flow, key)[0][1:]):
            return True
    return False


def jacobians(
    ops: Any, layer: Any, p: Any, x: np.ndarray, key: Any, by_input: bool, rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A block's output, ∂output/∂input (rows, out, in; empty unless asked for) and ∂output/∂parameters (rows, out, parameters).

    Each row of a Jacobian is what the layer's backward pass makes of a unit vector.
    """
    y, cache = ops.forward(layer, p, x, key)
    out, size = y.size // rows, x.size // rows if by_input else 0
    own = learned(p)
    J, D = np.zeros((rows, out, size)), np.zeros((rows, out, sum(leaf.size for _, leaf in own)))
    for o in range(out):
        unit = np.zeros((rows, out), y.dtype)
        unit[:, o] = 1
        if by_input:
            dx, _ = ops.backward(layer, p, cache, unit.reshape(y.shape), key, True)
            J[:, o] = dx.reshape(rows, size)
        for row in range(rows if own else 0):
            alone = np.zeros((rows, out), y.dtype)
            alone[row, o] = 1
            _, grads = ops.backward(layer, p, cache, alone.reshape(y.shape), key, False)
            flat = flatten(grads)
            D[row, o] = np.concatenate([np.ravel(flat[".".join(map(str, k))]) for k, _ in own])
    return y, J, D
