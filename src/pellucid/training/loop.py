"""The loop around the step: epochs, chunks, validation, early stopping, checkpoints, Ctrl-C."""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..engines import LOCAL, get_engine
from ..engines.choose import choose_engine, predict_work
from ..optimizers import LBFGS, Optimizer
from ..schedules import Schedule, rates_of
from .ahead import foretold, run_ahead
from .callbacks import Callback, EarlyStopping, History, call
from .checkpoint import Saved, data_digest, load_checkpoint, rows_digest, save_checkpoint
from .finite import explain_nonfinite
from .lbfgs import lbfgs_epochs
from .progress import SILENT, progress
from .scarce import Scarce, is_scarce, size_of
from .sequences import carries_state, forget, rows_at_once, steps_there
from .step import Batch, Plan, State
from .stream import ahead, supply

__all__ = ["Job", "Run", "evaluate", "train"]


@dataclass
class Job:
    """All that a fit was asked to do, checked."""

    data: Batch
    origin: np.ndarray  # the caller's row behind each row of data
    validation: Batch | None
    optimizer: Optimizer
    epochs: int
    batch_size: int
    order: Any  # "shuffled", "given", "drawn", or a function of the epoch (from 0) that returns row numbers
    engine: str
    callbacks: list[Any]
    metrics: dict[str, Any]
    early_stopping: EarlyStopping | None
    checkpoint: Path | None
    resume: bool
    progress: bool
    precision: str | None = None  # of matrix products
    memory: tuple[Any, int] | None = None  # the optimizer's slots and step count, to go on where another fit ended

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return math.ceil(len(self.data.x) / self.batch_size)

    @property
    def row(self) -> Batch:
        """The first row, as a sample of the work."""
        return Batch(*(a if a is None else a[:1] for a in self.data))


Chunk = tuple[Plan, Callable[[], State], State, Any]


@dataclass
class Run:
    """A fit while it runs, as callbacks see it."""

    model: Any
    job: Job
    engine: Any
    state: State
    history: History
    epoch: int = 0
    stopping: str = ""
    best: Any = None  # the best weights, on the host
    interrupted: list[bool] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        return self.job.epochs

    @property
    def params(self) -> Any:
        """The weights now, as NumPy arrays; a state that is carried from batch to batch stays behind."""
        return forget(self.engine.get(self.state.params))

    def stop(self, reason: str = "a callback asked for it") -> None:
        """End the fit after this epoch (or batch)."""
        self.stopping = reason


def train(model: Any, job: Job) -> History:
    """Train `model` as `job` says; its weights are the last good ones however the fit ends."""
    run = start(model, job)
    try:
        with run.engine.precision(model.dtype, job.precision), interruptible(run.interrupted):
            resident = isinstance(job.optimizer, LBFGS) or 2 * size_of(job.data) < run.engine.room()
            data: Any = run.engine.put(job.data) if resident else None
            validation = run.engine.put(job.validation)
            run.state = run.engine.put(run.state)
            run.engine.settle((run.state, data, validation))  # before any time is taken
            done = run.epoch * len(job.data.x)
            with progress(job.progress, job.epochs, done, job.epochs * len(job.data.x)) as bar:
                call(run, "fit_begin")
                epochs = lbfgs_epochs if isinstance(job.optimizer, LBFGS) else gradient_epochs
                epochs(run, data, bar, functools.partial(finish_epoch, run, validation))
        run.history.stopped = run.stopping or "all epochs done"
    finally:
        with run.engine.precision(model.dtype, job.precision):
            model.params = run.params
    stopper = job.early_stopping
    if stopper and stopper.restore_best and run.best is not None:
        model.params, run.history.best_epoch = run.best, stopper.best(run.history)[0] + 1
    call(run, "fit_end")
    return run.history


fits: Counter[tuple[str, str]] = Counter()  # how many of each kind there were in this process, by engine


