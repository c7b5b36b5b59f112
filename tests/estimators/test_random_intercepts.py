"""Estimators with random intercepts; tests/tables has them beside lme4."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
from lifelines.datasets import load_lung
from lme4_values import COLUMNS, firms, visits
from scipy import sparse
from scipy.stats import chi2, norm
from sklearn.base import clone

from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import (
    FederatedElasticNet,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)

RANDOM = {"inference": "model", "site_effects": "random"}


@pytest.fixture(scope="module")
def randhie():
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


def test_a_likelihood_is_that_of_the_pooled_rows_whatever_the_order(randhie):
    X, y, plan, family, _ = (v[:1500] for v in randhie)
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


@pytest.mark.parametrize(
    "model",
    [
        FederatedElasticNet(0, **RANDOM),
        FederatedPoissonRegressor(0, **RANDOM),
        FederatedLogisticRegression(C=np.inf, **RANDOM),
    ],
)
def test_weights_count_rows(randhie, model):
    X, y, plan, family, years = (v[:600] for v in randhie)
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


def test_a_label_of_two_clients_is_a_group_at_each_and_named():
    X, y = np.square(np.arange(9.0))[:, None], np.array([0, 1, 2, 1, 3, 2, 5, 4, 6.0])
    model = FederatedElasticNet(0, site_effects="random")
    with pytest.warns(UserWarning, match="label x at several clients"):
        model.fit(X, y, [0, 0, 0, 1, 1, 1, 1, 1, 1], clusters=list("xxxxxyyyy"))
    assert list(model.random_effects_) == [("0", "x"), ("1", "x"), ("1", "y")]
