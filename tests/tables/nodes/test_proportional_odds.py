"""The test of proportional odds: by hand, against the literature, on tables and nodes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fake_grid import on_grid
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import chi2
from table_nodes import start
from tabular import deal, numeric, run

from flower_fedcon import Policy
from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import FederatedOrdinalRegression
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables

LEVELS = ["none", "mild", "severe", "worst"]
SCHEMA = {"target": "y", "levels": LEVELS, "features": numeric("a", "b")}
# McCullagh and Nelder's cheeses: four additives, tasted by 52 people each, on a scale of nine.
CHEESES = np.array([
    [0, 0, 1, 7, 8, 8, 19, 8, 1], [6, 9, 12, 11, 7, 6, 1, 0, 0],
    [1, 1, 6, 8, 23, 7, 5, 1, 0], [0, 0, 0, 1, 3, 7, 14, 16, 11],
])  # fmt: skip


def log_chance(odds, k):
    """The log-probability of class k by log odds of more than each class."""
    above = np.r_[1.0, expit(odds), 0.0]
    return np.log(above[k] - above[k + 1])


def derivatives(f, odds, step=1e-4):
    """First and second derivatives, by differences."""
    e = step * np.eye(len(odds))
    slopes = np.array([(f(odds + d) - f(odds - d)) / (2 * step) for d in e])
    curves = [[f(odds + a + b) - f(odds + a - b) - f(odds - a + b) + f(odds - a - b) for b in e]
              for a in e]  # fmt: skip
    return slopes, np.array(curves) / (4 * step**2)


def by_hand(X, y, w, coef, thresholds, *, observed=False):
    """Chi-squared of the score with a coefficient for each column at each threshold."""
    K, Z = len(thresholds), np.c_[X, np.ones(len(X))]
    size = Z.shape[1]
    score, information = np.zeros(K * size), np.zeros((K * size, K * size))
    for row, k, weight, odds in zip(Z, y, w, (X @ coef)[:, None] - thresholds, strict=True):
        slopes, curves = derivatives(lambda o, k=k: log_chance(o, k), odds)
        if not observed:
            every = [derivatives(lambda o, c=c: log_chance(o, c), odds)[0] for c in range(K + 1)]
            chances = [np.exp(log_chance(odds, c)) for c in range(K + 1)]
            curves = -sum(p * np.outer(s, s) for p, s in zip(chances, every, strict=True))
        score += weight * np.kron(slopes, row)
        information -= weight * np.kron(curves, np.outer(row, row))
    return score @ np.linalg.pinv(information, rcond=1e-7, hermitian=True) @ score


def test_the_score_is_that_of_the_literature():
    """SAS's example of its LOGISTIC procedure: 17.2866 with 21 degrees, by observed curvature."""
    additive, y = np.nonzero(CHEESES)
    X = np.eye(4)[additive, :3]
    w = CHEESES[additive, y].astype(float)
    model = FederatedOrdinalRegression(levels=range(9), inference="model")
    model = model.fit(X, y, np.arange(len(y)) % 3, w)
    np.testing.assert_allclose(model.coef_, [-1.6128, -4.9646, -3.3227], atol=1e-4)
    pair = model.coef_, model.thresholds_
    assert by_hand(X, y, w, *pair, observed=True) == pytest.approx(17.2866, abs=2e-3)
    test = model.proportionality()
    assert (test.degrees, test.each_degrees.tolist()) == (21, [7, 7, 7])
    assert test.global_statistic == pytest.approx(by_hand(X, y, w, *pair), rel=1e-5)
    assert test.global_pvalue == pytest.approx(chi2.sf(test.global_statistic, 21))
    assert test.to_frame().index.tolist() == ["x0", "x1", "x2", "GLOBAL"]


