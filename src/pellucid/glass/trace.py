"""One pass through a network as data: every input, output, flow and gradient, by a readable path."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..engines import get_engine
from ..engines.choose import needs_jax
from ..engines.ops import Ops
from ..layers.activations import Threshold
from ..settings import did_you_mean
from ..training.step import Batch, gradients
from ..tree import flatten, map_leaves, readable

__all__ = ["LayerTrace", "Recorder", "Trace", "observe", "trace"]


@dataclass
class LayerTrace:
    """What one layer saw in one pass.

    `x`, `y` are its input and output, `dy`, `dx` the flow that came and the flow it passed on (None where nothing
    was asked for), `params` and `grads` its own arrays by name, `notes` the inner values it offered: a list per
    name, one entry per time step for a recurrent layer. `lengths` are those of its input's sequences, if they differ.
    """

    path: str
    layer: Any
    params: dict[str, Any]
    x: Any
    y: Any = None
    dy: Any = None
    dx: Any = None
    grads: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, list[Any]] = field(default_factory=dict)
    lengths: Any = None

    @property
    def is_leaf(self) -> bool:
        return not self.layer.children

    def on_host(self) -> LayerTrace:
        """The same with NumPy arrays, where JAX ran it."""
        for name in ("x", "y", "dy", "dx"):
            setattr(self, name, map_leaves(lambda a: None if a is None else np.asarray(a), getattr(self, name)))
        self.params, self.grads = ({k: np.asarray(v) for k, v in d.items()} for d in (self.params, self.grads))
        self.notes = {k: [np.asarray(v) for v in values] for k, values in self.notes.items() if not any(map(is_abstract, values))}
        return self

    def steps(self, name: str) -> np.ndarray:
        """The inner value `name` at every step: shape (steps, batch, …), in the order of time."""
        if name not in self.notes:
            raise KeyError(f"{self.path} noted no {name!r}.{did_you_mean(name, self.notes)} There are: {', '.join(self.notes) or 'none'}.")
        values = self.notes[name]
        return np.stack([np.asarray(v) for v in values]) if len(values) > 1 else np.swapaxes(values[0], 0, 1)  # (T, batch, …)

    def values(self) -> dict[str, Any]:
        """Everything by its short name: x, y, dy, dx, W, dW, …"""
        everything = {"x": self.x, "y": self.y, "dy": self.dy, "dx": self.dx, **self.params}
        everything |= {f"d{name}": g for name, g in self.grads.items()}
        everything |= {name: self.steps(name) if len(v) > 1 else v[0] for name, v in self.notes.items()}
        return {name: value for name, value in everything.items() if value is not None}


class Recorder(Ops):
    """Mixed into an engine's operations, keeps what passes through the one hook."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls: list[tuple[tuple[Any, ...], LayerTrace]] = []
        self.running: list[LayerTrace] = []
        self.waiting: dict[tuple[Any, ...], list[LayerTrace]] = {}

    def forward(self, layer, p, x, key):
        path = (*self.path, key)[1:]
        own = {k: v for k, v in p.items() if not isinstance(v, dict | tuple)} if isinstance(p, dict) else {}
        call = LayerTrace("", layer, own, x, lengths=self.lengths)
        self.calls.append((path, call))
        self.waiting.setdefault(path, []).append(call)
        self.running.append(call)
        call.y, cache = super().forward(layer, p, x, key)
        self.running.pop()
        return call.y, cache

    def backward(self, layer, p, cache, dy, key, wrt_input=True):
        path = (*self.path, key)[1:]
        call = self.waiting[path].pop()  # a layer used several times is left in the reverse order
        call.dy = dy
        self.running.append(call)
        before = {name: len(values) for name, values in call.notes.items()}
        if is_jump(layer):  # it refuses to be trained through; looked at, its derivative is what it is: zero
            grads: Any = {}
            call.dx = 0 * dy
        else:
            call.dx, grads = super().backward(layer, p, cache, dy, key, wrt_input)
        for name, values in call.notes.items():  # noted on the way back: turned round, so that all run with time
            values[before.get(name, 0) :] = values[before.get(name, 0) :][::-1]
        self.running.pop()
        if isinstance(grads, dict):
            call.grads = {k: v for k, v in grads.items() if not isinstance(v, dict | tuple)}
        return call.dx, grads

    def note(self, name, value):
        if self.running:
            self.running[-1].notes.setdefault(name, []).append(value)
        return value


