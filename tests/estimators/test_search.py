"""A search whose fits share one program finds exactly what scikit-learn's finds fitting one by one."""

import gc
import sys
import threading
import warnings
import weakref
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy.stats import loguniform
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, ShuffleSplit, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import pellucid as pc
from pellucid.engines import choose, pile, together
from pellucid.engines import jax as engine
from pellucid.engines import numpy as numpy_engine
from pellucid.engines.together import Meeting
from pellucid.estimators import fits, search
from pellucid.estimators.base import Classifier

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = load_iris(return_X_y=True)
MLP = pc.MLPClassifier((8,), max_iter=12, random_state=0, engine="jax", learning_rate_init=0.01)
BY_NUMPY = clone(MLP).set_params(engine="numpy")
NET = pc.NetworkClassifier(pc.Linear(6) >> pc.Tanh(), epochs=6, random_state=0, engine="jax")
HOW = pytest.mark.parametrize("how", ["threads", "batched"])


def assert_same_results(mine, theirs, exact):
    """All columns but the times; bit for bit on threads, to rounding where matrix products are batched."""
    assert list(mine.cv_results_) == list(theirs.cv_results_)
    assert mine.cv_results_["params"] == theirs.cv_results_["params"]
    for name, values in theirs.cv_results_.items():
        if "_test_" in name or "_train_" in name:
            if exact:
                np.testing.assert_array_equal(mine.cv_results_[name], values, err_msg=name)
            else:
                np.testing.assert_allclose(mine.cv_results_[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
    if theirs.refit:
        assert mine.best_params_ == theirs.best_params_
        assert mine.best_index_ == theirs.best_index_
        np.testing.assert_array_equal(mine.predict(X), theirs.predict(X))


@HOW
def test_grid_search_is_the_same_with_groups_of_different_programs(how):
    """Hidden sizes and batch sizes make programs; rates and penalties do not; α = 0 and L-BFGS are kinds of their own."""
    grid = [
        {"hidden_layer_sizes": [(4,), (8, 4)], "learning_rate_init": [0.001, 0.02], "alpha": [0.0, 1.0]},
        {"solver": ["sgd"], "momentum": [0.0, 0.9], "batch_size": [16, 50]},
        {"solver": ["lbfgs"]},
    ]
    options = {"cv": 3, "scoring": ["accuracy", "neg_log_loss"], "refit": "accuracy", "return_train_score": True}
    theirs = GridSearchCV(MLP, grid, **options).fit(X, Y)
    assert_same_results(pc.PopulationSearchCV(MLP, grid, how=how, **options).fit(X, Y), theirs, how == "threads")


@HOW
def test_randomized_search_in_a_pipeline_is_the_same(how):
    pipeline = make_pipeline(StandardScaler(), NET)
    space = {"networkclassifier__optimizer__learning_rate": loguniform(1e-4, 1e-1), "networkclassifier__net__0__units": [3, 6]}
    options = {"n_iter": 5, "random_state": 3, "cv": ShuffleSplit(2, random_state=0), "scoring": "neg_log_loss"}
    theirs = RandomizedSearchCV(pipeline, space, **options).fit(X, Y)
    mine = pc.PopulationSearchCV(pipeline, param_distributions=space, how=how, **options).fit(X, Y)
    assert_same_results(mine, theirs, how == "threads")


@HOW
def test_early_stopping_schedules_and_callbacks_take_the_same_path(how):
    """Fits of one group that end at different epochs, go on with other learning rates, or are looked into."""
    grid = [
        {"early_stopping": [True], "n_iter_no_change": [1, 4], "learning_rate_init": [0.005, 0.05]},
        {"solver": ["sgd"], "learning_rate": ["adaptive", "invscaling"], "n_iter_no_change": [1], "tol": [0.05]},
        {"tol": [0.2], "n_iter_no_change": [2]},
        {"callbacks": [stop_at_three]},
    ]
    model = MLP.set_params(max_iter=40)
    options = {"cv": 3, "scoring": {"loss": "neg_log_loss", "epochs": epochs_of}, "refit": "loss"}
    theirs = GridSearchCV(model, grid, **options).fit(X, Y)
    assert len(set(theirs.cv_results_["mean_test_epochs"])) > 3
    assert_same_results(pc.PopulationSearchCV(model, grid, how=how, **options).fit(X, Y), theirs, how == "threads")


def stop_at_three(run):
    if run.epoch == 3:
        run.stop()


def epochs_of(model, X, y):
    return model.n_iter_


@HOW
def test_a_regressor_with_sample_weights_is_the_same(how):
    model = pc.MLPRegressor(hidden_layer_sizes=(6,), max_iter=10, random_state=1, engine="jax")
    grid, weight = {"alpha": [0.01, 10.0], "learning_rate_init": [0.01, 0.03]}, 1.0 + Y
    theirs = GridSearchCV(model, grid, cv=3).fit(X[:, :3], X[:, 3], sample_weight=weight)
    mine = pc.PopulationSearchCV(model, grid, cv=3, how=how).fit(X[:, :3], X[:, 3], sample_weight=weight)
    np.testing.assert_allclose(mine.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"], rtol=1e-9)
    assert mine.best_params_ == theirs.best_params_


@HOW
def test_a_fit_that_fails_gets_the_error_score_and_the_others_go_on(how):
    NET = pc.NetworkClassifier(pc.Linear(6) >> pc.ReLU(), epochs=6, random_state=0, engine="jax")
    grid = {"optimizer": [pc.SGD(1e300), pc.SGD(0.01)]}
    with pytest.warns(FitFailedWarning, match="is not finite"):
        mine = pc.PopulationSearchCV(NET, grid, cv=3, how=how, error_score=-1.0).fit(X, Y)
    assert mine.cv_results_["mean_test_score"][0] == -1.0
    with pytest.warns(FitFailedWarning):
        theirs = GridSearchCV(NET, grid, cv=3, error_score=-1.0).fit(X, Y)
    assert_same_results(mine, theirs, how == "threads")
    with pytest.raises(ArithmeticError, match="is not finite"):
        pc.PopulationSearchCV(NET, grid, cv=3, how=how, error_score="raise").fit(X, Y)


class Watched(LogisticRegression):
    """Remembers what it was fitted on, and how often that was somebody's before."""

    seen: ClassVar[list] = []

    def fit(self, X, y, **more):
        self.seen.append(X)
        return super().fit(X, y, **more)


@HOW
def test_candidates_share_the_rows_of_a_fold(how, monkeypatch):
    """Larger ones: each fold is cut once, and nobody may write into it; a scaler that would do so takes a copy."""
    pipeline, grid = make_pipeline(StandardScaler(copy=False), MLP), {"mlpclassifier__alpha": [0.0, 0.1, 1.0]}
    theirs = GridSearchCV(pipeline, grid, cv=3, refit=False).fit(X, Y)
    monkeypatch.setattr(search, "SHARED", 0)
    assert_same_results(pc.PopulationSearchCV(pipeline, grid, cv=3, refit=False, how=how).fit(X, Y), theirs, how == "threads")
    monkeypatch.setattr(Watched, "seen", [])
    pc.PopulationSearchCV(Watched(), {"C": [0.01, 1.0]}, cv=3, how=how).fit(X, Y)
    *parts, whole = Watched.seen
    assert len(parts) == 6
    assert len({id(part) for part in parts}) == 3
    assert not any(part.flags.writeable for part in parts)
    np.testing.assert_array_equal(whole, X)
    assert whole.cut is None


def test_a_fold_is_prepared_once_for_all_candidates(monkeypatch):
    """Its rows and classes go to the device once; nobody else's arrays are taken for a fold's."""
    sent, put = [], engine.put
    monkeypatch.setattr(engine, "put", lambda tree: [sent.append(tree) if isinstance(tree, np.ndarray) else None, put(tree)][1])
    mine = pc.PopulationSearchCV(MLP, {"alpha": [0.0, 0.1, 1.0, 10.0]}, cv=3, how="threads").fit(X, Y)
    whole = [a for a in {id(a): a for a in sent}.values() if len(a) in (99, 100, 101)]  # not the orders of rows that guests share
    assert sorted(a.dtype.name for a in whole) == ["float64"] * 6 + ["int32"] * 3  # rows, weights, classes
    monkeypatch.undo()
    assert_same_results(mine, GridSearchCV(MLP, {"alpha": [0.0, 0.1, 1.0, 10.0]}, cv=3).fit(X, Y), True)


def writing_score(model, X, y):
    X -= 0.5
    return model.score(X, y)


class Centred(pc.MLPClassifier):
    def fit(self, X, y):
        X -= X.mean(0)
        return super().fit(X, y)


class Asking:
    """A splitter that computes with what it is given."""

    def get_n_splits(self, X=None, y=None, groups=None):
        return 2

    def split(self, X, y, groups=None):
        assert {y.max(), X.sum(), type(X[:3]), type(X + 1)} == {2, X.sum(), np.ndarray}
        return ShuffleSplit(2, random_state=0).split(X)


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (BY_NUMPY, {"scoring": writing_score}),
        (BY_NUMPY, {"scoring": {"a": writing_score}, "refit": "a"}),
        (Centred(**BY_NUMPY.get_params()), {}),
        (clone(BY_NUMPY).set_params(callbacks=lambda run: run.job.data.x.fill(1)), {}),
        (BY_NUMPY, {"cv": Asking()}),
        (BY_NUMPY, {"cv": [(list(range(100)), list(range(100, 150))), (np.arange(150) < 120, np.arange(150) >= 120)]}),
    ],
)
def test_whoever_is_not_known_to_leave_rows_alone_gets_rows_of_their_own(estimator, options):
    grid, options = {"alpha": [0.1, 1.0]}, {"cv": 3, **options}
    theirs = GridSearchCV(estimator, grid, **options).fit(X.copy(), Y)
    assert_same_results(pc.PopulationSearchCV(estimator, grid, how="threads", **options).fit(X.copy(), Y), theirs, True)


@HOW
def test_engines_do_not_get_each_others_arrays(how):
    """Rows that one fit has put on the device are no good for a fit on the other engine."""
    grid = [{"engine": ["jax", "numpy"], "alpha": [0.001, 0.1]}, {"solver": ["lbfgs"], "engine": ["jax", "numpy"]}]
    options = {"cv": 3, "scoring": "neg_log_loss", "error_score": "raise"}
    rows = X.astype(np.float32)
    theirs = GridSearchCV(MLP, grid, **options).fit(rows, Y).cv_results_["mean_test_score"]
    found = pc.PopulationSearchCV(MLP, grid, how=how, **options).fit(rows, Y).cv_results_["mean_test_score"]
    np.testing.assert_allclose(found, theirs, rtol=0 if how == "threads" else 1e-5)
    np.testing.assert_array_equal(found[4:], theirs[4:])  # L-BFGS is fitted by itself


def test_nothing_is_kept_of_arrays_that_one_fit_made(monkeypatch):
    meetings = []
    monkeypatch.setattr(fits, "Meeting", lambda *args: meetings.append(Meeting(*args)) or meetings[-1])
    for rows, labels in ((pd.DataFrame(X), Y), (X, Y.astype(str)), (X, Y)):
        for alphas in ([1.0], [0.1, 1.0, 10.0]):
            pc.PopulationSearchCV(MLP, {"alpha": alphas}, cv=3, how="threads").fit(rows, labels)
    kept = [len(meeting.kept) for meeting in meetings]
    assert kept[0::2] == kept[1::2]
    assert kept[0] < kept[2] < kept[4]


def test_the_refit_of_a_meta_estimator_is_no_fit_of_the_search():
    bag = BaggingClassifier(BY_NUMPY, n_estimators=2, random_state=0)
    theirs = GridSearchCV(bag, {"max_samples": [0.5, 1.0]}, cv=2).fit(X, Y)
    assert_same_results(pc.PopulationSearchCV(bag, {"max_samples": [0.5, 1.0]}, cv=2, how="threads").fit(X, Y), theirs, True)


def test_what_is_kept_of_an_array_is_kept_only_where_nobody_can_change_it():
    meeting, seen = Meeting(1, 1, False), []
    a = np.arange(3.0)

    def total(array):
        return meeting.once(array, "total", lambda array: seen.append(array) or array.sum())

    assert (total(a), total(a), len(seen)) == (3, 3, 2)
    fixed = a.copy()
    fixed.flags.writeable = False
    assert (total(fixed), total(fixed), total(fixed[:2]), total(fixed[:2]), len(seen)) == (3, 3, 1, 1, 5)
    assert meeting.once(fixed, "largest", np.max) == 2


@HOW
def test_sequences_of_different_length_are_searched(how):
    sequences = [X[i : i + 2 + i % 3] for i in range(40)]
    model, grid = clone(NET).set_params(net=pc.RNN(4)), {"optimizer__learning_rate": [1e-3, 1e-2]}
    mine = pc.PopulationSearchCV(model, grid, cv=2, how=how, refit=False).fit(sequences, np.arange(40) % 2)
    theirs = GridSearchCV(model, grid, cv=2, refit=False).fit(sequences, np.arange(40) % 2)
    assert_same_results(mine, theirs, how == "threads")


# -------------------------------------------------------------------- fits that differ in numbers of their optimizer alone
@pytest.fixture
def runs(monkeypatch):
    """The fits that ran: guests are trained beside them."""
    ran, member = [], Meeting.member
    monkeypatch.setattr(Meeting, "member", lambda self, fit, guests=None: ran.append(guests) or member(self, fit, guests))
    return ran


@pytest.fixture
def beside(monkeypatch):
    """The guests that trained by themselves, on threads, from what their hosts had prepared; none begins before all are asked for."""
    trained, asked, all_there = [], [], threading.Event()
    submit, run, train = fits.Threads.submit, fits.Threads.run, fits.Fit.beside

    def submitting(self, *args, **more):
        asked.append(submit(self, *args, **more))
        if len(asked) == self.asked_for:
            all_there.set()
        return asked[-1]

    monkeypatch.setattr(fits.Threads, "submit", submitting)
    monkeypatch.setattr(fits.Threads, "release", lambda self: None)
    monkeypatch.setattr(fits.Threads, "run", lambda self, fit: all_there.wait() and run(self, fit))
    monkeypatch.setattr(fits.Fit, "beside", lambda self, *args: trained.append(self) or train(self, *args))
    return trained


WORTHWHILE = pytest.mark.parametrize("worthwhile", [True, False])
ALIKE = [
    (MLP, {"learning_rate_init": [0.001, 0.01, 0.03], "alpha": [0.01, 1.0], "beta_1": [0.8]}),
    (clone(MLP).set_params(solver="sgd"), {"learning_rate_init": [0.01, 0.1], "momentum": [0.5, 0.9]}),
    (NET, {"optimizer__learning_rate": [1e-3, 1e-2, 3e-2], "optimizer__weight_decay": [0.01, 0.1]}),
    (clone(NET).set_params(net=pc.Linear(6) >> pc.Dropout(0.3)), {"optimizer": [pc.SGD(0.01), pc.SGD(0.1)]}),
]


@WORTHWHILE
@pytest.mark.parametrize(("model", "grid"), ALIKE)
def test_candidates_that_differ_in_numbers_are_trained_beside_one_of_them(model, grid, worthwhile, runs, monkeypatch):
    """One fit runs for each fold, and one for all refits where they are worthwhile; nothing is different for it."""
    monkeypatch.setattr(fits.Refits, "want", lambda self, request, fits: worthwhile)
    options = {"cv": 3, "scoring": ["accuracy", "neg_log_loss"], "refit": "neg_log_loss", "return_train_score": True}
    theirs = GridSearchCV(model, grid, **options).fit(X, Y)
    trained, train = [], engine.train
    monkeypatch.setattr(engine, "train", lambda *args: trained.append(args) or train(*args))
    compared, like = [], type(model)._like
    monkeypatch.setattr(type(model), "_like", lambda self, rows: compared.append(rows) or like(self, rows))
    mine = pc.PopulationSearchCV(model, grid, how="batched", **options).fit(X, Y)
    candidates = len(theirs.cv_results_["params"])
    sizes = [len(X), *{len(rows) for rows, _ in StratifiedKFold(3).split(X, Y)}]
    assert sorted(compared) == sorted(sizes * candidates)  # once for all folds of a size
    assert [len(guests) for guests in runs] == [candidates - 1] * 4
    assert len(trained) == (0 if worthwhile else 1)  # the refit
    assert_same_results(mine, theirs, False)
    for name, value in theirs.best_estimator_.network_.parameters.items():
        np.testing.assert_allclose(mine.best_estimator_.network_.parameters[name], value, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(mine.best_estimator_.loss_curve_, theirs.best_estimator_.loss_curve_, rtol=1e-9)


@pytest.mark.parametrize(("model", "grid"), [*ALIKE, (clone(BY_NUMPY).set_params(max_iter=1), {"alpha": [0.1, 1.0, 2.0]})])
def test_on_threads_too_what_one_of_them_prepared_serves_all(model, grid, beside):
    """One fit is prepared for each fold, and one more for each thread that would wait; the numbers are bit for bit the same."""
    options = {"cv": 3, "scoring": ["accuracy", "neg_log_loss"], "refit": "neg_log_loss", "return_train_score": True}
    theirs = GridSearchCV(model, grid, **options).fit(X, Y)
    mine = pc.PopulationSearchCV(model, grid, how="threads", n_jobs=2, **options).fit(X, Y)
    assert len(beside) == 3 * len(theirs.cv_results_["params"]) - 4
    assert_same_results(mine, theirs, True)
    beside.clear()
    pc.PopulationSearchCV(model, {name: values[:1] for name, values in grid.items()}, how="threads", n_jobs=2, **options).fit(X, Y)
    assert not beside


def test_on_threads_a_guest_that_ends_early_or_fails_does_what_its_own_fit_would(beside):
    model = clone(MLP).set_params(max_iter=40, tol=0.01, n_iter_no_change=3, solver="sgd")
    grid, options = {"learning_rate_init": [0.05, 1e300, 1e-5, 0.1]}, {"cv": 3, "scoring": "neg_log_loss", "error_score": -99.0}
    with pytest.warns(FitFailedWarning, match="3 fits failed out of a total of 12"):
        theirs = GridSearchCV(model, grid, **options).fit(X, Y)
    with pytest.warns(FitFailedWarning, match="3 fits failed out of a total of 12"):
        mine = pc.PopulationSearchCV(model, grid, how="threads", n_jobs=2, **options).fit(X, Y)
    assert len(beside) == 8
    assert any(fit.shortened for fit in beside)
    assert_same_results(mine, theirs, True)


def test_on_threads_no_guest_waits_for_its_host_while_a_thread_is_idle(monkeypatch):
    """Four of five begin at once; the fourth, whose guest the fifth is, ends only when that one has been trained."""
    rates, there, train = [0.01, 0.02, 0.03, 0.04, 0.05], threading.Event(), engine.train

    def training(*args):
        rate = np.asarray(args[-1].rates)[0]
        assert rate != 0.04 or there.wait(30)
        if rate == 0.05:
            there.set()
        return train(*args)

    monkeypatch.setattr(engine, "train", training)
    cv = [(np.arange(0, 150, 2), np.arange(1, 150, 2))]
    search = pc.PopulationSearchCV(MLP, {"learning_rate_init": rates}, cv=cv, how="threads", n_jobs=2, refit=False, error_score="raise")
    assert np.isfinite(search.fit(X, Y).cv_results_["mean_test_score"]).all()


@HOW
def test_nobody_keeps_the_networks_of_fits_that_have_ended(how, monkeypatch):
    alive, most, build = weakref.WeakSet(), [], pc.Network.__init__

    def building(self, *args, **options):
        build(self, *args, **options)
        alive.add(self)
        most.append(len(alive))

    monkeypatch.setattr(pc.Network, "__init__", building)
    gc.disable()
    try:
        for grid in ({"random_state": list(range(8))}, {"learning_rate_init": [0.01, 0.02, 0.03]}):
            pc.PopulationSearchCV(clone(MLP).set_params(max_iter=2), grid, cv=3, how=how, n_jobs=2, refit=False).fit(X, Y)
            assert not alive
        assert len(most) >= 24
        assert how == "batched" or max(most) <= 8
    finally:
        gc.enable()


@HOW
def test_guests_are_scored_in_scikit_learns_configuration(how):
    """Which is every thread's own: here, errors that are not finite are none."""
    rows = np.random.default_rng(0).normal(size=(90, 1)).astype("f4")
    y = 30 * rows[:, 0]
    rows[60:] = np.abs(rows[60:]) * np.float32(1e38)
    model = pc.NetworkRegressor(pc.Linear(1), head=None, epochs=60, random_state=0, engine="jax", optimizer=pc.SGD(0.05))
    options = {"cv": [(np.arange(60), np.arange(60, 90))] * 2, "scoring": "neg_mean_squared_error", "refit": False}
    grid = {"optimizer__learning_rate": [1e-3, 1e-2, 3e-2, 0.1]}
    with config_context(assume_finite=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = GridSearchCV(model, grid, **options).fit(rows, y)
        mine = pc.PopulationSearchCV(model, grid, how=how, n_jobs=2, **options).fit(rows, y)
    assert np.isneginf(theirs.cv_results_["mean_test_score"]).all()
    np.testing.assert_array_equal(mine.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"])


@HOW
def test_a_number_that_float32_does_not_know_is_told_as_in_a_fit_of_its_own(how):
    model = pc.NetworkRegressor(pc.Linear(3) >> pc.Tanh(), epochs=3, random_state=0, engine="jax", optimizer=pc.SGD(0.01, clip_norm=1.0))
    grid, options = {"optimizer__clip_norm": [1.0, 2.0, 1e39, 3.0, 4.0]}, {"cv": 2, "error_score": -7.0, "refit": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="overflow")
        theirs = GridSearchCV(model, grid, **options).fit(X[:, :3].astype("f4"), X[:, 3])
        mine = pc.PopulationSearchCV(model, grid, how=how, n_jobs=2, **options).fit(X[:, :3].astype("f4"), X[:, 3])
    assert theirs.cv_results_["mean_test_score"][2] == -7
    np.testing.assert_allclose(mine.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"], rtol=1e-4)


def test_on_threads_those_that_train_in_several_chunks_are_fits_of_their_own(beside, monkeypatch):
    monkeypatch.setattr(choose, "TARGET", 0.0)
    grid = {"learning_rate_init": [0.01, 0.02, 0.03]}
    model = clone(MLP).set_params(max_iter=40)
    theirs = GridSearchCV(model, grid, cv=3).fit(X, Y)
    assert_same_results(pc.PopulationSearchCV(model, grid, how="threads", cv=3).fit(X, Y), theirs, True)
    assert not beside


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_on_threads_ctrl_c_ends_hosts_and_guests(jobs, monkeypatch):
    before, trained, train = threading.active_count(), [], engine.train
    monkeypatch.setattr(
        engine, "train", lambda *args: raise_(KeyboardInterrupt()) if len(trained) == 5 else trained.append(1) or train(*args)
    )
    with pytest.raises(KeyboardInterrupt):
        pc.PopulationSearchCV(MLP, {"alpha": np.linspace(0.1, 1, 6).tolist()}, cv=3, how="threads", n_jobs=jobs).fit(X, Y)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("rates", "spoiled"),
    [
        ([0.1, 1e-5, 0.02], None),
        ([1e-5, 0.1, 0.02], None),
        ([1e-5, 0.1, 0.02], MemoryError("the device is full")),
        ([1e-5, 0.1, 0.02], "weights"),
        ([1e-5, 0.1, 0.02], 1e9),
    ],
)
def test_a_guest_whose_fit_would_end_early_is_trained_up_to_there(rates, spoiled, runs, monkeypatch):
    """And gets a fit of its own where that fails, or where its last losses are not those that it would end with."""
    monkeypatch.setattr(fits.Refits, "want", lambda self, request, fits: False)  # a program of their own would come second
    trained, train = [], together.train

    def spoiling(group):
        trained.append(group)
        if len(trained) == 2 and isinstance(spoiled, Exception):
            raise spoiled
        train(group)
        if len(trained) == 2 and spoiled == "weights":
            monkeypatch.setattr(group[0].result[0].params.pile, "read", lambda field: raise_(MemoryError("the device is full")))
        elif len(trained) == 2 and spoiled:
            for request in group:
                state, sums, finite = request.result
                falling = np.ones(np.shape(sums))
                falling[:, 1] = np.linspace(spoiled, 1, len(falling))  # losses do not stop to
                request.result = state, np.asarray(sums) * falling, finite

    monkeypatch.setattr(together, "train", spoiling)
    model, grid = clone(MLP).set_params(max_iter=40, tol=0.01, n_iter_no_change=3), {"learning_rate_init": rates}
    options = {"cv": 3, "scoring": "neg_log_loss", "error_score": -99.0}
    theirs = GridSearchCV(model, grid, **options).fit(X, Y)
    ended = [clone(model).set_params(learning_rate_init=rate).fit(X, Y).n_iter_ for rate in rates]
    assert min(ended) < 40 == max(ended)  # or nothing is tried here
    assert_same_results(pc.PopulationSearchCV(model, grid, how="batched", **options).fit(X, Y), theirs, False)
    assert len(trained) > 1
    assert len(runs) == 4 if spoiled is None else 4 < len(runs) < 12


@pytest.mark.parametrize("model", [MLP, NET])
@pytest.mark.parametrize("labels", [[0, 1, 2], [3, 3, 7], ["setosa", "versicolor", "virginica"]])
def test_guests_are_scored_all_at_once_where_labels_are_numbers(model, labels, monkeypatch):
    y, rate = np.array(labels)[Y], "learning_rate_init" if model is MLP else "optimizer__learning_rate"
    grid, options = {rate: [1e-4, 0.003, 0.02]}, {"cv": 3, "refit": False, "return_train_score": True}
    theirs = GridSearchCV(model, grid, **options).fit(X, y)
    scored, score = [], Classifier.score
    monkeypatch.setattr(Classifier, "score", lambda self, *data: scored.append(self) or score(self, *data))
    assert_same_results(pc.PopulationSearchCV(model, grid, how="batched", **options).fit(X, y), theirs, False)
    assert len(scored) == (2 * 3 if y.dtype.kind == "i" else 2 * 9)  # hosts alone, or all


def test_nobody_computes_on_the_host_what_guests_give_for_images(monkeypatch):
    images, computed, outputs = X.reshape(-1, 2, 2, 1), [], pc.Network.outputs
    monkeypatch.setattr(pc.Network, "outputs", lambda self, *data, **options: computed.append(self) or outputs(self, *data, **options))
    model = pc.NetworkClassifier(pc.Conv2d(3, 2) >> pc.ReLU(), epochs=3, random_state=0, engine="jax", dtype="float64")
    grid, options = {"optimizer__learning_rate": [1e-3, 0.01, 0.03]}, {"cv": 3, "refit": False}
    theirs = GridSearchCV(model, grid, **options).fit(images, Y)
    for scoring in (None, "accuracy"):
        computed.clear()
        assert_same_results(pc.PopulationSearchCV(model, grid, how="batched", scoring=scoring, **options).fit(images, Y), theirs, False)
        assert len(computed) == 3  # hosts alone


class Balanced(pc.losses.SigmoidCrossEntropy):
    """Decides by all rows that it sees: half of them are of the second class."""

    def decide(self, ops, y):
        return (y > np.median(y)).astype(np.int64)[:, 0]


def test_a_users_loss_that_decides_by_many_rows_sees_those_of_one_network(monkeypatch):
    model, grid = clone(NET).set_params(loss=Balanced()), {"optimizer__learning_rate": [1e-4, 0.003, 0.02]}
    theirs = GridSearchCV(model, grid, cv=3).fit(X, Y > 0)
    assert_same_results(pc.PopulationSearchCV(model, grid, cv=3, how="batched").fit(X, Y > 0), theirs, False)


def test_guests_and_refits_whose_training_fails_on_the_device_get_fits_of_their_own(runs, monkeypatch):
    """Which is found out when somebody looks at what has come of it."""
    train, broken = together.train, MemoryError("the device is full")

    class Broken(pile.Later):
        def __array__(self, dtype=None, copy=None):
            raise broken

    def breaking(group):
        train(group)
        for request in group:
            if request.guests is None or request.guests.together:  # hosts of a fold are well
                state, *outcome = request.result
                request.result = state, *(Broken(one.array, one.index) for one in outcome)

    monkeypatch.setattr(together, "train", breaking)
    model, grid = clone(MLP), {"learning_rate_init": [0.003, 0.01, 0.02]}
    theirs = GridSearchCV(model, grid, cv=3).fit(X, Y)
    monkeypatch.setattr(fits.Refits, "want", lambda self, request, fits: True)
    runs.clear()
    mine = pc.PopulationSearchCV(model, grid, cv=3, how="batched").fit(X, Y)
    assert_same_results(mine, theirs, False)
    assert np.allclose(mine.best_estimator_.coefs_[0], theirs.best_estimator_.coefs_[0], atol=1e-12)
    assert len(runs) > 4


@pytest.mark.parametrize("rates", [[1e300, 0.01, 0.02], [0.01, 1e300, 0.02]])
def test_a_guest_or_a_host_that_fails_gets_the_error_score(rates):
    model = pc.NetworkClassifier(pc.Linear(6) >> pc.ReLU(), epochs=6, random_state=0, engine="jax", optimizer="sgd")
    grid, options = {"optimizer__learning_rate": rates}, {"cv": 3, "error_score": -1.0}
    with pytest.warns(FitFailedWarning, match="3 fits failed out of a total of 9"):
        mine = pc.PopulationSearchCV(model, grid, how="batched", **options).fit(X, Y)
    with pytest.warns(FitFailedWarning):
        theirs = GridSearchCV(model, grid, **options).fit(X, Y)
    assert_same_results(mine, theirs, False)
    with pytest.raises(ArithmeticError, match="is not finite"):
        pc.PopulationSearchCV(model, grid, cv=3, how="batched", error_score="raise").fit(X, Y)


def test_a_guest_whose_numbers_cannot_be_had_gets_a_fit_of_its_own():
    """A rate that float32 does not know, where warnings are errors."""
    model, grid = clone(MLP).set_params(solver="sgd"), {"learning_rate_init": [0.01, 0.02, 1e300, 0.1]}
    options = {"cv": 3, "error_score": -1.0, "refit": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="overflow")
        theirs = GridSearchCV(model, grid, **options).fit(X.astype(np.float32), Y)
        mine = pc.PopulationSearchCV(model, grid, how="batched", **options).fit(X.astype(np.float32), Y)
    assert theirs.cv_results_["mean_test_score"][2] == -1
    np.testing.assert_allclose(mine.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"], atol=0.02)


def test_what_fails_for_all_is_told_to_all(monkeypatch):
    """Not as an end by Ctrl-C."""
    monkeypatch.setattr(together, "train_kinds", lambda requests: raise_(OSError("no device")))
    search = pc.PopulationSearchCV(MLP, {"learning_rate_init": [0.01, 0.02]}, cv=3, how="batched", error_score="raise", refit=False)
    with pytest.raises(OSError, match="no device"):
        search.fit(X, Y)


def test_guests_of_a_program_that_fails_get_fits_of_their_own(monkeypatch):
    monkeypatch.setattr(fits.Refits, "want", lambda self, request, fits: False)  # a program of their own might come first
    failures, train = [MemoryError("the device is full")], together.train
    monkeypatch.setattr(together, "train", lambda *args: raise_(failures.pop()) if failures else train(*args))
    grid = {"learning_rate_init": [0.001, 0.01, 0.02]}
    with pytest.warns(FitFailedWarning, match=r"3 fits failed out of a total of 9[\s\S]*the device is full"):
        mine = pc.PopulationSearchCV(MLP, grid, cv=3, how="batched", error_score=-1.0).fit(X, Y)
    theirs = GridSearchCV(MLP, grid, cv=3).fit(X, Y)
    np.testing.assert_allclose(mine.cv_results_["mean_test_score"][1:], theirs.cv_results_["mean_test_score"][1:])
    assert mine.cv_results_["mean_test_score"][0] == -1


@pytest.mark.parametrize("late", [False, True])
def test_outputs_that_the_device_cannot_compute_are_computed_on_the_host(late, monkeypatch, runs):
    full = MemoryError("the device is full")
    monkeypatch.setattr(fits, "outputs_of", lambda *args: (lambda: raise_(full)) if late else raise_(full))
    theirs = GridSearchCV(MLP, {"alpha": [0.1, 1.0]}, cv=3, return_train_score=True).fit(X, Y)
    mine = pc.PopulationSearchCV(MLP, {"alpha": [0.1, 1.0]}, cv=3, return_train_score=True, how="batched").fit(X, Y)
    assert_same_results(mine, theirs, False)
    assert [len(guests) for guests in runs] == [1] * 4


def raise_(error):
    raise error


def test_whoever_waits_is_told_when_the_search_ends_before_its_time(monkeypatch):
    """Splits that cannot be made, Ctrl-C while the program runs: no thread is left behind."""
    before = threading.active_count()
    monkeypatch.setattr(fits.Refits, "want", lambda self, request, fits: True)
    with pytest.raises(ValueError, match="n_splits=60 cannot be greater"):
        pc.PopulationSearchCV(MLP, {"alpha": [0.1, 0.2]}, cv=60, how="batched").fit(X, Y)
    monkeypatch.setattr(together, "train", lambda *args: raise_(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        pc.PopulationSearchCV(MLP, {"alpha": [0.1, 0.2]}, cv=3, how="batched").fit(X, Y)
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "grid",
    [
        {"net__0": [pc.Linear(8, name="first")], "optimizer__learning_rate": [0.01, 0.02]},  # then there is no net__0 any more
        {"batch_size": [0, 32]},
        {"batch_size": [32, 1, True]},
        {"epochs": [1, True]},
        {"early_stopping": [False, 0]},
    ],
)
def test_candidates_are_taken_as_they_are(grid):
    """Those that are wrong are nobody's guests, and settings are set once."""
    theirs = GridSearchCV(NET, grid, cv=3).fit(X, Y)
    assert_same_results(pc.PopulationSearchCV(NET, grid, cv=3, how="batched").fit(X, Y), theirs, False)


@pytest.mark.parametrize("first", [0.02, 0.09])
@pytest.mark.parametrize("epochs", [40, 9])  # one ends by itself, early or with its last epoch; two do not
def test_guests_warn_of_what_their_own_fits_would(epochs, first):
    model = clone(MLP).set_params(max_iter=epochs, tol=0.01, n_iter_no_change=3)
    assert clone(model).set_params(learning_rate_init=0.02).fit(X, Y).n_iter_ == 9
    options = {"cv": [(np.arange(150), np.arange(150))], "refit": False}
    grid = {"learning_rate_init": [first, 0.11 - first, 0.1]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ConvergenceWarning)
        theirs = GridSearchCV(model, grid, **options).fit(X, Y)
        mine = pc.PopulationSearchCV(model, grid, how="batched", **options).fit(X, Y)
    assert np.isnan(theirs.cv_results_["mean_test_score"]).sum() == 2
    assert_same_results(mine, theirs, False)


def test_a_guest_that_ends_by_itself_with_its_last_epoch_has_nothing_to_warn_of(runs):
    model = clone(MLP).set_params(max_iter=9, tol=0.01, n_iter_no_change=3)
    options = {"cv": [(np.arange(150), np.arange(150))], "refit": False, "how": "batched"}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pc.PopulationSearchCV(model, {"learning_rate_init": [0.02, 0.020001]}, **options).fit(X, Y)
    assert not [warning for warning in said if warning.category is ConvergenceWarning]
    assert [len(guests) for guests in runs] == [1]


def test_a_refit_that_would_run_on_numpy_is_not_foreseen(monkeypatch):
    trained, train = [], numpy_engine.train
    monkeypatch.setattr(numpy_engine, "train", lambda *args: trained.append((id(args[4]), len(args[4].x))) or train(*args))
    pc.PopulationSearchCV(clone(BY_NUMPY).set_params(max_iter=1), {"alpha": [0.1, 0.2]}, cv=3, how="batched").fit(X, Y)
    assert sorted(rows for _, rows in trained) == [100] * 6 + [150]


def test_rows_are_found_while_others_are_cut():
    rows = fits.SharedRows(np.arange(20.0).reshape(10, 2))
    rows.cut, ended = {}, []
    before = sys.getswitchinterval()

    def cutting():
        for _ in range(3000):
            rows[np.array([1, 2]), ...]
        ended.append(True)

    try:
        sys.setswitchinterval(1e-6)
        other = threading.Thread(target=cutting)
        other.start()
        while not ended:
            assert rows.origin(np.zeros(2)) is None
        other.join()
    finally:
        sys.setswitchinterval(before)
    assert len(rows.cut) == 3000


@pytest.mark.skipif(not hasattr(pc.MLPClassifier, "set_callbacks"), reason="scikit-learn has no callbacks yet")
def test_callbacks_of_scikit_learn_hear_of_every_fit():
    class Count:
        calls: ClassVar[list] = []

        def setup(self, estimator, context): ...
        def teardown(self, estimator, context): ...
        def on_fit_task_begin(self, *args, **more): ...
        def on_fit_task_end(self, *args, **more):
            self.calls.append(1)

    heard = []
    for search_of in (GridSearchCV, lambda *args, **more: pc.PopulationSearchCV(*args, how="batched", **more)):
        Count.calls.clear()
        model = clone(MLP).set_params(max_iter=1).set_callbacks(Count())
        search_of(model, {"alpha": [0.1, 0.2, 0.3]}, cv=3, refit=False).fit(X, Y)
        heard.append(len(Count.calls))
    assert heard[0] == heard[1] > 9


@pytest.mark.filterwarnings("ignore")
def test_a_fold_without_rows_to_score_gets_the_error_score_as_everywhere():
    options = {"cv": [(np.arange(150), np.arange(0)), (np.arange(100), np.arange(100, 150))], "error_score": -1.0, "refit": False}
    theirs = GridSearchCV(MLP, {"alpha": [0.1, 1.0]}, **options).fit(X, Y)
    assert_same_results(pc.PopulationSearchCV(MLP, {"alpha": [0.1, 1.0]}, how="batched", **options).fit(X, Y), theirs, False)


@pytest.mark.parametrize(
    "model",
    [
        clone(MLP).set_params(random_state=None),
        clone(MLP).set_params(random_state=np.random.RandomState(0)),
        clone(MLP).set_params(early_stopping=True),
        clone(MLP).set_params(solver="lbfgs"),
        clone(MLP).set_params(solver="sgd", learning_rate="adaptive"),
        clone(MLP).set_params(class_weight="balanced"),
        clone(NET).set_params(optimizer=pc.Adam(pc.Cosine(0.01))),
        clone(NET).set_params(validation=0.2),
    ],
)
def test_who_depends_on_more_than_numbers_is_nobodys_guest(model, runs):
    name = "alpha" if "alpha" in model.get_params() else "optimizer__weight_decay"
    pc.PopulationSearchCV(model, {name: [0.1, 0.2]}, cv=2, how="batched").fit(X, Y)
    assert [len(guests) for guests in runs] == [0] * 4


def test_numbers_that_are_zero_make_another_kind(runs):
    grid = {"alpha": [0.0, 0.1, 0.2]}
    theirs = GridSearchCV(MLP, grid, cv=3).fit(X, Y)
    assert_same_results(pc.PopulationSearchCV(MLP, grid, cv=3, how="batched").fit(X, Y), theirs, False)
    assert [len(guests) for guests in runs] == [0] * 3 + [1] * 3


def test_more_fits_than_train_at_once_have_guests_in_several_rounds(runs, monkeypatch):
    monkeypatch.setattr(search, "AT_ONCE", 7)
    sizes, train = [], together.train
    monkeypatch.setattr(together, "train", lambda group: sizes.append(len(group)) or train(group))
    grid = {"learning_rate_init": np.logspace(-3, -1, 8).tolist()}
    theirs = GridSearchCV(MLP, grid, cv=3).fit(X, Y)
    assert_same_results(pc.PopulationSearchCV(MLP, grid, cv=3, how="batched").fit(X, Y), theirs, False)
    assert max(sizes) <= 7
    assert sum(sizes) == 24
    assert 3 < len(runs) < 24


def test_rows_are_cut_on_the_device_from_the_array_that_was_given():
    """Not from the one it is a part of; row numbers may count from the end, and be a mask."""
    wide = np.hstack([np.full((150, 2), 1e3), X])
    order = np.random.default_rng(0).permutation(150)
    folds = [(order[:100], order[100:] - 150), (order[50:] - 150, order[:50]), (order < 90, order >= 90)]
    for rows, cv in ((wide[:, 2:], 3), (wide[::-1, 2:], 3), (X, folds)):
        options = {"cv": cv, "scoring": "neg_log_loss"}
        theirs = GridSearchCV(MLP, {"alpha": [0.1, 1.0]}, **options).fit(rows, Y)
        mine = pc.PopulationSearchCV(MLP, {"alpha": [0.1, 1.0]}, how="batched", **options).fit(rows, Y)
        np.testing.assert_allclose(mine.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"], rtol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_rows_that_are_not_finite_are_refused_in_the_folds_that_have_them():
    rows = X.copy()
    rows[[0, -1], 0] = np.nan
    options = {"cv": 3, "refit": False, "error_score": -1.0}
    theirs = GridSearchCV(MLP, {"alpha": [0.1, 1.0]}, **options).fit(rows[:-1], Y[:-1])
    mine = pc.PopulationSearchCV(MLP, {"alpha": [0.1, 1.0]}, how="batched", **options).fit(rows[:-1], Y[:-1])
    assert -1 in mine.cv_results_["split0_test_score"]
    assert_same_results(mine, theirs, False)


def test_a_clone_shares_nothing_that_can_change():
    for model in (pc.MLPClassifier([8, 4]), pc.MLPClassifier((8, 4)), pc.MLPClassifier(random_state=np.random.RandomState(0)), NET):
        copied, params = clone(model), model.get_params(deep=False)
        assert str(copied.get_params(deep=False).items()) == str(params.items()) or model.random_state is not None
        assert not any(getattr(copied, name) is value for name, value in params.items() if isinstance(value, list | np.random.RandomState))
    assert vars(clone(clone(MLP).fit(X, Y))).keys() == MLP.get_params(deep=False).keys()


def test_any_other_estimator_works_too():
    grid = {"C": [0.01, 1.0]}
    theirs = GridSearchCV(LogisticRegression(), grid).fit(X, Y)
    assert_same_results(pc.PopulationSearchCV(LogisticRegression(), grid).fit(X, Y), theirs, True)


def test_it_asks_for_a_grid_or_distributions():
    for wrong in ({}, {"param_grid": {"alpha": [1]}, "param_distributions": {"alpha": [1]}}):
        with pytest.raises(ValueError, match=r"param_grid= .* or param_distributions="):
            pc.PopulationSearchCV(MLP, **wrong).fit(X, Y)
    with pytest.raises(ValueError, match="how must be one of 'auto', 'threads', 'batched', got 'fast'"):
        pc.PopulationSearchCV(MLP, {"alpha": [1]}, how="fast").fit(X, Y)


SEARCH = pc.PopulationSearchCV(pc.MLPClassifier((10,), solver="lbfgs", max_iter=50, random_state=0), {"alpha": [0.1, 1.0]}, cv=2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), list(estimator_checks_generator(SEARCH)))
def test_scikit_learns_checks_of_a_search(estimator, check):
    check(estimator)


def test_a_search_leaves_the_filters_of_warnings_as_they_were():
    before = warnings.filters, list(warnings.filters)
    pc.PopulationSearchCV(pc.MLPClassifier(max_iter=2), {"alpha": [0.1, 0.2, 0.3, 0.4]}, cv=3, n_jobs=4, how="threads").fit(X, Y)
    assert warnings.filters is before[0]
    assert list(warnings.filters) == before[1]
