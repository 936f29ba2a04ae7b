"""The doctor: what keeps a network from learning, with a number, a threshold, the layer, why, and what to change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..engines.numpy import NumpyOps, one_blas_thread
from ..layers.activations import ReLU, Sigmoid, Softmax, Tanh
from ..losses import Brier, Residual
from ..optimizers import LBFGS, get_optimizer
from ..schedules import rates_of
from ..training.callbacks import Callback, History
from ..training.data import class_numbers, select
from ..training.step import Batch
from ..tree import is_buffer, leaves, readable
from .explain import targets
from .trace import LayerTrace, Trace, norm, observe

__all__ = ["Diagnosis", "Doctor", "Finding", "diagnose"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `value` lies beyond `threshold`."""

    name: str
    layer: str
    value: float
    threshold: float
    what: str
    why: str
    fix: str

    def __str__(self) -> str:
        place = f" in {self.layer}" if self.layer else ""
        measured = f"measured {self.value:.3g}, threshold {self.threshold:.3g}"
        return f"● {self.name}{place}: {self.what} ({measured})\n  why: {self.why}\n  try: {self.fix}"


@dataclass(frozen=True)
class Diagnosis:
    """The findings, likeliest cause first; empty (and false) when nothing is wrong."""

    findings: list[Finding]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    @property
    def first(self) -> Finding | None:
        return self.findings[0] if self.findings else None

    def __str__(self) -> str:
        if not self.findings:
            return "Nothing found: scales, activations, gradient flow and learning curve look healthy."
        return "\n".join(map(str, self.findings))

    __repr__ = __str__


@dataclass
class Case:
    """What the checks may look at."""

    trace: Trace
    history: History
    ratios: dict[str, float] = field(default_factory=dict)  # parameter: the largest ‖Δp‖ / ‖p‖ of a step seen so far
    start: Trace | None = None  # before the first epoch

    @property
    def last(self) -> LayerTrace:
        return self.trace.leaves[-1]

    @property
    def losses(self) -> list[float]:
        return self.history["loss"] if self.history.rows else []

    def above(self, part: float) -> bool:
        """Whether the loss is more than this part of that of an answer that ignores the input."""
        return (self.losses[-1] if self.losses else self.trace.loss) > part * self.baseline

    @property
    def baseline(self) -> float:
        """The loss of the best constant answer, where the loss tells it; else the first one seen."""
        loss, target = self.trace.loss_function, self.trace.batch.target
        if loss.classes == "one" and (labels := class_numbers(target, loss)) is not None:
            p = np.bincount(labels) / len(labels)
            return float(1 - (p**2).sum()) if isinstance(loss, Brier) else float(-(p[p > 0] * np.log(p[p > 0])).sum())
        if loss.classes == "many":
            p = np.clip(target.reshape(-1, target.shape[-1]).mean(0), 1e-12, 1 - 1e-12)
            return float(-(p * np.log(p) + (1 - p) * np.log(1 - p)).sum())
        if isinstance(loss, Residual):
            flat = target.reshape(-1, target.shape[-1]).astype(np.float64)
            return float(np.asarray(loss(NumpyOps(), np.broadcast_to(flat.mean(0), flat.shape), flat)[0]).mean())
        return self.losses[0] if self.losses else self.trace.loss


# -------------------------------------------------------------------- the checks, likeliest root cause first
def unscaled_inputs(case: Case, limit: float = 30.0) -> Iterator[Finding]:
    x = case.trace.batch.x
    if x.dtype.kind != "f" or "Embedding" in type(case.trace.leaves[0].layer).__name__:
        return
    size = np.sqrt((x.reshape(len(x), -1).astype(np.float64) ** 2).mean(0))
    worst = int(size.argmax())
    why = "the first layer's sums grow with its inputs: activations saturate, and steps in W are out of proportion."
    fix = "scale the inputs to mean 0 and deviation 1 (sklearn.preprocessing.StandardScaler)."
    if size[worst] > limit:
        yield Finding(
            "unscaled inputs", "input", size[worst], limit, f"column {worst} has a root mean square of {size[worst]:.3g}", why, fix
        )
    elif size[worst] < 1 / limit**2:
        why = "inputs this small leave every sum at its bias, and dW = xᵀδ is as small as x."
        yield Finding("unscaled inputs", "input", size[worst], 1 / limit**2, f"the largest column has {size[worst]:.3g}", why, fix)


