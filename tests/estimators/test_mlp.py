"""The drop-in perceptrons walk scikit-learn's own path, and mend what users reported."""

import inspect
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn import neural_network as theirs
from sklearn.datasets import load_diabetes, load_iris, make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import LabelBinarizer

import pellucid as pc
from pellucid.estimators import path

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, Y = load_iris(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
D, D_Y = load_diabetes(return_X_y=True)
D, D_Y = D * 20, (D_Y - D_Y.mean()) / D_Y.std()
ACTIVATIONS = ["identity", "logistic", "tanh", "relu"]


def both(name, X, y, weight=None, engine="numpy", **options):
    options = {"random_state": 3, "max_iter": 5, **options}
    a = getattr(theirs, name)(**options).fit(X, y, sample_weight=weight)
    b = getattr(pc, name)(**options, engine=engine, alpha_scale="batch").fit(X, y, sample_weight=weight)
    return a, b


def same_path(a, b, tolerance=1e-9):
    for mine, other in zip(b.coefs_ + b.intercepts_, a.coefs_ + a.intercepts_, strict=True):
        np.testing.assert_allclose(mine, other, atol=tolerance)
    for name in ("n_iter_", "t_", "n_layers_", "n_outputs_", "out_activation_", "loss_", "loss_curve_", "best_loss_", "n_features_in_"):
        if hasattr(a, name) and getattr(a, name) is not None and not isinstance(getattr(a, name), str):
            np.testing.assert_allclose(getattr(b, name), getattr(a, name), rtol=1e-6, atol=tolerance, err_msg=name)
        elif hasattr(a, name):
            assert getattr(b, name) == getattr(a, name), name


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("solver", ["sgd", "adam", "lbfgs"])
def test_classifier_walks_scikit_learns_path(solver, activation):
    a, b = both("MLPClassifier", X, Y, solver=solver, activation=activation, batch_size=32, hidden_layer_sizes=(12, 7), alpha=0.1)
    same_path(a, b)
    np.testing.assert_allclose(b.predict_proba(X), a.predict_proba(X), atol=1e-9)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("solver", ["sgd", "adam", "lbfgs"])
def test_regressor_walks_scikit_learns_path(solver, activation):
    a, b = both("MLPRegressor", D, D_Y, solver=solver, activation=activation, batch_size=64, hidden_layer_sizes=20)
    same_path(a, b)
    np.testing.assert_allclose(b.predict(D), a.predict(D), atol=1e-9)


@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_the_compiled_engine_walks_it_too(solver):
    same_path(*both("MLPClassifier", X, Y, solver=solver, batch_size=32, engine="jax"), tolerance=1e-8)


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": "invscaling", "learning_rate_init": 0.1},
        {"learning_rate": "adaptive", "learning_rate_init": 0.2, "tol": 1e-2, "n_iter_no_change": 2, "max_iter": 40},
        {"momentum": 0.5, "nesterovs_momentum": False},
        {"momentum": 1.0, "max_iter": 3},
        {"shuffle": False},
        {"early_stopping": True, "max_iter": 30, "n_iter_no_change": 3, "learning_rate_init": 0.1},
    ],
)
def test_options_of_sgd_mean_the_same(options):
    """Two classes: there scikit-learn's early stopping is stratified as well."""
    binary = Y[:100]
    a, b = both("MLPClassifier", X[:100], binary, solver="sgd", batch_size=16, **options)
    same_path(a, b)
    assert (a.validation_scores_ is None) == (b.validation_scores_ is None)
    if a.validation_scores_:
        np.testing.assert_allclose(b.validation_scores_, a.validation_scores_)
        assert b.best_validation_score_ == pytest.approx(a.best_validation_score_)


@pytest.mark.parametrize("solver", ["sgd", "adam", "lbfgs"])
def test_sample_weight_multilabel_poisson_sparse_and_several_outputs(solver):
    options = {"solver": solver, "hidden_layer_sizes": 8, "max_iter": 4}
    weight = np.random.default_rng(0).uniform(0.5, 2, len(X))
    a, b = both("MLPClassifier", X, Y, weight, **options)
    np.testing.assert_allclose(b.predict_proba(X), a.predict_proba(X), atol=1e-9)
    M, L = make_multilabel_classification(80, 10, random_state=0)
    a, b = both("MLPClassifier", M, L, **options)
    same_path(a, b)
    np.testing.assert_array_equal(b.predict(M), a.predict(M))
    counts = np.random.default_rng(0).poisson(3, len(D))
    same_path(*both("MLPRegressor", D, counts, loss="poisson", **options))
    same_path(*both("MLPClassifier", csr_matrix(X), Y, **options))
    if solver != "lbfgs":  # scikit-learn hands L-BFGS the mean over outputs with the gradient of the sum
        a, b = both("MLPRegressor", D, np.c_[D_Y, -D_Y], tol=0, **options)
        np.testing.assert_allclose(b.predict(D), a.predict(D), atol=1e-9)


