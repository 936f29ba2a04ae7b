"""scikit-learn's MLPClassifier: plain SGD, no penalty, timed by its own fit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from work import LEARNING_RATE, Work, data_of

from peers.serve import only_mlp, serve

warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is the point here


def prepare(work: Work) -> Callable[[int], float]:
    only_mlp(work)
    X, y = data_of(work)

    def train(epochs: int) -> float:
        model = MLPClassifier(
            work.sizes[1:-1], solver="sgd", momentum=0.0, nesterovs_momentum=False, alpha=0.0, batch_size=work.batch,
            learning_rate_init=LEARNING_RATE, max_iter=epochs, shuffle=True, tol=0.0, n_iter_no_change=epochs + 1,
        )  # fmt: skip
        began = time.perf_counter()
        model.fit(X, y)
        return (time.perf_counter() - began) / model.n_iter_ / work.steps_per_epoch

    return train


serve(prepare)
