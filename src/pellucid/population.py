"""Population: many networks of one architecture, trained at the same time."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from .engines import cores, has_gpu, has_jax
from .engines.numpy import one_blas_thread
from .engines.together import Meeting
from .layers.base import Layer
from .losses import Loss
from .network import Network
from .optimizers import Optimizer, get_optimizer
from .settings import did_you_mean, refuse_unknown
from .training.callbacks import History
from .training.data import frozen

__all__ = ["Population"]

AT_ONCE = 256  # fits in one batched program, at most
HOW = ("auto", "threads", "batched")


class Population:
    """Many networks of one architecture that differ in seed, rows or hyper-parameters, trained at the same time.

    They share one compiled program. On CPU it runs on threads, and every member is bit for bit the network that its own
    `fit` would give; on GPU all members are trained together as one batched program.

    Parameters
    ----------
    net, input_shape, loss, dtype
        As for :class:`Network`.
    seed : int or list of int
    optimizer : str or Optimizer
        The kind of optimizer, and the settings in which the members do not differ.
    rows : list of arrays, optional
        For every member the rows of X and y it learns from: folds, or samples drawn with replacement.
    **settings : value or list of values
        Settings of the optimizer: ``learning_rate=[0.001, 0.01, 0.1]``, ``momentum=0.9``.

    Lists have one entry for every member; single values hold for all.

    Examples
    --------
    >>> import numpy as np, pellucid as pc
    >>> X = np.linspace(-3, 3, 60)[:, None]
    >>> population = pc.Population(pc.Linear(8) >> pc.Tanh() >> pc.Linear(1), learning_rate=[1e-4, 0.03])
    >>> population.fit(X, np.sin(X), epochs=30).best.seed
    0
    >>> population.best is population[1]
    True
    """

    def __init__(
        self,
        net: Layer,
        input_shape: Any = None,
        loss: str | Loss = "auto",
        *,
        seed: Any = 0,
        optimizer: str | Optimizer = "adam",
        rows: Any = None,
        dtype: Literal["float32", "float64"] = "float32",
        **settings: Any,
    ) -> None:
        if isinstance(net, list | tuple):
            raise TypeError(
                f"a Population has one architecture, got {len(net)}: {net!r}. Make one Population for each; PopulationSearchCV "
                "searches over architectures."
            )
        self.optimizer = get_optimizer(optimizer)
        options = [name for name in inspect.signature(Population).parameters if name != "settings"]
        refuse_unknown(f"Population with {type(self.optimizer).__name__}", settings, [*options, *self.optimizer._declared()])
        table = columns({"seed": seed, **settings} | ({} if rows is None else {"rows": rows}))
        #: what each member has of its own
        self.members: list[dict[str, Any]] = table
        self.optimizers = [self.optimizer.replace(**{k: member[k] for k in settings}) for member in table]
        self.networks = [Network(net, input_shape, loss, seed=member["seed"], dtype=dtype) for member in table]
        #: for each member why its fit failed, or None
        self.errors: list[Exception | None] = [None] * len(table)

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        how: Literal["auto", "threads", "batched"] = "auto",
        threads: int | None = None,
        progress: bool = True,
        **options: Any,
    ) -> Population:
        """Train all members on rows X and targets y.

        Parameters
        ----------
        how : "auto", "threads" or "batched"
            "auto": batched on a GPU, threads otherwise.
        threads : int, optional
            How many; by default one for every core.
        progress : bool
            Show how many members are done, where there is a terminal.
        **options
            Those of :meth:`Network.fit`: `epochs`, `batch_size`, `validation`, `early_stopping`, … Callbacks are called
            from several threads.

        A member that fails (a learning rate too large, say) does not disturb the others: a warning names it, and
        `errors` says why.
        """
        allowed = [name for name in inspect.signature(Network.fit).parameters if name not in ("optimizer", "checkpoint", "resume")]
        refuse_unknown("Population.fit", options, ["how", "threads", *allowed])
        weight = options.pop("sample_weight", None)
        picked: dict[int, list[Any]] = {}  # members with the same rows share them

        def fit(i: int) -> Callable[[], History]:
            own = {**options, "optimizer": self.optimizers[i], "progress": False}
            pick = self.members[i].get("rows")
            if id(pick) not in picked:
                picked[id(pick)] = [a if a is None or pick is None else take(a, pick) for a in (X, y, weight)]
            data = picked[id(pick)]
            return lambda: self.networks[i].fit(data[0], data[1], sample_weight=data[2], **own)

        for i, outcome in enumerate(fit_all([fit(i) for i in range(len(self))], how, threads, progress)):
            self.errors[i] = outcome if isinstance(outcome, Exception) else None
            if isinstance(outcome, KeyboardInterrupt):
                self.networks[i].history.stopped = "interrupted by Ctrl-C"
        failed = [i for i, error in enumerate(self.errors) if error is not None]
        if len(failed) == len(self):
            raise self.errors[0]  # type: ignore[misc]
        if failed:
            first = f"member {failed[0]} ({self.told(failed[0])}): {self.errors[failed[0]]}"
            warnings.warn(f"{len(failed)} of {len(self)} members failed, see errors. The first is {first}", stacklevel=2)
        return self

    # ---------------------------------------------------------------- using it
    def __len__(self) -> int:
        return len(self.networks)

    def __getitem__(self, i: int) -> Network:
        return self.networks[i]

    def __iter__(self) -> Iterator[Network]:
        return iter(self.networks)

    def predict(self, X: Any) -> np.ndarray:
        """Every member's prediction: one more axis in front, of the length of the population."""
        return np.stack([network.predict(X) for network in self])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Every member's class probabilities, members along the first axis."""
        return np.stack([network.predict_proba(X) for network in self])

    def evaluate(self, X: Any, y: Any, **options: Any) -> dict[str, np.ndarray]:
        """Mean loss and scores of every member."""
        found = [network.evaluate(X, y, **options) for network in self]
        return {name: np.array([values[name] for values in found]) for name in found[0]}

    @property
    def histories(self) -> list[History]:
        """What happened in every member's fit."""
        return [network.history for network in self]

    @property
    def best(self) -> Network:
        """The member whose last loss is lowest: the validation loss, where there is one."""
        last = [self.last(i) for i in range(len(self))]
        watched = [row.get("val_loss", row.get("loss", np.inf)) for row in last]
        return self[int(np.argmin(np.where(np.isnan(watched), np.inf, watched)))]

    def last(self, i: int) -> dict[str, float]:
        """The last epoch of a member that did not fail."""
        rows = self.networks[i].history.rows
        return rows[-1] if rows and self.errors[i] is None else {}

    def told(self, i: int) -> str:
        """What a member has of its own, in words."""
        return ", ".join(f"{name}={worded(value)}" for name, value in self.members[i].items())

    def summary(self) -> str:
        """A table: what the members differ in, and how their fits ended."""
        names = [name for name in self.members[0] if len({worded(member[name]) for member in self.members}) > 1] or ["seed"]
        lasts = [self.last(i) for i in range(len(self))]
        scores = [name for name in max(lasts, key=len) if name not in ("epoch", "seconds")]
        table = [["member", *names, *(["epochs", *scores] if scores else []), "ended"]]
        for i, member in enumerate(self.members):
            row, history = lasts[i], self.networks[i].history
            ended = type(self.errors[i]).__name__ if self.errors[i] else history.stopped or "not fitted"
            numbers = [str(len(history)), *(f"{row[name]:.4g}" if name in row else "" for name in scores)] if scores else []
            table.append([str(i), *(worded(member[name]) for name in names), *numbers, ended])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table)

    def __repr__(self) -> str:
        first = self.networks[0]
        return f"Population of {len(self)}: {first.net!r}, {first.loss!r}, {type(self.optimizer).__name__}\n{self.summary()}"


