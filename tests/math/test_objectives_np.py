"""Neyman-Pearson objectives."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import differences

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import NeymanPearson


def make(seed=0, shape=(4,), dtype=np.float64, rows=(7, 5)):
    rng = np.random.default_rng(seed)
    return NeymanPearson(
        rng.normal(size=(rows[0], *shape)).astype(dtype),
        rng.normal(size=(rows[1], *shape)).astype(dtype),
    )


@given(st.integers(0, 10**6), st.sampled_from([(1,), (4,), (2, 3)]))
def test_gradients_against_finite_differences(seed, shape):
    f = make(seed, shape)
    x = np.random.default_rng(seed + 1).normal(size=shape)
    assert f.shape == f.gradient(x).shape == f.constraint_gradient(x).shape == shape
    close = {"rtol": 1e-5, "atol": 1e-8}
    np.testing.assert_allclose(f.gradient(x), differences(f.value, x), **close)
    np.testing.assert_allclose(
        f.constraint_gradient(x), differences(f.constraint_value, x), **close
    )


def test_values():
    f = make()
    x = np.random.default_rng(1).normal(size=4)
    assert f.value(x) == pytest.approx(np.log1p(np.exp(-f.A0 @ x)).mean(), rel=1e-13)
    assert f.constraint_value(x) == pytest.approx(np.log1p(np.exp(f.A1 @ x)).mean(), rel=1e-13)
    assert f.num_examples == 7
    value, gradient = f.value_and_gradient(x)
    assert value == f.value(x)
    assert np.array_equal(gradient, f.gradient(x))


def test_constants_bound_the_curvature():
    f = make()
    rng = np.random.default_rng(2)
    for _ in range(50):
        x, y = rng.normal(size=(2, 4)) * 0.1
        away = np.linalg.norm(x - y)
        assert np.linalg.norm(f.gradient(x) - f.gradient(y)) <= f.smoothness * away
        change = f.constraint_gradient(x) - f.constraint_gradient(y)
        assert np.linalg.norm(change) <= f.constraint_smoothness * away
    assert f.strong_convexity == 0


@pytest.mark.filterwarnings("error")
def test_no_overflow():
    f = NeymanPearson(np.array([[1.0], [2.0]]), np.array([[3.0]]))
    for x in (np.array([1e5]), np.array([-1e5])):
        numbers = [f.value(x), f.constraint_value(x), *f.gradient(x), *f.constraint_gradient(x)]
        assert np.isfinite(numbers).all()
    assert f.constraint_value(np.array([1e5])) == 3e5
    assert f.value(np.array([1e5])) == 0


def test_minibatches_are_of_the_objective():
    f = make()
    x = np.ones(4)
    rng = np.random.default_rng(0)
    draws = [f.stochastic_gradient(x, rng, 2) for _ in range(4000)]
    np.testing.assert_allclose(np.mean(draws, axis=0), f.gradient(x), atol=0.03)
    assert np.array_equal(f.batch_gradient(x, np.arange(7)), f.gradient(x))


def test_float32_and_pickle():
    f = make(dtype=np.float32)
    x = np.ones(4, np.float32)
    assert f.dtype == f.gradient(x).dtype == f.constraint_gradient(x).dtype == np.float32
    copy = pickle.loads(pickle.dumps(f))
    assert copy.constraint_value(x) == f.constraint_value(x)


@pytest.mark.parametrize(
    ("A0", "A1"),
    [
        (np.ones((2, 3)), np.ones((2, 4))),
        (np.ones((0, 3)), np.ones((2, 3))),
        (np.ones((2, 3)), np.ones((0, 3))),
        (np.ones(3), np.ones(3)),
        (1.0, 2.0),
        (np.ones((2, 3)), np.full((2, 3), np.nan)),
        ([[1.0], [1.0, 2.0]], np.ones((2, 1))),
    ],
    ids=str,
)
def test_data_that_do_not_fit(A0, A1):
    with pytest.raises(ConfigError, match="NeymanPearson"):
        NeymanPearson(A0, A1)


def test_other_models_are_refused():
    with pytest.raises(ConfigError, match="takes x of shape"):
        make().constraint_value(np.ones(3))
