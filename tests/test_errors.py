"""Bad use gets an error that names the layer, what was expected, what came, and a fix. Good use of any form is right."""

import numpy as np
import pytest

import pellucid as pc


def X_y(n=30):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 3, n)


def classifier(**options):
    return pc.Network(pc.Linear(5) >> pc.ReLU() >> pc.Linear(3), (4,), "softmax_cross_entropy", **options)


def refuses(function, *words, kind=(ValueError, TypeError)):
    with pytest.raises(kind) as caught:
        function()
    for word in words:
        assert word in str(caught.value), str(caught.value)


# -------------------------------------------------------------------- building
def test_wrong_shapes_are_found_when_a_network_is_built():
    refuses(lambda: pc.Network(pc.Linear(3) + pc.Linear(4), (2,)), "(3,), (4,)", "equal output shape for +", "same number of units")
    refuses(lambda: pc.Network((pc.Linear(3) >> pc.Sigmoid()) * pc.Linear(4), (2,)), "(3,), (4,)")
    refuses(lambda: pc.Network(pc.Linear(3) | pc.Flatten(), (2, 2)), "last axis only", "Flatten()")
    refuses(lambda: pc.Network(pc.Reshape((3, 3)), (8,)), "Reshape((3, 3))", "3 × 3", "(8,)")
    refuses(lambda: pc.Network(pc.Linear(2, mask=np.ones((3, 2))), (4,)), "mask of shape (4, 2)", "(3, 2)")
    refuses(lambda: pc.Network(pc.Linear(2), ()), "at least one feature axis")


def test_a_shape_error_says_where_in_the_network():
    inner = (pc.Linear(3) >> (pc.Linear(2) + pc.Linear(5))).named("block")
    refuses(lambda: pc.Network(pc.Tanh() >> inner, (2,)), "(at net.block.1)", "Linear(2) + Linear(5)")


def test_an_error_during_a_pass_says_where_in_the_network():
    class Broken(pc.Layer):
        def forward(self, ops, p, x):
            raise RuntimeError("my own mistake")

    net = pc.Linear(3) >> (pc.Tanh() | Broken().named("mine"))
    with pytest.raises(RuntimeError, match="my own mistake") as caught:
        pc.Network(net, (2,))([[1.0, 2.0]])
    assert caught.value.__notes__ == ["in net.1.mine: Broken().named('mine')"]


def test_nonsense_settings_are_refused_with_the_layer_and_the_field():
    refuses(lambda: pc.Linear(0), "Linear: units must be at least 1, got 0")
    refuses(lambda: pc.Linear(2.5), "Linear: units must be a whole number, got 2.5")
    refuses(lambda: pc.Linear("8"), "whole number")
    refuses(lambda: pc.Linear(True), "whole number")
    refuses(lambda: pc.Linear(3, bias=1), "bias must be True or False")
    refuses(lambda: pc.Dropout(1.0), "rate", "less than 1")
    refuses(lambda: pc.Dropout(float("nan")), "rate")
    refuses(lambda: pc.Sign("clipped"), "Did you mean 'clip'")
    refuses(lambda: pc.Linear(3, init="glorot"), "init must be Initializer")
    refuses(lambda: pc.Linear(3, init=pc.Glorot), "write Glorot()")
    refuses(lambda: pc.Elementwise(lambda xp, z: z, lambda xp, z: 1), "write it with def")
    refuses(lambda: pc.Huber(delta=0), "delta must be positive")
    refuses(lambda: pc.Linear(2).named("a.b"), "plain word")
    refuses(lambda: pc.Linear(2).named("a") | pc.Linear(2).named("a"), "two layers are named 'a'")


