"""The flight recorder: the last steps before a value stopped being finite, how it came to that, and a replay.

Nothing is recorded while all goes well: training keeps the state from the start of each chunk anyway, and all
randomness is (seed, step), so the steps before the crash can be flown again, this time under the recorder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..engines.numpy import NumpyOps
from ..training.callbacks import Callback
from ..training.checkpoint import write_atomically
from ..training.finite import NonFiniteError
from ..training.step import Batch, State
from ..tree import flatten, leaves, readable, unflatten
from .trace import Recorder, Trace, observe

__all__ = ["Flight", "FlightRecorder", "replay"]

FORMAT = "pellucid flight 1"
SIGNS = {"loss": "loss", "gradient": "‖∇‖", "rate": "η"}


@dataclass(frozen=True)
class Link:
    """One value on the way: where it is, how large it is, and what went wrong in it."""

    place: str
    what: str
    largest: float
    bad: bool
    events: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f"{self.what} up to {self.largest:.3g}" if np.isfinite(self.largest) and not self.bad else self.what
        events = f" → {', '.join(dict.fromkeys(self.events))}" if self.events else ""
        return f"{self.place}: {size}{events}{' → not finite' if self.bad else ''}"


class ChainOps(Recorder, NumpyOps):
    """Records, too, how large every value is and which floating-point events it met."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.chain: list[Link] = []
        self.net: Any = None

    def forward(self, layer, p, x, key):
        (y, cache), events = watched(lambda: super(ChainOps, self).forward(layer, p, x, key))
        if not layer.children:
            self.add(key, layer, "output", y, events)
        return y, cache

    def backward(self, layer, p, cache, dy, key, wrt_input=True):
        (dx, grads), events = watched(lambda: super(ChainOps, self).backward(layer, p, cache, dy, key, wrt_input))
        if not layer.children:
            for name, g in grads.items():
                self.add(key, layer, f"gradient d{name}", g, events)
            if dx is not None:
                self.add(key, layer, "flow dx", dx, events)
        return dx, grads

    def add(self, key: Any, layer: Any, what: str, value: Any, events: list[str]) -> None:
        path = ".".join(readable((*self.path, key)[1:], self.net)) or "net"
        self.chain.append(link(f"{path} {layer!r}", what, value, events))


def watched(function: Any) -> tuple[Any, list[str]]:
    """The result, and the floating-point events met on the way: overflow, divide by zero, invalid value."""
    events: list[str] = []
    with np.errstate(over="call", divide="call", invalid="call", under="ignore", call=lambda kind, _: events.append(kind)):
        return function(), events


def link(place: str, what: str, value: Any, events: list[str] | tuple[str, ...] = ()) -> Link:
    a = np.abs(np.asarray(value, np.float64))
    finite = a[np.isfinite(a)]
    return Link(place, what, float(finite.max()) if finite.size else np.inf, finite.size < a.size, tuple(events))


@dataclass
class Flight:
    """What happened in the step that failed. Prints as a report.

    `chain` leads from the input to the first value that is not finite, `steps` holds the steps before it (loss, norm of
    the gradient, learning rate), `trace` the whole pass.
    """

    headline: str
    steps: list[dict[str, float]]
    chain: list[Link]
    trace: Trace
    advice: str
    state: State
    batch: Batch
    rate: float
    optimizer: Any = field(repr=False, default=None)

    @classmethod
    def of(cls, error: NonFiniteError) -> Flight:
        """The flight behind an error of `fit`."""
        if error.moment is None:
            raise ValueError("This error carries no step to look at: it was not raised by a gradient step of fit.")
        return fly(str(error).split(". The weights")[0] + ".", list(error.steps), *error.moment)

    def __str__(self) -> str:
        rows = []
        for step in self.steps[-8:]:
            told = "  ".join(f"{sign} {step[key]:<11.5g}" for key, sign in SIGNS.items() if key in step)
            rows.append(f"  step {int(step['step']):>6}  {told}".rstrip())
        links = [f"  {'→' if i else ' '} {item}" for i, item in enumerate(self.chain)]
        return "\n".join([self.headline, "The last steps:", *rows, "How it came to that:", *links, f"What to change: {self.advice}"])

    __repr__ = __str__

    def save(self, path: Any) -> Path:
        """Write everything needed to fly the step again; see `replay`."""
        from safetensors.numpy import save

        state, batch = self.state, {name: value for name, value in self.batch._asdict().items() if value is not None}
        trees = {"params": state.params, "slots": state.slots, "numbers": state.numbers, "batch": batch}
        told = {"headline": self.headline, "steps": self.steps, "step": int(state.step), "seed": int(state.seed), "rate": self.rate}
        tensors = {name: np.ascontiguousarray(leaf) for name, leaf in flatten(trees).items()}
        metadata = {"format": FORMAT, "network": repr(self.trace.net), "loss": repr(self.trace.loss_function), "flight": json.dumps(told)}
        write_atomically(path, save(tensors, metadata))
        return Path(path)