def test_partial_fit_and_warm_start_go_on_as_scikit_learn_does():
    for solver in ("sgd", "adam"):
        models = [M(8, solver=solver, random_state=0, learning_rate="invscaling", **o) for M, o in variants("MLPClassifier")]
        for model in models:
            for part in (slice(0, 60), slice(40, 150), slice(0, 150)):
                model.partial_fit(X[part], Y[part], classes=[0, 1, 2])
        same_path(*models)
        models = [
            M(hidden_layer_sizes=8, solver=solver, random_state=0, max_iter=3, warm_start=True, **o) for M, o in variants("MLPRegressor")
        ]
        for model in models:
            model.fit(D, D_Y).fit(D, D_Y).partial_fit(D[:50], D_Y[:50])
        same_path(*models)


def variants(name):
    return [(getattr(theirs, name), {}), (getattr(pc, name), {"alpha_scale": "batch", "engine": "numpy"})]


def test_it_stops_when_scikit_learn_stops_and_warns_when_it_warns():
    a, b = both("MLPClassifier", X, Y, max_iter=300, tol=1e-2, learning_rate_init=0.01)
    assert 10 < a.n_iter_ == b.n_iter_ < 300
    for solver in ("adam", "lbfgs"):
        with pytest.warns(ConvergenceWarning, match="Maximum iterations|failed to converge"):
            pc.MLPClassifier(4, solver=solver, max_iter=2).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.MLPClassifier(4, max_iter=300, tol=0.1).fit(X, Y)


def test_every_parameter_default_method_and_attribute_is_there():
    for name, X_, y in (("MLPClassifier", X, Y), ("MLPRegressor", D, D_Y)):
        original, mine = getattr(theirs, name), getattr(pc, name)
        for key, parameter in inspect.signature(original).parameters.items():
            assert inspect.signature(mine).parameters[key].default == parameter.default
            assert inspect.signature(mine).parameters[key].kind == parameter.kind
        public = {n for n in dir(original(max_iter=1).fit(X_, y)) if not n.startswith("_")} - {"loss"}
        assert public <= set(dir(mine(max_iter=1).fit(X_, y)))


