"""Any expression as an estimator: what follows from y, and what can be said instead."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import cross_val_score

import pellucid as pc

X, Y = load_iris(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
FAST = {"epochs": 2, "random_state": 0, "engine": "numpy"}
NET = pc.Linear(6) >> pc.Tanh()


def test_output_layer_and_loss_follow_from_y():
    several = np.c_[Y == 0, Y > 0, Y == 2].astype(int)
    for y, end, loss in (
        (Y, "Linear(3)", pc.SoftmaxCrossEntropy()),
        (Y > 0, "Linear(1)", pc.SigmoidCrossEntropy()),
        (np.array(["a", "b", "c"])[Y], "Linear(3)", pc.SoftmaxCrossEntropy()),
        (several, "Linear(3)", pc.SigmoidCrossEntropy()),
    ):
        model = pc.NetworkClassifier(NET, **FAST).fit(X, y)
        assert repr(model.network_.net) == f"Linear(6) >> Tanh() >> {end}"
        assert model.network_.loss == loss
        assert model.predict(X).shape == y.shape
        p = model.predict_proba(X)
        assert p.shape == (150, 3 if (y is not (Y > 0) and np.ndim(y) == 2) or len(np.unique(y)) == 3 else 2)
    for y, end in ((X[:, 0], "Linear(1)"), (X[:, :2], "Linear(2)")):
        model = pc.NetworkRegressor(NET, **FAST).fit(X, y)
        assert repr(model.network_.net) == f"Linear(6) >> Tanh() >> {end}"
        assert model.predict(X).shape == y.shape


def test_output_layer_and_loss_can_be_said():
    model = pc.NetworkClassifier(NET, loss="brier", **FAST).fit(X, Y > 0)
    assert repr(model.network_.net) == "Linear(6) >> Tanh() >> Linear(2) >> Softmax()"
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    model = pc.NetworkClassifier(NET >> pc.Linear(3), head=None, **FAST).fit(X, Y)
    assert repr(model.network_.net) == "Linear(6) >> Tanh() >> Linear(3)"
    with pytest.warns(UserWarning, match=r"Linear\(3\) ends the embedding, and the output layer Linear\(3\) follows it"):
        pc.NetworkClassifier(NET >> pc.Linear(3), **FAST).fit(X, Y)
    model = pc.NetworkRegressor(NET, head=pc.Linear(1, bias=False), loss=pc.Huber(0.5), **FAST).fit(X, X[:, 0])
    assert model.network_.parameters["2.W"].shape == (6, 1)
    assert "2.b" not in model.network_.parameters
    counts = pc.NetworkRegressor(NET, loss="poisson", **FAST).fit(X, Y)
    assert (counts.predict(X) > 0).all()
    for bad in ({"loss": "squared_error", "y": np.c_[Y, Y]}, {"head": 3}, {"net": "Linear(3)"}, {"net": pc.Linear}):
        y = bad.pop("y", Y)
        with pytest.raises((ValueError, TypeError)):
            pc.NetworkClassifier(**bad, **FAST).fit(X, y)
    with pytest.raises(ValueError, match="a loss for classes"):
        pc.NetworkRegressor(NET, loss="softmax_cross_entropy", **FAST).fit(X, Y)


def test_it_is_the_same_fit_as_the_networks_own():
    model = pc.NetworkClassifier(NET, optimizer=pc.Adam(0.01), batch_size=16, epochs=3, random_state=5, engine="numpy").fit(X, Y)
    network = pc.Network(NET >> pc.Linear(3), (4,), "softmax_cross_entropy", seed=5, dtype="float64")
    network.fit(X, Y, optimizer=pc.Adam(0.01), batch_size=16, epochs=3, engine="numpy")
    np.testing.assert_array_equal(model.predict_proba(X), network.predict_proba(X))


def test_images_and_sequences_of_one_length():
    images, labels = load_digits(return_X_y=True)
    images = (images[:200] / 16).reshape(-1, 1, 8, 8)
    model = pc.NetworkClassifier(pc.Flatten() >> NET, **FAST).fit(images, labels[:200])
    assert model.predict(images[:5]).shape == (5,)
    model = pc.NetworkClassifier(pc.Linear(3) >> pc.Tanh(), **FAST).fit(images[:, 0], labels[:200])
    assert repr(model.network_.net) == "Linear(3) >> Tanh() >> Flatten() >> Linear(10)"
    with pytest.raises(ValueError, match="built for"):
        model.predict(images[:, 0, :4])


def test_sequences_of_different_length(tmp_path):
    """Whether the first column sums to more than zero, over 3 to 8 steps."""
    rng = np.random.default_rng(0)
    sequences = [rng.normal(size=(rng.integers(3, 9), 2)) for _ in range(60)]
    y = np.where([x[:, 0].sum() > 0 for x in sequences], "up", "down")
    model = pc.NetworkClassifier(pc.RNN(8), epochs=60, optimizer=pc.Adam(0.03), random_state=0, engine="numpy")
    assert cross_val_score(model, sequences, y, cv=2).mean() > 0.8
    model.fit(sequences, y).save(tmp_path / "m.pellucid")
    np.testing.assert_array_equal(pc.load(tmp_path / "m.pellucid").predict_proba(sequences), model.predict_proba(sequences))
    assert model.predict(sequences[:2]).shape == (2,)
    objects = np.empty(60, object)
    objects[:] = sequences
    for same in (objects, [x.tolist() for x in sequences]):
        np.testing.assert_array_equal(model.predict_proba(same), model.predict_proba(sequences))
        np.testing.assert_array_equal(clone(model).fit(same, y).predict_proba(sequences), model.predict_proba(sequences))
    with pytest.raises(ValueError, match=r"one axis each; expected arrays \(positions, features\)"):
        model.fit([x[:, 0] for x in sequences], y)
    totals = [x.sum() for x in sequences]
    assert pc.NetworkRegressor(pc.RNN(4), epochs=2, early_stopping=True, engine="numpy").fit(sequences, totals).predict(
        sequences
    ).shape == (60,)
    with pytest.raises(ValueError, match="one row for each position"):
        pc.NetworkClassifier(pc.Linear(3), epochs=1).fit(sequences, y)


def test_early_stopping_own_validation_data_class_weight_and_warm_start():
    model = pc.NetworkClassifier(NET, epochs=200, early_stopping=3, optimizer=pc.Adam(0.1), random_state=0, engine="numpy").fit(X, Y)
    assert model.n_iter_ < 200
    assert "val_loss" in model.history_.columns
    own = pc.NetworkClassifier(NET, **FAST).fit(X[::2], Y[::2], X_val=X[1::2], y_val=Y[1::2])
    np.testing.assert_allclose(own.history_["val_accuracy"][-1], own.score(X[1::2], Y[1::2]))
    noise = np.random.default_rng(0).normal(size=X.shape)
    names = np.array(["a", "b", "c"])[Y]
    heavy = pc.NetworkClassifier(NET, class_weight={"b": 1e5}, epochs=30, optimizer=pc.Adam(0.1), random_state=0).fit(noise, names)
    assert set(heavy.predict(noise)) == {"b"}
    with pytest.raises(ValueError, match="class_weight names 'z'"):
        pc.NetworkClassifier(NET, class_weight={"z": 2}, **FAST).fit(X, names)
    warm = pc.NetworkClassifier(NET, warm_start=True, **FAST).fit(X, Y)
    before = warm.loss_curve_[-1]
    assert warm.fit(X, Y).loss_curve_[-1] < before


@pytest.mark.parametrize("width", ["scalar", "per_unit", "per_axis", "full"])
def test_centres_begin_at_weighted_k_means_and_stay_unless_trained(width):
    weight = np.random.default_rng(0).integers(0, 3, len(X))
    model = pc.RBFClassifier(7, width=width, trainable="none", **FAST).fit(X, Y, sample_weight=weight)
    rows, which = np.unique(X[weight > 0], axis=0, return_inverse=True)
    expected = KMeans(7, random_state=np.random.RandomState(0)).fit(rows, sample_weight=np.bincount(which.ravel(), weight[weight > 0]))
    np.testing.assert_allclose(model.network_.params[0]["_centres"], expected.cluster_centers_)
    if width != "full":
        h = pdist(expected.cluster_centers_).max() / np.sqrt(14)
        np.testing.assert_allclose(model.network_.params[0]["_widths"], h)


def test_radial_units_solve_what_a_linear_classifier_cannot():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    ring = np.hypot(*x.T) > 1.1
    assert pc.RBFClassifier(10, random_state=0, engine="numpy").fit(x, ring).score(x, ring) > 0.97
    for kernel in ("gaussian", "multiquadric", "inverse_multiquadric"):
        model = pc.RBFRegressor(15, kernel=kernel, random_state=0, engine="numpy").fit(x, np.hypot(*x.T))
        assert model.score(x, np.hypot(*x.T)) > 0.97
    with pytest.raises(ValueError, match="takes tables"):
        pc.RBFRegressor().fit(np.zeros((5, 3, 2)), np.zeros(5))
