"""Pictures show what they say they show."""

import matplotlib as mpl
import numpy as np
import pytest

import pellucid as pc
from pellucid import plots

mpl.use("Agg")
X = np.random.default_rng(0).normal(size=(80, 2))
Y = np.where(X[:, 0] > 0, "right", "left")


@pytest.fixture(scope="module")
def model():
    return pc.NetworkClassifier(pc.Linear(9) >> pc.Tanh(), epochs=30, validation=0.2, optimizer=pc.Adam(0.05), random_state=0).fit(X, Y)


@pytest.fixture(autouse=True)
def _close():
    yield
    mpl.pyplot.close("all")


def test_loss_curves_are_the_history(model):
    training, validation = plots.loss_curves(model).lines
    assert training.get_ydata().tolist() == model.history_["loss"]
    assert validation.get_ydata().tolist() == model.history_["val_loss"]


def test_the_decision_surface_splits_where_the_classes_do(model):
    ax = plots.decision_surface(model, X, Y, points=40)
    assert len(ax.collections) >= 2
    assert plots.decision_surface(pc.NetworkRegressor(epochs=1).fit(X, X[:, 0]), X, X[:, 0]).collections
    with pytest.raises(ValueError, match="two features"):
        plots.decision_surface(model, np.zeros((3, 5)))


def test_the_confusion_matrix_counts(model):
    texts = [t.get_text() for t in plots.confusion_matrix(["a", "a", "b"], ["a", "b", "b"]).texts]
    assert texts == ["1", "1", "0", "1"]


def test_weights_are_shown_unit_by_unit(model):
    axes = plots.weights(model, shape=(1, 2))
    assert axes.shape == (3, 3)
    np.testing.assert_array_equal(axes[0, 1].images[0].get_array(), model.network_.params[0]["W"][:, 1].reshape(1, 2))
    with pytest.raises(ValueError, match=r"there are 0\.W, 2\.W"):
        plots.weights(model, "7.W")
