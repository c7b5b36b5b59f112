"""SLOPE and total variation of images, against solvers of others."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear, minimize, nnls
from sklearn.isotonic import isotonic_regression

from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import L1, SLOPE, TotalVariation1D, TotalVariation2D
from flower_fedcon.regularizers.slope import nonincreasing


@given(st.lists(st.one_of(st.integers(-3, 3), st.floats(-1e3, 1e3)), min_size=1, max_size=300))
def test_pooling_against_scikit_learn(values):
    y = np.array(values, dtype=float)
    expected = isotonic_regression(y, increasing=False)
    np.testing.assert_allclose(nonincreasing(y), expected, rtol=0, atol=1e-12 * 1e3)


def away_from_hull(points, target):
    """Return the distance from a point to the hull of others, by nonnegative least squares."""
    weights, _ = nnls(np.vstack([points.T, np.full(len(points), 1e3)]), np.append(target, 1e3))
    return np.linalg.norm(points.T @ (weights / weights.sum()) - target)


@given(st.integers(1, 3), st.integers(0, 10**6), st.sampled_from([0.3, 1.0, 4.0]))
def test_slope_is_the_largest_of_all_orders_and_its_prox_minimises(d, seed, step):
    """psi is the maximum of linear functions, one for each order and all signs."""
    rng = np.random.default_rng(seed)
    weights = np.sort(rng.integers(0, 4, d) * rng.random())[::-1]
    v = np.round(rng.normal(size=d) * 2, 1)
    faces = np.array([
        np.array(signs) * weights[list(order)]
        for order in itertools.permutations(range(d))
        for signs in itertools.product([-1, 1], repeat=d)
    ])  # fmt: skip
    psi = SLOPE(weights)
    assert psi(v) == pytest.approx((faces @ v).max(), abs=1e-12)
    p = psi.prox(v, step)
    rest = (v - p) / step
    assert rest @ p == pytest.approx(psi(p), abs=1e-9)
    assert away_from_hull(faces, rest) <= 1e-6  # what is left is a subgradient
    # The distance: to the hull of the faces on which p lies.
    grad = rng.normal(size=d)
    active = faces[faces @ p >= psi(p) - 1e-9]
    far = away_from_hull(active, -grad)
    assert psi.subdifferential_distance(p, grad) == pytest.approx(far, abs=1e-5)


def test_slope_with_known_weights():
    v = np.random.default_rng(0).normal(size=(3, 4)) * 3
    np.testing.assert_allclose(SLOPE(np.full(12, 0.7)).prox(v, 0.5), L1(0.7).prox(v, 0.5))
    largest = SLOPE(np.eye(1, 12)[0] * 2.0)
    assert largest(v) == pytest.approx(2 * np.abs(v).max())
    level = np.sort(np.abs(v.ravel()))  # the prox of the largest size clips at a level
    assert np.abs(largest.prox(v, 0.5)).max() < level[-1]
    assert np.abs(v - largest.prox(v, 0.5)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SLOPE(1.0), "a vector with a weight for each entry"),
        (lambda: SLOPE(np.ones((2, 2))), "a vector with a weight for each entry"),
        (lambda: SLOPE([1.0, 2.0]), r"weights\[1\] = 2 is larger than weights\[0\] = 1"),
        (lambda: SLOPE([1.0, -1.0]), "weights >= 0"),
        (lambda: SLOPE([1.0, 0.5]).prox(np.ones(3), 1.0), "2 weights, for a model of shape"),
        (lambda: TotalVariation2D(-1.0), r"\(weight\) must be"),
        (lambda: TotalVariation2D(1.0, tolerance=1e-9), r"\(tolerance\) must be in"),
        (lambda: TotalVariation2D(1.0).value(np.ones(3)), "of shape .height, width."),
        (lambda: TotalVariation2D(1.0).prox(np.ones((2, 2)), -1.0), "step must be"),
        (lambda: TotalVariation2D(1.0).prox(np.array([[1.0, np.nan]]), 1.0), "not finite"),
    ],
)
def test_refusals(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def edges(shape):
    """Return the differences as two matrices, D_down and D_right, 0 rows at the border."""
    index = np.arange(math.prod(shape)).reshape(shape)
    found = []
    for axis in (0, 1):
        matrix = np.zeros((index.size, index.size))
        first = np.delete(index, -1, axis=axis).ravel()
        second = np.delete(index, 0, axis=axis).ravel()
        matrix[first, first], matrix[first, second] = -1, 1
        found.append(matrix)
    return found


shapes = st.tuples(st.integers(1, 5), st.integers(1, 5))


@given(shapes, st.integers(0, 10**6), st.sampled_from([0.01, 0.3, 1.0, 10.0]), st.booleans())
def test_total_variation_against_scipy(shape, seed, level, isotropic):
    """Anisotropic: the dual is a least squares problem with bounds. Isotropic: a generic solver."""
    v = np.random.default_rng(seed).normal(size=shape)
    down, right = edges(shape)
    psi = TotalVariation2D(level, isotropic=isotropic, tolerance=1e-6)
    p = psi.prox(v, 1.0)

    def cost(x):
        a, b = down @ x, right @ x
        size = np.hypot(a, b) if isotropic else np.abs(a) + np.abs(b)
        return level * size.sum() + ((x - v.ravel()) ** 2).sum() / 2

    assert psi(p) + ((p - v) ** 2).sum() / 2 == pytest.approx(cost(p.ravel()), rel=1e-12)
    if isotropic:

        def smooth(x):
            a, b = down @ x, right @ x
            size = np.sqrt(a * a + b * b + 1e-14)
            rest = x - v.ravel()
            return (level * size.sum() + rest @ rest / 2,
                    level * (down.T @ (a / size) + right.T @ (b / size)) + rest)  # fmt: skip

        found = minimize(smooth, p.ravel() * 0 + v.mean(), jac=True, method="L-BFGS-B",
                         options={"maxiter": 5000, "ftol": 0, "gtol": 1e-10})  # fmt: skip
        assert cost(p.ravel()) <= cost(found.x) + 1e-9
        if found.success:  # the search along a line may fail, with the kinks that close
            assert cost(p.ravel()) >= found.fun - 1e-6 * level * v.size - 1e-9
        return
    D = np.vstack([down, right])
    flow = lsq_linear(D.T, v.ravel(), (-level, level), tol=1e-14, method="bvls").x
    exact = v.ravel() - D.T @ flow
    assert np.linalg.norm(p.ravel() - exact) <= 1e-6 * np.linalg.norm(v - v.mean()) + 1e-12


@given(st.integers(1, 60), st.integers(0, 10**6), st.sampled_from([1e-3, 0.5, 3.0, 1e6]),
       st.booleans(), st.booleans(), st.sampled_from([1.0, 1e100, 1e-100]))  # fmt: skip
def test_images_of_one_row_against_the_exact_prox_of_lines(
    n, seed, level, isotropic, upright, unit
):
    v = unit * np.random.default_rng(seed).normal(size=n).cumsum()
    exact = TotalVariation1D(level).prox(v, unit)
    image = v[:, None] if upright else v[None]
    p = TotalVariation2D(level, isotropic=isotropic, tolerance=1e-4).prox(image, unit).ravel()
    assert (
        np.linalg.norm((p - exact) / unit) <= 1e-4 * np.linalg.norm((v - v.mean()) / unit) + 1e-12
    )
    assert TotalVariation2D(level)(image) == pytest.approx(TotalVariation1D(level)(v), rel=1e-12)


@pytest.mark.parametrize("isotropic", [True, False])
def test_images_stack_scale_and_have_subgradients(isotropic):
    rng = np.random.default_rng(0)
    psi = TotalVariation2D(0.3, isotropic=isotropic)
    v = rng.normal(size=(2, 3, 6, 5)).astype(np.float32)
    rows = [psi.prox(row, 0.5) for row in v]
    np.testing.assert_array_equal(psi.prox(v, 0.5, batch=1), rows)
    assert rows[0].dtype == psi.subgradient(v).dtype == np.float32
    assert psi(v) == pytest.approx(sum(psi(image) for row in v for image in row))
    x = v[0, 0].astype(float)
    q = psi.subgradient(x)
    assert np.vdot(q, x) == pytest.approx(psi(x))
    assert all(psi(y) >= psi(x) + np.vdot(q, y - x) - 1e-12 for y in rng.normal(size=(20, 6, 5)))
    assert psi.scaled(2.0)(x) == pytest.approx(2 * psi(x))
    assert psi.prox(x, 0.0) is x
    p = psi.prox(x, 1.0)  # stationary for ||. - x||^2/2, up to the tolerance
    assert psi.subdifferential_distance(p, p - x) <= 2e-5 * np.linalg.norm(x)
    np.testing.assert_allclose(psi.prox(x, 1e9), np.full_like(x, x.mean()))