def start(model: Any, job: Job) -> Run:
    """Choose the engine, make the state, and take up a checkpoint where there is one."""
    history, saved = History(), None
    slots, step = job.memory or (job.optimizer.slots(model.params), 0)
    if job.checkpoint and job.resume and job.checkpoint.exists():
        saved = load_checkpoint(job.checkpoint, fingerprint_of(model, job), model.params, slots)
        history, slots, model.params = saved.history, saved.slots, saved.params
        if job.engine == "auto":
            job.engine = history.engine
    model.history = history
    kind = repr((model.net, model.loss, job.optimizer.kind(), job.batch_size, job.data.x.shape, model.dtype))
    history.data = rows_digest(job.data)
    if job.engine == "auto" and job.precision:
        name, reason = "jax", f"precision={job.precision!r} was asked for"
    elif job.engine == "auto":
        work = model.net, model.params, job.batch_size, job.steps * job.epochs, job.data
        name, reason = choose_engine(*work, fits=max(fits[kind, "numpy"] + 1, LOCAL.fits), compiled=fits[kind, "jax"] > 0)
    else:
        name, reason = job.engine, "asked for"
    fits[kind, name] += 1
    history.engine, history.engine_reason = name, reason if not saved else f"{reason}, resumed"
    engine = get_engine(name)
    scalars = np.int32(saved.step if saved else step), np.uint32(model.seed % 2**32)
    state = State(model.params, slots, job.optimizer.numbers(model.dtype), *scalars)
    run = Run(model, job, engine, state, history, saved.epoch if saved else 0, best=saved.best if saved else None)
    if run.epoch and job.early_stopping and job.early_stopping.best(history)[1] >= job.early_stopping.patience:
        run.stop("no improvement: the checkpoint is of a fit that had ended")
    return run


