"""Sites that differ: an intercept that each has for itself; equal to statsmodels with dummies."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from statsmodels.stats.meta_analysis import combine_effects

from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import (
    FederatedElasticNet,
    FederatedGammaRegressor,
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
def test_own_intercepts_of_a_linear_model(randhie, inference):
    X, y, sites = randhie
    how = {
        "model": {},
        "robust": {"cov_type": "HC1"},
        "cluster": {"cov_type": "cluster", "cov_kwds": {"groups": sites}, "use_t": True},
    }
    found = sm.OLS(y, with_dummies(X, sites)).fit(**how[inference])
    model = FederatedElasticNet(alpha=0, inference=inference, site_effects="own")
    same(model.fit(X, y, sites), found)
    np.testing.assert_allclose([model.bic_, model.dispersion_], [found.bic, found.scale], **CLOSE)
    if inference != "cluster":  # of which statsmodels tests by G - 1, too
        np.testing.assert_allclose(model.pvalues_, found.pvalues[: len(COLUMNS)], **CLOSE)


@pytest.mark.parametrize("inference", ["model", "robust"])
def test_own_intercepts_of_a_logistic_model(randhie, inference):
    X, y, sites = randhie
    Z, n = with_dummies(X, sites), len(y)
    found = sm.Logit(y > 0, Z).fit(disp=0, cov_type="nonrobust" if inference == "model" else "HC0")
    factor = 1.0 if inference == "model" else np.sqrt(n / (n - Z.shape[1]))
    model = FederatedLogisticRegression(C=np.inf, inference=inference, site_effects="own")
    same(model.fit(X, y > 0, sites), found, factor=factor)
    assert "each of 5 sites has its own intercept" in model.summary()


def test_own_intercepts_of_counts_with_exposure_weights_and_sparse_rows(randhie):
    X, y, sites = randhie
    rng = np.random.default_rng(0)
    weight, exposure = rng.integers(1, 4, len(y)), rng.uniform(0.5, 2.0, len(y))
    found = sm.GLM(
        y, with_dummies(X, sites), sm.families.Poisson(), exposure=exposure, freq_weights=weight
    ).fit(tol=1e-13)
    model = FederatedPoissonRegressor(alpha=0, inference="model", site_effects="own")
    same(model.fit(sparse.csr_array(X), y, sites, weight, exposure=exposure), found)


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


def test_what_own_intercepts_are_not_for_is_refused(randhie):
    X, y, sites = (v[:400] for v in randhie)
    own = {"site_effects": "own"}
    with pytest.raises(ConfigError, match="site_effects must be"):
        FederatedElasticNet(site_effects="fixed").fit(X, y, sites)
    with pytest.raises(ConfigError, match="fit_intercept is False"):
        FederatedElasticNet(fit_intercept=False, **own).fit(X, y, sites)
    with pytest.raises(ConfigError, match="has a multinomial loss here"):
        FederatedLogisticRegression(**own).fit(X, np.minimum(y, 2), sites)
    with pytest.raises(ConfigError, match="has a gamma loss here"):
        FederatedGammaRegressor(**own).fit(X, y + 1, sites)
    with pytest.raises(ConfigError, match="No client is left"):
        FederatedLogisticRegression(C=np.inf, **own).fit(X, y > 0, y > 0)
    with pytest.raises(ConfigError, match="stay at their sites"):
        FederatedElasticNet(**own).fit(X, y, sites).predict(X)
    with pytest.raises(ConfigError, match="no information on parameter x0"):
        FederatedElasticNet(0, inference="model", **own).fit(
            np.column_stack([sites + 1.7, X]), y, sites
        )
    with (
        pytest.warns(ConvergenceWarning, match="separated by column"),
        pytest.raises(ConfigError, match="separated by column"),
    ):
        FederatedLogisticRegression(C=np.inf, inference="model", **own).fit(
            np.column_stack([X[:, 1], y]), y > 0, sites
        )


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
    with pytest.raises(ConfigError, match="at least two sites"):
        FederatedElasticNet(alpha=0, inference="model").fit(X, y).heterogeneity()
    with pytest.raises(ConfigError, match="fit it again"):
        pickle.loads(pickle.dumps(model)).heterogeneity()


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