def drawn(seed, classes=4, n=120):
    """Rows and classes under proportional odds."""
    rng = np.random.default_rng(seed)
    X = np.c_[rng.normal(size=n), rng.random(n) < 0.4].astype(float)
    cuts = np.linspace(-1.5, 1.5, classes - 1)
    y = np.digitize(X @ [0.8, -0.5] + rng.logistic(size=n), cuts)
    y[:classes] = np.arange(classes)
    return X, y


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 5))
def test_a_column_alone_and_all_columns(seed, classes):
    """Of one column, others keep one coefficient: the information without theirs."""
    X, y = drawn(seed, classes, n=60)
    rng = np.random.default_rng(seed)
    w = rng.integers(0, 3, 60)
    w[:classes] = 1
    made = FederatedOrdinalRegression(inference="model", tol=1e-13)
    model = made.fit(X, y, np.arange(60) % 2, w)
    test = model.proportionality()
    known = by_hand(X, y, w, model.coef_, model.thresholds_)
    assert test.global_statistic == pytest.approx(known, rel=1e-5, abs=1e-7)
    assert test.joint_test([0, 1])[0] == pytest.approx(known, rel=1e-5, abs=1e-7)
    # In other units, from another zero, and with rows for their numbers.
    rows = np.repeat(np.arange(60), w)
    other = made.fit(X[rows] * [1e3, 1.0] + [5.0, 0.0], y[rows], rows % 3).proportionality()
    np.testing.assert_allclose(other.statistic, test.statistic, rtol=1e-6, atol=1e-8)
    alone = made.fit(X[rows][:, :1], y[rows]).proportionality()
    assert alone.statistic[0] == pytest.approx(alone.global_statistic)


def test_it_keeps_its_level_and_finds_levels_out_of_order():
    found = []
    for seed in range(200):
        X, y = drawn(seed)
        model = FederatedOrdinalRegression(inference="model").fit(X, y)
        found.append(model.proportionality().global_pvalue)
    assert 0.01 < np.mean(np.array(found) < 0.05) < 0.1  # 0.05 - 2.6 SE, and + 3.2 SE
    X, y = drawn(0, n=400)
    wrong = FederatedOrdinalRegression(levels=[1, 0, 2, 3], inference="model").fit(X, y)
    assert wrong.proportionality().global_pvalue < 1e-6


def test_what_has_no_test_says_why():
    X, y = drawn(1)
    plain, model = FederatedOrdinalRegression(), FederatedOrdinalRegression(inference="robust")
    with pytest.raises(ConfigError, match="fitted without inference"):
        plain.fit(X, y).proportionality()
    with pytest.raises(ConfigError, match="there are only two classes"):
        model.fit(X, y > 1).proportionality()
    weighted = FederatedOrdinalRegression(inference="robust", weight_kind="sampling")
    with pytest.raises(ConfigError, match="sampling weights count no rows"):
        weighted.fit(X, y, sample_weight=np.ones(len(y)) * 1.5).proportionality()


@pytest.fixture
def frame(tmp_path):
    X, y = drawn(2, n=240)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.array(LEVELS)[y]})
    deal(tmp_path, frame)
    return frame


def test_a_run_tests_it_and_asks_about_levels_out_of_order(frame, tmp_path):
    y = frame["y"].map(LEVELS.index).to_numpy()
    model = FederatedOrdinalRegression(inference="model", tol=1e-12)
    known = model.fit(frame[["a", "b"]].to_numpy(), y).proportionality()
    made = tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA, inference="model")
    text = run(made, 12, run_dir=tmp_path / "run").report.text
    file = pd.read_csv(tmp_path / "run" / "proportionality.csv", index_col="column")
    assert file.index.tolist() == ["a", "b", "GLOBAL"]
    np.testing.assert_allclose(file.loc[["a", "b"], "chi2"], known.statistic, rtol=1e-6)
    every = known.global_statistic, 4, known.global_pvalue
    np.testing.assert_allclose(file.loc["GLOBAL"].astype(float), every, rtol=1e-6)
    assert f"odds (proportionality.csv): chi2 {known.global_statistic:.4g} with 4 degrees" in text
    assert "in their order?" not in text
    turned = SCHEMA | {"levels": [LEVELS[k] for k in (1, 0, 2, 3)]}
    made = tables(data=f"{tmp_path}/site*.csv", schema=turned, inference="model")
    assert "are the levels in their order?" in run(made, 12).report.text


def test_rows_of_clusters_are_not_independent(frame, tmp_path):
    deal(tmp_path, frame.assign(who=np.arange(240) // 3))
    made = tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA | {"cluster": "who"},
                  inference="cluster")  # fmt: skip
    assert "that test takes rows for independent" in run(made, 12).report.text


@on_grid
def test_nodes_refuse_it_for_few_rows_and_the_run_ends(frame, tmp_path):
    files, schema = sorted(tmp_path.glob("site*.csv")), Schema.load(SCHEMA)

    def there(policy):
        return start(files, schema, 9, policy, made=FedNewton(), inference="model").report

    here = run(tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA, inference="model"), 9).report
    found = there(Policy.open())
    np.testing.assert_allclose(found.odds.test.statistic, here.odds.test.statistic, rtol=1e-9)
    few = there(Policy(min_rows=20, min_cell=20))
    assert "a class of fewer than 20 rows" in few.text
    assert few.estimates is not None
