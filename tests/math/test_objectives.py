"""Objectives: values, gradients, constants and the errors of wrong data."""

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import differences
from sklearn.linear_model import LogisticRegression as SkLogistic
from sklearn.metrics import log_loss

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import (
    LeastSquares,
    LogisticRegression,
    Objective,
    Quadratic,
    Scaled,
    SoftmaxRegression,
)

KINDS = ("least squares", "trace", "quadratic", "logistic", "softmax", "scaled")


def make(kind, m=7, d=4, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(m, d)).astype(dtype)
    b = rng.normal(size=m).astype(dtype)
    if kind == "least squares":
        return LeastSquares(A, b, scale=1.7)
    if kind == "trace":
        return LeastSquares(rng.normal(size=(m, d, 3)).astype(dtype), b)
    if kind == "quadratic":
        return Quadratic((A.T @ A).astype(dtype), rng.normal(size=d).astype(dtype))
    if kind == "logistic":
        return LogisticRegression(A, np.where(b > 0, 1, -1), l2=0.3)
    if kind == "softmax":
        return SoftmaxRegression(A, rng.integers(0, 3, size=m), 3, l2=0.3)
    return Scaled(make("logistic", m, d, seed, dtype), 2.5)


@given(st.sampled_from(KINDS), st.integers(1, 9), st.integers(1, 5), st.integers(0, 10**6))
def test_gradients_against_finite_differences(kind, m, d, seed):
    f = make(kind, m, d, seed)
    x = np.random.default_rng(seed + 1).normal(size=f.shape)
    gradient = f.gradient(x)
    assert gradient.shape == x.shape
    np.testing.assert_allclose(gradient, differences(f.value, x), rtol=1e-5, atol=1e-7)
    value, same = f.value_and_gradient(x)
    assert value == pytest.approx(f.value(x), rel=1e-14)
    np.testing.assert_allclose(same, gradient, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_constants_bound_the_curvature(kind):
    f = make(kind, m=12)
    rng = np.random.default_rng(5)
    for _ in range(50):
        x, y = rng.normal(size=(2, *f.shape))
        move = (x - y).ravel()
        change = (f.gradient(x) - f.gradient(y)).ravel()
        square = move @ move
        assert np.linalg.norm(change) <= f.smoothness * np.sqrt(square) * (1 + 1e-12)
        assert change @ move >= f.strong_convexity * square * (1 - 1e-12)


def test_constants_by_hand():
    A = np.diag([1.0, 2.0, 3.0])
    f = LeastSquares(A, np.zeros(3), scale=2.0)
    assert (f.smoothness, f.strong_convexity) == pytest.approx((6.0, 2 / 3))
    assert LeastSquares(A[:2], np.zeros(2)).strong_convexity == 0.0
    assert LeastSquares(np.ones((3, 2)), np.zeros(3)).strong_convexity == 0.0  # rank 1
    g = LogisticRegression(A, [1, -1, 1], l2=0.5)
    assert (g.smoothness, g.strong_convexity) == pytest.approx((0.75 + 0.5, 0.5))
    h = SoftmaxRegression(A, [0, 1, 1], 2, l2=0.5)
    assert (h.smoothness, h.strong_convexity) == pytest.approx((1.5 + 0.5, 0.5))
    q = Quadratic(np.diag([-3.0, 2.0]), np.zeros(2))
    assert (q.smoothness, q.strong_convexity) == (3.0, 0.0)


def test_values_by_hand():
    f = LeastSquares(np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([1.0, 1.0]), scale=2.0)
    assert f.value(np.ones(2)) == 2.0  # residuals 2 and 0
    np.testing.assert_array_equal(f.gradient(np.ones(2)), [2.0, 4.0])
    trace = LeastSquares(np.arange(8.0).reshape(2, 2, 2), np.zeros(2))
    assert trace.shape == (2, 2)
    assert trace.value(np.eye(2)) == (3**2 + 11**2) / 4
    g = LogisticRegression(np.array([[1.0]]), [1], l2=2.0)
    assert g.value(np.ones(1)) == pytest.approx(np.log(1 + np.exp(-1)) + 1)
    h = SoftmaxRegression(np.array([[1.0]]), [1], 2)
    assert h.value(np.array([[0.0, 1.0]])) == pytest.approx(np.log(1 + np.exp(-1)))


def test_logistic_losses_against_scikit_learn():
    rng = np.random.default_rng(3)
    A = rng.normal(size=(50, 4))
    y = np.sign(A[:, 0] + rng.normal(size=50))
    model = SkLogistic(fit_intercept=False).fit(A, y)
    expected = log_loss(y, model.predict_proba(A))
    assert LogisticRegression(A, y).value(model.coef_[0]) == pytest.approx(expected)
    X = np.stack([np.zeros(4), model.coef_[0]], axis=1)
    two = SoftmaxRegression(A, (y > 0).astype(int), 2)
    assert two.value(X) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_huge_logits_stay_finite(kind, dtype):
    f = make(kind, dtype=dtype)
    x = np.full(f.shape, 1e4, dtype=dtype) * np.sign(np.arange(f.shape[-1]) - 1.2).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, gradient = f.value_and_gradient(x)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert np.isfinite(f.gradient(x)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_dtypes_and_pickles(kind, dtype):
    f = make(kind, dtype=dtype)
    assert f.dtype == dtype
    x = np.random.default_rng(0).normal(size=f.shape).astype(dtype)
    before = x.copy()
    rng = np.random.default_rng(0)
    for gradient in (f.gradient(x), f.value_and_gradient(x)[1], f.stochastic_gradient(x, rng, 2)):
        assert gradient.dtype == dtype
        assert gradient.shape == f.shape
    np.testing.assert_array_equal(x, before)
    assert isinstance(f.value(x), float)
    L = f.smoothness
    again = pickle.loads(pickle.dumps(f))
    np.testing.assert_array_equal(again.gradient(x), f.gradient(x))
    assert again.smoothness == L
    assert type(f).__name__ in repr(f)


def test_one_float64_array_makes_float64():
    f = LeastSquares(np.ones((2, 2), np.float32), np.ones(2))
    assert f.dtype == np.float64
    # Labels do not count.
    assert LogisticRegression(np.ones((2, 2), np.float32), [1, -1]).dtype == np.float32


@pytest.mark.parametrize("kind", ["least squares", "trace", "logistic", "softmax", "scaled"])
def test_minibatches(kind):
    f = make(kind, m=6)
    x = np.random.default_rng(2).normal(size=f.shape)
    singles = np.array([f.batch_gradient(x, np.array([i])) for i in range(6)])
    np.testing.assert_allclose(f.gradient(x), singles.mean(axis=0), rtol=1e-12)
    rows = np.array([4, 1])
    np.testing.assert_allclose(f.batch_gradient(x, rows), singles[rows].mean(axis=0), rtol=1e-12)
    rng = np.random.default_rng(0)
    draws = np.array([f.stochastic_gradient(x, rng, 2) for _ in range(2000)])
    spread = singles.std(axis=0) / np.sqrt(2 * 2000)
    assert (np.abs(draws.mean(axis=0) - f.gradient(x)) <= 5 * spread + 1e-12).all()
    state = rng.bit_generator.state
    for size in (None, 6, 100):
        np.testing.assert_array_equal(f.stochastic_gradient(x, rng, size), f.gradient(x))
    assert rng.bit_generator.state == state
    # Without replacement: five of six rows never weigh one row twice.
    for _ in range(20):
        gradient = f.stochastic_gradient(x, rng, 5)
        left_out = 6 * f.gradient(x) - 5 * gradient
        assert np.abs(singles - left_out).reshape(6, -1).max(axis=1).min() < 1e-12


def test_bad_batches():
    f = make("least squares")
    x = np.zeros(4)
    rng = np.random.default_rng(0)
    for size in (0, -1, 2.0, True):
        with pytest.raises(ConfigError, match="batch_size must be a whole number >= 1"):
            f.stochastic_gradient(x, rng, size)
        with pytest.raises(ConfigError, match="batch_size must be a whole number >= 1"):
            Scaled(f, 1.0).stochastic_gradient(x, rng, size)
    for rows in ([], [0.0], [[0]], [True]):
        with pytest.raises(ConfigError, match="array of integers"):
            f.batch_gradient(x, np.array(rows))
    with pytest.raises(ConfigError, match="define batch_gradient"):
        make("quadratic").batch_gradient(x, np.array([0]))
    assert (make("quadratic").stochastic_gradient(x, rng, 1) == make("quadratic").gradient(x)).all()


class Bare:
    def value(self, x):
        return float(x @ x)

    def gradient(self, x):
        return 2 * x


class Own(Objective):
    shape = (2,)

    def value(self, x):
        return 0.0

    def gradient(self, x):
        return np.zeros(2)


def test_scaling_any_object():
    f = Scaled(Bare(), 0.5)
    x = np.array([1.0, 2.0])
    assert f.value(x) == 2.5
    np.testing.assert_array_equal(f.gradient(x), x)
    np.testing.assert_array_equal(f.value_and_gradient(x)[1], x)
    np.testing.assert_array_equal(f.stochastic_gradient(x, np.random.default_rng(0), 3), x)
    assert (f.num_examples, f.smoothness, f.strong_convexity) == (1, None, None)
    assert not hasattr(f, "batch_gradient")  # clients then ask for a stochastic_gradient
    inner = make("logistic")
    assert Scaled(inner, 3.0).smoothness == 3 * inner.smoothness
    assert Scaled(inner, 3.0).num_examples == 7
    with pytest.raises(ConfigError, match="factor"):
        Scaled(inner, -1.0)


def test_a_users_own_objective():
    f = Own()
    assert (f.num_examples, f.smoothness, f.dtype) == (1, None, np.float64)
    assert f.value_and_gradient(np.zeros(2))[0] == 0.0
    assert repr(f) == "<Own: 1 examples, shape (2,)>"


ONES = np.ones((3, 2))


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: LeastSquares(ONES, np.ones(2)), r"A has 3 rows, so b must have shape \(3,\)"),
        (lambda: LeastSquares(np.ones(3), np.ones(3)), r"\(examples, \*model shape\)"),
        (lambda: LeastSquares(np.ones((0, 2)), np.ones(0)), "all >= 1"),
        (lambda: LeastSquares(ONES * np.nan, np.ones(3)), "not finite"),
        (lambda: LeastSquares(ONES, np.ones(3), scale=0), "finite and > 0"),
        (lambda: LeastSquares("text", np.ones(3)), "array of numbers"),
        (lambda: Quadratic(np.array([[1.0, 1], [0, 1]]), np.ones(2)), r"\(Q \+ Q.T\) / 2"),
        (lambda: Quadratic(np.eye(2), np.ones(3)), r"shape \(d, d\)"),
        (lambda: Quadratic(np.ones((2, 3)), np.ones(2)), r"shape \(d, d\)"),
        (lambda: LogisticRegression(ONES, [0, 1, 1]), r"2 \* y - 1"),
        (lambda: LogisticRegression(ONES, [1, -1, 2]), "must be -1 or \\+1, got 2$"),
        (lambda: LogisticRegression(ONES, [1, -1, 1], l2=-1), "l2"),
        (lambda: SoftmaxRegression(ONES, [0, 1, 2], 2), "must be 0 to 1, got 2"),
        (lambda: SoftmaxRegression(ONES, [0, -1, 1], 2), "must be 0 to 1, got -1"),
        (lambda: SoftmaxRegression(ONES, [0.0, 1.0, 1.0], 2), r"y.astype\(int\)"),
        (lambda: SoftmaxRegression(ONES, [0, 0, 0], 1), "num_classes"),
        (lambda: SoftmaxRegression(np.ones((3, 2, 2)), [0, 1, 1], 2), r"\(examples, features\)"),
        (lambda: LeastSquares(ONES, np.ones(3)).gradient(np.ones(3)), r"takes x of shape \(2,\)"),
        (lambda: Quadratic(np.eye(2), np.ones(2)).value(np.ones((2, 1))), "takes x of shape"),
    ],
)
def test_what_is_refused(build, match):
    with pytest.raises(ConfigError, match=match):
        build()


def test_symmetry_is_judged_to_rounding():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(60, 50))
    Quadratic(A.T @ A, np.zeros(50))
    Quadratic((A.T @ A).astype(np.float32), np.zeros(50))
