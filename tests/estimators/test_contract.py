"""scikit-learn's contract: its own checks, and the places where people put estimators."""

import pickle
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import pellucid as pc

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
SMALL = [
    pc.MLPClassifier(5, max_iter=3, random_state=0, engine="numpy"),
    pc.NetworkClassifier(pc.Linear(5) >> pc.Tanh(), epochs=3, random_state=0, engine="numpy"),
    pc.RBFClassifier(5, epochs=3, random_state=0, engine="numpy"),
]
REGRESSORS = [
    pc.MLPRegressor(hidden_layer_sizes=5, max_iter=3, random_state=0, engine="numpy"),
    pc.NetworkRegressor(pc.Linear(5) >> pc.Tanh(), epochs=3, random_state=0, engine="numpy"),
    pc.RBFRegressor(5, epochs=3, random_state=0, engine="numpy"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "estimator",
    [
        pc.MLPClassifier(max_iter=100, engine="numpy"),
        pc.MLPRegressor(max_iter=100, engine="numpy"),
        pc.NetworkClassifier(engine="numpy"),
        pc.NetworkRegressor(engine="numpy"),
        pc.RBFClassifier(10, epochs=10, engine="numpy"),
        pc.RBFRegressor(10, epochs=10, engine="numpy"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_every_check_of_scikit_learn_passes(estimator):
    results = check_estimator(estimator, on_skip=None)
    assert len(results) > 50
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {
        "check_array_api_input",  # runs only where SCIPY_ARRAY_API is set
        "check_classifiers_multilabel_output_format_decision_function",  # there is no decision_function, as in scikit-learn
    }


@pytest.mark.parametrize("model", SMALL, ids=lambda e: type(e).__name__)
def test_frames_in_and_words_out(model):
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    fitted = clone(model).fit(frame, NAMES)
    assert fitted.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert fitted.classes_.tolist() == sorted(set(NAMES))
    assert set(fitted.predict(frame)) <= set(NAMES)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[["b", "a", "c", "d"]])
    pl = pytest.importorskip("polars")
    np.testing.assert_array_equal(clone(model).fit(pl.DataFrame(X), NAMES).predict(pl.DataFrame(X)), clone(model).fit(X, NAMES).predict(X))


@pytest.mark.parametrize("model", SMALL + REGRESSORS, ids=lambda e: type(e).__name__)
def test_clone_pickle_and_joblib_keep_every_bit(model, tmp_path):
    fitted = clone(model).fit(X, Y)
    again = clone(fitted).fit(X, Y)
    back = pickle.loads(pickle.dumps(fitted))
    joblib.dump(fitted, tmp_path / "m.joblib")
    for other in (again, back, joblib.load(tmp_path / "m.joblib")):
        np.testing.assert_array_equal(other.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(back.fit(X, Y).predict(X), fitted.predict(X))


def test_cross_validation_in_other_processes():
    model = make_pipeline(StandardScaler(), SMALL[1])
    np.testing.assert_array_equal(cross_val_score(model, X, Y, cv=2, n_jobs=2), cross_val_score(model, X, Y, cv=2))


def test_grid_search_reaches_into_optimizers_layers_and_losses():
    net = pc.Linear(5).named("wide") >> pc.LeakyReLU()
    model = make_pipeline(StandardScaler(), pc.NetworkClassifier(net, epochs=20, random_state=0, engine="numpy"))
    grid = {"networkclassifier__optimizer__learning_rate": [1e-5, 0.05], "networkclassifier__net__wide__units": [2, 9]}
    search = GridSearchCV(model, grid, cv=2).fit(X, Y)
    assert search.best_params_["networkclassifier__optimizer__learning_rate"] == 0.05
    best = search.best_estimator_[-1]
    assert best.network_.params[0]["W"].shape == (4, search.best_params_["networkclassifier__net__wide__units"])
    assert repr(net) == "Linear(5).named('wide') >> LeakyReLU()"  # what was handed in stays as it was
    changed = pc.NetworkRegressor(net, loss=pc.Huber())
    changed.set_params(net__1__slope=0.2, loss__delta=3, optimizer="sgd", optimizer__momentum=0.5)
    assert repr(changed.net) == "Linear(5).named('wide') >> LeakyReLU(slope=0.2)"
    assert (changed.loss, changed.optimizer) == (pc.Huber(3.0), pc.SGD(momentum=0.5))
    wrapped = pc.NetworkRegressor(pc.Linear(4) >> pc.Repeat(pc.Linear(4) >> pc.Tanh(), 2)).set_params(net__1__times=3)
    assert repr(wrapped.net) == "Linear(4) >> Repeat(Linear(4) >> Tanh(), 3)"
    for order in (1, -1):  # the outer one first, whatever comes first
        both = dict([("net__0", pc.Linear(3, bias=False)), ("net__0__units", 7)][::order])
        assert pc.NetworkRegressor(pc.Linear(5) >> pc.Tanh()).set_params(**both).net.layers[0] == pc.Linear(7, bias=False)
    for order in (1, -1):  # places are those from before, though one layer becomes two
        both = dict([("net__0", pc.Linear(3) >> pc.Linear(6)), ("net__1__units", 9)][::order])
        longer = pc.NetworkRegressor(pc.Linear(5) >> pc.Linear(4)).set_params(**both).net
        assert longer == pc.Linear(3) >> pc.Linear(6) >> pc.Linear(9)
    for name in ("optimizer__speed", "net__1__slope__x", "net__7__units", "nets__0", "speed", "net__", "net__1__"):
        with pytest.raises(ValueError, match=f"no parameter '{name}'"):
            changed.set_params(**{name: 1})


def test_metadata_routing_brings_weights_and_validation_data():
    with sklearn.config_context(enable_metadata_routing=True):
        model = SMALL[0].__class__(5, max_iter=3, random_state=0).set_fit_request(sample_weight=True)
        weight = np.linspace(0, 2, len(X))
        routed = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model).fit(X, Y, sample_weight=weight)
    plain = clone(model).fit(StandardScaler().fit_transform(X), Y, sample_weight=weight)
    np.testing.assert_allclose(routed.predict_proba(X), plain.predict_proba(StandardScaler().fit_transform(X)))


def test_set_output_of_the_preprocessing_is_understood():
    frame = pd.DataFrame({"a": X[:, 0], "b": NAMES})
    pre = make_column_transformer((StandardScaler(), ["a"]), (OneHotEncoder(sparse_output=False), ["b"])).set_output(transform="pandas")
    fitted = make_pipeline(pre, clone(SMALL[0])).fit(frame, NAMES)
    assert fitted[-1].feature_names_in_[0] == "standardscaler__a"


def test_the_html_page_shows_the_network():
    fitted = clone(SMALL[1]).fit(X, Y)
    assert "Linear(5) &gt;&gt; Tanh() &gt;&gt; Linear(3)" in fitted._repr_html_()
    assert "parameters to learn" in fitted._repr_mimebundle_()["text/html"]
    assert "Tanh" in make_pipeline(StandardScaler(), fitted)._repr_html_()


@pytest.mark.skipif(not hasattr(SMALL[0], "set_callbacks"), reason="scikit-learn has callbacks from 1.9 on")
@pytest.mark.parametrize("model", [*SMALL, pc.MLPClassifier(5, solver="lbfgs", max_iter=3, random_state=0)], ids=repr)
def test_scikit_learns_callbacks_see_every_epoch_and_can_stop(model):
    class Watch:
        def __init__(self, last):
            self.last, self.scores, self.begun, self.set_up = last, [], 0, []

        def setup(self, estimator, context):
            self.set_up.append("setup")

        def teardown(self, estimator, context):
            self.set_up.append("teardown")

        def on_fit_task_begin(self, estimator, context):
            self.begun += 1

        def on_fit_task_end(self, estimator, context, *, X, y, fitted_estimator):
            if context.task_name == "epoch" and fitted_estimator is not None:
                self.scores.append(fitted_estimator.score(X, y))
                return len(self.scores) == self.last
            return False

    watch = Watch(2)
    fitted = clone(model).set_callbacks(watch).fit(X, Y)
    assert len(watch.scores) == 2
    assert watch.set_up == ["setup", "teardown"]
    assert fitted.n_iter_ == 2
    assert watch.scores[-1] == fitted.score(X, Y)


def test_importing_pellucid_imports_neither_jax_nor_scikit_learn():
    code = "import sys, pellucid; print([m for m in ('jax', 'sklearn', 'safetensors', 'scipy', 'matplotlib', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
