"""Penalties of tables: the elastic net, and factors by column, beside glmnet."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from tabular import run

from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import (
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)
from flower_fedcon.tables.builders import tables

ROWS = pd.DataFrame(
    {
        "x1": [0.5, -1.2, 0.3, 1.9, -0.7, 0.1, -0.4, 1.1, 2.2, -1.5, 0.9, -0.2],
        "x2": [1.0, 0.2, -0.5, 0.7, -1.9, 0.4, 1.3, -0.8, 0.6, -0.1, -1.1, 0.8],
        "x3": [-0.3, 0.8, 1.4, -0.6, 0.2, -1.7, 0.5, 0.9, -1.2, 0.3, 1.6, -0.9],
        "y": [1.2, -2.0, 0.7, 3.1, -2.2, -0.5, 0.4, 1.4, 3.9, -2.6, 1.9, 0.1],
        "k": [2, 0, 1, 5, 0, 1, 1, 2, 7, 0, 3, 1],
    }
)
ROWS["b"] = (ROWS["y"] + [2, 2, -2, -4, 3, 0, 0, 0, -1, 0, 0, 0] > 0.2).astype(int)
ROWS["sex"] = list("fmdfmdfmdfmd")
FACTORS = {"x1": 0.0, "x3": 2.0}
GLMNET = {
    # R 4.2, glmnet 4.1-6: glmnet(X, y, family, alpha = a, lambda = c(1, l), penalty.factor =
    # c(0, 1, 2), thresh = 1e-20), whose factors have the mean 1: intercept, x1, x2, x3
    ("squared", 0.1, 0.6): [-0.00997934345854817, 1.70915594346669319, 0.37902086224251569,
                            0.16487177375698736],
    ("logistic", 0.05, 0.6): [-0.166419546328024, 0.699923087156328, -0.360238314004842,
                              0.153531663305641],
    ("poisson", 0.1, 1.0): [-0.1330664877571922, 0.9564290405296552, 0.0106946037445163, 0.0],
    ("poisson", 0.1, 0.6): [-0.129176518242933, 0.946271983724560, 0.048137491780615, 0.0],
}  # fmt: skip
OUTCOME = {"squared": {"target": "y"}, "logistic": {"target": "b", "positive": ["1"]},
           "poisson": {"target": "k", "loss": "poisson"}}  # fmt: skip


@pytest.fixture
def problem_of(tmp_path):
    ROWS[:5].to_csv(tmp_path / "a.csv", index=False)
    ROWS[5:].to_csv(tmp_path / "b.csv", index=False)
    features = {"x1": "numeric", "x2": "numeric", "x3": "numeric"}

    def make(loss="squared", more=(), **arguments):
        schema = {"features": features | dict(more), **OUTCOME[loss]}
        return tables(data=f"{tmp_path}/*.csv", schema=schema, **arguments)

    return make


@pytest.mark.parametrize(("loss", "alpha", "share"), GLMNET)
def test_coefficients_are_those_of_glmnet(problem_of, loss, alpha, share):
    l1, l2 = alpha * share, alpha * (1 - share)
    if loss == "squared":  # whose outcome glmnet scales, and the square of its penalty with it
        l2 /= ROWS["y"].std(ddof=0)
    problem = problem_of(loss, l1=l1, l2=l2, penalty_factor=FACTORS)
    found = run(problem, 40)
    *slopes, intercept = problem.preparation.in_units(found.x).tolist()
    assert [intercept, *slopes] == pytest.approx(GLMNET[loss, alpha, share], rel=1e-6, abs=1e-8)
    assert found.report.reached.converged


def test_a_factor_is_of_a_feature_s_columns_or_of_one(problem_of):
    more = {"sex": "categorical"}
    problem = problem_of(more=more, l1=0.5, penalty_factor={"sex": 3, "sex=m": 0.0})
    assert problem.preparation.names == ("x1", "x2", "x3", "sex=f", "sex=m")
    l1, l2 = problem.regularizer.entrywise(problem.x0.shape)
    assert l1.tolist() == [0.5, 0.5, 0.5, 1.5, 0.0, 0.0]
    assert not l2.any()
    grouped = problem_of(more=more, l1=0.5, penalty="group", penalty_factor={"sex": 3, "x1": 0})
    x = np.array([5.0, 1.0, 0.0, 3.0, 4.0, 9.0])
    assert grouped.regularizer.value(x) == pytest.approx(0.5 * (1 + 3 * np.sqrt(2) * 5))


def test_without_factors_the_elastic_net_is_one(problem_of):
    x = np.array([3.0, -1.0, 2.0, 7.0])
    assert problem_of(l1=0.5, l2=0.2).regularizer.value(x) == pytest.approx(0.5 * 6 + 0.1 * 14)


@pytest.mark.parametrize(("arguments", "said"), [
    ({"penalty_factor": {"x4": 1.0}},
     "names 'x4', which is not a column: did you mean 'x[123]'"),
    ({"penalty_factor": {"x1": -1.0}}, "penalty_factor of 'x1' must be"),
    ({"l2": -1.0}, "l2 must be"),
    ({"l2": 1.0, "penalty": "group"}, 'l2 = 1 is for penalty = "l1"'),
    ({"penalty": "group", "penalty_factor": {"sex=m": 2.0}}, "differs within a feature"),
])  # fmt: skip
def test_what_cannot_be_is_refused(problem_of, arguments, said):
    with pytest.raises(ConfigError, match=said):
        problem_of(more={"sex": "categorical"}, **arguments)


def test_estimators_find_what_glmnet_finds_too():
    """Of standardised columns: l1_ratio is glmnet's alpha, and alpha its lambda."""
    X = ROWS[["x1", "x2", "x3"]].to_numpy()
    means, sizes = X.mean(axis=0), X.std(axis=0)
    sites, factor = np.repeat([0, 1], [5, 7]), np.array([0.0, 1.0, 2.0])
    logistic = FederatedLogisticRegression(C=1 / (0.05 * 12), l1_ratio=0.6, penalty_factor=factor)
    poisson = FederatedPoissonRegressor(0.1, l1_ratio=0.6, penalty_factor=factor)
    for model, y, key in (
        (logistic, "b", ("logistic", 0.05, 0.6)),
        (poisson, "k", ("poisson", 0.1, 0.6)),
    ):
        model.fit((X - means) / sizes, ROWS[y].to_numpy(), groups=sites)
        slopes = np.ravel(model.coef_) / sizes
        intercept = np.ravel(model.intercept_)[0] - slopes @ means
        assert [intercept, *slopes] == pytest.approx(GLMNET[key], rel=1e-6, abs=1e-8)
    three = np.resize([0, 1, 2], 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a free column's classes are alike up to a number
        free = FederatedLogisticRegression(C=0.1, penalty_factor=[0, 1, 1])
        free.fit(X, three, groups=sites)
    assert (free.coef_[:, 0] != 0).any()