def unscaled_targets(case: Case, limit: float = 30.0) -> Iterator[Finding]:
    target, loss = case.trace.batch.target, case.trace.loss_function
    if loss.classes is not None or target.dtype.kind != "f":
        return
    size = float(np.sqrt((target.astype(np.float64) ** 2).mean()))
    if size > limit and case.above(0.5):
        why = "the error, and with it every gradient, has the targets' scale; the network spends its steps on reaching it."
        fix = "train on (y − mean) / deviation and turn predictions back, or use TransformedTargetRegressor."
        yield Finding("unscaled targets", "target", size, limit, f"targets have a root mean square of {size:.3g}", why, fix)


def rate_too_high(case: Case, limit: float = 0.3) -> Iterator[Finding]:
    fix = "divide the learning rate by 10, or set clip_norm=1.0 in the optimizer."
    name, ratio = max(case.ratios.items(), key=lambda item: item[1], default=("", 0.0))
    if ratio > limit and case.above(0.5):
        why = "a step that changes weights by a third of their size leaves the region in which its gradient meant anything."
        yield Finding("learning rate too high", name, ratio, limit, f"one step changes {name} by {100 * ratio:.3g} % of its size", why, fix)
        return
    losses = case.losses
    if len(losses) >= 3 and losses[-1] > 3 * min(losses) and losses[-1] > case.baseline:
        worse = losses[-1] / max(min(losses), 1e-300)
        why = "the loss has gone up again and is worse than a constant answer: steps overshoot the minimum."
        yield Finding("learning rate too high", "", worse, 3.0, f"the loss is {worse:.3g} times its minimum", why, fix)


def slow_output(case: Case, limit: float = 0.05) -> Iterator[Finding]:
    """N26: ∂L/∂z = 2(ŷ − y) ŷ(1 − ŷ)."""
    trace = case.trace
    if not isinstance(case.last.layer, Sigmoid | Softmax) or not isinstance(trace.loss_function, Residual | Brier):
        return
    y, d = trace.output, targets(trace)
    wrong = np.abs(y - d) > 0.5
    if wrong.mean() > 0.1 and (factor := float((y * (1 - y))[wrong].mean())) < limit:
        what = f"{100 * wrong.mean():.0f} % of the outputs are wrong by more than ½, and there the factor ŷ(1 − ŷ) is {factor:.2g}"
        why = "∂L/∂z = 2(ŷ − y) ŷ(1 − ŷ): where the output is sure and wrong, the gradient is nearly zero (N26)."
        fused = "SigmoidCrossEntropy()" if isinstance(case.last.layer, Sigmoid) else "SoftmaxCrossEntropy()"
        fix = f"use cross-entropy, whose ∂L/∂z = ŷ − y: {fused} on logits."
        yield Finding("saturated output with a quadratic loss", case.last.path, factor, limit, what, why, fix)


def dead_relus(case: Case, limit: float = 0.4) -> Iterator[Finding]:
    for call in case.trace.leaves:
        if isinstance(call.layer, ReLU):
            dead = float((call.y.reshape(len(call.y), -1) <= 0).all(0).mean())
            if dead > limit:
                what = f"{100 * dead:.0f} % of the units are 0 for each of {len(call.y)} rows"
                why = "where ReLU is 0 its derivative is 0: such a unit gets no gradient and never comes back."
                fix = "use LeakyReLU(), a smaller learning rate, init=He(), or check the biases before this layer."
                yield Finding("dead ReLUs", call.path, dead, limit, what, why, fix)


