"""One pass and one update as a textbook page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ..engines.numpy import NumpyOps
from ..losses import SigmoidCrossEntropy, SoftmaxCrossEntropy
from ..optimizers import SGD, GradientDescent, get_optimizer
from ..proof import check_gradients
from ..settings import did_you_mean
from ..tree import flatten, map_leaves
from .formulas import Writer, entry, equations, substitute
from .notation import Matrix, number
from .page import Line, Page, Section
from .trace import Trace, has_jump, observe

__all__ = ["explain", "sections"]

FUSED = {SoftmaxCrossEntropy: "softmax", SigmoidCrossEntropy: "σ"}


def explain(model: Any, X: Any, y: Any, sample_weight: Any, lengths: Any, optimizer: Any, show: Iterable[str], check: bool) -> Page:
    """See `Network.explain`."""
    batch = model.as_batch(X, y, sample_weight, lengths)
    optimizer = get_optimizer(optimizer if optimizer is not None else SGD(0.1))
    trace = observe(model.net, model.loss, model.params, batch, model.seed)
    writer, parts = sections(trace)
    parts.append(updates(trace, writer, optimizer))
    if show:
        parts.append(chosen(trace, writer, [show] if isinstance(show, str) else list(show)))
    if check:
        params = map_leaves(lambda a: np.asarray(a, np.float64), model.params)
        exact = model.as_batch(X, y, sample_weight, lengths, dtype=np.dtype("float64"))
        result: Any = None
        lead = "Every gradient above against two independent ways to compute it."
        try:
            result = check_gradients(model.net, model.loss, params, exact, seed=model.seed, entries=20)
        except ValueError:
            if not has_jump(model.net):
                raise
            lead = "No gradient comes through Sign or Step: they are flat on both sides of their jump."
        parts.append(Section("Check", lead=lead, kind="check", insert=result))
    n = len(batch.x)
    lead = f"{n} example{'s' if n > 1 else ''}, {model.count} parameters, loss {model.loss!r}."
    if n > 1:
        lead += " Columns are examples."
    return Page(repr(model.net), lead, parts)


def sections(trace: Trace, limit: int = 48) -> tuple[Writer, list[Section]]:
    """Given, forward, loss and backward, and the writer that knows all symbols."""
    writer = Writer(trace, limit)
    writer.show("a⁰", trace.batch.x)
    y, dy, forward, backward = writer.walk(trace.net, (), "a⁰", "∂L/∂a⁰", False, True)
    backward += totals(trace, writer)
    writer.show("d", targets(trace))
    loss, flow = loss_lines(trace, writer, y, dy)
    given = [Line("a⁰ = x", None, writer.shown["a⁰"]), Line("d", None, writer.shown["d"], note="what the output should be")]
    return writer, [
        Section("Given", given),
        Section("Forward", forward, kind="forward"),
        Section("Loss", loss, kind="loss"),
        Section("Backward", [*flow, *backward], kind="backward", lead="δ is ∂L/∂z, ∇ the gradient by a parameter."),
    ]


def totals(trace: Trace, writer: Writer) -> list[Line]:
    """Gradients that are more than what one use of a layer gives: a layer used again, or a charge for large weights."""
    lines = []
    for symbol, place in writer.places.items():
        total = trace.gradients.get(place)
        if symbol.startswith("∇") and total is not None and symbol in writer.shown:
            value = oriented(total, writer.shown[symbol])
            if not np.array_equal(value, writer.shown[symbol].values):
                writer.shown[symbol] = replace(writer.shown[symbol], values=value)
                lines.append(Line(f"{symbol} in all", None, writer.shown[symbol], place, "every use of the layer, and penalties"))
    return lines


def targets(trace: Trace) -> np.ndarray:
    """The targets as the loss compares them: class numbers as one-hot rows."""
    loss, target = trace.loss_function, trace.batch.target
    return loss.distribution(NumpyOps(), trace.output, target) if hasattr(loss, "distribution") else target


def loss_lines(trace: Trace, writer: Writer, y: str, dy: str) -> tuple[list[Line], list[Line]]:
    """The loss with its numbers, and the flow it sends back."""
    loss, count, even = trace.loss_function, trace.values.size, uniform(trace)
    found = [e.rstrip(".") for e in equations([line.strip() for line in (type(loss).__doc__ or "").splitlines()]) if "=" in e]
    value = next((e for e in found if e.startswith("L =")), f"L = {type(loss).__name__}(y, d)").split(" = ")[1]
    token, slope = next(((e[4:5], e.split(" = ", 1)[1]) for e in found if e.startswith("∂L/∂")), ("y", "its derivative"))
    lines, names = [Line(e) for e in found if not e.startswith(("L =", "∂L/∂"))], {token: y, "d": "d"}
    inner = next((sign for kind, sign in FUSED.items() if isinstance(loss, kind)), "")
    if inner:  # a loss on logits: its inner function gets a line of its own
        p = "y" if y != "y" else "p"
        names[p] = p
        shown = writer.show(p, loss.probabilities(NumpyOps(), trace.output))
        lines.append(Line(f"{p} = {inner}({y})", [f"{inner}(", writer.shown[y], ")"], shown))
        value, slope = (side.replace(f"{inner}({token})", p) for side in (value, slope))
    total = Matrix(np.array([[trace.loss]]))
    rows = Matrix(trace.values.reshape(len(trace.values), -1).T, writer.limit)
    one = count == 1
    lines.append(Line(f"{'L' if one else 'L_i'} = {substitute(value, names)}", writer.fill(value, names), rows))
    w = np.broadcast_to(trace.weight, trace.values.shape)
    charge = trace.loss - float((trace.values * w).sum() / w.sum())
    extra = abs(charge) > 1e-6 * abs(trace.loss)  # a penalty on weights
    if not one or extra:
        words = ("L = Σ L_i / n" if even else "L = Σ w_i L_i / Σ w_i") + (" + penalties" if extra else "")
        lines.append(Line(words, ["Σ ", rows, f" / {count}", *([f" + {number(charge)}"] if extra else [])] if even else None, total))
    tail = "" if one else " / n" if even else " ⊙ w / Σ w"
    words, numbers = substitute(slope, names), writer.fill(slope, names)
    if tail:
        words = f"({words}){tail}"
        numbers = ["(", *numbers, f") / {count}"] if numbers and even else None
    flow = Line(f"{dy} = {words}", numbers, writer.show(dy, trace.layers["net"].dy), note="the mean comes in here, once" if tail else "")
    return lines, [flow, *entry(dy, numbers, flow.result)]


def uniform(trace: Trace) -> bool:
    """Whether all rows count the same."""
    w = np.ravel(trace.weight)
    return bool((w == w[0]).all())


def updates(trace: Trace, writer: Writer, optimizer: Any) -> Section:
    """Every parameter's update, all from old values."""
    numbers = optimizer.numbers(trace.batch.weight.dtype)
    rate = np.asarray(getattr(optimizer.learning_rate, "start", optimizer.learning_rate), trace.batch.weight.dtype)[()]
    new, _ = optimizer.update(NumpyOps(), trace.params, trace.gradient_tree, optimizer.slots(trace.params), numbers, rate, np.int32(1))
    after = flatten(new, trace.net)
    simple = isinstance(optimizer, GradientDescent) or (type(optimizer) is SGD and not optimizer.momentum)
    simple = simple and not (optimizer.weight_decay or optimizer.clip_norm)
    lines = []
    for gradient, place in writer.places.items():
        symbol = gradient.removeprefix("∇")
        if not gradient.startswith("∇") or place not in after or gradient not in writer.shown:
            continue
        old, g = writer.shown[symbol], writer.shown[gradient]
        value = oriented(after[place], old)
        parts = [old, f" − {number(float(rate))} · ", g] if simple else None
        right = f"{symbol} − η ∇{symbol}" if simple else f"{type(optimizer).__name__}({symbol}, ∇{symbol})"
        lines.append(Line(f"{symbol} ← {right}", parts, Matrix(value, writer.limit, turned=old.turned), place))
    rule = " ".join((type(optimizer).__doc__ or "").split("\n\n")[-1].split()) if not simple else ""
    return Section("Update", lines, f"{optimizer!r}, η = {number(float(rate))}. {rule}".strip(), "update")


