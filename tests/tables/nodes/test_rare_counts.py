"""Negative binomial models of counts that are rare and large: the optimum, in few rounds."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from fake_grid import on_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import gammaln
from table_nodes import start
from tabular import coefficients, deal, kept, numeric, run

from flower_fedcon import FederatedProblem, Policy
from flower_fedcon.estimators import FederatedNegativeBinomial
from flower_fedcon.objectives import NegativeBinomialRegression, WithDispersion
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables

SCHEMA = {"target": "y", "loss": "negative_binomial", "features": numeric("a", "b"),
          "test_fraction": 0.0}  # fmt: skip


def drawn(seed, alpha, level=0.0, zeros=0.0, n=400):
    """Rows of NB2 counts, of which a share is set to 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    mean = np.exp(level + X @ [0.5, -0.3])
    y = rng.poisson(mean * rng.gamma(1.0 / alpha, alpha, n)) * (rng.random(n) >= zeros)
    return X, y.astype(float)


def loglik(y, mean, alpha):
    r = 1.0 / alpha
    return float(np.sum(
        gammaln(y + r) - gammaln(r) - gammaln(y + 1) - (y + r) * np.log1p(alpha * mean)
        + y * np.log(alpha * mean)
    ))  # fmt: skip


def profiled(X, y, near):
    """The largest likelihood over log alpha, of statsmodels' GLM fits for a known alpha."""
    ones = sm.add_constant(X, prepend=False)

    def least(log_alpha):
        alpha = math.exp(log_alpha)
        family = sm.families.NegativeBinomial(alpha=alpha)
        try:
            fit = sm.GLM(y, ones, family).fit(tol=1e-12, maxiter=300)
        except ValueError:  # its steps leave the range of floating point
            return math.inf
        return -loglik(y, fit.fittedvalues, alpha)

    grid = np.r_[np.arange(-7.0, 8.0), near]
    best = grid[np.argmin([least(t) for t in grid])]
    ends = best - 1.5, best + 1.5
    return minimize_scalar(least, bounds=ends, method="bounded", options={"xatol": 1e-10}).fun


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 10**6),
    st.floats(-1.0, 3.0),
    st.floats(-2.0, 3.0),
    st.sampled_from([0.0, 0.5, 0.9]),
)
def test_any_dispersion_is_fitted_in_few_rounds(seed, digits, level, zeros):
    X, y = drawn(seed, 10.0**digits, level, zeros)
    sites = np.arange(400) % 4
    if (y > 0).sum() < 6 or y.var() < 1.5 * y.mean():
        return  # no alpha > 0, or next to nothing to fit
    model = FederatedNegativeBinomial(max_iter=60).fit(X, y, sites)
    mean = np.exp(X @ model.coef_ + model.intercept_)
    own = -loglik(y, mean, model.alpha_)
    assert own <= profiled(X, y, math.log(model.alpha_)) + 1e-7
    for change in (-1e-3, 1e-3):  # on each parameter alone
        assert own < -loglik(y, mean, model.alpha_ * math.exp(change)) + 1e-9
        for column in (*X.T, 1.0):
            assert own < -loglik(y, mean * np.exp(change * column), model.alpha_) + 1e-9


# library(MASS); options(digits = 15)
# y <- c(rep(0, 56), 1, 0, 2, 412, 0, 0, 37, 5); x <- ((0:63) %% 7) / 3 - 1
# m <- glm.nb(y ~ x, control = glm.control(maxit = 2000, epsilon = 1e-14), init.theta = 0.01)
# coef(m); 1 / m$theta; logLik(m)
FEW = np.r_[np.zeros(56), 1, 0, 2, 412, 0, 0, 37, 5]
OF_R = [1.09628779726249, 1.94010686527022], 77.5875189821116, -39.5147276657069


def test_a_few_large_counts_are_fitted_as_by_r():
    x = (np.arange(64) % 7 / 3 - 1)[:, None]
    model = FederatedNegativeBinomial(inference="model").fit(x, FEW, np.arange(64) % 4)
    assert model.n_iter_ < 25
    np.testing.assert_allclose([*model.coef_, model.intercept_], OF_R[0], rtol=1e-6)
    np.testing.assert_allclose(model.alpha_, OF_R[1], rtol=2e-5)  # R ends its rounds before
    np.testing.assert_allclose(model.loglik_, OF_R[2], rtol=1e-10)


@pytest.mark.parametrize(
    ("alpha", "level"), [(300.0, 0.0), (300.0, 3.0), (1000.0, 3.0), (0.01, 3.0)]
)
def test_tables_find_what_estimators_find(alpha, level, tmp_path):
    X, y = drawn(1, alpha, level, n=600)
    deal(tmp_path, pd.DataFrame(np.c_[X, y], columns=["a", "b", "y"]), 4)
    made = tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA, inference="model")
    history = run(made, 30, run_dir=tmp_path / "run")
    assert ": converged (" in history.report.text
    model = FederatedNegativeBinomial(inference="model").fit(X, y, np.arange(600) % 4)
    found = coefficients(tmp_path / "run")["per_unit"]
    np.testing.assert_allclose(
        found[["a", "b", "(intercept)"]], [*model.coef_, model.intercept_], rtol=1e-6, atol=1e-8
    )
    np.testing.assert_allclose(kept(tmp_path / "run")["alpha"], model.alpha_, rtol=1e-6)


@pytest.mark.parametrize("counts", ["equal", "poisson"])
def test_counts_without_more_variance_are_referred_to_poisson(counts, tmp_path):
    """Log alpha has no finite maximum then; the outcome is not separated."""
    X, y = drawn(1, 0.01, n=600)
    y = np.full(600, 3.0) if counts == "equal" else np.random.default_rng(4).binomial(9, 0.4, 600)
    deal(tmp_path, pd.DataFrame(np.c_[X, y], columns=["a", "b", "y"]), 4)
    made = tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA, inference="model")
    text = run(made, 12).report.text
    assert "separated" not in text
    assert "no standard errors: KKT residual: " in text
    assert 'at an alpha > 0: use loss = "poisson"' in text


@on_grid
def test_nodes_find_it_too(tmp_path):
    X, y = drawn(1, 300.0, n=600)
    deal(tmp_path, pd.DataFrame(np.c_[X, y], columns=["a", "b", "y"]), 4)
    here = run(tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA), 12)
    files = sorted(tmp_path.glob("site*.csv"))
    there = start(files, Schema.load(SCHEMA), 12, Policy.open(), made=FedNewton())
    assert there.x.tobytes() == here.x.tobytes()


def test_the_reference_is_the_optimum():
    X, y = drawn(3, 300.0, 1.0)
    clients = [
        WithDispersion(NegativeBinomialRegression(X[k::4], y[k::4], intercept=True))
        for k in range(4)
    ]
    reference = FederatedProblem(clients).optimum
    model = FederatedNegativeBinomial().fit(X, y, np.arange(400) % 4)
    np.testing.assert_allclose(
        reference.x, [*model.coef_, model.intercept_, math.log(model.alpha_)], atol=1e-5
    )