def saturated(case: Case, limit: float = 0.7) -> Iterator[Finding]:
    for call in case.trace.leaves[:-1]:
        if isinstance(call.layer, Sigmoid | Tanh) and case.above(0.1):  # one that has learned all may well be sure
            slope = call.layer.derivative(np, call.x, call.y) * (4 if isinstance(call.layer, Sigmoid) else 1)
            share = float((slope < 0.05).mean())
            if share > limit:
                what = f"{100 * share:.0f} % of its values have less than 5 % of the greatest slope"
                why = "δ is multiplied by g′(z), which is nearly zero out there: what comes before learns slowly or not at all."
                fix = "scale the inputs, use smaller initial weights (init=Glorot()), a smaller learning rate, or ReLU()."
                yield Finding(f"saturated {type(call.layer).__name__.lower()}", call.path, share, limit, what, why, fix)


def flow(case: Case, low: float = 1e-3, high: float = 1e3) -> Iterator[Finding]:
    """The flow from layer to layer, with its factors Wᵀδ and g′(z)."""
    learning = [call for call in case.trace.leaves if call.grads and call.dy is not None]
    if len(learning) < 2 or not (top := norm(learning[-1].dy)) or not case.above(0.1):
        return
    ratio, worst = extreme(learning, top)
    if low <= ratio <= high:
        return
    factors = [(c, norm(c.dx) / norm(c.dy)) for c in case.trace.leaves if c.dx is not None and c.dy is not None and norm(c.dy)]
    by_weights = [f for c, f in factors if c.grads]
    by_slopes = [f for c, f in factors if not c.grads]
    mean = {k: float(np.exp(np.mean(np.log(v)))) if v else 1.0 for k, v in (("W", by_weights), ("g", by_slopes))}
    steps = ", ".join(f"{c.path} ×{f:.2g}" for c, f in reversed(factors))
    what = f"‖δ‖ is {ratio:.2g} of that at the output; Wᵀδ multiplies it by {mean['W']:.2g}, g′(z) by {mean['g']:.2g} on average: {steps}"
    if ratio < low:
        cause = "g′(z) is what makes it small" if mean["g"] < mean["W"] else "the weights are what makes it small"
        fix = "use ReLU() or Tanh() with init=He()/Glorot(), skip connections (Identity() + …), fewer layers, or normalisation."
        yield Finding("vanishing flow", worst.path, ratio, low, what, f"early layers get no gradient; {cause}.", fix)
    else:
        fix = "use smaller initial weights (init=Glorot()), clip_norm=1.0 in the optimizer, or normalisation."
        yield Finding("exploding flow", worst.path, ratio, high, what, "early layers get steps far too large; Wᵀ makes the flow grow.", fix)


def flow_at_start(case: Case) -> Iterator[Finding]:
    """The flow before the first epoch, of a network that has learned little since: by now it may look right."""
    if case.start is not None and case.above(0.5) and not any(flow(case)):
        for finding in flow(replace(case, trace=case.start)):
            yield replace(finding, what=f"before the first epoch, {finding.what}")


def extreme(calls: list[LayerTrace], top: float) -> tuple[float, LayerTrace]:
    """The ratio farthest from one, and its layer."""
    ratios = [(norm(c.dy) / top, c) for c in calls]
    return max(ratios, key=lambda item: abs(np.log(max(item[0], 1e-300))))


