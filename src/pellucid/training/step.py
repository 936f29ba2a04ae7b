"""THE training step: forward, loss, backward, update. Written once; NumPy calls it, JAX compiles it."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..tree import at, leaves, with_parts

__all__ = ["Batch", "Gradients", "Plan", "State", "all_finite", "evaluation_step", "gradients", "sums", "training_step", "updated"]


class Batch(NamedTuple):
    """Rows to learn from."""

    x: Any
    target: Any
    weight: Any  # (rows,); 0 means: this row is not there
    lengths: Any = None  # (rows,) for sequences of different length: the rest of each row is padding


class Plan(NamedTuple):
    """Which rows each step of a chunk takes, and its learning rate."""

    rows: Any  # (steps, batch) int32
    sizes: Any  # (steps,) int32: how many of the rows are meant
    rates: Any  # (steps,)
    count: Any  # how many of the steps are meant


class State(NamedTuple):
    """All that changes from step to step."""

    params: Any
    slots: Any  # the optimizer's memory, one tuple of arrays per parameter
    numbers: Any  # the optimizer's settings as scalars: another value compiles nothing
    step: Any
    seed: Any


class Gradients(NamedTuple):
    """The mean loss, its derivatives, and what they were computed from."""

    loss: Any
    params: Any  # ∂L/∂p, shaped like the parameters; what is not learned is missing
    x: Any  # ∂L/∂x, where it was asked for
    y: Any  # the outputs
    weight: Any  # the weight of every loss value


def gradients(ops: Any, net: Any, loss: Any, params: Any, batch: Batch, wrt_input: bool = False) -> Gradients:
    """Mean loss over the batch and its gradients.

    The loss speaks of single rows; here, and only here, weights and the mean come in:

        L = Σ wᵢ Lᵢ / Σ wᵢ + penalties,      dy = w ⊙ δ / Σ wᵢ
    """
    out, cache = ops.forward(net, params, batch.x, "net")
    y = out.astype(batch.weight.dtype, copy=False)  # the loss is computed in full precision, whatever the network is
    values, delta = loss(ops, y, batch.target)
    weight = weights(ops, values, batch)
    w = weight / weight.sum()
    dx, grads = ops.backward(net, params, cache, (delta * w[..., None]).astype(out.dtype, copy=False), "net", wrt_input)
    for path, gradient in ops.charges:
        grads = write_back(grads, {path: at(grads, path) + gradient})
    return Gradients((values * w).sum() + ops.penalty, grads, dx, y, weight)


def training_step(Ops: Any, net: Any, loss: Any, optimizer: Any, state: State, batch: Batch, rate: Any) -> tuple[State, tuple[Any, ...]]:
    """Gradients and update; returns the new state and the step's sums."""
    ops = Ops(training=True, seed=state.seed, step=state.step, weight=batch.weight, lengths=batch.lengths)
    g = gradients(ops, net, loss, state.params, batch)
    state, value = updated(ops, optimizer, state, g.loss, g.params, rate)
    return state, sums(ops, loss, value * g.weight.sum(), g.weight, g.y, batch.target)


def updated(ops: Any, optimizer: Any, state: State, value: Any, grads: Any, rate: Any) -> tuple[State, Any]:
    """One update of every parameter from old values, all at once (N40); also the loss with the optimizer's penalty."""
    value, grads = optimizer.penalise(ops, state.params, value, grads, state.numbers)
    params, slots = optimizer.update(ops, state.params, grads, state.slots, state.numbers, rate, state.step + 1)
    return State(write_back(params, ops.kept), slots, state.numbers, state.step + 1, state.seed), value


def evaluation_step(Ops: Any, net: Any, loss: Any, params: Any, batch: Batch) -> tuple[Any, ...]:
    """Loss and scores of a batch, nothing learned."""
    ops = Ops(weight=batch.weight, lengths=batch.lengths)
    y = ops.forward(net, params, batch.x, "net")[0].astype(batch.weight.dtype, copy=False)
    values, _ = loss(ops, y, batch.target)
    w = weights(ops, values, batch)
    return sums(ops, loss, (values * w).sum(), w, y, batch.target)


def weights(ops: Any, values: Any, batch: Batch) -> Any:
    """The weight of every value: its row's, for each position of the row that is not padding."""
    w = batch.weight.reshape(-1, *(1,) * (values.ndim - 1))
    if values.ndim == 1:
        return w
    if batch.lengths is None:
        return ops.xp.broadcast_to(w, values.shape)
    return w * ops.mask(values.shape[1]).reshape(*values.shape[:2], *(1,) * (values.ndim - 2))


def sums(ops: Any, loss: Any, total: Any, w: Any, y: Any, target: Any) -> tuple[Any, ...]:
    """A step's total weight, and the weighted sums of the loss, which is known, and of every score."""
    return (w.sum(), total, *((score(ops, y, target) * w).sum() for score in loss.scores.values()))


def all_finite(xp: Any, sums: Any, params: Any) -> Any:
    """Whether all sums of losses are finite, and all weights: one that is not makes the sum of all not finite."""
    return xp.isfinite(sums).all() & xp.isfinite(sum(leaf.sum() for _, leaf in leaves(params)))


def write_back(params: Any, kept: dict[tuple[Any, ...], Any]) -> Any:
    """Put the buffers that layers kept into the parameters, each at its path."""
    return with_parts(params, {path: value.astype(at(params, path).dtype, copy=False) for path, value in kept.items()})
