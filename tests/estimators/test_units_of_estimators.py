"""Data in other units: estimators, paths and cross-validation give the same answer in new units."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import nightly
from scales import (
    COUNTS,
    EVENTS,
    LABELS,
    LOSSES,
    ROWS,
    SCORE,
    TIMES,
    back,
    factors,
    problem,
    units,
)
from sklearn.exceptions import ConvergenceWarning

from flower_fedcon import regularization_path
from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedElasticNet,
    FederatedElasticNetCV,
    FederatedLasso,
    FederatedLassoCV,
    FederatedLogisticRegression,
    FederatedLogisticRegressionCV,
    FederatedPoissonRegressor,
)
from flower_fedcon.regularizers import L1

GROUPS = np.arange(48) % 3
GRID = {"num": 5, "cv": 3, "min_ratio": 0.02}

# Of the factor u of all columns and c of the target: the estimator, and its target.
PENALISED = {
    "lasso": lambda u, c: (FederatedLasso(0.1 * u * c), c * SCORE),
    "elastic net": lambda u, c: (FederatedElasticNet(0.1 * u * u, l1_ratio=0.4), u * SCORE),
    "poisson": lambda u, c: (FederatedPoissonRegressor(0.05 * u, l1_ratio=1.0), COUNTS),
    "cox": lambda u, c: (FederatedCoxRegression(0.02 * u), np.c_[TIMES, EVENTS]),
    "logistic": lambda u, c: (FederatedLogisticRegression(0.5 / u), LABELS),
    "ridge logistic": lambda u, c: (FederatedLogisticRegression(0.5 / u**2, l1_ratio=0.0), LABELS),
    "softmax": lambda u, c: (FederatedLogisticRegression(0.5 / u), np.arange(48) % 3),
    "lasso cv": lambda u, c: (FederatedLassoCV(**GRID), c * SCORE),
    "elastic net cv": lambda u, c: (FederatedElasticNetCV(**GRID), u * SCORE),
    "logistic cv": lambda u, c: (FederatedLogisticRegressionCV(**GRID), LABELS),
}
FREE = {
    "lasso": lambda c: (FederatedLasso(0.0), c * SCORE),
    "elastic net": lambda c: (FederatedElasticNet(0.0), c * SCORE),
    "poisson": lambda c: (FederatedPoissonRegressor(0.0), COUNTS),
    "cox": lambda c: (FederatedCoxRegression(0.0), np.c_[TIMES, EVENTS]),
}


def fitted(made, rows):
    """Return the model, with an error for any warning."""
    model, target = made
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        return model.fit(rows, target, groups=GROUPS)


@cache
def usual(name):
    model = fitted(PENALISED[name](1.0, 1.0), ROWS)
    return model, model.predict(ROWS)


@pytest.mark.parametrize("examples", [2, nightly(60)])
@pytest.mark.parametrize("name", PENALISED)
def test_penalised_estimators_with_all_columns_in_another_unit(name, examples):
    expected, predictions = usual(name)

    @settings(max_examples=examples)
    @given(st.floats(-9, 9), st.floats(-9, 9))
    def in_units(columns, target):
        u, c = 10.0**columns, 10.0**target
        found = fitted(PENALISED[name](u, c), u * ROWS)
        unit = {"lasso": c, "lasso cv": c, "elastic net": u, "elastic net cv": u}.get(name, 1.0)
        near = 1e-6 * np.abs(expected.coef_).max()
        np.testing.assert_allclose(found.coef_ * u / unit, expected.coef_, rtol=0, atol=near)
        same = found.predict(u * ROWS)
        if name not in ("logistic", "ridge logistic", "softmax", "logistic cv"):
            same = same / (1.0 if name in ("poisson", "cox") else unit)
        np.testing.assert_allclose(same, predictions, atol=1e-5)
        assert found.history_.converged.all()

    in_units()


@pytest.mark.parametrize("examples", [3, nightly(100)])
@pytest.mark.parametrize("name", FREE)
def test_estimators_without_a_penalty_with_each_column_in_another_unit(name, examples):
    expected = fitted(FREE[name](1.0), ROWS)

    @settings(max_examples=examples)
    @given(units, st.booleans())
    def in_units(drawn, sparse):
        u, c = factors("squares" if name in ("lasso", "elastic net") else name, drawn)
        rows = sp.csr_array(ROWS * u) if sparse else ROWS * u
        found = fitted(FREE[name](c), rows)
        near = 1e-6 * np.abs(expected.coef_).max()
        np.testing.assert_allclose(found.coef_ * u / c, expected.coef_, rtol=0, atol=near)

    in_units()


@pytest.mark.parametrize("examples", [2, nightly(60)])
@pytest.mark.parametrize("kind", LOSSES)
def test_paths_with_each_column_in_another_unit(kind, examples):
    first = problem(kind, np.ones(3), 1.0, 0.0)
    expected = regularization_path(first, L1(1.0), num=4, min_ratio=0.02)

    @settings(max_examples=examples)
    @given(units)
    def in_units(drawn):
        u, c = factors(kind, drawn)
        weights = np.abs(u) * c
        psi = L1(np.repeat(weights[:, None], 3, axis=1) if kind == "softmax" else weights)
        found = regularization_path(problem(kind, u, c, 0.0), psi, num=4, min_ratio=0.02)
        np.testing.assert_allclose(found.values, expected.values, rtol=1e-9)
        np.testing.assert_allclose(found.kkt / c <= 1e-8, True)
        near = 1e-6 * np.abs(expected.coefs).max()
        for x, other in zip(found.coefs, expected.coefs, strict=True):
            np.testing.assert_allclose(back(x, u, c), other, rtol=0, atol=near)

    in_units()


def test_a_calendar_year_beside_an_indicator():
    rng = np.random.default_rng(0)
    years, sex = rng.integers(1990, 2020, 200).astype(float), rng.integers(0, 2, 200)
    rows = np.c_[years, sex]
    y = 0.3 * (years - 2000) + 0.05 * sex + 0.01 * rng.normal(size=200)
    exact, *_ = np.linalg.lstsq(np.c_[rows - rows.mean(axis=0), np.ones(200)], y)
    found = FederatedLasso(0.0).fit(rows, y, groups=np.arange(200) % 4)
    np.testing.assert_allclose(found.coef_, exact[:2], rtol=1e-8)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0, 1e9])
@pytest.mark.parametrize("centred", [False, True])
def test_a_constant_target_selects_nothing(value, centred):
    rows = ROWS - ROWS.mean(axis=0) if centred else 1e3 * ROWS
    mixed = FederatedElasticNetCV(l1_ratio=0.8, num=5, cv=3)
    for model in (FederatedLassoCV(**GRID), FederatedElasticNetCV(**GRID, rule="1se"), mixed):
        found = fitted((model, np.full(48, value)), rows)
        assert found.coef_.tolist() == [0.0, 0.0, 0.0]
        assert not any(active.size for active in found.cv_.path.active)
        assert found.intercept_ == pytest.approx(value, rel=1e-9, abs=1e-300)


def test_where_rounding_is_the_limit_a_warning_names_the_column():
    """Ticks of a clock are taken about their mean; sparse columns are not."""
    rng = np.random.default_rng(0)
    seconds = 1e3 * rng.normal(size=48)
    table = pd.DataFrame({"dose": ROWS[:, 0], "ticks": 1.7e9 + seconds})
    own = fitted((FederatedLasso(0.0), SCORE), table)
    centred = fitted((FederatedLasso(0.0), SCORE), table.assign(ticks=seconds))
    np.testing.assert_allclose(own.coef_, centred.coef_, rtol=1e-8)
    with pytest.warns(ConvergenceWarning, match=r"column '1' only .*e-1[23] is not a"):
        FederatedLasso(0.0).fit(sp.csr_matrix(table.to_numpy()), SCORE, groups=GROUPS)
    # Exactly collinear columns have no coefficients of their own.
    with pytest.warns(ConvergenceWarning, match="combination of the others"):
        FederatedLasso(0.0).fit(np.c_[ROWS, ROWS[:, 0]], SCORE, groups=GROUPS)
