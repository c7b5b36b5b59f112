"""Sites that differ: own intercepts, as with dummies; random ones (lme4's are in tests/tables)."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import statsmodels.api as sm
from lifelines.datasets import load_lung
from lme4_values import COLUMNS, firms, visits
from scipy import sparse
from scipy.stats import chi2, norm
from sklearn.base import clone
from statsmodels.stats.meta_analysis import combine_effects

from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import (
    FederatedElasticNet,
    FederatedLasso,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)

CLOSE = {"rtol": 1e-7, "atol": 1e-12}


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


# --- random intercepts ---------------------------------------------------------------------------


RANDOM = {"inference": "model", "site_effects": "random"}


@pytest.fixture(scope="module")
def visited():
    d = visits()
    return (
        d[COLUMNS].to_numpy(), d["mdvis"].to_numpy(), d["plan"].to_numpy(int),
        d["family"].to_numpy(), d["years"].to_numpy(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def grunfeld():
    g = firms()
    return g[["value", "capital"]].to_numpy(), g["invest"].to_numpy(), g["firm"].to_numpy()


def test_the_error_of_a_linear_model_s_deviation(grunfeld):
    X, y, firm = grunfeld
    model = FederatedElasticNet(alpha=0, **RANDOM).fit(X, y, firm)
    Z = np.column_stack([X, np.ones(len(y))])
    scale = np.append(model.bse_, [model.intercept_bse_, 0.3, 0.05])
    at = np.append(
        model.coef_, [model.intercept_, np.log(model.site_sd_), np.log(model.residual_sd_)]
    )
    n = np.unique(firm, return_counts=True)[1]
    place = np.unique(firm, return_inverse=True)[1]

    def loglik(step):
        theta = at + scale * step
        left, (u, e) = y - Z @ theta[:3], np.exp(2 * theta[3:])
        shrunk = u / (e + n * u) * np.square(np.bincount(place, left))
        logs = np.log(e) * len(y) + np.log1p(n * u / e).sum()
        return -0.5 * (len(y) * np.log(2 * np.pi) + logs + (left @ left - shrunk.sum()) / e)

    np.testing.assert_allclose(loglik(np.zeros(5)), model.loglik_, rtol=1e-12)
    h, eye = 1e-3, np.eye(5)

    def crossed(a, b):
        ends = (
            loglik(h * (a + b)) + loglik(-h * (a + b)) - loglik(h * (a - b)) - loglik(h * (b - a))
        )
        return -ends / (4 * h * h)

    J = [[crossed(a, b) for a in eye] for b in eye]
    error = 0.3 * np.sqrt(np.linalg.inv(J)[3, 3]) * model.site_sd_
    np.testing.assert_allclose(model.site_sd_bse_, error, rtol=1e-5)


def test_a_likelihood_is_that_of_the_pooled_rows_whatever_the_order(visited):
    X, y, plan, family, _ = (v[:1500] for v in visited)
    model = FederatedPoissonRegressor(0, **RANDOM).fit(X, y, plan, clusters=family)
    assert model.aic_ == 2 * 7 - 2 * model.loglik_
    assert re.search(r"Groups: +\d+\b", model.summary())
    assert "Group sd: " in model.summary()
    assert "Site sd: " not in model.summary()
    other = np.random.default_rng(0).permutation(len(y))
    names = np.array(["?", "e", "c", "d", "b", "a"])[plan]
    shuffled = clone(model).fit(
        sparse.csr_array(X[other]), y[other], names[other], clusters=family[other]
    )
    for name in ("coef_", "intercept_", "bse_", "site_sd_", "site_sd_bse_", "loglik_"):
        np.testing.assert_allclose(getattr(shuffled, name), getattr(model, name), rtol=1e-9)
    key = ("1", family[plan == 1][0])
    np.testing.assert_allclose(
        shuffled.random_effects_["e", key[1]], model.random_effects_[key], rtol=1e-7
    )


@pytest.mark.parametrize("model", [
    FederatedElasticNet(0, **RANDOM),
    FederatedPoissonRegressor(0, **RANDOM),
    FederatedLogisticRegression(C=np.inf, **RANDOM),
])  # fmt: skip
def test_weights_count_rows(visited, model):
    X, y, plan, family, years = (v[:600] for v in visited)
    X = X[:, :3]
    y = y > 0 if isinstance(model, FederatedLogisticRegression) else y
    weight = np.arange(600) % 3
    offset = 0.2 * np.log(years)
    model.fit(X, y, plan, weight, offset=offset, clusters=family)
    own = np.repeat(np.arange(600), weight)
    other = clone(model).fit(X[own], y[own], plan[own], offset=offset[own], clusters=family[own])
    for name in ("coef_", "intercept_", "bse_", "site_sd_", "site_sd_bse_", "loglik_", "bic_"):
        np.testing.assert_allclose(getattr(model, name), getattr(other, name), rtol=1e-8)


def test_institutions_that_do_not_differ():
    lung = load_lung().dropna(subset=["inst"])
    X, died, inst = lung[["age", "sex"]], lung["status"] == lung["status"].max(), lung["inst"]
    model = FederatedLogisticRegression(C=np.inf, **RANDOM).fit(X, died, inst)
    # glmer finds theta = 0 as well, and these
    values = np.append(model.intercept_, model.coef_)
    known = [0.5208368377394170, 0.0315518488907518, -1.0410625055531255]
    np.testing.assert_allclose(values, known, rtol=1e-6)
    errors = np.append(model.intercept_bse_, model.bse_)
    known = [1.1732392230761373, 0.0170058842088001, 0.3085054522889442]
    np.testing.assert_allclose(errors, known, rtol=1e-6)
    np.testing.assert_allclose(model.loglik_, -125.791064786732, rtol=1e-9)
    assert model.site_sd_ == 0.0
    assert model.site_sd_test_ == (0.0, 1.0)
    assert np.isnan(model.site_sd_bse_)
    assert set(model.random_effects_.values()) == {0.0}
    common = FederatedLogisticRegression(C=np.inf, inference="model").fit(X, died, inst)
    np.testing.assert_array_equal(model.coef_, common.coef_)
    np.testing.assert_array_equal(model.bse_, common.bse_)
    assert model.aic_ == common.aic_ + 2
    assert "at the boundary, so it has no standard error" in model.summary()


def test_groups_without_a_variance_in_a_linear_model():
    rng = np.random.default_rng(0)
    X, y, site = rng.normal(size=(60, 1)), rng.normal(size=60), np.arange(60) % 4
    y -= np.bincount(site, y)[site] / 15
    for reml in (False, True):
        model = FederatedElasticNet(0, reml=reml, **RANDOM).fit(X, y, site)
        left = y - X @ model.coef_ - model.intercept_
        assert model.site_sd_ == 0.0
        assert model.site_sd_test_ == (0.0, 1.0)
        np.testing.assert_allclose(model.residual_sd_**2, left @ left / (60 - 2 * reml))
        common = FederatedElasticNet(0).fit(X, y, site)
        np.testing.assert_allclose(model.coef_, common.coef_, rtol=1e-10)


def test_a_test_at_the_boundary_is_of_half_a_chi_squared(grunfeld):
    X, y, firm = grunfeld
    model = FederatedElasticNet(0, **RANDOM).fit(X, y, firm)
    common = FederatedElasticNet(0, inference="model").fit(X, y, firm)
    ratio, pvalue = model.site_sd_test_
    np.testing.assert_allclose(ratio, 2 * (model.loglik_ - common.loglik_), rtol=1e-10)
    np.testing.assert_allclose(pvalue, chi2.sf(ratio, 1) / 2)
    smaller = FederatedElasticNet(0, **RANDOM).fit(X[:, :1], y, firm)
    found, df, _ = model.likelihood_ratio(smaller)
    assert df == 1
    np.testing.assert_allclose(found, 2 * (model.loglik_ - smaller.loglik_))
    np.testing.assert_allclose(model.pvalues_, 2 * norm.sf(np.abs(model.coef_ / model.bse_)))
    with pytest.raises(ConfigError, match="use site_sd_test_ of the first"):
        model.likelihood_ratio(common)
    restricted = FederatedElasticNet(0, reml=True, **RANDOM).fit(X, y, firm)
    with pytest.raises(ConfigError, match="reml=False"):
        restricted.likelihood_ratio(smaller)
    np.testing.assert_allclose(model.predict(X[:2]), X[:2] @ model.coef_ + model.intercept_)
    assert list(model.random_effects_)[:2] == ["American Steel", "Atlantic Refining"]
    again = pickle.loads(pickle.dumps(model))
    assert str(again.summary()) == str(model.summary())


def test_the_mean_intercept_may_be_0(grunfeld):
    X, y, firm = grunfeld
    model = FederatedElasticNet(0, **RANDOM).fit(X, y, firm)
    ones = np.column_stack([X, np.ones(len(y))])
    bare = FederatedElasticNet(0, fit_intercept=False, **RANDOM).fit(ones, y, firm)
    np.testing.assert_allclose(bare.coef_, np.append(model.coef_, model.intercept_), rtol=1e-9)
    np.testing.assert_allclose(bare.site_sd_, model.site_sd_, rtol=1e-9)
    assert bare.intercept_ == 0.0


def test_sites_of_one_class_and_of_huge_counts():
    rng = np.random.default_rng(1)
    site = np.repeat(np.arange(8), 20)
    X = rng.normal(size=(160, 1))
    died = rng.random(160) < 1 / (1 + np.exp(-X[:, 0] - rng.normal(size=8)[site]))
    died[site == 3] = True
    model = FederatedLogisticRegression(C=np.inf, site_effects="random").fit(X, died, site)
    assert model.left_out_ == []
    assert model.random_effects_["3"] == max(model.random_effects_.values())
    assert 0.3 < model.site_sd_ < 5
    assert not hasattr(model, "loglik_")
    counts = np.round(np.exp(20 + 0.5 * X[:, 0] + rng.normal(size=8)[site]))
    many = FederatedPoissonRegressor(0, **RANDOM).fit(X, counts, site)
    # With such counts each site's intercept is known, and so is the variance's estimate.
    np.testing.assert_allclose(many.coef_, 0.5, atol=1e-6)
    own = np.array(list(many.random_effects_.values()))
    np.testing.assert_allclose(many.site_sd_, own.std(), rtol=1e-6)
    np.testing.assert_allclose(many.intercept_bse_, own.std() / np.sqrt(8), rtol=1e-6)


def test_counts_far_apart_end_where_the_likelihood_has_no_more_digits(recwarn):
    """The maximum of the likelihood, by seven nodes around modes found by bisection."""
    rng = np.random.default_rng(53)
    site = np.repeat(np.arange(15), 10)
    X = rng.normal(size=(150, 1))
    counts = rng.poisson(np.exp(np.minimum(0.5 * X[:, 0] + 8 * rng.normal(size=15)[site], 14)))
    found = FederatedPoissonRegressor(0, **RANDOM).fit(X, counts, site % 3, clusters=site)
    assert found.n_iter_ < 30
    assert not [w for w in recwarn if "has not ended" in str(w.message)]
    np.testing.assert_allclose(
        [found.intercept_, found.coef_[0], found.site_sd_], [-4.6197, 7.3182e-4, 9.6357],
        rtol=1e-5,
    )  # fmt: skip


def test_a_label_of_two_clients_is_a_group_at_each_and_named():
    X, y = np.square(np.arange(9.0))[:, None], np.array([0, 1, 2, 1, 3, 2, 5, 4, 6.0])
    model = FederatedElasticNet(0, site_effects="random")
    with pytest.warns(UserWarning, match="label x at several clients"):
        model.fit(X, y, [0, 0, 0, 1, 1, 1, 1, 1, 1], clusters=list("xxxxxyyyy"))
    assert list(model.random_effects_) == [("0", "x"), ("1", "x"), ("1", "y")]
