"""Recurrent layers (N15, N16) and back-propagation through time (N35), written as a scan and a reverse scan."""

from __future__ import annotations

import functools
import re
from typing import Any, ClassVar, Literal

import numpy as np

from ..initializers import Glorot, Initializer, Orthogonal
from ..settings import Fixed
from .activations import Activation, Tanh, logistic
from .base import Array, Layer, Params, ShapeError
from .combine import Concat

__all__ = ["GRU", "LSTM", "RNN", "Recurrent"]

CARRIED = "_carried_"  # buffers of this name are set to zero when an epoch begins


class Recurrent(Layer):
    """Base of the recurrent layers: everything but the formula of a step.

    Forward   state_t = cell(x_t W_xh + b, state_{t−1}) for t = 1 … T, the same parameters at every step
    Backward  for t = T … 1: the flow into state_t gives da_t (the flow into x_t W_xh + b) and the flow into state_{t−1};
              then, all steps at once,   dW_xh = Σ x_tᵀ da_t,   dW_hh = Σ h_{t−1}ᵀ dv_t,   db = Σ da_t,   dx_t = da_t W_xhᵀ
              with dv_t the flow into h_{t−1} W_hh

    A subclass writes `cell`, `cell_backward` and, where dv differs from da, `product_flow`; each treats every row by itself.

    Parameters
    ----------
    units : int
        Size of the state h.
    outputs : "last" or "every"
        The state after the last real step, or the state after every step (which another recurrent layer takes).
    bidirectional : bool
        Two such layers side by side, the second one reading from the end: ``RNN(8) | RNN(8, reverse=True)``.
    reverse : bool
        Read from the last real step to the first.
    bias : bool
        Whether b is there.
    h0 : array of shape (units,), optional
        The state before the first step; zero if left out.
    streams : int
        For truncated back-propagation through time: while training, row i of a batch goes on where row i of the
        batch before ended (no flow goes back across). Every batch must have this many rows, in the order that
        `cut_streams` makes; the state begins at zero in every epoch. When not training, rows begin at `h0`.
    init, recurrent_init : Initializer
        How W_xh and W_hh begin, gate by gate.

    Input (batch, T, n), output (batch, units) or (batch, T, units). Where sequences differ in length, the state is
    carried past the padding unchanged.
    """

    units: int
    outputs: Literal["last", "every"] = "last"
    bidirectional: bool = False
    reverse: bool = False
    bias: bool = True
    h0: Fixed | None = None
    streams: int = 0
    init: Initializer = Glorot()
    recurrent_init: Initializer = Orthogonal()

    work: ClassVar[str] = "scan"
    half: ClassVar[bool] = True
    blocks: ClassVar[int] = 1  # W_xh is (n, blocks · units)
    state: ClassVar[tuple[str, ...]] = ("h",)
    gates: ClassVar[tuple[str, ...]] = ()  # names of the inner values that `cell` returns

    # ---------------------------------------------------------------- what a subclass writes
    def cell(self, xp: Any, p: Params, a: Array, state: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """One step: from a = x_t W_xh + b and the state before, the state after and the inner values."""
        raise NotImplementedError

    def cell_backward(
        self, xp: Any, W_hhT: Array, gates: tuple[Array, ...], before: tuple[Array, ...], after: tuple[Array, ...], flow: tuple[Array, ...]
    ) -> tuple[Array, tuple[Array, ...]]:
        """One step backwards: from the flow into the state after, the flow da and the flow into the state before."""
        raise NotImplementedError

    def product_flow(self, xp: Any, gates: tuple[Array, ...], da: Array) -> Array:
        """The flow dv into h_{t−1} W_hh."""
        return da

    # ---------------------------------------------------------------- what they share
    def check(self):
        self.require(self.units >= 1, "units", "at least 1")
        self.require(self.streams >= 0, "streams", "at least 0")
        self.require(self.h0 is None or self.h0.array.shape == (self.units,), "h0", f"an array of shape ({self.units},)")
        one_way = not (self.bidirectional or self.reverse)
        self.require(self.streams == 0 or one_way, "streams", "0 for a layer that reads from the end: its state comes from the future")
        self.require(self.streams == 0 or self.h0 is None, "streams", "0 where h0 is given")
        self.require(not (self.bidirectional and self.reverse), "reverse", "False where bidirectional=True, which reads both ways")

    @functools.cached_property
    def both(self) -> Concat:
        """A bidirectional layer as what it is: two layers side by side."""
        return Concat(self.replace(bidirectional=False, name="forward"), self.replace(bidirectional=False, reverse=True, name="backward"))

    @property
    def children(self):
        return self.both.children if self.bidirectional else ()

    def build(self, rng, shape):
        if self.bidirectional:
            return self.both.build(rng, shape)
        if len(shape) != 2:
            fix = "Give the recurrent layer before it outputs='every', or X a time axis." if len(shape) == 1 else "Add Reshape((T, -1))."
            raise ShapeError(self, "(steps, features) in each row", shape, fix)
        (steps, n), m = shape, self.units
        p = {
            "W_xh": np.concatenate([self.init(rng, (n, m), n, m) for _ in range(self.blocks)], 1),
            "W_hh": np.concatenate([self.recurrent_init(rng, (m, m), m, m) for _ in range(self.blocks)], 1),
        }
        if self.bias:
            p["b"] = np.zeros(self.blocks * m)
        if self.streams:
            p |= {CARRIED + name: np.zeros((self.streams, m)) for name in self.state}
        return p, (m,) if self.outputs == "last" else (steps, m)

    def forward(self, ops, p, x):
        if self.bidirectional:
            return self.both.forward(ops, p, x)
        xp = ops.xp
        if x.shape[1] == 0:
            raise ValueError(f"{self!r}: expected at least one step in every sequence, got {x.shape}. Leave empty sequences out.")
        x = xp.swapaxes(x, 0, 1)  # (T, batch, n)
        a = x @ p["W_xh"]  # the input products of all steps at once: (T, batch, n) @ (n, blocks · units)
        if self.bias:
            a = a + p["b"]
        there = None if ops.lengths is None else ops.mask(x.shape[0]).T[..., None] > 0  # (T, batch, 1)
        start, remembers = self.begin(ops, p, a), ops.remembers or type(self).forward is not Recurrent.forward

        def step(before: Any, now: Any) -> Any:
            a, there = now
            after, gates = self.cell(xp, p, a, before)
            after = choose(xp, there, after, before)
            if remembers:
                return after, (after, gates)
            return after, (after[:1] if self.outputs == "every" else (), ())

        end, (states, gates) = ops.scan(step, start, (a, there), reverse=self.reverse, by_rows=True)
        if self.streams and ops.training:
            for name, value in zip(self.state, end, strict=True):
                ops.keep(CARRIED + name, value)
        if remembers:
            for name, value in zip((*self.state, *self.gates), (*states, *gates), strict=True):
                ops.note(name, xp.swapaxes(value, 0, 1))
        y = end[0] if self.outputs == "last" else xp.swapaxes(states[0], 0, 1)
        return y, (x, start, states, gates, there)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        if self.bidirectional:
            return self.both.backward(ops, p, cache, dy, wrt_input)
        xp = ops.xp
        x, start, states, gates, there = cache
        before = tuple(shift(xp, s, after, self.reverse) for s, after in zip(start, states, strict=True))
        flow, W_hhT = tuple(xp.zeros_like(s) for s in start), ops.transposed(p["W_hh"])
        if self.outputs == "last":
            flow, dy = (dy, *flow[1:]), None
        else:
            dy = xp.swapaxes(dy, 0, 1)

        def step(flow: Any, now: Any) -> Any:
            dy, gates, before, after, there = now
            if dy is not None:
                flow = (flow[0] + dy, *flow[1:])
            da, down = self.cell_backward(xp, W_hhT, gates, before, after, flow)
            return choose(xp, there, down, flow), choose(xp, there, (da,), (xp.zeros_like(da),))[0]

        _, da = ops.scan(step, flow, (dy, gates, before, states, there), reverse=not self.reverse, by_rows=True)
        dv = self.product_flow(xp, gates, da)
        grads = {"W_xh": ops.crossprod(rows(x), rows(da)), "W_hh": ops.crossprod(rows(before[0]), rows(dv))}  # sums over T · batch rows
        if self.bias:
            grads |= self.bias_gradients(rows(da), rows(dv))
        return (xp.swapaxes(da @ p["W_xh"].T, 0, 1) if wrt_input else None), grads  # (T, batch, blocks · units) @ (blocks · units, n)

    def bias_gradients(self, da: Array, dv: Array) -> dict[str, Array]:
        return {"b": da.sum(0)}

    def formulas(self):  # the state before a step is that of the next time where it reads from the end
        if self.bidirectional:
            return [], []
        ahead, flow, (da, dv), more = self.step_formulas()
        bias = [f"db = Σ_t Σ {da}_t"] if self.bias else []
        back = [*flow, f"dW_xh = Σ_t {da}_t x_tᵀ", f"dW_hh = Σ_t {dv}_t h_{{t−1}}ᵀ", *bias, *more, f"dx_t = W_xhᵀ {da}_t"]
        turn = str.maketrans("−+", "+−") if self.reverse else {}
        if self.outputs == "last":
            ahead = [*ahead, "h = h_T"]
        back = ["e_t: the flow into h_t from the layer above", *back]
        return tuple([re.sub(r"_\{t[−+]1\}", lambda m: m.group().translate(turn), e) for e in side] for side in (ahead, back))

    def step_formulas(self) -> tuple[list[str], list[str], tuple[str, str], list[str]]:
        """For pages: a step, a step backwards, what da and dv are called there, and gradients beside those all have."""
        raise NotImplementedError

    def affine(self, gate: str, bias: bool = True) -> str:
        """The sum that goes into a gate, as formulas write it."""
        return f"W_x{gate} x_t + W_h{gate} h_{{t−1}}" + f" + b_{gate}" * (bias and self.bias)

    def quantities(self, call, inner):
        if self.bidirectional:
            return {}
        T, m, p = call.x.shape[1], self.units, call.params
        steps = lambda a: {t + 1: a[:, t].T for t in range(T)}  # noqa: E731
        known: dict[str, Any] = {"t": range(1, T + 1), "T": 1 if self.reverse else T, "x": steps(call.x)}
        if call.dx is not None:
            known["dx"] = steps(call.dx)
        if call.dy is not None:
            last = np.full(len(call.x), T) if call.lengths is None else np.asarray(call.lengths)
            last = np.ones_like(last) if self.reverse else last  # the step whose state is the output
            known["e"] = steps(call.dy) if self.outputs == "every" else {int(t): call.dy.T * (last == t) for t in np.unique(last)}
        known |= {name: steps(values[0]) for name, values in call.notes.items()}
        for name in self.state:
            start = p.get(CARRIED + name, np.zeros((len(call.x), m)))
            start = start if name != "h" or self.h0 is None else np.tile(self.h0.array, (len(call.x), 1))
            known.setdefault(name, {})[T + 1 if self.reverse else 0] = np.asarray(start).T
        for i, gate in enumerate(self.gates[: self.blocks] if self.blocks > 1 else ()):
            block = slice(i * m, (i + 1) * m)
            known |= {f"W_x{gate}": p["W_xh"][:, block].T, f"W_h{gate}": p["W_hh"][:, block].T}
            if self.bias:
                known[f"b_{gate}"] = p["b"][block, None]
        return known

    def begin(self, ops: Any, p: Params, a: Array) -> tuple[Array, ...]:
        """The state before the first step: (batch, units) each."""
        batch = a.shape[1]
        if self.streams and ops.training:
            if batch != self.streams:
                raise ValueError(
                    f"{self!r}: expected batches of {self.streams} rows, one per stream, got {batch}. "
                    f"Use batch_size={self.streams} on rows made by cut_streams, or streams=0."
                )
            return tuple(p[CARRIED + name] for name in self.state)
        zeros = [ops.xp.zeros((batch, self.units), dtype=a.dtype) for _ in self.state]
        if self.h0 is not None:
            zeros[0] = zeros[0] + ops.xp.asarray(self.h0.array, dtype=a.dtype)
        return tuple(zeros)


class RNN(Recurrent):
    """Recurrent layer.

    Forward   h_t = g(x_t W_xh + h_{t−1} W_hh + b),   g = tanh unless told otherwise          (N15)
    Backward  δ_t = (dh_t + δ_{t+1} W_hhᵀ) ⊙ (1 − h_t²),   dh_t the flow from the output at t          (N35)
              dW_xh = Σ x_tᵀ δ_t,   dW_hh = Σ h_{t−1}ᵀ δ_t,   db = Σ δ_t,   dx_t = δ_t W_xhᵀ

    Options as in :class:`Recurrent`, and

    activation : Activation
        The function g.

    Examples
    --------
    >>> RNN(8).count((None, 3))
    96
    """

    activation: Activation = Tanh()

    gates = ("z",)

    def cell(self, xp, p, a, state):
        (h,) = state
        z = a + h @ p["W_hh"]  # (batch, units) @ (units, units)
        return (self.activation.g(xp, z),), (z,)

    def cell_backward(self, xp, W_hhT, gates, before, after, flow):
        ((z,), (h,), (dh,)) = gates, after, flow
        dz = dh * self.activation.derivative(xp, z, h)
        return dz, (dz @ W_hhT,)

    def step_formulas(self):
        g, slope = (re.sub(r"\bz\b", "z_t", re.sub(r"\by\b", "h_t", side)) for side in self.activation.shown)
        z = "W_xh x_t + W_hh h_{t−1}" + " + b" * self.bias
        once = g.count("z_t") == 1
        ahead = [f"h_t = {g.replace('z_t', z)}"] if once else [f"z_t = {z}", f"h_t = {g}"]
        return ahead, [f"dz_t = (e_t + W_hhᵀ dz_{{t+1}}) ⊙ {slope}"], ("dz", "dz"), []


class LSTM(Recurrent):
    """Long short-term memory: gates decide what the cell c forgets, takes in and shows (N16).

    Forward   z_t = x_t W_xh + h_{t−1} W_hh + b,   in four blocks i f g o
              i, f, o = σ(z_i), σ(z_f), σ(z_o),   g = tanh(z_g)
              c_t = f ⊙ c_{t−1} + i ⊙ g,   h_t = o ⊙ tanh(c_t)
    Backward  dc_t ← dc_t + dh_t ⊙ o ⊙ (1 − tanh² c_t)
              dz_i = dc ⊙ g ⊙ i(1 − i),        dz_f = dc ⊙ c_{t−1} ⊙ f(1 − f)
              dz_g = dc ⊙ i ⊙ (1 − g²),        dz_o = dh ⊙ tanh(c_t) ⊙ o(1 − o)
              dh_{t−1} = dz W_hhᵀ,   dc_{t−1} = dc ⊙ f

    Options as in :class:`Recurrent`, and

    forget_bias : float
        Where the forget gate's bias begins: at 1 the cell remembers at first (Jozefowicz et al., 2015).

    Examples
    --------
    >>> LSTM(8).count((None, 3))
    384
    """

    forget_bias: float = 1.0

    blocks = 4
    state = ("h", "c")
    gates = ("i", "f", "g", "o")

    def build(self, rng, shape):
        p, out = super().build(rng, shape)
        if self.bias and not self.bidirectional:
            p["b"][self.units : 2 * self.units] = self.forget_bias
        return p, out

    def cell(self, xp, p, a, state):
        h, c = state
        z_i, z_f, z_g, z_o = xp.split(a + h @ p["W_hh"], 4, axis=-1)  # (batch, units) @ (units, 4 · units)
        i, f, g, o = logistic(xp, z_i), logistic(xp, z_f), xp.tanh(z_g), logistic(xp, z_o)
        c = f * c + i * g
        return (o * xp.tanh(c), c), (i, f, g, o)

    def cell_backward(self, xp, W_hhT, gates, before, after, flow):
        (i, f, g, o), (_, c_before), (_, c), (dh, dc) = gates, before, after, flow
        t = xp.tanh(c)
        dc = dc + dh * o * (1 - t * t)
        dz = [dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o)]
        da = xp.concatenate(dz, axis=-1)
        return da, (da @ W_hhT, dc * f)

    def step_formulas(self):
        gates = [f"{gate}_t = {'tanh' if gate == 'g' else 'σ'}({self.affine(gate)})" for gate in self.gates]
        flows = ["dc_t ⊙ g_t ⊙ i_t ⊙ (1 − i_t)", "dc_t ⊙ c_{t−1} ⊙ f_t ⊙ (1 − f_t)", "dc_t ⊙ i_t ⊙ (1 − g_t ⊙ g_t)"]
        flows.append("dh_t ⊙ tanh(c_t) ⊙ o_t ⊙ (1 − o_t)")
        back = ["dh_t = e_t + W_hhᵀ dz_{t+1}", "dc_t = dh_t ⊙ o_t ⊙ (1 − tanh(c_t)²) + dc_{t+1} ⊙ f_{t+1}", f"dz_t = [{' ; '.join(flows)}]"]
        return [*gates, "c_t = f_t ⊙ c_{t−1} + i_t ⊙ g_t", "h_t = o_t ⊙ tanh(c_t)"], back, ("dz", "dz"), []