def columns(table: dict[str, Any]) -> list[dict[str, Any]]:
    """A dict of lists (or of single values, for all) as a list of dicts, one for each member."""
    lists = {name: list(value) for name, value in table.items() if isinstance(value, Iterable) and not isinstance(value, str)}
    lengths = {name: len(value) for name, value in lists.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        said = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise ValueError(f"lists must have one entry for every member, but their lengths are: {said}.")
    size = next(iter(lengths.values()), 1)
    return [{name: lists[name][i] if name in lists else value for name, value in table.items()} for i in range(size)]


def worded(value: Any) -> str:
    """A setting in few letters; rows by their number."""
    if np.ndim(value):
        return f"{len(value)} rows"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def take(values: Any, rows: Any) -> Any:
    """Some rows of an array, frame or list. Nobody may write into an array's: so members share what is worked out from them."""
    from sklearn.utils import _safe_indexing

    found = _safe_indexing(values, np.asarray(rows))
    return frozen(found) if type(found) is np.ndarray else found


# -------------------------------------------------------------------- running many fits
def is_batched(how: str) -> bool:
    """Whether fits are trained as one batched program."""
    if how not in HOW:
        raise ValueError(f"how must be one of {', '.join(map(repr, HOW))}, got {how!r}.{did_you_mean(how, HOW)}")
    return has_jax() and (how == "batched" or (how == "auto" and has_gpu()))


def fit_all(fits: list[Callable[[], Any]], how: str, threads: int | None = None, progress: bool = False) -> list[Any]:
    """Run all fits; returns what each returned or raised."""
    batched = is_batched(how)
    at_once = AT_ONCE if batched else threads or cores()
    with bar_of_fits(progress, len(fits)) as advance, one_blas_thread(not batched):
        meeting = Meeting(len(fits), at_once, batched, advance)
        with ThreadPoolExecutor(meeting.threads) as pool:
            futures = [pool.submit(meeting.member, fit) for fit in fits]
            try:
                return [future.exception() or future.result() for future in futures]
            except KeyboardInterrupt:
                meeting.stop()
                return [future.exception() or future.result() for future in futures]


@contextlib.contextmanager
def bar_of_fits(wanted: bool, fits: int) -> Iterator[Callable[[], Any]]:
    """Show how many fits are done, if it is wanted and a terminal is there; yields what counts one more."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not wanted or not (console.is_terminal or console.is_jupyter):
        yield lambda: None
        return
    remaining = TimeRemainingColumn(elapsed_when_finished=True)
    with Progress(TextColumn("fits"), BarColumn(30), MofNCompleteColumn(), remaining, console=console) as bar:
        task = bar.add_task("fits", total=fits)
        yield lambda: bar.advance(task)
