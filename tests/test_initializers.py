"""Initial values (N48): the moments and the geometry that each rule promises."""

import numpy as np
import pytest

import pellucid as pc


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize(("kind", "variance"), [(pc.Glorot, 2 / 500), (pc.He, 2 / 300), (pc.LeCun, 1 / 300)])
def test_scaled_initializers_have_mean_zero_and_the_promised_variance(kind, variance, distribution, rng):
    W = kind(distribution)(rng, (300, 200), 300, 200)
    assert abs(W.mean()) < 4 * np.sqrt(variance / W.size)
    assert W.var() == pytest.approx(variance, rel=0.03)
    if distribution == "uniform":
        assert np.abs(W).max() <= np.sqrt(3 * variance)


@pytest.mark.parametrize("shape", [(5, 5), (8, 3), (3, 8), (2, 3, 4)])
def test_orthogonal_rows_or_columns(shape, rng):
    W = pc.Orthogonal(2.0)(rng, shape, 0, 0).reshape(-1, shape[-1])
    small = W.T @ W if W.shape[0] >= W.shape[1] else W @ W.T
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-12)


def test_zeros_and_constants(rng):
    assert not pc.Zeros()(rng, (2, 3), 2, 3).any()
    assert (pc.Constant(1.5)(rng, (2, 3), 2, 3) == 1.5).all()
    np.testing.assert_array_equal(pc.Constant([[1, 2], [3, 4]])(rng, (2, 2), 2, 2), [[1, 2], [3, 4]])
    with pytest.raises(ValueError, match=r"values of shape \(2, 3\)"):
        pc.Constant([1.0, 2.0])(rng, (2, 3), 2, 3)


class Halves(pc.Initializer):
    def __call__(self, rng, shape, fan_in, fan_out):
        return np.full(shape, 0.5)


def test_an_initializer_of_the_users_own():
    assert (pc.Network(pc.Linear(3, init=Halves()), (2,)).parameters["W"] == 0.5).all()


def test_the_same_seed_begins_alike_and_in_the_precision_asked_for():
    a, b, c = (pc.Network(pc.Linear(3), (4,), seed=s, dtype=d).parameters["W"] for s, d in ((1, "float64"), (1, "float32"), (2, "float64")))
    assert (a.dtype, b.dtype) == (np.float64, np.float32)
    np.testing.assert_array_equal(a.astype(np.float32), b)
    assert not np.array_equal(a, c)
