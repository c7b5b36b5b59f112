"""Outcomes that columns separate have no best model: what runs, paths and estimators say."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from tabular import lines, numeric, run

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)
from flower_fedcon.objectives import CoxRegression, LogisticRegression
from flower_fedcon.paths import regularization_path
from flower_fedcon.regularizers import L1
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.default_method import default_strategy

N = 60
LOSSES = {
    "logistic": {"positive": ["1"], "negative": ["0"]},
    "multinomial": {"classes": ["0", "1", "2"]},
    "poisson": {"loss": "poisson"},
    "cox": {"event": "seen"},
}


def outcomes(loss, separated, rng):
    """Columns a and b, an outcome, and events; where it is separated, by column b alone."""
    a, b = rng.normal(size=N), rng.integers(0, 2, N)
    y, seen = (a + rng.normal(size=N) > 0).astype(int), np.ones(N, int)
    if loss == "multinomial":
        y = rng.integers(0, 3, N)
        if separated:
            y = np.where(b == 1, 2, y)
    elif loss == "poisson":
        y = rng.poisson(np.exp(1 + 0.3 * a)) * (b if separated else 1)
    elif loss == "cox":
        y = rng.permutation(N) + 1
        seen = (rng.random(N) < 0.7) & ((b == 1) | (not separated))
    elif separated:
        y = np.where(b == 1, 1, y)
    return a, b, y, np.asarray(seen).astype(int)


def halves(folder, head, rows):
    """Write two sites; return their pattern."""
    return lines(folder, **{f"s{j}": [head, *rows[j::2]] for j in range(2)})


def told(folder, loss, separated, l1, rounds, seed=0):
    """What the run of two such tables says."""
    rows = zip(*outcomes(loss, separated, np.random.default_rng(seed)), strict=True)
    data = halves(folder, "a,b,y,seen", [f"{a:.4f},{b},{y},{seen}" for a, b, y, seen in rows])
    schema = {"target": "y", "features": numeric("a", "b"), **LOSSES[loss]}
    return run(tables(data=data, schema=schema, l1=l1), rounds).report


@pytest.mark.parametrize("rounds", [25, 60])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_column_that_separates_is_named(tmp_path, loss, rounds, caplog):
    """Soon, while Newton's steps go on, and late, when rounding holds them."""
    report = told(tmp_path, loss, True, 0.0, rounds)
    assert report.reached.converged is False
    words = "NOT CONVERGED: the outcome is separated by column b: there is no best model: take l1 >"
    assert words in report.text
    assert words in caplog.text


@pytest.mark.parametrize("rounds", [8, 30])
def test_a_column_that_orders_survival_times_is_named(tmp_path, rounds):
    """Pairs of rows that are next to each other keep their curvature for long."""
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(2, N))
    times = np.argsort(np.argsort(-x)) + 1
    rows = [f"{t},1,{u},{v}" for t, u, v in zip(times, x, a, strict=True)]
    schema = {"target": "t", "event": "e", "features": numeric("x", "a")}
    report = run(tables(data=halves(tmp_path, "t,e,x,a", rows), schema=schema), rounds).report
    assert "NOT CONVERGED: the outcome is separated by column x: there is no best" in report.text
    model = FederatedCoxRegression(0.0, max_iter=rounds)
    with pytest.warns(ConvergenceWarning, match="separated by column 0: there is no best model"):
        model.fit(np.stack([x, a], axis=1), np.stack([times, np.ones(N)], axis=1))


def test_a_run_that_ends_early_names_what_may_separate_the_outcome(tmp_path):
    """A rare category whose rows have one outcome; more rounds help where the model has an end."""
    rng = np.random.default_rng(0)
    a, kind = rng.normal(size=300), np.where(np.arange(300) < 5, "rare", "often")
    y = (a + rng.logistic(size=300) > 0) | (kind == "rare")
    rows = [f"{v:.3f},{k},{o:d}" for v, k, o in zip(a, kind, y, strict=True)]
    data = halves(tmp_path, "a,kind,y", rows)
    schema = {"target": "y", **LOSSES["logistic"], "features": {"a": "numeric"}}

    def said(rounds, **features):
        own = {**schema, "features": {**schema["features"], **features}}
        return run(tables(data=data, schema=own), rounds).report.text

    text = said(6, kind="categorical")
    assert "NOT CONVERGED" in text
    assert "column kind=rare may separate the outcome" in text
    assert "the outcome is separated by column kind=rare:" in said(25, kind="categorical")
    assert "the coefficients still move: allow more rounds" in said(1)


def test_any_method_names_what_separates_a_large_model(tmp_path):
    """By gradient steps, on more columns than FedNewton looks at."""
    A = np.random.default_rng(0).normal(size=(200, 1010))
    columns = [f"v{j}" for j in range(1010)]
    for j in range(2):
        rows = [[f"{row[0] > 0:d}", *(f"{v:.3f}" for v in row)] for row in A[j::2]]
        text = "\n".join(map(",".join, [["y", *columns], *rows]))
        (tmp_path / f"s{j}.csv").write_text(text + "\n")
    features = dict.fromkeys(columns, "numeric")
    schema = {"target": "y", "positive": ["1"], "negative": ["0"], "features": features}
    problem = tables(data=str(tmp_path / "s*.csv"), schema=schema)
    report = simulate(default_strategy(problem), problem, 30, evaluate_every=0).report
    assert "NOT CONVERGED: the outcome is separated by columns v0, " in report.text


