"""The debiased lasso: the numbers of its definition on pooled rows, its coverage, its refusals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, norm
from sklearn.linear_model import Lasso

from flower_fedcon.estimators import (
    FederatedLasso,
    FederatedLassoCV,
    FederatedLogisticRegression,
    FederatedLogisticRegressionCV,
    FederatedPoissonRegressor,
    FederatedPoissonRegressorCV,
)
from flower_fedcon.tables.statistics.debiased import nodewise

KINDS = ("linear", "logistic", "poisson")


def table(kind, seed, n, p, size):
    """Correlated columns, of which three count."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    for j in range(1, p):
        X[:, j] = 0.5 * X[:, j - 1] + np.sqrt(0.75) * X[:, j]
    beta = np.zeros(p)
    beta[[0, 1, p // 2]] = size, -size, size / 2
    return X, outcome(kind, X @ beta + 0.3, rng), beta


def outcome(kind, scores, rng):
    if kind == "linear":
        return scores + rng.normal(size=len(scores))
    if kind == "logistic":
        return (rng.random(len(scores)) < expit(scores)) + 0.0
    return rng.poisson(np.exp(scores)) + 0.0


def fitted(kind, X, y, groups, weight=0.7, sample_weight=None, **more):
    """Fit the lasso with a weight that theory gives, up to a factor."""
    n, p = X.shape
    n = n if sample_weight is None else sample_weight.sum()
    alpha = weight * np.sqrt(2 * np.log(p) / n) * {"linear": 1, "logistic": 0.5}.get(kind, 1)
    if kind == "linear":
        model = FederatedLasso(alpha, inference="debiased", **more)
    elif kind == "logistic":
        model = FederatedLogisticRegression(1 / (alpha * n), inference="debiased", **more)
    else:
        model = FederatedPoissonRegressor(alpha, l1_ratio=1, inference="debiased", **more)
    return model.fit(X, y, groups, sample_weight)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("free", [True, False])
def test_numbers_are_those_of_the_definition(kind, free):
    """Each step on the pooled rows, with scikit-learn's lasso of every column on the others."""
    X, y, _ = table(kind, 1, 120, 8, 0.5)
    X = X * [1, 1, 10, 1, 0.01, 1, 1, 1] + 3.0 * (np.arange(8) == 1)
    counts = 1.0 + np.arange(120) % 2
    model = fitted(kind, X, y, np.arange(120) % 3, sample_weight=counts, fit_intercept=free)
    b = np.ravel(model.coef_)
    scores = X @ b + np.ravel(model.intercept_)
    mean = {"linear": scores, "logistic": expit(scores), "poisson": np.exp(scores)}[kind]
    own = {"linear": np.ones(120), "logistic": mean * (1 - mean), "poisson": mean}[kind]
    n, weights = counts.sum(), counts * own
    Z = X - np.average(X, axis=0, weights=weights) if free else X
    root = np.sqrt(weights / n)[:, None] * Z
    sizes = np.sqrt((root**2).sum(axis=0))
    root = root / sizes
    weight = 0.25 * np.sqrt(np.log(8) / n)
    M = np.eye(8)
    for k in range(8):
        others = np.arange(8) != k
        lasso = Lasso(weight / 120, fit_intercept=False, tol=1e-14, max_iter=10**6)
        lasso.fit(root[:, others], root[:, k])
        left = root[:, k] - root[:, others] @ lasso.coef_
        M[k, others] = -lasso.coef_
        M[k] /= root[:, k] @ left
    M = M / sizes / sizes[:, None]
    phi = 1.0
    if kind == "linear":
        phi = counts @ (y - mean) ** 2 / (n - (b != 0).sum() - free)
    known = b + M @ (Z.T @ (counts * (y - mean))) / n
    errors = np.sqrt(np.diag(phi * M @ (Z.T * weights) @ Z @ M.T) / n**2)
    np.testing.assert_allclose(np.ravel(model.coef_debiased_), known, rtol=1e-6)
    np.testing.assert_allclose(np.ravel(model.bse_), errors, rtol=1e-6)
    np.testing.assert_allclose(
        model.conf_int(0.1).reshape(8, 2)[:, 1], known + norm.ppf(0.95) * errors, rtol=1e-6
    )
    assert model.coef_debiased_.shape == model.coef_.shape == model.pvalues_.shape
    assert np.isnan(model.intercept_bse_).all()
    assert "debiased lasso" in model.summary()
    assert "AIC" not in model.summary()


def test_sites_and_units_change_no_number():
    X, y, _ = table("poisson", 2, 100, 6, 0.3)
    offset = np.linspace(-0.2, 0.2, 100)
    kind = {"alpha": 0.02, "l1_ratio": 1, "inference": "debiased"}
    one = FederatedPoissonRegressor(**kind).fit(X, y, offset=offset)
    factors = np.array([1, 1, 5, 1, 1, 1.0])
    several = FederatedPoissonRegressor(**kind, penalty_factor=1 / factors)
    several.fit(X / factors, y, np.arange(100) % 7, offset=offset)
    np.testing.assert_allclose(several.coef_debiased_, one.coef_debiased_ * factors, rtol=1e-6)
    np.testing.assert_allclose(several.bse_, one.bse_ * factors, rtol=1e-6)
    np.testing.assert_allclose(several.ratios()[:, 0], np.exp(several.coef_debiased_))


def test_own_intercepts_of_sites_are_eliminated():
    """As with columns and targets that are centred at each site, but for what phi counts."""
    X, y, _ = table("linear", 5, 90, 6, 1.0)
    sites = np.arange(90) % 3
    own = FederatedLasso(0.1, site_effects="own", inference="debiased").fit(X, y + sites, sites)
    for k in range(3):
        X[sites == k] -= X[sites == k].mean(axis=0)
        y[sites == k] -= y[sites == k].mean()
    none = FederatedLasso(0.1, fit_intercept=False, inference="debiased").fit(X, y, sites)
    used = np.count_nonzero(own.coef_)
    np.testing.assert_allclose(own.coef_debiased_, none.coef_debiased_, rtol=1e-6)
    factor = np.sqrt((90 - used) / (90 - used - 3))
    np.testing.assert_allclose(own.bse_, none.bse_ * factor, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_cross_validated_fits(kind):
    X, y, _ = table(kind, 3, 90, 5, 0.8)
    make = {
        "linear": FederatedLassoCV,
        "logistic": FederatedLogisticRegressionCV,
        "poisson": FederatedPoissonRegressorCV,
    }[kind]
    model = make(inference="debiased", num=8, cv=3, min_ratio=0.02).fit(X, y, np.arange(90) % 2)
    if kind == "logistic":
        again = FederatedLogisticRegression(model.C_, inference="debiased")
    elif kind == "linear":
        again = FederatedLasso(model.alpha_, inference="debiased")
    else:
        again = FederatedPoissonRegressor(model.alpha_, l1_ratio=1, inference="debiased")
    again.fit(X, y, np.arange(90) % 2)
    np.testing.assert_allclose(model.coef_debiased_, again.coef_debiased_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(model.bse_, again.bse_, rtol=1e-5)


SIZES = {"linear": (400, 20, 1.0), "logistic": (1000, 12, 0.8), "poisson": (600, 12, 0.4)}


def covered(kind, sets, draw, weight):
    """Return how many of the 95 % intervals hold the truth, of each column, over data sets."""
    hits = 0.0
    for seed in range(sets):
        X, y, beta = draw(kind, seed)
        model = fitted(kind, X, y, np.arange(len(X)) % 3, weight, tol=1e-6)
        ends = model.conf_int().reshape(-1, 2)
        hits = hits + ((ends[:, 0] <= beta) & (beta <= ends[:, 1]))
    return hits, beta != 0, model


def sparse(kind, seed):
    n, p, size = SIZES[kind]
    return table(kind, seed, n, p, size)


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover(kind):
    hits, counts, _ = covered(kind, 40, sparse, 0.5)
    low, high = binom.interval(1 - 1e-5, 40, 0.95)
    assert low <= hits[counts].min()
    assert low <= hits[~counts].min()
    together = 40 * len(hits)
    assert 0.92 * together <= hits.sum() <= 0.98 * together <= high * len(hits)


def powers(kind, seed, n=500):
    """A curve, and one that differs between arms: columns that explain one another."""
    rng = np.random.default_rng(seed)
    x, arm = rng.uniform(1, 4, n), rng.integers(2, size=n) + 0.0
    X = np.column_stack([x, x**2, x**3, arm, arm * x])
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    beta = np.array([2.0, -3.0, 2.0, -1.0, 1.0]) * (0.4 if kind == "poisson" else 1.0)
    return X, outcome(kind, X @ beta, rng), beta


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_where_columns_explain_one_another(kind):
    hits, _, model = covered(kind, 40, powers, 0.3)
    assert hits.min() >= binom.ppf(1e-5, 40, 0.95)
    assert "good part of the penalty's bias" not in model.summary()


@pytest.mark.parametrize("more", [1.0, 0.0])
def test_what_the_inverse_cannot_do_is_said(more):
    """Columns that are combinations of others, or nearly as many as rows."""
    X, y, _ = powers("linear", 0, 20 if more else 500)
    extra = X[:, :1] + X[:, 1:2] + more * np.random.default_rng(0).normal(size=(len(X), 3)) / 9
    wide = np.hstack([X, extra if more else extra[:, :1]])
    model = fitted("linear", wide, y, np.arange(len(X)) % 2)
    assert "good part of the penalty's bias" in model.summary()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_in_500_data_sets(kind):
    hits, counts, _ = covered(kind, 500, sparse, 0.5)
    for part in (hits[counts], hits[~counts]):
        assert 0.93 <= part.mean() / 500 <= 0.97


def test_an_approximate_inverse_leaves_what_its_weight_says():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 50))
    rows[:, 1:] += 0.7 * rows[:, :-1]
    R = np.corrcoef(rows.T)
    for weight in (0.05, 0.3):
        M = nodewise(R, weight)
        left = M @ R
        np.testing.assert_allclose(np.diag(left), 1.0, rtol=1e-9)
        np.fill_diagonal(left, 0.0)
        assert (np.abs(left) <= weight * np.diag(M)[:, None] * (1 + 1e-6)).all()
