"""The fits of a search: which of them need to run, and on what."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from joblib.parallel import ParallelBackendBase
from sklearn import config_context
from sklearn.base import clone
from sklearn.metrics._scorer import _PassthroughScorer
from sklearn.model_selection._validation import _score

from ..engines import LOCAL
from ..engines.choose import predict_work
from ..engines.pile import outputs_of
from ..engines.requests import Guest, Guests, Request
from ..engines.together import Meeting
from ..network import Network
from ..training.data import frozen
from .base import is_fixed

__all__ = ["Refit", "SharedRows", "Threads"]


class SharedRows(np.ndarray):
    """Rows of which every candidate gets the same parts: each is cut once, and nobody may write into it."""

    whole: np.ndarray  # as any other array
    cut: dict[int, tuple[Any, np.ndarray]] | None = None  # while candidates are tried

    def __new__(cls, rows: np.ndarray) -> SharedRows:
        made = rows.view(cls)
        made.whole = rows
        return made

    def origin(self, array: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """All rows, and the numbers of those that are in the array, if it was cut here or is all of them."""
        if isinstance(array, np.ndarray) and array.__array_interface__ == self.__array_interface__:
            return self.whole, np.arange(len(self))
        cut = next((rows for rows, part in list((self.cut or {}).values()) if part is array), None)  # others may be cutting
        return None if cut is None or cut.dtype.kind not in "iu" else (self.whole, cut % len(self))  # negative numbers count from the end

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else array  # what is computed from them is an array as any other

    def __getitem__(self, key: Any) -> Any:
        rows = np.asarray(self)
        if self.cut is None or not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], np.ndarray) and key[1] is Ellipsis):
            return rows[key]
        if id(key[0]) not in self.cut:  # the row numbers are kept, so that no others get their id
            self.cut.setdefault(id(key[0]), (key[0], frozen(rows[key])))
        return self.cut[id(key[0])][1]


class Fit(Guest):
    """A fit of a search as joblib hands it over: a call of scikit-learn's function that fits and scores.

    `like` is what it has in common with those whose guest it can be, None if it can be nobody's.
    """

    like: Any = None
    request: Any = None
    last: int | None = None  # the epoch with which its own fit would have ended by itself, if it would
    shortened = False  # whether it was trained again, up to there
    outputs: Any = ((), 0)  # for some rows: what waits for those of several guests, and which of them is this one
    host: Any = None  # where each trains by itself: who has prepared all that this one needs, and what scikit-learn found of it
    config: dict[str, Any]  # scikit-learn's, which every thread has for itself

    def __init__(self, call: Any, start: Callable[[Any], Any], known: dict[Any, Any]) -> None:
        self.call, self.start, self.future, self.guests = call, start, Future[Any](), Beside(self)
        with contextlib.suppress(ValueError, KeyError):  # another call than we know
            [(function, (self.estimator, *self.data), self.options)] = call.items
            self.config = getattr(function, "config", {})
            self.rows = [self.options[name] for name in ("train", "test")]
            if all(isinstance(rows, np.ndarray) and rows.dtype.kind in "iu" for rows in self.rows):
                self.compare(known, self.options["parameters"], *self.rows)

    def compare(self, known: dict[Any, Any], settings: dict[str, Any], *rows: Any) -> None:
        """Find what the estimator with these settings has in common with others that learn from these rows.

        What is `known` of these settings, from another fold of as many rows, is not looked for again.
        """
        with contextlib.suppress(Exception):  # the fit itself will say what is wrong
            key = id(settings), len(rows[0])
            if key not in known:
                fixed = settings if all(map(is_fixed, settings.values())) else clone(settings, safe=False)
                candidate = copy.copy(self.estimator).set_params(**fixed)
                known[key] = candidate, candidate._like(len(rows[0])), settings  # which stay, so that no others get their id
            self.candidate, found, _ = known[key]
            if found is not None:
                like = (*map(id, rows), type(self.estimator), found.common)
                hash(like)
                self.like, self.epochs = like, found.epochs
                super().__init__(found.optimizer, found.epochs * found.steps)

    def leave(self) -> None:
        self.start(self)

    def run(self, meeting: Meeting) -> Any:
        """Fit and score; then score those that were trained beside it, or let them train now that all is prepared for them."""
        if self.host:
            with contextlib.suppress(Exception):  # its own fit will end otherwise, or raise this
                return self.beside(*self.host)
            self.host = self.request = None
        LOCAL.kept, self.origin = False, meeting.origin
        try:
            found = self.call()
        finally:
            del LOCAL.kept
        self.guests.request = None  # the device has room for others
        if not meeting.batched:
            for guest in [] if meeting.stopped else self.seated():
                guest.host = self, found[0]
                guest.leave()
            return found
        for guest in sorted(self.seated(), key=lambda guest: guest.shortened):  # of those last, which may be in training still
            with contextlib.suppress(Exception):  # its own fit will end otherwise, or raise this
                if guest.shortened:
                    with meeting.away():
                        np.asarray(guest.request.result[2])
                guest.end()
                guest.future.set_result(guest.score(self, found[0]))
            guest.request, guest.outputs = None, ((), 0)
            if guest.future.done():
                meeting.ended()
            else:
                meeting.back(guest)
        return found

    def beside(self, host: Fit, found: dict[str, Any]) -> Any:
        """Train from what the host has prepared, and score."""
        began = time.time()
        self.request.train()
        if self.shorten():
            self.request.train()
        self.end()
        scored = self.score(host, {**found, "fit_time": time.time() - began})
        self.host = self.request = None
        return scored

    def seated(self) -> list[Any]:
        """Guests that were trained beside it."""
        return [guest for guest in self.guests if guest.request]

    def foretell(self) -> None:
        """Let the device compute what guests give for the rows that they are scored on; this fit goes on meanwhile."""
        several = [x for x, _ in self.parts.values() if x.dtype == self.estimator.network_.dtype and len(x)]
        guests = [guest for guest in self.seated() if isinstance(guest.request.result, tuple)]
        requests = [guest.request for guest in (guests + guests[:1] * len(self.guests))[: len(self.guests)]]  # one program for any number
        with contextlib.suppress(Exception):  # where the device is full, NumPy computes them
            outputs = [(x, functools.cache(outputs_of(requests, x, self.origin(x)))) for x in several if requests]
            for i, guest in enumerate(guests):
                guest.outputs = outputs, i

    @functools.cached_property
    def parts(self) -> dict[str, list[Any]]:
        """Rows and targets that it is scored on, by the name of the score."""
        names = ("test_scores", "train_scores")[: 1 + self.options["return_train_score"]]
        return {name: [a[rows, ...] for a in self.data] for name, rows in zip(names, reversed(self.rows), strict=False)}

    def last_epoch(self) -> int | None:
        """What `last` is by the losses of its training."""
        sums, steps = np.asarray(self.request.result[1], np.float64), int(self.request.plan.count)
        totals = sums[:steps].reshape(steps * self.epochs // self.steps, -1, sums.shape[1]).sum(1)
        return self.candidate._last_epoch(totals[:, 1] / totals[:, 0])

    def shorten(self) -> bool:
        try:
            self.last = self.last_epoch()
        except Exception as error:  # its own fit will end otherwise, or raise this
            self.request.result = error
        if self.last is not None and self.last < self.epochs:
            self.outputs = (), 0  # were foretold of all its steps
            self.shortened, self.request = True, self.request.until(self.last * self.steps // self.epochs)
        return self.shortened

    def end(self) -> None:
        """Say what its own fit would say at its end; raise if that would have been another one."""
        if not np.asarray(self.request.result[2]) or (self.shortened and self.last_epoch() != self.last):
            raise ArithmeticError
        if self.last is None:
            self.candidate._warn_of("all epochs done")

    @functools.cached_property
    def foretold(self) -> dict[str, list[float]]:
        """The scores of all its guests, where they follow from their outputs and the estimator can tell them at once."""
        outputs = next((guest.outputs[0] for guest in self.seated() if guest.outputs[0]), ())
        found = dict[str, Any]()
        if isinstance(self.options["scorer"], _PassthroughScorer) and len(outputs) == len(self.parts):
            with contextlib.suppress(Exception):  # of rows that are refused no score can be told
                for (name, (x, y)), (_, wait) in zip(self.parts.items(), outputs, strict=True):
                    self.with_network(lambda: self.estimator.network_.params, [(x, wait()[0])])._outputs(x)  # which looks at the rows
                    found[name] = self.estimator._scores(wait(), y)
        return found if len(found) == len(self.parts) and None not in found.values() else {}

    def with_network(self, weights: Callable[[], Any], known: list[Any]) -> Any:
        """Its estimator, once trained, with other weights, of which it is `known` what they give for some rows."""
        fitted = copy.copy(self.estimator)
        fitted.network_ = Told(self.estimator.network_, weights, known)
        return fitted

    def score(self, host: Fit, found: dict[str, Any]) -> Any:
        """Score the network that was trained beside the host as that one was scored; returns what scikit-learn would find."""
        began, known = time.time(), list[Any]()
        outputs, i = self.outputs
        if outputs and host.foretold:
            scores: Any = {name: told[i] for name, told in host.foretold.items()}
            return [{**found, "fit_error": None, **scores, "score_time": time.time() - began}]
        with contextlib.suppress(Exception):
            known = [(x, wait()[i]) for x, wait in outputs]
        fitted = host.with_network(self.request.weights, known)
        if not known:
            _ = fitted.network_.params  # where they cannot be had it gets a fit of its own, no score for an error
        scorer, error_score = self.options["scorer"], self.options["error_score"]
        with config_context(**self.config):
            scores = {name: _score(fitted, *part, scorer, {}, error_score) for name, part in host.parts.items()}
        return [{**found, "fit_error": None, **scores, "score_time": time.time() - began}]


class Beside(Guests):
    """The guests of a fit of a search."""

    def __init__(self, host: Fit) -> None:
        super().__init__()
        self.host = host

    def trained(self) -> None:
        with contextlib.suppress(Exception):  # of scores that nobody can foretell, which are told when it is their turn
            self.host.foretell()


class Told(Network):
    """A network like another, with weights of its own, of which it is known already what it gives for some rows."""

    def __init__(self, like: Network, weights: Callable[[], Any], known: list[tuple[np.ndarray, np.ndarray]]) -> None:
        self.__dict__ |= like.__dict__
        del self.params
        self.weights, self.known = weights, known

    @functools.cached_property
    def params(self) -> Any:
        return self.weights()

    def outputs(self, x: np.ndarray, params: Any = None, lengths: Any = None, size: int = 8192) -> np.ndarray:
        for rows, found in self.known:
            if rows is x:
                return found
        return super().outputs(x, params, lengths, size)


class Refit(Fit):
    """A fit on all rows that will be asked for if its candidate is the best one; it is trained beside others, or not at all."""

    optional = True

    def __init__(self, estimator: Any, settings: dict[str, Any], data: list[Any], refits: int, part: float, start: Callable[[Any], Any]):
        self.estimator, self.data, self.start, self.future = estimator, data, start, Future()
        self.compare({}, settings, *data)
        self.guests = Refits(self, refits, part)

    def shorten(self) -> bool:
        return False  # the refit that is asked for looks for all its steps

    def run(self, meeting: Meeting) -> None:
        LOCAL.kept = False
        with contextlib.suppress(Exception):  # it is raised where the fit is asked for
            self.candidate.fit(*self.data)
        del LOCAL.kept


class Refits(Guests):
    """So many refits, the host among them, beside fits of which each has only `part` of their rows."""

    together = True

    def __init__(self, host: Refit, refits: int, part: float) -> None:
        super().__init__()
        self.host, self.refits, self.part = host, refits, part

    def want(self, request: Request, fits: int) -> bool:
        """Whether training them all among so many fits is predicted to take less time than the refit of the best one, later."""
        (net, *_), params, rows = request.static, request.state.params, request.plan.rows.shape[1]
        step = {n: predict_work(net, params, n * rows, request.data).jax for n in (fits, fits - self.refits, 1)}
        return request.plan.count == self.host.steps and step[fits] <= self.part * step[fits - self.refits] + step[1]


class Threads(ParallelBackendBase):
    """joblib's work on threads, each fit a member of a meeting; with `alike`, some are guests of others."""

    supports_retrieve_callback = True
    supports_sharedmem = True
    uses_threads = True

    def __init__(self, at_once: int, batched: bool, alike: bool, shared: list[SharedRows]) -> None:
        super().__init__(nesting_level=0)
        self.at_once, self.batched, self.alike, self.shared = at_once, batched, alike, shared
        self.lock = threading.Lock()

    def meet(self, fits: int, refits: list[Refit], advance: Any) -> None:
        """Expect so many fits, beside those refits."""
        self.meeting = Meeting(fits + len(refits), self.at_once, self.batched, advance)
        self.meeting.origin = self.origin
        self.pool, self.hosts = ThreadPoolExecutor(self.meeting.threads), dict[Any, Fit]()
        self.asked_for, self.begun, self.queued, self.ended, self.known = fits, 0, 0, threading.Event(), dict[Any, Any]()
        if refits:
            refits[0].guests += refits[1:]
            self.start(refits[0])

    def origin(self, array: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """Which rows of which array these are, if they were cut from one that candidates share."""
        return next((found for shared in self.shared if (found := shared.origin(array))), None)

    def effective_n_jobs(self, n_jobs: Any) -> int:
        return self.at_once

    def submit(self, func: Any, callback: Any = None) -> Future:
        if self.alike:
            fit = Fit(func, self.start, self.known)
            future = fit.future
            self.place(fit)
        else:
            future = self.pool.submit(self.meeting.member, func)
        future.add_done_callback(callback)
        future.add_done_callback(self.count)
        return future

    apply_async = submit  # its name in joblib before 1.5

    def place(self, fit: Fit) -> None:
        """Make a fit another one's guest, or start it; where each trains by itself, no thread is to wait for a host."""
        host = self.hosts.get(fit.like) if self.batched or self.begun >= self.meeting.threads else None
        if host is None or not self.meeting.welcome(host.guests, fit):
            if fit.like:
                self.hosts[fit.like] = fit
            self.start(fit)

    def start(self, fit: Fit) -> None:
        with self.lock:
            self.begun, self.queued = self.begun + 1, self.queued + 1
        self.pool.submit(self.run, fit)

    def run(self, fit: Fit) -> None:
        with self.lock:
            self.queued -= 1
        try:
            found = self.meeting.member(functools.partial(fit.run, self.meeting), fit.guests)
        except BaseException as error:
            fit.future.set_exception(error)
            return
        fit.future.set_result(found)
        if self.hosts.get(fit.like) is fit:
            self.hosts.pop(fit.like, None)
        fit.guests.host = None  # nobody but its guests keeps it, and what it has learned
        if not self.batched:
            self.release()

    def release(self) -> None:
        """Let a guest that waits for its host begin by itself, where a thread would have nothing to do."""
        with self.meeting.lock:
            waiting = [host.guests for host in list(self.hosts.values()) if host.guests and not host.guests.seated]
            guest = waiting[0].pop() if waiting and not self.queued and not self.meeting.stopped else None
        if guest:
            self.start(guest)

    def count(self, future: Future) -> None:
        """One more has ended."""
        with self.lock:
            self.asked_for -= 1
            if self.asked_for == 0 or future.cancelled() or future.exception():
                self.ended.set()

    @contextlib.contextmanager
    def retrieval_context(self) -> Iterator[None]:
        """Wait for all, or one that fails: joblib would look for them a hundred times a second."""
        self.ended.wait()
        yield

    def retrieve_result_callback(self, out: Future) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        self.meeting.stop()
        self.pool.shutdown(wait=True, cancel_futures=True)

    def terminate(self) -> None:
        if hasattr(self, "pool"):
            self.meeting.stop()  # refits may wait for fits that will not come
            self.pool.shutdown()
