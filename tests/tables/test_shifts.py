"""Shifts and units of columns change no model with an intercept, in estimators and in tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from tabular import coefficients, deal, numeric, run

from flower_fedcon.estimators import (
    FederatedElasticNet,
    FederatedGammaRegressor,
    FederatedLogisticRegression,
    FederatedNegativeBinomial,
    FederatedPoissonRegressor,
)
from flower_fedcon.tables.builders import tables

N = 240
RNG = np.random.default_rng(5)
Z = RNG.normal(size=(N, 2))
SITES = np.arange(N) % 3
MEAN = np.exp(Z @ [0.5, -0.4])
LOGIT = sm.families.Binomial()
LOG = sm.families.links.Log()
Y = {
    "squared": np.log(MEAN) + RNG.normal(size=N),
    "logistic": (RNG.random(N) < MEAN / (1 + MEAN)).astype(float),
    "multinomial": np.minimum(RNG.poisson(MEAN), 2).astype(float),
    "poisson": RNG.poisson(MEAN).astype(float),
    "gamma": MEAN * RNG.gamma(2.0, 0.5, N),
    "negative_binomial": RNG.poisson(MEAN * RNG.gamma(1.0, 1.0, N)).astype(float),
}
MADE = {
    "squared": FederatedElasticNet(alpha=0),
    "logistic": FederatedLogisticRegression(C=np.inf),
    "multinomial": FederatedLogisticRegression(C=np.inf),
    "poisson": FederatedPoissonRegressor(alpha=0),
    "gamma": FederatedGammaRegressor(alpha=0),
    "negative_binomial": FederatedNegativeBinomial(),
}
STATED = {"logistic": {"positive": ["1.0"]}, "multinomial": {"classes": ["0.0", "1.0", "2.0"]}}


def moved(shift, unit):
    """The columns in another unit, shifted by so many of their standard deviations."""
    return Z * [unit, 1.0] + [shift * unit, 0.0]


def reference(loss, X, method):
    """The slopes and their errors, by statsmodels of columns that were centred in long doubles."""
    exact = X.astype(np.longdouble)
    centred = (exact - exact.mean(axis=0)).astype(float)
    unit = centred.std(axis=0)
    A, y = sm.add_constant(centred / unit, prepend=False), Y[loss]
    cov = {"model": "nonrobust", "robust": "HC0"}[method]
    if loss == "squared":
        found = sm.OLS(y, A).fit(cov_type=cov)
    elif loss == "multinomial":
        found = sm.MNLogit(y, A).fit(disp=0, tol=1e-14, method="newton", cov_type=cov)
        errors = (found.bse[:2] / unit[:, None]).T.ravel()
        return (found.params[:2] / unit[:, None]).T.ravel(), errors * small(method, 6)
    elif loss == "negative_binomial":
        found = sm.NegativeBinomial(y, A).fit(
            start_params=np.r_[np.zeros(2), np.log(y.mean()), 1.0], method="newton", disp=0,
            tol=1e-14, maxiter=60, cov_type=cov,
        )  # fmt: skip
    else:
        family = {"logistic": LOGIT, "poisson": sm.families.Poisson(),
                  "gamma": sm.families.Gamma(LOG)}[loss]  # fmt: skip
        found = sm.GLM(y, A, family).fit(tol=1e-14, cov_type=cov)
    return found.params[:2] / unit, found.bse[:2] / unit * small(method, len(found.params))


def small(method, parameters):
    """HC1's factor, which statsmodels' HC0 is without."""
    return np.sqrt(N / (N - parameters)) if method == "robust" else 1.0


def of_classes(values):
    """The contrasts with the first class."""
    return (values[1:] - values[0]).ravel()


shifts = st.one_of(st.floats(-10, 10), st.sampled_from([1e3, -1e5, 1e7, 1.6e9]))
units = st.sampled_from([1e-8, 1e-3, 1.0, 10.0, 1e8])


def digits(shift):
    """What is left of the columns' digits."""
    return 1e-7 + 20 * 2e-16 * abs(shift)