def test_bad_parameters_are_refused_in_scikit_learns_words():
    for options in ({"solver": "newton"}, {"alpha": -1}, {"max_iter": 0}, {"activation": "gelu"}, {"momentum": 2}, {"tol": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            pc.MLPClassifier(**options).fit(X, Y)
    with pytest.raises(ValueError, match="hidden_layer_sizes must be > 0"):
        pc.MLPClassifier(hidden_layer_sizes=(5, 0)).fit(X, Y)
    with pytest.raises(AttributeError, match="partial_fit"):
        pc.MLPClassifier(solver="lbfgs").partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="partial_fit does not support early_stopping"):
        pc.MLPRegressor(early_stopping=True).partial_fit(D, D_Y)
    with pytest.raises(ValueError, match="non-finite"):
        pc.MLPRegressor(solver="sgd", learning_rate_init=1e30, random_state=0).fit(D, 1e200 * D_Y)


# ---------------------------------------------------------------- better than there
def test_the_strength_of_alpha_does_not_depend_on_the_batch_size():
    """L-BFGS minimises mean loss + α/(2n) Σ W²; small steps with any batch size go to the same place."""

    def size(**options):
        model = pc.MLPRegressor(hidden_layer_sizes=(), alpha=200.0, random_state=0, tol=0, **options).fit(D, D_Y)
        return np.linalg.norm(model.coefs_[0])

    right = size(solver="lbfgs", max_iter=500)
    sgd = {"solver": "sgd", "momentum": 0, "learning_rate_init": 0.01, "max_iter": 150, "n_iter_no_change": 1000}
    for batch_size in (16, 100):
        assert size(**sgd, batch_size=batch_size) == pytest.approx(right, rel=0.05)
    assert size(**sgd, batch_size=16, alpha_scale="batch") < 0.3 * right


def test_early_stopping_keeps_the_shares_of_all_classes():
    y = np.repeat([0, 1, 2], [300, 280, 20])
    X_ = np.random.default_rng(0).normal(size=(600, 3))
    counts = []

    def scorer(model, X, y):
        counts.append(np.bincount(y, minlength=3).tolist())
        return 0.0

    for seed in range(5):
        pc.MLPClassifier(3, early_stopping=True, scoring=scorer, max_iter=1, random_state=seed).fit(X_, y)
    assert counts == [[30, 28, 2]] * 5


def test_own_validation_data_scores_and_stops():
    model = pc.MLPClassifier(8, early_stopping=True, max_iter=50, n_iter_no_change=3, random_state=0)
    model.fit(X[::2], Y[::2], X_val=X[1::2], y_val=Y[1::2])
    assert len(model.validation_scores_) == len(model.validation_loss_curve_) == model.n_iter_
    assert model.score(X[1::2], Y[1::2]) == pytest.approx(max(model.validation_scores_))
    assert pc.MLPClassifier(8, max_iter=3).fit(X, Y, X_val=X, y_val=Y).validation_loss_curve_[-1] > 0
    with pytest.raises(ValueError, match="belong together"):
        model.fit(X, Y, X_val=X)
    with pytest.raises(ValueError, match=r"y_val has classes that y does not have: \[7\]"):
        model.fit(X, Y, X_val=X[:2], y_val=[0, 7])


def test_layers_of_their_own_activation_dropout_class_weight_and_callbacks():
    seen = []
    model = pc.MLPClassifier(
        (8, 6), ["tanh", pc.GELU()], dropout=0.2, class_weight={0: 5.0}, callbacks=lambda run: seen.append(run.epoch), max_iter=3
    ).fit(X, Y)
    net = "Linear(8) >> Tanh() >> Dropout(rate=0.2) >> Linear(6) >> GELU() >> Dropout(rate=0.2) >> Linear(3)"
    assert repr(model.network_.net) == net
    assert seen == [1, 2, 3]
    noise = np.random.default_rng(0).normal(size=X.shape)
    heavy = pc.MLPClassifier(8, class_weight={0: 1e6}, max_iter=60, learning_rate_init=0.05, random_state=0).fit(noise, Y)
    assert (heavy.predict(noise) == 0).all()


def test_weights_can_be_set_and_changed_in_place():
    model = pc.MLPClassifier(4, max_iter=2).fit(X, Y)
    model.coefs_ = [np.zeros_like(W) for W in model.coefs_]
    model.intercepts_[-1][:] = [0, 0, 9]
    assert set(model.predict(X)) == {2}


def test_float32_stays_float32_everywhere():
    model = pc.MLPClassifier(4, max_iter=2).fit(X.astype(np.float32), Y)
    assert {W.dtype for W in model.coefs_} == {np.dtype("float32")}
    assert model.predict_proba(X.astype(np.float32)).dtype == np.float32
    model = pc.MLPClassifier(4, max_iter=1, early_stopping=True, warm_start=True).fit(X.astype(np.float32), Y)
    model.fit(X, Y, X_val=X, y_val=Y)
    assert {W.dtype for W in model.coefs_} == {np.dtype("float32")}


def test_lbfgs_that_has_nothing_to_do_still_says_its_loss():
    a, b = both("MLPRegressor", np.zeros((20, 2)), np.zeros(20), solver="lbfgs", tol=1e9)
    assert b.n_iter_ == a.n_iter_ == 0
    assert b.loss_ == pytest.approx(a.loss_)


def test_scoring_a_fit_on_a_frame_warns_of_nothing():
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = pc.MLPClassifier(4, max_iter=3, early_stopping=True, scoring="accuracy", random_state=0, engine="numpy").fit(frame, Y)
    plain = pc.MLPClassifier(4, max_iter=3, early_stopping=True, random_state=0, engine="numpy").fit(frame, Y)
    assert model.validation_scores_ == plain.validation_scores_
    np.testing.assert_array_equal(model.predict_proba(frame), plain.predict_proba(frame))


@pytest.mark.parametrize("labels", [[0, 1, 2], [7, 3, 5], ["a", "b", "c"], [0.0, 1.0, 2.0], [False, True, True]])
def test_plain_arrays_are_learned_and_scored_as_all_others(labels):
    names = np.array(labels)[Y]
    weight = np.linspace(0, 1, len(Y))
    for model in (pc.MLPClassifier(random_state=0, max_iter=5), pc.NetworkClassifier(random_state=0, epochs=5)):
        plain = model.fit(X, names)
        expected = LabelBinarizer().fit(names)
        np.testing.assert_array_equal(plain.classes_, expected.classes_)
        outputs, predicted = plain.predict_proba(X), plain.predict(X)
        assert plain.score(X, names) == accuracy_score(names, predicted)
        assert plain.score(X, names, weight) == accuracy_score(names, predicted, sample_weight=weight)
        asked = model.fit(pd.DataFrame(X, columns=list("abcd")), pd.Series(names))  # goes through all of scikit-learn's checks
        np.testing.assert_array_equal(asked.predict_proba(pd.DataFrame(X, columns=list("abcd"))), outputs)
        assert not hasattr(model.fit(X, names), "feature_names_in_")
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            model.score(X, names[:-1])


def test_what_is_wrong_in_plain_arrays_is_refused_in_scikit_learns_words():
    for bad, y, words in (
        (np.where(X > 2, np.nan, X), Y, "NaN"),
        (np.where(X > 2, np.inf, X), Y, "infinity"),
        (X, Y[:-1], "inconsistent"),
        (X[:0], Y[:0], "0 sample"),
        (X[:, 0], Y, "2D"),
    ):
        for model in (pc.MLPClassifier(), pc.NetworkClassifier(), pc.MLPRegressor()):
            with pytest.raises(ValueError, match=words):
                model.fit(bad, y)


# -------------------------------------------------------------------- what fits share
DRAWN = [("uniform", -1.0, 1.0, (3, 2)), ("permutation", 9), ("randint", 2**31 - 1), ("permutation", 9)]


@pytest.mark.parametrize("room", [path.ROOM, 100])
def test_fits_of_one_seed_share_what_they_draw(room, monkeypatch):
    """And draw what scikit-learn would, also where they part ways, and where too much was drawn to be kept."""
    monkeypatch.setattr(path, "ROOM", room)
    monkeypatch.setattr(path.Draws, "begun", {})
    monkeypatch.setattr(path.Draws, "held", 0)
    first, again, theirs = path.Draws(7), path.Draws(7), np.random.RandomState(7)
    for name, *args in DRAWN:
        value = first.draw(name, *args)
        np.testing.assert_array_equal(value, getattr(theirs, name)(*args))
        assert again.draw(name, *args) is value
    apart, theirs = path.Draws(7), np.random.RandomState(7)
    np.testing.assert_array_equal(apart.draw(*DRAWN[0]), theirs.uniform(-1.0, 1.0, (3, 2)))
    np.testing.assert_array_equal(apart.draw("permutation", 4), theirs.permutation(4))
    assert apart.random_state.randint(1000) == theirs.randint(1000)
    assert apart.draw("randint", 1000) == theirs.randint(1000)
    with pytest.raises(ValueError, match="read-only"):
        first.draw("permutation", 5)[0] = 1


def test_a_random_state_is_used_up_as_scikit_learn_does():
    states = np.random.RandomState(5), np.random.RandomState(5)
    options = {"hidden_layer_sizes": 6, "max_iter": 3, "batch_size": 32}
    for _ in range(2):
        a = theirs.MLPClassifier(random_state=states[0], **options).fit(X, Y)
        same_path(a, pc.MLPClassifier(random_state=states[1], engine="numpy", alpha_scale="batch", **options).fit(X, Y))
    assert states[0].randint(2**31 - 1) == states[1].randint(2**31 - 1)


def test_parameters_are_looked_at_again_where_they_only_seem_equal():
    pc.MLPClassifier(max_iter=2).fit(X, Y)
    with pytest.raises(ValueError, match=r"'max_iter' parameter of MLPClassifier must be an int in the range \[1, inf\)\. Got 2\.0"):
        pc.MLPClassifier(max_iter=2.0).fit(X, Y)
    with pytest.raises(ValueError, match="'engine' parameter"):
        pc.MLPClassifier(max_iter=2, engine="torch").fit(X, Y)
