"""The sum of clipped gradients in one pass, against gradients that are clipped one by one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from flower_fedcon.objectives import (
    HuberRegression,
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)

M, D = 40, 5


def make(kind, A, **more):
    rng = np.random.default_rng(1)
    if kind is SoftmaxRegression:
        return kind(A, rng.integers(0, 3, len_of(A)), 3, **more)
    if kind is LogisticRegression:
        return kind(A, rng.choice([-1.0, 1.0], len_of(A)), **more)
    if kind is PoissonRegression:
        return kind(A, rng.poisson(2.0, len_of(A)), **more)
    return kind(A, 3 * rng.standard_normal(len_of(A)), **more)


def len_of(A):
    return A.shape[0]


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).standard_normal((M, D)) * np.geomspace(0.1, 3, M)[:, None]


KINDS = [
    LeastSquares,
    HuberRegression,
    LogisticRegression,
    SoftmaxRegression,
    PoissonRegression,
]


@pytest.mark.parametrize("form", ["dense", "sparse", "intercept"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_is_clipping_row_by_row(kind, form, rows):
    A = csr_array(rows) if form == "sparse" else rows
    more = {} if kind is LeastSquares else {"l2": 0.7}
    f = make(kind, A, intercept=form == "intercept", **more)
    x = 0.3 * np.random.default_rng(2).standard_normal(f.shape)
    f.l2 = 0.0  # the penalty is no row's
    each = np.stack([f.subset(np.array([i])).gradient(x) for i in range(M)])
    f.l2 = more.get("l2", 0.0)
    norms = np.sqrt(np.square(each).reshape(M, -1).sum(axis=1))
    clip = float(np.median(norms))
    assert 5 < (norms > clip).sum() < M - 5  # some are clipped, and some are not
    shortened = each * (clip / np.maximum(norms, clip)).reshape(-1, *[1] * len(f.shape))
    chosen = np.array([3, 0, 17, 31, 38])
    found = f.clipped_sum(x, clip, chosen)
    np.testing.assert_allclose(found, shortened[chosen].sum(axis=0), rtol=1e-12, atol=1e-13)
    whole = f.clipped_sum(x, 1e6, np.arange(M))
    np.testing.assert_allclose(whole, each.sum(axis=0), rtol=1e-12, atol=1e-12)


def test_a_scaled_loss_is_clipped_as_it_is(rows):
    f = LeastSquares(rows, np.ones(M), scale=4.0)
    g = LeastSquares(rows, np.ones(M))
    everyone = np.arange(M)
    scaled = f.clipped_sum(np.ones(D), 1.0, everyone)
    np.testing.assert_allclose(scaled, 4 * g.clipped_sum(np.ones(D), 0.25, everyone), rtol=1e-12)


def test_a_row_too_long_for_arithmetic_adds_nothing():
    A = np.array([[1.0, 0.0], [1e200, 1e200]])
    f = LeastSquares(A, np.zeros(2))
    with np.errstate(over="ignore", invalid="ignore"):
        found = f.clipped_sum(np.full(2, 1e150), 1.0, np.arange(2))
    np.testing.assert_array_equal(found, [1.0, 0.0])


def test_no_row_moves_the_sum_by_more_than_the_clip(rows):
    for kind in KINDS:
        f = make(kind, rows)
        x = np.ones(f.shape)
        whole = f.clipped_sum(x, 0.5, np.arange(M))
        moved = [np.linalg.norm(whole - f.clipped_sum(x, 0.5, np.delete(np.arange(M), i)))
                 for i in range(M)]  # fmt: skip
        assert max(moved) == pytest.approx(0.5, abs=1e-12)


def test_a_row_whose_square_is_lost_is_clipped():
    f = LeastSquares(np.array([[1e-170, 0.0]]), np.array([1e200]))
    assert np.abs(f.clipped_sum(np.zeros(2), 1.0, np.arange(1))).max() <= 1.0