@pytest.mark.parametrize("loss", list(Y))
@settings(max_examples=8, deadline=None)
@given(shifts, units, st.sampled_from(["model", "robust"]))
def test_estimators(loss, shift, unit, method):
    if loss == "gamma":
        method = "model"  # whose robust errors use the observed information
    X = moved(shift, unit)
    slopes, errors = reference(loss, X, method)
    model = clone(MADE[loss]).set_params(inference=method).fit(X, Y[loss], SITES)
    coef = of_classes(model.coef_) if loss == "multinomial" else np.ravel(model.coef_)
    scale = np.tile([unit, 1.0], len(coef) // 2)
    close = digits(shift)
    np.testing.assert_allclose(coef * scale, slopes * scale, rtol=close, atol=close)
    own = model.estimates_
    places = [j for j, name in enumerate(own.names) if name.startswith("x")]
    if loss == "multinomial":
        places = sorted(places, key=lambda j: own.names[j].split("[")[1])
    np.testing.assert_allclose(own.bse[places] * scale, np.ravel(errors) * scale, rtol=10 * close)
    plain = clone(MADE[loss]).fit(Z, Y[loss], SITES)
    of = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    both = (getattr(one, of)(rows) for one, rows in ((model, X), (plain, Z)))
    np.testing.assert_allclose(*both, rtol=200 * close, atol=200 * close)


@pytest.mark.parametrize("effects", ["own", "random"])
@settings(max_examples=8, deadline=None)
@given(shifts, units, st.sampled_from(["squared", "logistic", "poisson"]))
def test_intercepts_of_sites(effects, shift, unit, loss):
    made = clone(MADE[loss]).set_params(inference="model", site_effects=effects)
    plain = made.fit(Z, Y[loss], SITES)
    slopes, errors = np.ravel(plain.coef_), np.ravel(plain.bse_)
    model = made.fit(moved(shift, unit), Y[loss], SITES)
    close = 10 * digits(shift)
    np.testing.assert_allclose(np.ravel(model.coef_) * [unit, 1.0], slopes, rtol=close, atol=close)
    np.testing.assert_allclose(np.ravel(model.bse_) * [unit, 1.0], errors, rtol=close)


@pytest.mark.parametrize("loss", list(Y))
@settings(max_examples=4, deadline=None)
@given(shifts, units, st.booleans())
def test_tables(tmp_path_factory, loss, shift, unit, standardize):
    folder = tmp_path_factory.mktemp("shift")
    X = moved(shift, unit)
    deal(folder, pd.DataFrame({"x0": X[:, 0], "x1": X[:, 1], "y": Y[loss]}))
    schema = {
        "target": "y", "loss": loss, "features": numeric("x0", "x1"), "test_fraction": 0.0,
        "standardize": standardize, **STATED.get(loss, {}),
    }  # fmt: skip
    made = tables(data=f"{folder}/site*.csv", schema=schema, inference="model")
    history = run(made, 15, run_dir=folder / "run")
    assert ": converged (" in history.report.text
    slopes, errors = reference(loss, X, "model")
    found = history.report.estimates
    places = [j for j, name in enumerate(found.names) if name.startswith("x")]
    if loss == "multinomial":
        places = sorted(places, key=lambda j: found.names[j].split("[")[1])
    scale = np.tile([unit, 1.0], len(places) // 2)
    close = digits(shift)
    np.testing.assert_allclose(found.values[places] * scale, slopes * scale, rtol=close, atol=close)
    np.testing.assert_allclose(found.bse[places] * scale, np.ravel(errors) * scale, rtol=10 * close)
    if loss == "squared":
        file = coefficients(folder / "run")
        np.testing.assert_allclose(file.loc[["x0", "x1"], "per_unit"] * scale, slopes * scale,
                                   rtol=close, atol=close)  # fmt: skip
