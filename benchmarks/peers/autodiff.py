"""JAX by hand: automatic differentiation, and an epoch as one compiled lax.scan with donated parameters.

XLA's convolutions are far slower inside a loop on the CPU: networks for images are tried step by step, too.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from work import LEARNING_RATE, Work

from peers.serve import Trainer, only, serve, timed

rng = np.random.default_rng(0)


def weights(*shape: int) -> Any:
    return jnp.asarray(rng.normal(0, math.prod(shape[:-1]) ** -0.5, shape), jnp.float32), jnp.zeros(shape[-1])


def mlp(params: Any, x: Any) -> Any:
    for W, b in params[:-1]:
        x = jax.nn.relu(x @ W + b)
    return x


def conv(params: Any, x: Any) -> Any:
    for W, b in params[:-1]:
        x = jax.nn.relu(lax.conv_general_dilated(x, W, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b)
        x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return x.reshape(len(x), -1)


def rnn(params: Any, x: Any) -> Any:
    (W_xh, b), (W_hh, _), _ = params

    def step(h: Any, z: Any) -> Any:
        return jnp.tanh(z + h @ W_hh), None

    z = jnp.swapaxes(x @ W_xh + b, 0, 1)  # the inputs of all steps at once: (T, B, units)
    return lax.scan(step, jnp.zeros_like(z[0]), z)[0]


def lstm(params: Any, x: Any) -> Any:
    (W_xh, b), (W_hh, _), _ = params

    def step(state: Any, z: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(z + h @ W_hh, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    z = jnp.swapaxes(x @ W_xh + b, 0, 1)
    zero = jnp.zeros((z.shape[1], len(W_hh)), z.dtype)
    return lax.scan(step, (zero, zero), z)[0][0]


def parameters(work: Work) -> list[Any]:
    if work.kind == "conv":
        channels, pixels = (1, *work.hidden), work.shape[0] // 2 ** len(work.hidden)
        kernels = [weights(3, 3, c, d) for c, d in zip(channels, work.hidden, strict=False)]
        return [*kernels, weights(pixels**2 * channels[-1], work.classes)]
    if work.kind in ("rnn", "lstm"):
        (units,), blocks = work.hidden, 1 if work.kind == "rnn" else 4
        return [weights(work.shape[1], blocks * units), weights(units, blocks * units), weights(units, work.classes)]
    return [weights(n, m) for n, m in zip(work.sizes, work.sizes[1:], strict=False)]


def variants(work: Work) -> list[tuple[str, ...]]:
    return [("scan",), ("steps",)] if work.kind == "conv" else [()]


def prepare(work: Work, X: Any, y: Any, way: str = "") -> Trainer:
    only(not work.gpu or jax.default_backend() == "gpu", "jax has no GPU here")
    body = {"mlp": mlp, "conv": conv, "rnn": rnn, "lstm": lstm}[work.kind]
    x, y, params, values = jnp.asarray(X), jnp.asarray(y, jnp.int32), parameters(work), None

    def loss(params: Any, x: Any, y: Any) -> Any:
        W, b = params[-1]
        log_p = jax.nn.log_softmax(body(params, x) @ W + b)
        return -jnp.take_along_axis(log_p, y[:, None], axis=1).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params: Any, x: Any, y: Any, rows: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x[rows], y[rows])
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), value

    @functools.partial(jax.jit, donate_argnums=0)
    def epoch(params: Any, x: Any, y: Any, rows: Any) -> Any:
        return lax.scan(lambda params, rows: step(params, x, y, rows), params, rows)

    def one() -> None:
        nonlocal params, values
        order = rng.permutation(work.rows)[: work.rows // work.batch * work.batch].astype(np.int32).reshape(-1, work.batch)
        if way == "steps":
            for rows in order:
                params, values = step(params, x, y, rows)
        else:
            params, values = epoch(params, x, y, order)

    return Trainer(timed(one, lambda: np.asarray(values)), way)


if __name__ == "__main__":
    serve(prepare, variants)