class Trace:
    """A pass by name: ``trace["hidden"]`` is a layer, ``trace["hidden.W"]``, ``trace["hidden.dW"]`` its arrays.

    Attributes
    ----------
    loss : float
        The mean loss over the batch.
    output, delta : array
        The network's output, and ∂L/∂output of every row as the loss states it, without weights and 1/n.
    values : array
        The loss of every row.
    layers : dict of path: LayerTrace
        In the order of the forward pass; the whole network is ``"net"``. A layer used again is ``"path@2"``.
    gradients : dict of name: array
        ∂L/∂p for every parameter, as in ``model.gradients``.
    """

    def __init__(self, net: Any, loss: Any, params: Any, batch: Batch, ops: Any, seed: Any, step: Any) -> None:
        self.net, self.loss_function, self.params, self.batch = net, loss, params, batch
        self.values: Any = None
        self.delta: Any = None
        self._engine = get_engine("jax" if needs_jax(net) else "numpy")
        with self._engine.precision(batch.weight.dtype), np.errstate(all="ignore"):
            g = gradients(ops, net, keep_loss(self, loss), params, batch, wrt_input=True)
        self.loss, self.output, self.weight = float(g.loss), np.asarray(g.y), np.asarray(g.weight)
        self.gradient_tree = self._engine.get(g.params)
        self.gradients: dict[str, np.ndarray] = flatten(self.gradient_tree, net)
        self.layers: dict[str, LayerTrace] = {}
        for path, call in ops.calls:
            if is_abstract(call.y):
                continue  # inside a layer whose backward JAX derives: there are no numbers
            name = ".".join(readable(path, net)) or "net"
            again = sum(1 for known in self.layers if known.split("@")[0] == name)
            call.path = f"{name}@{again + 1}" if again else name
            self.layers[call.path] = call if self._engine.name == "numpy" else call.on_host()
        self._settings = {"training": True, "seed": seed, "step": step, "weight": batch.weight, "lengths": batch.lengths}

    @property
    def leaves(self) -> list[LayerTrace]:
        """The layers that do the work, without the combinators around them."""
        return [call for call in self.layers.values() if call.is_leaf]

    def __getitem__(self, path: str) -> Any:
        if path in self.layers:
            return self.layers[path]
        owner, _, name = path.rpartition(".")
        if owner in self.layers and name in self.layers[owner].values():
            return self.layers[owner].values()[name]
        known = [*self.layers, *(f"{p}.{n}" for p, call in self.layers.items() for n in call.values())]
        inside = f" {owner} has: {', '.join(self.layers[owner].values())}." if owner in self.layers else ""
        raise KeyError(f"nothing at {path!r}.{did_you_mean(path, known)}{inside} Layers: {', '.join(self.layers)}.")

    def per_sample(self, name: str | None = None) -> Any:
        """The gradient of each row's share of the loss, shape (rows, …); they sum to the batch gradient.

        One forward pass, then one backward pass per row with the flow of all other rows set to zero: right for
        layers that mix rows, too. A penalty on weights belongs to no row and is left out. Without `name`, a dict with
        every parameter.
        """
        if name is not None and name not in self.gradients:
            raise KeyError(f"no parameter {name!r}.{did_you_mean(name, self.gradients)} There are: {', '.join(self.gradients)}.")
        engine = self._engine
        Plain = engine.JaxOps if engine.name == "jax" else engine.NumpyOps
        with engine.precision(self.batch.weight.dtype), np.errstate(all="ignore"):
            ops = Plain(**self._settings)
            _, cache = ops.forward(self.net, self.params, self.batch.x, "net")
            dy, rows = np.asarray(self.layers["net"].dy), []
            for i in range(len(dy)):
                alone = np.zeros_like(dy)
                alone[i] = dy[i]
                _, grads = Plain(**self._settings).backward(self.net, self.params, cache, engine.put(alone), "net", False)
                rows.append(flatten(engine.get(grads), self.net))
        names = list(self.gradients) if name is None else [name]
        stacked = {n: np.stack([row[n] for row in rows]) for n in names}
        return stacked if name is None else stacked[name]

    def __repr__(self) -> str:
        table = [("path", "layer", "output", "‖y‖", "‖dy‖", "gradients")]
        for c in self.leaves:
            grads = ", ".join(f"‖d{n}‖ = {norm(g):.3g}" for n, g in c.grads.items())
            flow = "–" if c.dy is None else f"{norm(c.dy):.3g}"
            table.append((c.path, repr(c.layer), str(np.shape(c.y)), f"{norm(c.y):.3g}", flow, grads))
        widths = [max(len(row[i]) for row in table) for i in range(6)]
        lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
        return "\n".join([f"Trace of {len(self.batch.x)} rows, loss {self.loss:.6g}", lines[0], "─" * max(map(len, lines)), *lines[1:]])


def is_abstract(value: Any) -> bool:
    """Whether a value is JAX's stand-in for numbers that are not there yet."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def norm(a: Any) -> float:
    """The Euclidean norm of all entries."""
    return float(np.linalg.norm(np.asarray(a, np.float64)))


def is_jump(layer: Any) -> bool:
    """Whether the layer is a jump with nothing in its derivative's place."""
    return isinstance(layer, Threshold) and layer.surrogate is None


def has_jump(net: Any) -> bool:
    return is_jump(net) or any(map(has_jump, net.children))


def keep_loss(trace: Trace, loss: Any) -> Any:
    """The loss, with its values and flow per row kept in the trace."""

    def call(ops: Any, y: Any, target: Any) -> Any:
        values, delta = loss(ops, y, target)
        trace.values, trace.delta = np.asarray(values), np.asarray(delta)
        return values, delta

    return call


def recording_ops(net: Any) -> Any:
    """The operations of the engine that can run `net`, with a recorder."""
    if not needs_jax(net):
        from ..engines.numpy import NumpyOps

        return type("RecordingOps", (Recorder, NumpyOps), {})
    from ..engines.jax import JaxOps

    return type("RecordingOps", (Recorder, JaxOps), {})


def observe(net: Any, loss: Any, params: Any, batch: Batch, seed: int = 0, step: int = 0, Recording: Any = None) -> Trace:
    """Trace a pass over a checked batch: exactly the numbers of training step `step` from these parameters."""
    settings = {"training": True, "seed": np.uint32(seed % 2**32), "step": np.int32(step)}
    ops = (Recording or recording_ops(net))(**settings, weight=batch.weight, lengths=batch.lengths)
    return Trace(net, loss, params, batch, ops, settings["seed"], settings["step"])


def trace(model: Any, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None, step: int = 0) -> Trace:
    """See `Network.trace`."""
    batch = model.as_batch(X, y, sample_weight, lengths)
    return observe(model.net, model.loss, model.params, batch, model.seed, step)
