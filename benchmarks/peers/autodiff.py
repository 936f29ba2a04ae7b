"""JAX by hand: automatic differentiation, and an epoch as one compiled lax.scan with donated parameters."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from work import LEARNING_RATE, Work, data_of

from peers.serve import only_mlp, serve


def prepare(work: Work) -> Callable[[int], float]:
    only_mlp(work)
    rng = np.random.default_rng(0)
    x, y = map(jnp.asarray, data_of(work))
    params = [
        (jnp.asarray(rng.normal(0, n**-0.5, (n, m)), jnp.float32), jnp.zeros(m)) for n, m in zip(work.sizes, work.sizes[1:], strict=False)
    ]

    def loss(params, x, y):
        for W, b in params[:-1]:
            x = jax.nn.relu(x @ W + b)
        W, b = params[-1]
        log_p = jax.nn.log_softmax(x @ W + b)
        return -jnp.take_along_axis(log_p, y[:, None], axis=1).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def epoch(params, x, y, rows):
        def step(params, rows):
            value, grads = jax.value_and_grad(loss)(params, x[rows], y[rows])
            return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), value

        return jax.lax.scan(step, params, rows)

    def train(epochs: int) -> float:
        nonlocal params
        began = time.perf_counter()
        for _ in range(epochs):
            rows = rng.permutation(work.rows)[: work.rows // work.batch * work.batch]
            params, values = epoch(params, x, y, rows.reshape(-1, work.batch))
        values.block_until_ready()
        return (time.perf_counter() - began) / epochs / (work.rows // work.batch)

    return train


serve(prepare)