class GRU(Recurrent):
    """Gated recurrent unit (Cho et al., 2014; the reset gate after the product, as compiled versions have it).

    Forward   a_t = x_t W_xh + b,   v_t = h_{t−1} W_hh,   each in three blocks r u n
              r = σ(a_r + v_r),   u = σ(a_u + v_u),   n = tanh(a_n + r ⊙ s),   s = v_n + c
              h_t = (1 − u) ⊙ n + u ⊙ h_{t−1}
    Backward  da_n = dh ⊙ (1 − u) ⊙ (1 − n²),   da_u = dh ⊙ (h_{t−1} − n) ⊙ u(1 − u),   da_r = da_n ⊙ s ⊙ r(1 − r)
              dv = [da_r; da_u; da_n ⊙ r],   dh_{t−1} = dh ⊙ u + dv W_hhᵀ,   dc = Σ dv_n

    Options as in :class:`Recurrent`.

    Examples
    --------
    >>> GRU(8).count((None, 3))
    296
    """

    blocks = 3
    gates = ("r", "u", "n", "s")

    def build(self, rng, shape):
        p, out = super().build(rng, shape)
        if self.bias and not self.bidirectional:
            p["c"] = np.zeros(self.units)
        return p, out

    def cell(self, xp, p, a, state):
        (h,) = state
        v_r, v_u, v_n = xp.split(h @ p["W_hh"], 3, axis=-1)  # (batch, units) @ (units, 3 · units)
        a_r, a_u, a_n = xp.split(a, 3, axis=-1)
        r, u = logistic(xp, a_r + v_r), logistic(xp, a_u + v_u)
        s = v_n + p["c"] if self.bias else v_n
        n = xp.tanh(a_n + r * s)
        return ((1 - u) * n + u * h,), (r, u, n, s)

    def cell_backward(self, xp, W_hhT, gates, before, after, flow):
        (r, u, n, s), (h_before,), (dh,) = gates, before, flow
        da_n = dh * (1 - u) * (1 - n * n)
        da = xp.concatenate([da_n * s * r * (1 - r), dh * (h_before - n) * u * (1 - u), da_n], axis=-1)
        return da, (dh * u + self.product_flow(xp, gates, da) @ W_hhT,)

    def product_flow(self, xp, gates, da):
        m, r = self.units, gates[0]
        return xp.concatenate([da[..., : 2 * m], da[..., 2 * m :] * r], axis=-1)

    def bias_gradients(self, da, dv):
        return {"b": da.sum(0), "c": dv[:, 2 * self.units :].sum(0)}

    def step_formulas(self):
        bias = " + b_n" * self.bias, " + c" * self.bias
        ahead = [f"r_t = σ({self.affine('r')})", f"u_t = σ({self.affine('u')})", f"s_t = W_hn h_{{t−1}}{bias[1]}"]
        ahead += [f"n_t = tanh(W_xn x_t{bias[0]} + r_t ⊙ s_t)", "h_t = (1 − u_t) ⊙ n_t + u_t ⊙ h_{t−1}"]
        back = ["dh_t = e_t + W_hhᵀ dv_{t+1} + dh_{t+1} ⊙ u_{t+1}", "dn_t = dh_t ⊙ (1 − u_t) ⊙ (1 − n_t ⊙ n_t)"]
        gates = "dn_t ⊙ s_t ⊙ r_t ⊙ (1 − r_t) ; dh_t ⊙ (h_{t−1} − n_t) ⊙ u_t ⊙ (1 − u_t)"
        return (
            ahead,
            [*back, f"da_t = [{gates} ; dn_t]", f"dv_t = [{gates} ; dn_t ⊙ r_t]"],
            ("da", "dv"),
            ["dc = Σ_t Σ dn_t ⊙ r_t"] * self.bias,
        )


@functools.lru_cache(256)
def is_recurrent(net: Layer) -> bool:
    """Whether one of its layers goes step by step."""
    return net.work == "scan" or any(map(is_recurrent, net.children))


def choose(xp: Any, there: Any, new: tuple[Array, ...], old: tuple[Array, ...]) -> tuple[Array, ...]:
    """The new values where a step is real, the old ones where it is padding."""
    return new if there is None else tuple(xp.where(there, n, o) for n, o in zip(new, old, strict=True))


def shift(xp: Any, start: Array, after: Array, reverse: bool) -> Array:
    """The states before every step, from the one at the start and those after every step."""
    return xp.concatenate([after[1:], start[None]] if reverse else [start[None], after[:-1]])


def rows(a: Array) -> Array:
    """All steps of all rows as one long batch."""
    return a.reshape(-1, a.shape[-1])