def oriented(value: np.ndarray, like: Matrix) -> np.ndarray:
    """A parameter turned the way the page shows it."""
    return value if value.shape == like.values.shape and not like.turned else value.T.reshape(like.values.shape)


def chosen(trace: Trace, writer: Writer, names: list[str]) -> Section:
    """Single entries: the parameter and its gradient."""
    before, lines = flatten(trace.params, trace.net), []
    for name in names:
        match = re.fullmatch(r"(.+?)\[([\d,\s]+)\]", name)
        if match is None or match.group(1) not in trace.gradients:
            known = trace.gradients
            near = did_you_mean(name.split("[")[0], known)
            raise KeyError(
                f"show={name!r} must name an entry such as {next(iter(known), '0.W')}[0, 0].{near} There are: {', '.join(known)}."
            )
        place, index = match.group(1), tuple(int(i) for i in match.group(2).split(","))
        try:
            value, gradient = before[place][index], trace.gradients[place][index]
        except IndexError:
            raise IndexError(f"show={name!r}: {place} has shape {before[place].shape}.") from None
        symbol = next((s for s, p in writer.places.items() if p == place and not s.startswith("∇")), place)
        lines.append(Line(f"{symbol}[{', '.join(map(str, index))}]", None, Matrix(np.array([[value]])), name))
        lines.append(Line(f"∇{symbol}[{', '.join(map(str, index))}]", None, Matrix(np.array([[gradient]])), name))
    return Section("Chosen entries", lines, "Counted from 0, inputs first, as the arrays in Python.")