def test_misspelt_options_get_a_suggestion():
    refuses(lambda: pc.Linear(8, biass=False), "Linear has no option 'biass'", "Did you mean 'bias'")
    refuses(lambda: pc.Linear(unit=8), "Did you mean 'units'")
    refuses(lambda: classifier().fit(*X_y(), epoch=3), "Network.fit has no option 'epoch'", "Did you mean 'epochs'")
    refuses(lambda: pc.Network(pc.Linear(2), inputshape=(3,)), "Did you mean 'input_shape'")
    refuses(lambda: pc.Network(pc.Linear(2), (3,), "softmax_crossentropy"), "Did you mean 'softmax_cross_entropy'")
    refuses(lambda: classifier().fit(*X_y(), optimizer="adm"), "Did you mean 'adam'")
    refuses(lambda: classifier().fit(*X_y(), engine="jacks"), "engine must be", "'jacks'")
    refuses(lambda: classifier().fit(*X_y(), order="shufled"), "Did you mean 'shuffled'")
    refuses(lambda: classifier().set_parameters({"0.w": 1}), "Did you mean '0.W'")


def test_forgotten_parentheses_are_noticed():
    refuses(lambda: pc.Linear(3) >> pc.ReLU, "ReLU is a class; write ReLU(...)")
    refuses(lambda: pc.Linear(3) + 4, "+ joins two layers, got 4")
    refuses(lambda: pc.Network(pc.ReLU, (3,)), "Write ReLU(...)")
    refuses(lambda: classifier().fit(*X_y(), optimizer=pc.Adam), "write Adam()")
    refuses(lambda: pc.Network(pc.Linear(2), (3,), pc.SquaredError), "write SquaredError()")


# -------------------------------------------------------------------- data
def test_data_of_the_wrong_shape_is_refused_with_a_fix():
    X, y = X_y()
    refuses(lambda: classifier().fit(X[:, :3], y), "built for (batch, 4), got (30, 3)")
    refuses(lambda: classifier().predict(X[0]), "X[None]")
    refuses(lambda: classifier().predict(X.reshape(30, 2, 2)), "X.reshape(len(X), 4)", "Flatten()")
    refuses(lambda: classifier().fit(X, y[:-1]), "same number of rows, got 30 and 29")
    refuses(lambda: classifier().fit(X, y, validation=(X[:, :2], y)), "built for (batch, 4)")
    refuses(lambda: classifier().fit(3, y), "one entry per row")


def test_targets_are_never_broadcast():
    X, y = X_y()
    one = pc.Network(pc.Linear(1), (4,), dtype="float64")
    a = one.gradients(X, y.astype(float))
    b = one.gradients(X, y.astype(float)[:, None])
    assert a[0] == b[0]  # (n,) for one output is (n, 1), not (n, n)
    expected = ((one(X)[:, 0] - y) ** 2).mean()
    assert a[0] == pytest.approx(expected)
    two = pc.Network(pc.Linear(2), (4,))
    refuses(lambda: two.fit(X, y), "the network gives (batch, 2)", "got (batch,)")
    refuses(lambda: two.fit(X, y[:, None]), "got (batch, 1)")
    refuses(lambda: classifier().fit(X, y[:, None]), "y.ravel()")
    from pellucid.engines.numpy import NumpyOps

    for loss in (pc.SquaredError(), pc.Huber(), pc.SigmoidCrossEntropy(), pc.BinaryCrossEntropy()):
        refuses(lambda loss=loss: loss(NumpyOps(), np.ones((5, 1)), np.ones(5)), "nothing is broadcast")
    refuses(lambda: pc.SoftmaxCrossEntropy()(NumpyOps(), np.ones((5, 3)), np.ones((4,), int)), "need class numbers (5,)")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_their_place(bad):
    X, y = X_y()
    X[7, 2] = bad
    refuses(lambda: classifier().fit(X, y), "X has 1 values that are not finite", "row 7, column 2")
    refuses(lambda: classifier().predict(X), "row 7, column 2")
    target = X_y()[0][:, 0].astype(float)
    target[3] = bad
    refuses(lambda: pc.Network(pc.Linear(1), (4,)).fit(X_y()[0], target), "y has 1 values", "row 3")


def test_numbers_too_large_for_float32_are_refused_and_fit_into_float64():
    X, _ = X_y()
    X = X.astype(float)
    X[0, 0] = 1e39
    refuses(lambda: classifier().predict(X), "too large for float32", "dtype='float64'")
    assert np.isfinite(classifier(dtype="float64")(X)).all()


