"""scikit-learn's way through training: its optimizers' formulas, its order of rows, its rules for stopping."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state

from ..engines import LOCAL
from ..optimizers import LBFGS, SGD, Adam, Optimizer
from ..schedules import Schedule
from ..training.callbacks import Callback
from ..training.data import frozen

__all__ = ["Books", "Draws", "MLPAdam", "MLPLBFGS", "MLPSGD", "Order"]

ROOM = 2**24  # bytes of what was drawn that are kept for other fits


class Alpha(Optimizer):
    """An L2 penalty on weights, not on biases:   L + α/(2s) Σ W²,   dW + α/s W.

    `scale` is s; 0 means the weight of each batch, which makes the penalty of an epoch grow with the number of batches.
    """

    alpha: float = 0.0
    scale: float = 0.0

    def penalise(self, ops, params, value, grads, numbers):
        if not self.alpha:
            return value, grads
        factor = numbers["alpha"] / (numbers["scale"] if self.scale else ops.weight.sum())
        squares, new = 0.0, []
        for p, g in zip(params, grads, strict=True):
            if "W" in p:
                W = p["W"]
                squares, g = squares + ops.xp.vdot(W, W), {**g, "W": g["W"] + factor * W}
            new.append(g)
        return value + 0.5 * factor * squares, tuple(new)


class MLPSGD(Alpha, SGD):
    """SGD that takes a momentum of 1 too, as scikit-learn does."""

    def check(self):
        pass


class MLPAdam(Alpha, Adam):
    """Adam as scikit-learn writes it: ε joins √v before its start at zero is made good.

    p ← p − η √(1 − β₂ᵗ)/(1 − β₁ᵗ) · m / (√v + ε)
    """

    entrywise = True

    def rule(self, ops, p, g, slots, n, rate, t):
        m, v = n.beta1 * slots[0], n.beta2 * slots[1]
        m += (1 - n.beta1) * g  # new arrays, so += changes nothing of the caller's, and NumPy saves a pass
        v += (1 - n.beta2) * (g * g)
        step = rate * ops.xp.sqrt(1 - n.beta2**t) / (1 - n.beta1**t) * m
        step /= ops.xp.sqrt(v) + n.epsilon
        return p - step, m, v


class MLPLBFGS(Alpha, LBFGS):
    """L-BFGS with scikit-learn's limits."""

    calls: int = 15000

    def options(self, epochs):
        return {"maxiter": epochs, "gtol": self.tolerance, "maxfun": self.calls}


class Draws:
    """What a fit draws from its RandomState, in scikit-learn's order.

    Fits that begin with the same whole number and draw the same after it, as those of a search do, share what is drawn.
    """

    begun: ClassVar[dict[int, Drawn]] = {}
    held: ClassVar[int] = 0  # bytes, about

    def __init__(self, random_state: Any) -> None:
        self.seed, self.past = random_state, list[Any]()
        self.source = None if isinstance(random_state, Integral) else check_random_state(random_state)
        self.place = Draws.begun.setdefault(random_state, Drawn()) if self.source is None else None

    @property
    def random_state(self) -> np.random.RandomState:
        """The RandomState itself, as it is now; what it draws from here on is not shared."""
        if self.source is None:
            self.source = check_random_state(self.seed)
            for name, *args in self.past:
                getattr(self.source, name)(*args)
        self.place = None
        return self.source

    def draw(self, *what: Any, then: Callable[[Any], Any] = lambda drawn: drawn) -> Any:
        """What a method of RandomState gives, called by name: ``draw("uniform", 0, 1, 10)``. Nobody may write into it.

        `then` makes something else of it, out of no more than what was drawn before: that is shared in its place.
        """
        place, (name, *args) = self.place, what
        if place is None:
            return then(getattr(self.random_state, name)(*args))
        if what in place.after:
            self.source = None  # the fit has gone past it
        else:
            place.after[what] = drawn = Drawn(then(getattr(self.random_state, name)(*args)))
            Draws.held += 1024 + getattr(drawn.value, "nbytes", 0)
            if Draws.held > ROOM:  # fits that have begun go on sharing, those to come begin anew
                Draws.begun, Draws.held = {}, 0
        self.past.append(what)
        self.place = place.after[what]
        return self.place.value