def flow_in_time(case: Case, low: float = 1e-4, high: float = 1e3) -> Iterator[Finding]:
    """The flow through a recurrent layer, step by step."""
    for call in case.trace.leaves:
        dx, dy = call.dx, call.dy
        if np.ndim(dx) != 3 or dy is None or dx.shape[1] < 5 or not call.grads or not case.above(0.3):
            continue
        if case.trace.batch.lengths is not None or (np.ndim(dy) == 3 and np.any(dy[:, : dx.shape[1] // 2])):
            continue  # rows differ in length, or every step has a loss of its own: the ends cannot be compared
        sizes = np.sqrt((dx.astype(np.float64) ** 2).sum((0, 2)))  # (T,)
        if not sizes[-1]:
            continue
        ratio, steps = sizes[0] / sizes[-1], dx.shape[1]
        if low <= ratio <= high:
            continue
        factor = (max(ratio, 1e-300)) ** (1 / (steps - 1))
        shown = ", ".join(f"{s:.2g}" for s in sizes[::-1][:: max(1, steps // 6)])
        what = f"over {steps} steps the flow changes by {ratio:.2g}, ×{factor:.2g} a step (from the last back: {shown})"
        if "h" in call.notes and set(call.notes) <= {"h", "z"} and isinstance(getattr(call.layer, "activation", Tanh()), Tanh):
            slope = float(np.mean([np.mean(1 - np.square(h)) for h in call.notes["h"]]))
            what += f"; of a step's factor, g′ = 1 − h² makes {slope:.2g} on average, W_hhᵀδ the rest, {factor / max(slope, 1e-300):.2g}"
        if ratio < low:
            fix = "use LSTM or GRU, an orthogonal start for the recurrent weights, or shorter sequences."
            yield Finding("vanishing flow through time", call.path, ratio, low, what, "early steps leave no trace in the gradient.", fix)
        else:
            fix = "set clip_norm=1.0 in the optimizer, or start the recurrent weights orthogonal."
            yield Finding("exploding flow through time", call.path, ratio, high, what, "early steps outweigh all others.", fix)


def rate_too_low(case: Case, limit: float = 3e-5) -> Iterator[Finding]:
    losses = case.losses
    if len(losses) < 2 or not case.ratios or not case.above(0.5) or losses[-1] < 0.95 * losses[0]:
        return
    name, ratio = max(case.ratios.items(), key=lambda item: item[1])
    if 0 < ratio < limit:
        why = f"at this rate {1 / ratio:.2g} steps are needed to change the weights by their own size."
        what = f"one step changes no weight by more than {100 * ratio:.2g} %"
        yield Finding("learning rate too low", name, ratio, limit, what, why, "multiply the learning rate by 10 until the loss moves.")


def class_collapse(case: Case, limit: float = 0.95) -> Iterator[Finding]:
    trace = case.trace
    labels = class_numbers(trace.batch.target, trace.loss_function)
    if labels is None or not case.losses or len(labels) < 10:
        return
    said = np.ravel(trace.loss_function.decide(NumpyOps(), trace.output))
    most, share = int(np.bincount(said).argmax()), float(np.bincount(said).max() / len(said))
    truth = float(np.bincount(labels, minlength=most + 1)[most] / len(labels))
    if share > limit and truth < 0.95 * share:
        why = "the network gives the same answer whatever comes in; the loss of rare classes is outweighed, or nothing is learned."
        fix = "use class_weight='balanced' where classes are uneven; else look at the learning rate and the inputs."
        what = f"{100 * share:.0f} % of the predictions are class {most}, which is the truth for {100 * truth:.0f} %"
        yield Finding("class collapse", case.last.path, share, limit, what, why, fix)


def plateau(case: Case, limit: float = 0.02) -> Iterator[Finding]:
    losses = case.losses
    if len(losses) < 10 or not case.above(0.95):
        return
    half = losses[len(losses) // 2 :]
    gain = (half[0] - min(half)) / max(abs(half[0]), 1e-300)
    if gain < limit:
        now = f"it is {losses[-1]:.3g}, that of a constant answer {case.baseline:.3g}"
        what = f"in the last {len(half)} epochs the loss fell by {100 * gain:.2g} %; {now}"
        why = "training goes on but the network has learned next to nothing from its inputs."
        fix = "give it more units or a layer more, another learning rate, or check that the inputs carry what the targets need."
        yield Finding("plateau", "", gain, limit, what, why, fix)


def overfitting(case: Case, limit: float = 1.25) -> Iterator[Finding]:
    if len(case.history) < 4 or "val_loss" not in case.history.columns:
        return
    held, own = case.history["val_loss"], case.losses
    best = int(np.argmin(held))
    ratio = held[-1] / max(held[best], 1e-300)
    if ratio > limit and len(held) - 1 - best >= 3 and own[-1] < 0.7 * own[best]:
        what = f"since epoch {best + 1} the validation loss rose to {ratio:.2f} times its best while the training loss fell"
        why = "the network learns the rows of the training data, not the rule behind them."
        fix = "early_stopping=True, weight_decay, Dropout(), fewer units, or more data."
        yield Finding("overfitting", "", ratio, limit, what, why, fix)


CHECKS = (
    unscaled_inputs, unscaled_targets, rate_too_high, slow_output, saturated, dead_relus, flow, flow_at_start,
    flow_in_time, rate_too_low, class_collapse, plateau, overfitting,
)  # fmt: skip


def examine(case: Case) -> Diagnosis:
    with np.errstate(all="ignore"):
        return Diagnosis([finding for check in CHECKS for finding in check(case)])


# -------------------------------------------------------------------- looking
def look(model: Any, params: Any, batch: Batch, optimizer: Any, slots: Any, rate: float, step: int) -> tuple[Trace, dict[str, float]]:
    """One training step as it would be now, on a sample of rows; nothing is changed by it."""
    trace = observe(model.net, model.loss, params, batch, model.seed, step)
    if isinstance(optimizer, LBFGS):
        return trace, {}
    with np.errstate(all="ignore"):
        numbers, eta = optimizer.numbers(model.dtype), np.asarray(rate, model.dtype)[()]
        new, _ = optimizer.update(NumpyOps(), params, trace.gradient_tree, slots, numbers, eta, np.int32(step + 1))
        ratios = {}
        for (path, old), (_, now) in zip(leaves(params), leaves(new), strict=True):
            if not is_buffer(path) and np.ndim(old) > 1 and norm(old):
                ratios[".".join(readable(path, model.net))] = norm(now - old) / norm(old)
    return trace, ratios


def sample(batch: Batch, rows: int) -> Batch:
    """Rows spread evenly over the data."""
    return select(batch, np.unique(np.linspace(0, len(batch.x) - 1, min(rows, len(batch.x))).astype(int)))


def diagnose(model: Any, X: Any, y: Any, sample_weight: Any, lengths: Any, optimizer: Any, rows: int = 512) -> Diagnosis:
    """See `Network.diagnose`."""
    batch, optimizer = sample(model.as_batch(X, y, sample_weight, lengths), rows), get_optimizer(optimizer)
    rate = float(rates_of(optimizer.learning_rate, np.zeros(1), 1, [])[0])
    trace, ratios = look(model, model.params, batch, optimizer, optimizer.slots(model.params), rate, 0)
    return examine(Case(trace, model.history, ratios))


class Doctor(Callback):
    """Watches a fit and says at its end what is wrong; silent when nothing is.

    It looks at `rows` rows of the training data before the first and after the last epoch, and in between as often as
    `share` of the training time allows. ``doctor.diagnosis`` holds the findings.

    Parameters
    ----------
    rows : int
        How many rows to look at.
    share : float
        The part of the training time that looking in between may take.
    report : bool
        Whether to print the findings.
    """

    def __init__(self, *, rows: int = 128, share: float = 0.01, report: bool = True) -> None:
        self.rows, self.share, self.report = rows, share, report
        self.diagnosis = Diagnosis([])

    def fit_begin(self, run: Any) -> None:
        self.began, self.spent = time.perf_counter(), 0.0
        self.ratios: dict[str, float] = {}
        self.batch = sample(run.job.data, self.rows)
        self.trace = self.start = self.look(run)

    def look(self, run: Any) -> Trace:
        began = time.perf_counter()
        state, optimizer = run.engine.get(run.state), run.job.optimizer
        watched = run.history[run.history.watched] if run.history.rows else []
        t = np.full(1, min(run.epoch, run.epochs - 1), float)
        rate = 0.0 if isinstance(optimizer, LBFGS) else float(rates_of(optimizer.learning_rate, t, run.epochs, watched)[0])
        with one_blas_thread():
            trace, ratios = look(run.model, state.params, self.batch, optimizer, state.slots, rate, int(state.step))
        for name, ratio in ratios.items():
            self.ratios[name] = max(ratio, self.ratios.get(name, 0.0))
        self.spent, self.seen = self.spent + time.perf_counter() - began, run.epoch
        return trace

    def pause(self, run: Any) -> None:
        if self.spent < self.share * (time.perf_counter() - self.began):
            self.trace = self.look(run)

    def fit_end(self, run: Any) -> None:
        if self.seen != run.epoch:
            self.trace = self.look(run)
        self.diagnosis = examine(Case(self.trace, run.history, self.ratios, self.start))
        if self.report and self.diagnosis:
            print(self.diagnosis)