def test_empty_data_are_refused():
    X, y = X_y()
    for empty in (X[:0], [], np.empty((0, 4))):
        refuses(lambda empty=empty: classifier().fit(empty, y[:0]), "X is empty")
    refuses(lambda: classifier().predict(X[:0]), "X is empty")
    refuses(lambda: classifier().fit(X, []), "y is empty")


def test_labels_outside_the_classes_are_refused():
    X, y = X_y()
    y = y.copy()
    y[4] = 3
    refuses(lambda: classifier().fit(X, y), "from 0 to 2", "got 3", "Give the last layer 4 units")
    y[4] = -1
    refuses(lambda: classifier().fit(X, y), "got -1")
    refuses(lambda: classifier().fit(X, y + 0.5), "whole")
    refuses(lambda: classifier().fit(X, np.array(["cat", "dog"] * 15)), "Encode class names")
    refuses(lambda: classifier().fit(X, np.full((30, 3), 0.5)), "sum to 1")
    binary = pc.Network(pc.Linear(1), (4,), "sigmoid_cross_entropy")
    refuses(lambda: binary.fit(X, np.where(y > 0, 1, -1)), "−1/1 as 0/1")
    refuses(lambda: pc.Network(pc.Linear(1), (4,), "softmax_cross_entropy").fit(X, y * 0), "2 outputs or more", "SigmoidCrossEntropy")


def test_one_class_alone_warns_and_trains():
    X, _ = X_y()
    with pytest.warns(UserWarning, match="all 30 rows are of class 1"):
        history = classifier().fit(X, np.ones(30, int), epochs=2, validation=0.2, engine="numpy")
    assert len(history) == 2


def test_weights_that_make_no_sense_are_refused():
    X, y = X_y()
    w = np.ones(30)
    for value, words in [(-1.0, "must not be negative"), (np.nan, "not finite"), (np.inf, "not finite")]:
        bad = w.copy()
        bad[5] = value
        refuses(lambda bad=bad: classifier().fit(X, y, sample_weight=bad), "sample_weight", words, "row 5")
    refuses(lambda: classifier().fit(X, y, sample_weight=w[:-1]), "shape (30,)", "(29,)")
    refuses(lambda: classifier().fit(X, y, sample_weight=0 * w), "zero in every row")
    refuses(lambda: classifier().fit(X, y, class_weight={5: 1.0}), "class 5", "0 to 2")
    refuses(lambda: classifier().fit(X, y, class_weight="balance"), "'balanced'")
    refuses(lambda: pc.Network(pc.Linear(1), (4,)).fit(X, y, class_weight="balanced"), "sample_weight instead")


def test_options_of_fit_that_make_no_sense_are_refused():
    X, y = X_y()
    fit = classifier().fit
    refuses(lambda: fit(X, y, epochs=0), "epochs must be at least 1")
    refuses(lambda: fit(X, y, epochs=2.5), "epochs must be a whole number")
    refuses(lambda: fit(X, y, batch_size=0), "batch_size must be at least 1")
    refuses(lambda: fit(X, y, validation=1.5), "between 0 and 1")
    refuses(lambda: fit(X, y, validation=0.001), "leaves 0 for validation")
    refuses(lambda: fit(X, y, validation=(X,)), "tuple of 1")
    refuses(lambda: fit(X, y, resume=True), "needs checkpoint=")
    refuses(lambda: fit(X, y, callbacks=[3]), "callbacks must be")
    refuses(lambda: fit(X, y, early_stopping=0), "patience")
    refuses(lambda: fit(X, y, checkpoint="/no/such/folder/x"), "does not exist", kind=FileNotFoundError)
    refuses(lambda: fit(X, y, checkpoint="x", optimizer="lbfgs"), "LBFGS cannot be checkpointed")
    refuses(lambda: classifier(seed=-1), "seed must be")
    refuses(lambda: classifier(dtype="int32"), "float32")
    refuses(lambda: pc.Network(pc.Linear(2), (0,)), "input_shape")


def test_a_batch_size_larger_than_the_data_takes_all_rows():
    X, y = X_y()
    a, b = classifier(), classifier()
    a.fit(X, y, batch_size=1000, epochs=3, engine="numpy")
    b.fit(X, y, batch_size=30, epochs=3, engine="numpy")
    np.testing.assert_array_equal(a.parameters["0.W"], b.parameters["0.W"])