class Drawn:
    """A value that was drawn, and what was drawn after it."""

    def __init__(self, value: Any = None) -> None:
        self.value, self.after = frozen(value) if isinstance(value, np.ndarray) else value, dict[Any, Drawn]()


class Order:
    """The order of rows: each epoch shuffles the last one's."""

    def __init__(self, n: int, shuffle: bool, draws: Draws) -> None:
        self.rows, self.shuffle, self.draws = np.arange(n), shuffle, draws

    def __call__(self, epoch: int) -> np.ndarray:
        if self.shuffle:
            self.rows = self.draws.draw("permutation", len(self.rows), then=self.rows.__getitem__)
        return self.rows


class Held(Schedule):
    """The learning rate that the books hold now."""

    by: object

    @property
    def watches_losses(self):
        return False  # the books do

    def rates(self, t, total, losses):
        return np.full_like(t, self.by.rate)  # type: ignore[attr-defined]


class Books(Callback):
    """Keeps an estimator's fitted attributes after every epoch, and decides when to stop (or to slow down).

    `rate` is the learning rate in force. `score(params)` measures the held-out rows, where there are some.
    """

    def __init__(self, estimator: Any, rows: int, rate: float, score: Any = None) -> None:
        self.estimator, self.rows, self.rate, self.score = estimator, rows, rate, score
        self.looks_at_weights = score is not None

    def epoch_end(self, run: Any) -> None:
        e, row = self.estimator, run.history.rows[-1]
        e.n_iter_ += 1
        e.t_ += self.rows
        e.loss_ = row["loss"]
        e.loss_curve_.append(e.loss_)
        if e.verbose:
            print(f"Iteration {e.n_iter_}, loss = {e.loss_:.8f}")
        if self.score is not None:
            e.validation_scores_.append(self.score(run.params))
            e.validation_loss_curve_.append(row["val_loss"])
            if e.verbose:
                print(f"Validation score: {e.validation_scores_[-1]:f}")
        self.count(run)
        if e.solver == "sgd" and e.learning_rate == "invscaling":
            self.rate = e.learning_rate_init / (e.t_ + 1) ** e.power_t
        if e._no_improvement_count > e.n_iter_no_change:
            self.stop_or_slow_down(run)

    def count(self, run: Any) -> None:
        """Epochs without an improvement of at least tol: of the score if stopping early, of the training loss otherwise."""
        e = self.estimator
        if e.early_stopping:
            now, best = e.validation_scores_[-1], e.best_validation_score_
            e._no_improvement_count = e._no_improvement_count + 1 if now < best + e.tol else 0
            if now > best:
                e.best_validation_score_, e._best_params = now, run.params
        else:
            e._no_improvement_count, e.best_loss_ = counted(e._no_improvement_count, e.best_loss_, e.loss_, e.tol)

    def stop_or_slow_down(self, run: Any) -> None:
        e = self.estimator
        what = "Validation score" if e.early_stopping else "Training loss"
        text = f"{what} did not improve more than tol={e.tol:f} for {e.n_iter_no_change} consecutive epochs."
        if e.solver == "sgd" and e.learning_rate == "adaptive" and self.rate > 1e-6:
            self.rate /= 5.0
            e._no_improvement_count = 0
            text += f" Setting learning rate to {self.rate:f}"
        else:
            run.stop("converged: " + text)
            text += " Stopping."
        if e.verbose:
            print(text)

    def fit_end(self, run: Any) -> None:
        """Keep the optimizer's memory: partial_fit goes on from it."""
        if not LOCAL.kept:
            return
        get, state = run.engine.get, run.state
        self.estimator._memory = (get(state.slots), int(get(state.step))), self.rate


def counted(count: int, best: float, now: float, tol: float) -> tuple[int, float]:
    """Epochs without an improvement of at least tol, and the best loss, after one more."""
    return count + 1 if now > best - tol else 0, min(now, best)