def fly(headline: str, steps: list[dict[str, float]], net: Any, loss: Any, optimizer: Any, state: State, batch: Batch, rate: Any) -> Flight:
    """Run one step under the recorder and follow the chain to the first value that is not finite."""
    made: list[ChainOps] = []

    def Recording(**settings: Any) -> ChainOps:
        made.append(ChainOps(**settings))
        made[0].net = net
        return made[0]

    def checked(ops: Any, y: Any, target: Any) -> Any:
        (values, delta), events = watched(lambda: loss(ops, y, target))
        ops.chain += [link(f"loss {loss!r}", "value", values, events), link(f"loss {loss!r}", "∂L/∂output", delta, events)]
        return values, delta

    trace = observe(net, checked, state.params, batch, int(state.seed), int(state.step), Recording)
    trace.loss_function = loss
    chain = [link("input", "x", batch.x), *made[0].chain]
    if not any(item.bad for item in chain) and optimizer is not None:
        (new, _), events = watched(
            lambda: optimizer.update(NumpyOps(), state.params, trace.gradient_tree, state.slots, state.numbers, rate, state.step + 1)
        )
        names = [".".join(readable(path, net)) for path, _ in leaves(new)]
        chain += [link(f"update of {name}", "new value", leaf, events) for name, (_, leaf) in zip(names, leaves(new), strict=True)]
    first = next((i for i, item in enumerate(chain) if item.bad), len(chain) - 1)
    advice = advise(chain[: first + 1], steps[:-1], state)
    return Flight(headline, steps, shorten(chain[: first + 1]), trace, advice, state, batch, float(rate), optimizer)


def shorten(chain: list[Link]) -> list[Link]:
    """The values that grew on the way, and the last ones."""
    kept, largest = [], 0.0
    for i, item in enumerate(chain):
        if i == 0 or i >= len(chain) - 3 or item.largest > 3 * largest or item.events:
            kept.append(item)
        largest = max(largest, item.largest if np.isfinite(item.largest) else 0.0)
    return kept


def advise(chain: list[Link], steps: list[dict[str, float]], state: State) -> str:
    """What to change, from where the chain broke."""
    bad, weights = chain[-1], max((float(np.abs(leaf).max()) for _, leaf in leaves(state.params) if leaf.size), default=0.0)
    if chain[0].largest > 1e3:
        return f"scale the inputs to mean 0 and deviation 1: they go up to {chain[0].largest:.3g}."
    if weights > 1e3 or (len(steps) > 1 and steps[-1]["loss"] > 3 * min(s["loss"] for s in steps)):
        return f"a smaller learning rate, or clip_norm=1.0 in the optimizer: the loss was rising, and weights go up to {weights:.3g}."
    if bad.place.startswith("loss") and {"divide by zero", "invalid value"} & set(bad.events):
        return "use the loss on logits (SoftmaxCrossEntropy, SigmoidCrossEntropy): it needs no logarithm of zero and no division by it."
    if "overflow" in bad.events:
        return f"keep what goes into {bad.place} small: a normalisation before it, smaller initial weights, or dtype='float64'."
    return "a smaller learning rate, clip_norm=1.0 in the optimizer, or dtype='float64'."


def replay(path: Any, model: Any, optimizer: Any = None) -> Flight:
    """Fly the step of a file again, with the network it belongs to; give the optimizer to see its update, too."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is no flight record, or a damaged one: {error}.") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is no flight record of this version: expected {FORMAT!r}, got {metadata.get('format')!r}.")
    if metadata["network"] != repr(model.net) or metadata["loss"] != repr(model.loss):
        raise ValueError(f"{path} belongs to {metadata['network']} with {metadata['loss']}, not to {model.net!r} with {model.loss!r}.")
    model.require_built()
    told, optimizer = json.loads(metadata["flight"]), optimizer.kind() if optimizer is not None else None
    part = {name.partition(".")[2]: value for name, value in tensors.items() if name.startswith("params.")}
    memory = {name.partition(".")[2]: value for name, value in tensors.items() if name.startswith("slots.")}
    slots = unflatten(optimizer.slots(model.params), memory) if optimizer is not None else None
    numbers = {name.partition(".")[2]: value[()] for name, value in tensors.items() if name.startswith("numbers.")}
    batch = Batch(*(tensors.get(f"batch.{name}") for name in Batch._fields))
    state = State(unflatten(model.params, part), slots, numbers, np.int32(told["step"]), np.uint32(told["seed"]))
    rate = np.asarray(told["rate"], model.dtype)[()]
    return fly(told["headline"], told["steps"], model.net, model.loss, optimizer, state, batch, rate)


class FlightRecorder(Callback):
    """When a value stops being finite, writes the report and a file that replays the step.

    Parameters
    ----------
    path : path
        Where the file goes; read it with ``glass.replay(path, model)``. The report is added to the error's message and
        kept as ``recorder.flight``.
    """

    def __init__(self, path: Any = "flight.safetensors") -> None:
        self.path, self.flight = Path(path), None  # type: Path, Flight | None

    def nonfinite(self, run: Any, error: Any) -> None:
        self.flight = error.report()
        self.flight.save(self.path)
        error.add_note(f"{self.flight}\nReplay it with pellucid.glass.replay({str(self.path)!r}, model).")
