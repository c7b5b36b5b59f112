"""Uncertainty of unpenalised fits: equal to statsmodels and R's survival."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines.datasets import load_rossi
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedElasticNet,
    FederatedGammaRegressor,
    FederatedLogisticRegression,
    FederatedNegativeBinomial,
    FederatedPoissonRegressor,
)

CLOSE = {"rtol": 1e-6, "atol": 1e-12}


@pytest.fixture(scope="module")
def fair():
    d = sm.datasets.fair.load_pandas().data
    X = d[["rate_marriage", "age", "yrs_married", "children", "religious"]].to_numpy()
    occupation = d["occupation"].to_numpy(int)
    return X, d["affairs"].to_numpy(), np.arange(len(X)) % 4, occupation


@pytest.fixture(scope="module")
def randhie():
    d = sm.datasets.randhie.load_pandas().data
    y = d.pop("mdvis").to_numpy()
    return d.to_numpy(), y, (d["lncoins"].rank(method="dense") % 6).to_numpy(int)


def with_one(X):
    return np.column_stack([X, np.ones(len(X))])


def same(model, found, *, factor=1.0, pvalues=True):
    """Coefficients and errors of a model with an intercept are those of statsmodels."""
    p = model.coef_.size + 1
    params, bse = np.asarray(found.params)[:p], np.asarray(found.bse)[:p] * factor
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), params, **CLOSE)
    np.testing.assert_allclose(np.append(model.bse_, model.intercept_bse_), bse, **CLOSE)
    if factor == 1.0 and pvalues:
        known = np.asarray(found.pvalues)[: p - 1]
        np.testing.assert_allclose(np.ravel(model.pvalues_), known, rtol=1e-5, atol=1e-12)
        ends = np.asarray(found.conf_int(0.1))[: p - 1]
        np.testing.assert_allclose(model.conf_int(0.1).reshape(-1, 2), ends, **CLOSE)


def fits(model, found):
    np.testing.assert_allclose(model.loglik_, found.llf, **CLOSE)
    np.testing.assert_allclose(model.aic_, found.aic, **CLOSE)


@pytest.mark.parametrize("inference", ["model", "robust", "cluster"])
def test_linear(fair, inference):
    X, y, sites, _ = fair
    how = {
        "model": {},
        "robust": {"cov_type": "HC1"},
        "cluster": {"cov_type": "cluster", "cov_kwds": {"groups": sites}, "use_t": True},
    }
    found = sm.OLS(y, with_one(X)).fit(**how[inference])
    model = FederatedElasticNet(alpha=0, inference=inference).fit(X, y, sites)
    same(model, found)
    fits(model, found)
    np.testing.assert_allclose([model.bic_, model.dispersion_], [found.bic, found.scale], **CLOSE)


def test_logistic(fair):
    X, y, sites, occupation = fair
    y, n, p = y > 0, len(y), X.shape[1] + 1
    known = sm.Logit(y, with_one(X))
    found = known.fit(disp=0)
    model = FederatedLogisticRegression(C=np.inf, inference="model").fit(X, y, sites)
    same(model, found)
    fits(model, found)
    np.testing.assert_allclose(model.ratios()[0, :, 0], np.exp(found.params[:-1]), **CLOSE)
    model = FederatedLogisticRegression(C=np.inf, inference="robust").fit(X, y, sites)
    same(model, known.fit(disp=0, cov_type="HC0"), factor=np.sqrt(n / (n - p)))
    pairs = np.unique(100 * sites + occupation, return_inverse=True)[1]
    found = known.fit(disp=0, cov_type="cluster", cov_kwds={"groups": pairs})
    model = FederatedLogisticRegression(C=np.inf, inference="cluster")
    same(model.fit(X, y, sites, clusters=occupation), found, pvalues=False)
    assert model.estimates_.df == pairs.max()  # G - 1, below 30 clusters
    assert "24 clusters are few" in model.summary()


def test_a_likelihood_ratio_is_that_of_two_fits(fair):
    """Of nested columns."""
    X, y, sites, _ = fair
    X = pd.DataFrame(X, columns=list("abcde"))
    model = FederatedLogisticRegression(C=np.inf, inference="model")
    larger, smaller = (clone(model).fit(X[list(own)], y > 0, sites) for own in ("abcde", "ab"))
    null, found = (sm.Logit(y > 0, sm.add_constant(X[list(own)])).fit(disp=0)
                   for own in ("ab", "abcde"))  # fmt: skip
    chi2, df, p = larger.likelihood_ratio(smaller)
    assert df == 3
    np.testing.assert_allclose(chi2, 2 * (found.llf - null.llf), **CLOSE)
    assert 0 <= p < 1e-6
    assert larger.likelihood_ratio(clone(model).fit(X[["b"]], y > 0, sites))[1] == 4
    with pytest.raises(ConfigError, match="smaller has column c, which the larger lacks"):
        smaller.likelihood_ratio(clone(model).fit(X[["c"]], y > 0, sites))


def test_multinomial(fair):
    X, y, sites, _ = fair
    X, y = X[:, :3], np.digitize(y, [0.1, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sm.MNLogit(y, with_one(X)).fit(disp=0, method="newton", maxiter=50)
    model = FederatedLogisticRegression(C=np.inf, inference="model").fit(X, y, sites)
    shape = (4, 2)
    np.testing.assert_allclose(model.estimates_.values.reshape(shape), found.params, **CLOSE)
    np.testing.assert_allclose(model.estimates_.bse.reshape(shape), found.bse, **CLOSE)
    fits(model, found)
    assert model.bse_.shape == model.coef_.shape == (3, 3)
    np.testing.assert_allclose(model.coef_.sum(axis=0), 0, atol=1e-12)
    # Of centred coefficients: by the differences from the first class.
    V = np.asarray(found.cov_params())  # class by class
    C = np.eye(3)[:, 1:] - 1 / 3
    age = [1, 5]
    np.testing.assert_allclose(
        model.bse_[:, 1], np.sqrt(np.diag(C @ V[np.ix_(age, age)] @ C.T)), **CLOSE
    )


def test_poisson_with_exposure_and_offset(randhie):
    X, y, sites = randhie
    X = X[:, :6]
    exposure = 0.5 + (np.arange(len(y)) % 7) / 4
    offset = np.sin(np.arange(len(y))) / 5
    pooled = sm.GLM(y, with_one(X), sm.families.Poisson(), offset=offset, exposure=exposure)
    model = FederatedPoissonRegressor(alpha=0, inference="model")
    model.fit(X, y, sites, offset=offset, exposure=exposure)
    found = pooled.fit(tol=1e-12)
    same(model, found)
    fits(model, found)
    np.testing.assert_allclose(model.deviance_, found.deviance, **CLOSE)
    np.testing.assert_allclose(model.estimates_.pearson, found.pearson_chi2, **CLOSE)
    ratio = found.pearson_chi2 / found.df_resid
    np.testing.assert_allclose(model.estimates_.pearson_ratio, ratio, **CLOSE)
    told = model.summary()
    assert "1 (fixed)" in told
    assert f"chi2 over its degrees of freedom is {ratio:.3g}: " in told
    even = FederatedPoissonRegressor(alpha=0, inference="model")
    even.fit(X, np.random.default_rng(0).poisson(2.0, len(y)), sites)
    assert 0.9 < even.estimates_.pearson_ratio < 1.1
    assert "Pearson's" not in even.summary()
    quasi = FederatedPoissonRegressor(alpha=0, inference="quasi")
    quasi.fit(X, y, sites, offset=offset, exposure=exposure)
    same(quasi, pooled.fit(tol=1e-12, scale="X2"))
    assert np.isnan(quasi.aic_)  # no likelihood has such a variance
    assert "quasi-Poisson" in quasi.summary()
    assert "(fixed)" not in quasi.summary()


def test_weights_count_rows(randhie):
    X, y, sites = (v[:600] for v in randhie)
    X, counts = X[:, [0, 5]], 1 + np.arange(600) % 3
    for inference in ("model", "robust", "cluster"):
        weighted = FederatedPoissonRegressor(alpha=0, inference=inference)
        weighted.fit(X, y, sites, sample_weight=counts)
        copies = FederatedPoissonRegressor(alpha=0, inference=inference)
        copies.fit(*(np.repeat(v, counts, axis=0) for v in (X, y, sites)))
        for name in ("coef_", "bse_", "loglik_", "bic_", "deviance_"):
            np.testing.assert_allclose(getattr(weighted, name), getattr(copies, name), rtol=1e-9)


def test_negative_binomial(randhie):
    X, y, sites = (v[:4000] for v in randhie)
    X = X[:, :6]
    start = sm.Poisson(y, with_one(X)).fit(disp=0).params
    found = sm.NegativeBinomial(y, with_one(X)).fit(
        start_params=np.append(start, 0.7), method="newton", disp=0, tol=1e-12
    )
    model = FederatedNegativeBinomial(inference="model").fit(X, y, sites)
    same(model, found)
    fits(model, found)
    np.testing.assert_allclose(model.alpha_, found.params[-1], **CLOSE)
    np.testing.assert_allclose(model.alpha_ * model.estimates_.bse[-1], found.bse[-1], **CLOSE)
    lines = model.summary().splitlines()
    ends = {
        line.split()[0]: len(line) for line in lines if line.startswith(("x0 ", "(int", "log a"))
    }
    assert ends["x0"] > max(ends["(intercept)"], ends["log"])  # no rate ratio of these
    assert "log alpha included, as in statsmodels (R's glm.nb treats alpha as known" in lines[-1]
    # Nobody asks whether alpha is 1: the row has an error and an interval, and no test.
    (last,) = (line.split() for line in lines if line.startswith("log alpha"))
    assert len(last) == 6
    assert np.isnan([model.estimates_.statistics[-1], model.estimates_.pvalues[-1]]).all()
    assert " <0.001 " in next(line for line in lines if line.startswith("(intercept)"))
    few = X[:60, :1], np.arange(60) % 2
    with pytest.warns(ConvergenceWarning, match="vary no more than Poisson's"):
        assert FederatedNegativeBinomial().fit(*few).n_iter_ < 50


@pytest.mark.parametrize("inference", ["model", "robust"])
def test_gamma(randhie, inference):
    X, y, sites = (v[randhie[1] > 0] for v in randhie)
    X, n = X[:, :6], len(y)
    known = sm.GLM(y, with_one(X), sm.families.Gamma(sm.families.links.Log()))
    found = known.fit(tol=1e-13, cov_type="nonrobust" if inference == "model" else "HC0")
    model = FederatedGammaRegressor(alpha=0, inference=inference).fit(X, y, sites)
    same(model, found, factor=1.0 if inference == "model" else np.sqrt(n / (n - 7)))
    np.testing.assert_allclose(model.dispersion_, found.scale, **CLOSE)
    np.testing.assert_allclose(model.deviance_, found.deviance, **CLOSE)
    # At the likelihood's own shape, which statsmodels takes as given.
    np.testing.assert_allclose(
        model.loglik_, known.loglike(found.params, 1 / model.shape_), **CLOSE
    )
    for other in (0.99, 1.01):
        assert known.loglike(found.params, 1 / (other * model.shape_)) < model.loglik_
    np.testing.assert_allclose(model.aic_, 2 * 8 - 2 * model.loglik_, **CLOSE)


# R 4.2, survival 3.5: coxph(Surv(week, arrest) ~ fin + age + wexp + paro + prio + strata(site)),
# site = 2 race + mar: vcov, with robust=TRUE, and with cluster(100 site + age).
ROSSI = {
    "efron": (
        [-0.3785731194227, -0.0576781077194, -0.1374768352299, -0.0881767765199, 0.0942838741619],
        [0.1914236553619, 0.0220310699474, 0.2130608501741, 0.1958489964197, 0.0289409874390],
        [0.1940305113399, 0.0253311067115, 0.2188984310943, 0.1981386480741, 0.0290867814420],
        [0.1938786089780, 0.0264931063202, 0.2085506771660, 0.1774141391827, 0.0261795167017],
        -591.84754591690,
    ),
    "breslow": (
        [-0.3781355626842, -0.0574428546351, -0.1391351633643, -0.0878779100076, 0.0940101895099],
        [0.1914077632864, 0.0220101655537, 0.2129847129254, 0.1958372722897, 0.0289316434144],
        [0.1931676605553, 0.0252097449869, 0.2178335334453, 0.1972355528725, 0.0289178668615],
        [0.1932101467989, 0.0263384940324, 0.2078169644931, 0.1768101496302, 0.0259868014994],
        -592.21789978734,
    ),
}


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_cox(ties):
    d = load_rossi()
    X = d[["fin", "age", "wexp", "paro", "prio"]].to_numpy()
    y, sites = d[["week", "arrest"]].to_numpy(), 2 * d["race"] + d["mar"]
    coefficients, *errors, loglik = ROSSI[ties]
    for inference, known in zip(("model", "robust", "cluster"), errors, strict=True):
        clusters = d["age"] if inference == "cluster" else None
        model = FederatedCoxRegression(0, ties=ties, inference=inference)
        model.fit(X, y, sites, clusters=clusters)
        np.testing.assert_allclose(model.coef_, coefficients, rtol=1e-6)
        np.testing.assert_allclose(model.bse_, known, rtol=1e-6)
        np.testing.assert_allclose(model.loglik_, loglik, rtol=1e-9)
    bic = 5 * np.log(d["arrest"].sum()) - 2 * loglik  # R's BIC counts events
    np.testing.assert_allclose(model.bic_, bic, rtol=1e-9)
    assert "hazard ratio" in model.summary()
    assert "intercept" not in model.summary()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 3))
def test_sites_change_no_number(seed, columns, sites):
    """Small random tables: the same errors as statsmodels', however rows are dealt out."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, columns)) * 10.0 ** rng.integers(-3, 3, columns)
    y = rng.poisson(np.exp(0.4 * X @ (1.0 / (np.abs(X).max(axis=0) * columns)))) + 0.0
    groups = np.append(np.arange(sites), rng.integers(sites, size=40 - sites))
    found = sm.GLM(y, with_one(X), sm.families.Poisson()).fit(tol=1e-12)
    model = FederatedPoissonRegressor(alpha=0, inference="model").fit(X, y, groups)
    np.testing.assert_allclose(model.bse_, found.bse[:-1], rtol=1e-5)
    np.testing.assert_allclose(model.loglik_, found.llf, rtol=1e-8)
    found = sm.OLS(y, with_one(X)).fit(cov_type="HC1")
    linear = FederatedElasticNet(alpha=0, inference="robust").fit(X, y, groups)
    np.testing.assert_allclose(linear.bse_, found.bse[:-1], rtol=1e-6)


def test_another_fit_leaves_no_errors_of_the_one_before(fair):
    X, y, sites, _ = (v[::32] for v in fair)
    model = FederatedLogisticRegression(np.inf, inference="model").fit(X, y > 0, sites)
    assert model.bse_.shape == (1, 5)
    model.set_params(inference=None).fit(X[:, :2], y > 0, sites)
    assert not hasattr(model, "bse_")
    assert not hasattr(model, "loglik_")
    with pytest.raises(ConfigError, match="without inference"):
        model.summary()
