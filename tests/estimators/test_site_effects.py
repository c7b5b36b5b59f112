"""Sites that differ: an intercept that each has for itself; equal to statsmodels with dummies."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import sparse
from statsmodels.stats.meta_analysis import combine_effects

from flower_fedcon.estimators import (
    FederatedElasticNet,
    FederatedLasso,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)

CLOSE = {"rtol": 1e-7, "atol": 1e-12}
COLUMNS = ["disea", "physlm", "hlthg", "hlthf", "hlthp"]


@pytest.fixture(scope="module")
def randhie():
    d = sm.datasets.randhie.load_pandas().data[::5]
    return (
        d[COLUMNS].to_numpy(),
        d["mdvis"].to_numpy(),
        (d["lncoins"].rank(method="dense") % 6).to_numpy(int),
    )


def with_dummies(X, sites):
    return np.column_stack([X, sites[:, None] == np.unique(sites)]).astype(float)


def same(model, found, *, factor=1.0):
    p = model.coef_.size
    np.testing.assert_allclose(model.coef_.ravel(), np.asarray(found.params)[:p], **CLOSE)
    np.testing.assert_allclose(model.bse_.ravel(), np.asarray(found.bse)[:p] * factor, **CLOSE)
    np.testing.assert_allclose([model.loglik_, model.aic_], [found.llf, found.aic], rtol=1e-9)
    assert np.isnan(model.intercept_)
    assert model.left_out_ == []


@pytest.mark.parametrize("inference", ["model", "robust", "cluster"])
@pytest.mark.parametrize("kind", ["linear", "logistic", "poisson"])
def test_own_intercepts_are_those_of_dummies(randhie, kind, inference):
    """Of counts with an exposure, weights and sparse rows, too."""
    X, y, sites = randhie
    Z, n, rng = with_dummies(X, sites), len(y), np.random.default_rng(0)
    groups = sites if kind == "linear" else 40 * sites + np.arange(n) % 40
    weight, exposure = rng.integers(1, 4, n), rng.uniform(0.5, 2.0, n)
    given, free = {"clusters": groups if inference == "cluster" else None}, {}
    if kind == "linear":
        known, model = sm.OLS(y, Z), FederatedElasticNet(0)
    elif kind == "logistic":
        y = y > 0
        known, model, free = sm.Logit(y, Z), FederatedLogisticRegression(C=np.inf), {"disp": 0}
    else:
        weights = {"freq_weights": weight} if inference == "model" else {}
        known = sm.GLM(y, Z, sm.families.Poisson(), exposure=exposure, **weights)
        model, free = FederatedPoissonRegressor(0), {"tol": 1e-13}
        given |= {"exposure": exposure, "sample_weight": weight if weights else None}
        X = sparse.csr_array(X)
    errors = {"cov_type": "HC1" if kind == "linear" else "HC0"} if inference == "robust" else {}
    if inference == "cluster":
        errors = {"cov_type": "cluster", "cov_kwds": {"groups": groups}}
        errors |= {"use_t": True} if kind == "linear" else {}
    found = known.fit(**free, **errors)
    model.set_params(inference=inference, site_effects="own").fit(X, y, sites, **given)
    factor = np.sqrt(n / (n - Z.shape[1])) if errors.get("cov_type") == "HC0" else 1.0
    same(model, found, factor=factor)
    assert "each of 5 sites has its own intercept" in model.summary()
    if kind == "linear":
        scales = [model.bic_, model.dispersion_], [found.bic, found.scale]
        np.testing.assert_allclose(*scales, **CLOSE)
        if inference != "cluster":  # of which statsmodels tests by G - 1, too
            np.testing.assert_allclose(model.pvalues_, found.pvalues[: len(COLUMNS)], **CLOSE)


def test_a_penalty_leaves_own_intercepts_free(randhie):
    X, y, sites = randhie
    means = np.array([y[sites == s].mean() for s in range(6) if (sites == s).any()])
    place = np.unique(sites, return_inverse=True)[1]
    centred = X - np.array([X[place == k].mean(axis=0) for k in range(len(means))])[place]
    known = FederatedLasso(0.05, fit_intercept=False).fit(centred, y - means[place], sites)
    model = FederatedLasso(0.05, site_effects="own").fit(X, y, sites)
    assert 0 < (known.coef_ != 0).sum() < len(COLUMNS)
    np.testing.assert_allclose(model.coef_, known.coef_, rtol=1e-6, atol=1e-9)


def test_a_site_that_tells_nothing_is_named_and_left_out(randhie):
    X, y, sites = randhie
    y = np.where(sites == 2, 0.0, y)
    kept = sites != 2
    for kind, outcome in (
        (FederatedLogisticRegression(C=np.inf, inference="model", site_effects="own"), y > 0),
        (FederatedPoissonRegressor(0, inference="model", site_effects="own"), y),
    ):
        with pytest.warns(UserWarning, match=r"at client 2: .* left out \(left_out_\)"):
            kind.fit(X, outcome, sites)
        found, n = (kind.coef_.copy(), kind.bse_.copy(), kind.aic_), kind.estimates_.n
        assert kind.left_out_ == ["2"]
        assert n == kept.sum()
        kind.fit(X[kept], outcome[kept], sites[kept])
        assert kind.left_out_ == []
        for one, other in zip(found, (kind.coef_, kind.bse_, kind.aic_), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("effects", ["common", "own"])
def test_heterogeneity_is_a_meta_analysis_of_the_sites_own_fits(randhie, effects):
    X, y, sites = randhie
    fits = [sm.OLS(y[sites == s], sm.add_constant(X[sites == s])).fit() for s in np.unique(sites)]
    model = FederatedElasticNet(alpha=0, inference="model", site_effects=effects)
    found = model.fit(X, y, sites).heterogeneity()
    b = np.array([fit.params[1:] for fit in fits])
    errors = np.array([fit.bse[1:] for fit in fits])
    p = len(COLUMNS)
    np.testing.assert_allclose(found.values[:, :p], b, rtol=1e-7)
    np.testing.assert_allclose(found.bse[:, :p], errors, rtol=1e-7)
    w = errors**-2.0
    for k in range(p):  # statsmodels' combine_effects has the same by its own code
        known = combine_effects(b[:, k], errors[:, k] ** 2, method_re="dl", use_t=False)
        np.testing.assert_allclose(found.q[k], known.q, rtol=1e-7)
        np.testing.assert_allclose(found.i2[k], max(known.i2, 0.0), rtol=1e-7)
        np.testing.assert_allclose(found.tau2[k], max(known.tau2, 0.0), rtol=1e-7)
        np.testing.assert_allclose(found.fixed[k], known.mean_effect_fe, rtol=1e-7)
        spread = known.tau2 > 0  # statsmodels goes on with a variance below 0
        mean = known.mean_effect_re if spread else known.mean_effect_fe
        error = known.sd_eff_w_re if spread else known.sd_eff_w_fe
        np.testing.assert_allclose(found.random[k], mean, rtol=1e-7)
        np.testing.assert_allclose(found.random_bse[k], error, rtol=1e-7)
    assert 0 < (found.tau2[:p] > 0).sum() < p
    np.testing.assert_allclose(found.fixed_bse[:p], w.sum(axis=0) ** -0.5, rtol=1e-7)
    assert found.df == len(fits) - 1
    assert found.to_frame().shape == (p + (effects == "common"), 11)
    # An effect of each site, by interactions.
    each = (sites[:, None] == np.unique(sites)).astype(float)
    base = sm.add_constant(X) if effects == "common" else with_dummies(X, sites)
    small = sm.OLS(y, base).fit()
    for k in (1, 3):
        large = sm.OLS(y, np.column_stack([base, X[:, [k]] * each[:, 1:]])).fit()
        np.testing.assert_allclose(found.ratio[k], 2 * (large.llf - small.llf), rtol=1e-7)
        assert found.ratio_df[k] == len(fits) - 1


def test_a_site_that_cannot_be_fitted_alone_is_named(randhie):
    X, y, sites = randhie
    few = np.r_[np.flatnonzero(sites != 2), np.flatnonzero(sites == 2)[:3]]
    model = FederatedElasticNet(alpha=0, inference="model").fit(X[few], y[few], sites[few])
    assert "3 rows for 6 parameters" in model.heterogeneity().left_out["2"]


def test_an_effect_of_each_site_by_the_likelihood_of_counts(randhie):
    X, y, sites = (v[::3] for v in randhie)
    X = X[:, :2]
    each = (sites[:, None] == np.unique(sites)).astype(float)
    found = FederatedPoissonRegressor(0, inference="model").fit(X, y, sites).heterogeneity()
    small = sm.GLM(y, sm.add_constant(X), sm.families.Poisson()).fit(tol=1e-12)
    for k, column in enumerate([X[:, [0]], X[:, [1]], np.ones((len(X), 1))]):
        Z = np.column_stack([sm.add_constant(X), column * each[:, 1:]])
        large = sm.GLM(y, Z, sm.families.Poisson()).fit(tol=1e-12)
        np.testing.assert_allclose(found.ratio[k], 2 * (large.llf - small.llf), rtol=1e-6)
    assert found.ratio_df.tolist() == [4.0, 4.0, 4.0]