@given(seed=st.integers(0, 10**6), share=st.floats(1.2, 6.0), size=st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_outcomes_are_separated_exactly_where_a_linear_program_says_so(seed, share, size):
    rng = np.random.default_rng(seed)
    A = np.c_[rng.normal(size=(int(size * share) + 3, size)), np.ones(int(size * share) + 3)]
    y = np.where(A[:, 0] * rng.uniform(0, 4) + rng.logistic(size=len(A)) > 0, 1.0, -1.0)
    assume(len(np.unique(y)) == 2)
    signed = y[:, None] * A  # no row goes against the direction, and some along it
    bounds = np.repeat([0.0, 1.0], len(A))
    most = linprog(-signed.sum(axis=0), np.r_[-signed, signed], bounds, bounds=(None, None))
    clients = [LogisticRegression(A[j::2], y[j::2]) for j in range(2)]
    path = regularization_path(FederatedProblem(clients), L1(1.0), values=[0.0], max_rounds=30)
    assert (path.runaway.size > 0) == (-most.fun > 1e-7)
    assert path.converged.all() == (path.runaway.size == 0)


@pytest.mark.parametrize("loss", LOSSES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=3, deadline=None)
def test_what_has_a_best_model_converges(tmp_path_factory, loss, seed):
    folder = tmp_path_factory.mktemp("sites")
    for separated, l1 in ((False, 0.0), (True, 0.01)):
        report = told(folder, loss, separated, l1, 12, seed)
        assert report.reached.converged
        assert "separated" not in report.text


def test_the_smallest_table(tmp_path):
    """Two files of three rows: an odds ratio of 1.5e33 was called converged."""
    lines(tmp_path, a=["x,y", "0,no", "1,yes", "0,no"], b=["x,y", "0,no", "1,yes", "1,yes"])
    schema = {"target": "y", "positive": ["yes"], "features": {"x": "numeric"}}
    for l1, said in ((0.0, "NOT CONVERGED: the outcome is separated by column x"),
                     (1e-10, "converged"), (1e-10, "nothing but the penalty holds it"),
                     (0.05, "converged")):  # fmt: skip
        problem = tables(data=str(tmp_path / "*.csv"), schema=schema, l1=l1)
        report = run(problem, 80).report
        assert said in report.text
        assert ("separated" in report.text) == (l1 < 0.05)


def test_estimators_warn():
    """`C=1e10` gave 40.4 without a warning."""
    X, y = np.array([[0.0], [1], [0], [0], [1], [1]]), np.array([0, 1, 0, 0, 1, 1])
    model = FederatedLogisticRegression(C=1e10)
    with pytest.warns(ConvergenceWarning, match="separated by column 0: nothing but the penalty"):
        model.fit(X, y, groups=[0, 0, 0, 1, 1, 1])
    with pytest.warns(ConvergenceWarning, match="separated by column 0: there is no best model"):
        FederatedPoissonRegressor(alpha=0).fit(X, y * [1, 2, 1, 1, 3, 4])
    times = np.stack([np.arange(1.0, 7.0), [0, 1, 0, 0, 1, 1]], axis=1)
    with pytest.warns(ConvergenceWarning, match="separated by column 0: there is no best model"):
        FederatedCoxRegression(0.0).fit(X, times)


def test_data_sets_of_textbooks_raise_no_alarm():
    """Breast cancer's 30 columns separate its classes, and any penalty of use holds the model."""
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    groups = np.arange(len(y)) % 4
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        FederatedLogisticRegression(C=1.0).fit(X, y, groups)
        FederatedLogisticRegression(C=100.0).fit(X, y, groups)
        few = FederatedLogisticRegression(C=1e12).fit(X[:, :3], y, groups)
    assert few.history_.converged.all()
    with pytest.warns(ConvergenceWarning, match="separated by columns "):
        FederatedLogisticRegression(C=1e10, max_iter=60).fit(X, y, groups)


def test_columns_that_are_alike_separate_nothing():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    X = np.column_stack([X, X[:, 0] + 1e-4 * rng.normal(size=200), X[:, 1]])
    y = np.sign(X[:, 0] + rng.normal(size=200))
    clients = [LogisticRegression(X[j::2], y[j::2], intercept=True) for j in range(2)]
    path = regularization_path(FederatedProblem(clients), L1(1.0), values=[0.0])
    assert path.runaway.size == 0
    assert path.converged.all()


@pytest.mark.parametrize("zero", [False, True])
def test_a_path_to_0_of_separated_data_has_not_converged(zero, caplog):
    X = np.array([[0.0, 1], [1, 0], [0, 2], [1, 1]])
    clients = [LogisticRegression(X[j::2] - 0.5, [sign, sign]) for j, sign in enumerate((-1, 1))]
    values = [0.1, 0.0] if zero else [0.1, 0.01]
    path = regularization_path(FederatedProblem(clients), L1(1.0), values=values)
    assert path.converged.tolist() == [True, not zero]
    assert ("there is no best model" in caplog.text) == zero


# --- rows that cannot be compared ----------------------------------------------------------------


def test_strata_without_two_rows_to_compare_are_refused(tmp_path):
    """A stratum for each row has a constant likelihood: zeros were called converged."""
    for j, row in enumerate(("1,3,1", "2,5,1", "4,2,0")):
        (tmp_path / f"s{j}.csv").write_text(f"x,t,e\n{row}\n")
    schema = {"target": "t", "event": "e", "features": {"x": "numeric"}}
    with pytest.raises(ConfigError, match="no client has two rows at risk together"):
        tables(data=str(tmp_path / "*.csv"), schema=schema)


@given(rows=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_a_likelihood_is_constant_exactly_where_its_constant_is_0(rows):
    times, events = np.array(rows, dtype=float).T
    A = np.arange(len(rows), dtype=float)[:, None] ** 2
    f = CoxRegression(A, times, events)
    varies = not np.allclose(f.value(np.ones(1)), f.value(np.zeros(1)), rtol=0, atol=1e-12)
    assert (f.smoothness > 0) == varies
