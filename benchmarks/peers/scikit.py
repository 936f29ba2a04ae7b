"""scikit-learn's MLPClassifier: plain SGD, no penalty, timed by its own fit."""

from __future__ import annotations

import warnings
from typing import Any

from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from work import LEARNING_RATE, Work

from peers.serve import Trainer, only, serve, timed

warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is the point here


def prepare(work: Work, X: Any, y: Any) -> Trainer:
    only(work.kind == "mlp", "scikit-learn has dense networks only")
    only(not work.gpu, "scikit-learn has no GPU")

    def train(epochs: int) -> float:
        model = MLPClassifier(
            work.hidden, solver="sgd", momentum=0.0, nesterovs_momentum=False, alpha=0.0, batch_size=work.batch,
            learning_rate_init=LEARNING_RATE, max_iter=epochs, shuffle=True, tol=0.0, n_iter_no_change=epochs + 1, random_state=0,
        )  # fmt: skip
        return timed(lambda: model.fit(X, y))(1) / model.n_iter_

    return Trainer(train)


if __name__ == "__main__":
    serve(prepare)