def test_data_of_any_form_train_alike_and_are_left_alone():
    import pandas as pd

    pl = pytest.importorskip("polars")

    X, y = X_y()
    X = np.round(X * 4)
    forms = {
        "float64": (X.astype(float), y),
        "integers": (X.astype(int), y.astype(np.int8)),
        "Fortran order": (np.asfortranarray(X), y),
        "strided": (np.repeat(X, 2, 0)[::2], np.repeat(y, 2)[::2]),
        "big endian": (X.astype(">f8"), y.astype(">i4")),
        "lists": (X.tolist(), y.tolist()),
        "pandas": (pd.DataFrame(X, columns=list("abcd")), pd.Series(y)),
        "pandas nullable": (pd.DataFrame(X).astype("Float64"), pd.Series(y).astype("Int64")),
        "polars": (pl.DataFrame(X), pl.Series(y)),
        "float16": (X.astype(np.float16), y.astype(bool).astype(int) * 0 + y),
    }
    expected = classifier()
    X.setflags(write=False)
    y.setflags(write=False)
    expected.fit(X, y, epochs=2, engine="numpy")
    for name, (X_form, y_form) in forms.items():
        net = classifier()
        net.fit(X_form, y_form, epochs=2, engine="numpy")
        np.testing.assert_array_equal(net.parameters["0.W"], expected.parameters["0.W"], err_msg=name)
        np.testing.assert_array_equal(net.predict(X_form), expected.predict(X), err_msg=name)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_the_callers_arrays_are_never_changed(engine):
    X, y = X_y()
    w = np.ones(30)
    w[3] = 0
    before = X.copy(), y.copy(), w.copy()
    classifier().fit(X, y, sample_weight=w, epochs=2, engine=engine, validation=0.2)
    for a, b in zip((X, y, w), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_data_that_are_no_numbers_are_refused_by_name():
    import pandas as pd
    import scipy.sparse as sp

    X, y = X_y()
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame["c"] = "text"
    refuses(lambda: classifier().fit(frame, y), "column 'c' is not numeric")
    refuses(lambda: classifier().fit(sp.csr_matrix(X), y), "toarray()")
    refuses(lambda: classifier().fit([[1, 2, 3, 4], [1, 2]], [0, 1]), "differ in length")
    refuses(lambda: classifier().fit(X.astype(complex), y), "complex")
    refuses(lambda: classifier().fit(np.ma.masked_less(X, 0), y), "masked")
    refuses(lambda: classifier().fit(X.astype(str), y), "X must be numbers")
    frame = pd.DataFrame(X)
    frame.iloc[4, 1] = None
    refuses(lambda: classifier().fit(frame, y), "row 4, column 1")


def test_parameters_of_the_wrong_shape_are_refused():
    refuses(lambda: classifier().set_parameters({"0.W": np.ones((2, 2))}), "shape (4, 5)", "(2, 2)")


def test_a_wrong_backward_is_found_and_named(rng):
    class Wrong(pc.Linear):
        def backward(self, ops, p, x, dz, wrt_input=True):
            dx, grads = super().backward(ops, p, x, dz, wrt_input)
            return dx, {**grads, "W": 2 * grads["W"]}

    report = pc.check_layer(pc.Tanh() >> Wrong(3), (2,))
    assert not report
    assert report.worst.name == "1.W"
    assert "WRONG" in str(report)
    assert "gradients disagree, worst at 1.W" in str(report)
    model = pc.Network(Wrong(1), (2,), dtype="float64")
    assert not model.check_gradients(rng.normal(size=(4, 2)), rng.normal(size=4))


def test_kinks_are_skipped_and_said_so():
    model = pc.Network(pc.ReLU() >> pc.Linear(1) >> pc.ReLU(), (2,), dtype="float64")
    report = model.check_gradients(np.zeros((3, 2)), np.ones(3))  # the last ReLU stands exactly on its kink
    assert report
    assert "at kinks skipped" in str(report)