def gradient_epochs(run: Run, data: Batch | None, bar: Any, finish: Callable[..., None]) -> None:
    """Train epoch by epoch, several short ones at once where nobody looks between them; `finish` gets means and seconds."""
    job, net, loss, engine, steps = run.job, run.model.net, run.model.loss, run.engine, run.job.steps
    kind, carries, watch = job.optimizer.kind(), carries_state(net), overridden(job.callbacks, "batch_end")
    chunk = predict_work(net, run.model.params, job.batch_size, job.data).chunk
    scarce = Scarce(run, always=carries or data is None) if is_scarce(run) else None
    if data is None:  # rows are sent with each chunk, and two chunks are there at a time
        chunk = max(1, min(chunk, int(engine.room() / 8 / (size_of(job.row) * job.batch_size))))
    together = max(1, chunk // steps if engine.fills else min(chunk // steps, job.epochs))
    length = min(chunk, together * steps)  # of all chunks, whoever looks: all are run by one program
    if not carries:
        run.state = engine.stack(net, loss, kind, run.state, job.data, job.batch_size)
    looked = carries or looked_at(job)
    if looked:
        if together > 1 and not (carries or scarce) and data is not None and engine.name == "jax" and foretold(job):
            run_ahead(run, data, together, length, bar, finish)
        together = 1
    if engine.name == "numpy":  # nothing is compiled, so nothing is filled up
        length = min(chunk, together * steps)
    recent: deque[dict[str, float]] = deque(maxlen=20)  # the last steps, for the report if one fails
    while run.epoch < job.epochs and not run.stopping:
        began, sums, failed = time.perf_counter(), np.zeros((0, 2 + len(loss.scores))), None
        if carries:
            run.state = run.state._replace(params=engine.put(forget(run.state.params)))
        coming = plans(run, 1 if looked else job.epochs, together, length, 1 if watch else length)
        several = not looked and (job.epochs - run.epoch) * steps > length
        with contextlib.closing(trained(run, data, coming, several, scarce)) as chunks:
            for plan, before, state, outcome in chunks:
                first = run.epoch * steps + len(sums)
                rows, finite = engine.get(outcome)
                rows = rows[: plan.count].astype(np.float64)
                if not finite:
                    del state  # the device may have no room for another one
                    state, failed = explain_nonfinite(net, loss, kind, before(), job.data, plan, first, steps, job.origin)
                    state, rows = engine.put(state), rows[: max(0, len(failed.steps) - 1)]
                    failed.steps = (*recent, *failed.steps)[-20:]
                run.state = state
                recent.extend({"step": first + i, "loss": rows[i, 1] / rows[i, 0]} for i in range(max(0, len(rows) - 20), len(rows)))
                sums = np.concatenate([sums, rows])
                if bar is not SILENT and not failed:
                    epoch = min(run.epoch + math.ceil(len(sums) / steps), job.epochs)
                    last = sums[(len(sums) - 1) // steps * steps :]  # of the epochs in this chunk
                    bar.advance(int(plan.sizes[: plan.count].sum()), epoch, describe(run, last.sum(0)))
                if watch and not failed:
                    call(run, "batch_end", len(sums), float(rows[0, 1] / rows[0, 0]))
                if run.interrupted:
                    run.stop("interrupted by Ctrl-C")
                ended = run.stopping and not failed  # in the midst of an epoch, perhaps
                if done := math.ceil(len(sums) / steps) if ended else len(sums) // steps:
                    now = time.perf_counter()
                    for part in (sums[i * steps : (i + 1) * steps] for i in range(done)):
                        run.epoch += 1
                        finish(means(loss, part.sum(0)), (now - began) / done, complete=len(part) == steps)
                    sums, began = sums[done * steps :], time.perf_counter()
                if done or failed:
                    call(run, "pause")
                if failed:
                    call(run, "nonfinite", failed)
                    raise failed
                if run.stopping:
                    break


def trained(run: Run, data: Batch | None, plans: Generator[Plan], in_advance: bool, scarce: Scarce | None) -> Generator[Chunk]:
    """Train chunk after chunk: each plan, what gives the state before it, the state after it, and the outcome.

    Where nobody looks between them, chunks are planned and run in advance, each in a thread, so that the device never waits.
    """
    job, engine = run.job, run.engine
    kind, more = job.optimizer.kind(), in_advance and engine.waits and not (scarce or callable(job.order))

    def results(chunks: Generator[Any]) -> Generator[Chunk]:
        state = run.state
        for plan, there, rows in chunks:
            if scarce:
                yield plan, scarce.before, *scarce.train(run.state, rows, there)
            else:
                before, (state, *outcome) = state, engine.train(run.model.net, run.model.loss, kind, state, rows, there)
                yield plan, functools.partial(engine.get, before), state, outcome

    context = functools.partial(engine.precision, run.model.dtype, job.precision)
    chunks = supply(run, data, plans)
    if more or data is None:
        chunks = ahead(chunks, context)
    return ahead(results(chunks), context) if more else results(chunks)


def looked_at(job: Job) -> bool:
    """Whether anybody looks at the network between two epochs."""
    watchers = job.early_stopping, job.checkpoint, overridden(job.callbacks, "epoch_end"), overridden(job.callbacks, "batch_end")
    return job.validation is not None or watches_losses(job.optimizer.learning_rate) or any(watchers)


def watches_losses(rate: Any) -> bool:
    """Whether a learning rate depends on the losses so far."""
    return isinstance(rate, Schedule) and rate.watches_losses


def plans(run: Run, epochs: int, together: int, length: int, part: int) -> Generator[Plan]:
    """The next epochs as chunks of `part` steps, filled up to `length`: all have one shape, so one program runs them all."""
    job, first = run.job, run.epoch
    for begin in range(first, min(first + epochs, job.epochs), together):
        several = range(begin, min(begin + together, job.epochs))
        orders = np.array([epoch_order(job.order, len(job.data.x), run.model.seed, epoch) for epoch in several])
        whole = *plan_of(orders, job.batch_size), epoch_rates(run, several)
        for i in range(0, len(whole[0]), part):
            rows, sizes, rates = (fill(a[i : i + part], length) for a in whole)
            yield Plan(rows, sizes, rates, np.int32(min(part, len(whole[0]) - i)))


def epoch_rates(run: Run, epochs: range) -> np.ndarray:
    """The learning rate of every step of some epochs, as the losses so far tell it."""
    job, rate = run.job, run.job.optimizer.learning_rate
    watched = run.history[run.history.watched] if run.history.rows and watches_losses(rate) else []
    t = (np.array(epochs)[:, None] + np.arange(job.steps) / job.steps).ravel()
    return rates_of(rate, t, job.epochs, watched).astype(run.model.dtype)


def plan_of(order: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in batches of `size` and how many are meant in each; the last, smaller one of each order is filled up."""
    *several, n = order.shape
    steps = math.ceil(n / size)
    rows, sizes = np.zeros((*several, steps * size), np.int32), np.full((*several, steps), size, np.int32)
    rows[..., :n], sizes[..., -1] = order, n - size * (steps - 1)
    return rows.reshape(-1, size), sizes.ravel()


def fill(a: np.ndarray, length: int) -> np.ndarray:
    """`a` with zeros added up to `length`."""
    if len(a) == length:
        return a
    filled = np.zeros((length, *a.shape[1:]), a.dtype)
    filled[: len(a)] = a
    return filled


def epoch_order(order: Any, n: int, seed: int, epoch: int) -> np.ndarray:
    """The rows in the order an epoch visits them: a function of seed and epoch alone."""
    if callable(order):
        return order(epoch)
    if order == "given":
        return np.arange(n)
    return (remembered_draw if n <= 2**14 else draw)(order, n, seed, epoch)


def draw(order: str, n: int, seed: int, epoch: int) -> np.ndarray:
    """Row numbers in random order, or drawn with replacement."""
    rng = np.random.default_rng([seed, epoch])
    return rng.permutation(n) if order == "shuffled" else rng.integers(0, n, n)


remembered_draw = functools.lru_cache(128)(draw)  # fits that differ in other things than their seed share them


def finish_epoch(run: Run, validation: Any, trained: dict[str, float], seconds: float, complete: bool = True) -> None:
    """Write the epoch into the history; validate, remember the best weights, call back, save."""
    job, model = run.job, run.model
    row: dict[str, float] = {"epoch": run.epoch, **trained}
    if job.validation is not None:
        part = evaluate(run.engine, model.net, model.loss, run.state.params, validation, job.validation)
        row |= {f"val_{name}": value for name, value in part.items()}
        if job.metrics:
            outputs = model.outputs(job.validation.x, run.params, job.validation.lengths)
            pair = steps_there(job.validation, outputs)
            row |= {f"val_{name}": float(f(*pair)) for name, f in job.metrics.items()}
    run.history.rows.append({**row, "seconds": seconds})
    if job.early_stopping:
        _, since = job.early_stopping.best(run.history)
        if since == 0:
            run.best = run.params
        if since >= job.early_stopping.patience:
            run.stop(f"no improvement for {since} epochs")
    call(run, "epoch_end")
    if run.interrupted:
        run.stop("interrupted by Ctrl-C")
    if job.checkpoint and complete:  # a part of an epoch could not be gone on from exactly
        state = run.engine.get(run.state)
        saved = Saved(state.params, state.slots, run.best, run.epoch, int(state.step), run.history)
        save_checkpoint(job.checkpoint, saved, fingerprint_of(model, job))


def evaluate(engine: Any, net: Any, loss: Any, params: Any, data: Any, batch: Batch, size: int = 1024) -> dict[str, float]:
    """Loss and scores over a data set, in batches."""
    order, size = np.arange(len(batch.x)), rows_at_once(net, batch.x, min(size, len(batch.x)))
    rows, sizes = plan_of(order, size)
    plan = Plan(rows, sizes, np.zeros(1, batch.weight.dtype), np.int32(len(rows)))
    sums = np.asarray(engine.evaluate(net, loss, params, data, engine.put(plan)), dtype=np.float64)
    return means(loss, sums.sum(0))


def means(loss: Any, totals: Any) -> dict[str, float]:
    """Sums over rows as means: the loss, then every score."""
    weight, *values = totals
    return {name: float(value / weight) for name, value in zip(("loss", *loss.scores), values, strict=True)}


def describe(run: Run, totals: Any) -> str:
    """The numbers beside the progress bar: this epoch so far, and the last validation."""
    now = means(run.model.loss, totals)
    last = run.history.rows[-1] if run.history.rows else {}
    return "  ".join(f"{k} {v:.4f}" for k, v in {**now, **{k: v for k, v in last.items() if k.startswith("val_")}}.items())


def overridden(callbacks: list[Any], event: str) -> bool:
    """Whether any callback does something at `event`."""
    return any(getattr(type(c), event) is not getattr(Callback, event) for c in callbacks)


def fingerprint_of(model: Any, job: Job) -> dict[str, Any]:
    """What must be the same for a run to be continued exactly."""
    rate = job.optimizer.learning_rate
    return {
        "epochs (the learning rate spans them)": job.epochs if isinstance(rate, Schedule) and rate.spans_fit else None,
        "network": repr(model.net),
        "loss": repr(model.loss),
        "optimizer": repr(job.optimizer),
        "input shape": list(model.input_shape),
        "dtype": str(model.dtype),
        "precision": job.precision,
        "seed": model.seed,
        "batch size": job.batch_size,
        "order": job.order,
        "data": data_digest(*(a for a in job.data if a is not None)),
    }


@contextlib.contextmanager
def interruptible(flag: list[bool]) -> Iterator[None]:
    """Turn the first Ctrl-C into a flag that ends the fit cleanly; the second acts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before = signal.getsignal(signal.SIGINT)

    def handler(number: int, frame: Any) -> None:
        flag.append(True)
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
