"""Proportional odds: the objective, estimators, tables and nodes, against statsmodels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fake_grid import on_grid
from fuzzing import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.miscmodels.ordinal_model import OrderedModel
from table_nodes import same_files, start
from tabular import coefficients, deal, kept, numeric, run

from flower_fedcon import FederatedProblem, Policy, load_model, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import FederatedLogisticRegression, FederatedOrdinalRegression
from flower_fedcon.objectives import ProportionalOdds, WithOffset, WithThresholds
from flower_fedcon.strategies import CompositeFL, FedNewton
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables

LEVELS = ["none", "mild", "severe", "worst"]
SCHEMA = {"target": "y", "levels": LEVELS, "features": numeric("a", "b")}


def drawn(seed, classes=4, n=90):
    """Rows and their classes, of which each occurs."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    latent = X @ [0.8, -0.5] + rng.logistic(size=n)
    y = np.digitize(latent, np.sort(rng.normal(scale=1.5, size=classes - 1))).astype(float)
    y[:classes] = np.arange(classes)
    return X, y


def reference(X, y, cov="nonrobust"):
    """statsmodels' fit, to rounding, with thresholds and their errors by the delta method."""
    model = OrderedModel(y, X, distr="logit")
    near = model.fit(method="bfgs", disp=0, maxiter=500, gtol=1e-7).params
    found = model.fit(start_params=near, method="newton", disp=0, maxiter=50, tol=1e-14)
    thresholds = model.transform_threshold_params(found.params)[1:-1]
    return found, thresholds


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 6))
def test_the_objective_and_its_derivatives(seed, classes):
    """Also of weights and an offset; a local fit's matrix has no negative curvature."""
    X, y = drawn(seed, classes, n=30)
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.1, 2.0, len(y))

    def loss(A):
        return ProportionalOdds(A, y, classes, sample_weight=weights, intercept=True)

    f = WithThresholds(WithOffset(loss, X, rng.normal(size=len(y))))
    x, step = rng.normal(size=f.shape), 1e-5
    sides = [(x + step * e, x - step * e) for e in np.eye(len(x))]
    slopes = [(f.value(up) - f.value(down)) / (2 * step) for up, down in sides]
    np.testing.assert_allclose(f.gradient(x), slopes, atol=1e-8)
    curves = [(f.gradient(up) - f.gradient(down)) / (2 * step) for up, down in sides]
    np.testing.assert_allclose(f.indefinite_hessian(x), curves, atol=1e-7)
    assert np.linalg.eigvalsh(f.hessian(x)).min() > -1e-12
    s, t = f.scores(x), np.r_[0.0, np.cumsum(np.exp(x[3:]))]
    above = np.c_[np.ones(30), 1 / (1 + np.exp(t - s[:, None])), np.zeros(30)]
    chances = -np.diff(above)[np.arange(30), y.astype(int)]
    np.testing.assert_allclose(f.value(x), -np.average(np.log(chances), weights=weights))


def test_thresholds_far_apart_and_close_together_are_numbers():
    X, y = drawn(0, n=30)
    f = WithThresholds(ProportionalOdds(X, y, 4, intercept=True))
    for logs in (-40.0, -20.0, 6.0, 40.0):
        x = np.r_[0.1, 0.2, 0.3, logs, logs]
        assert np.isfinite(f.value(x))
        assert np.isfinite(f.gradient(x)).all()
        assert np.isfinite(f.indefinite_hessian(x)).all()


@settings(max_examples=max(3, CASES // 50), deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 6))
def test_the_estimator_is_the_pooled_fit(seed, classes):
    """Few cases: the reference finds its maximum by numerical derivatives, in a second each."""
    X, y = drawn(seed, classes)
    found, thresholds = reference(X, y)
    model = FederatedOrdinalRegression(inference="model", tol=1e-12).fit(X, y, np.arange(90) % 3)
    assert model.n_iter_ < 20
    np.testing.assert_allclose(model.coef_, found.params[:2], rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(model.thresholds_, thresholds, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(model.loglik_, found.llf, rtol=1e-12)
    np.testing.assert_allclose(model.bse_, found.bse[:2], rtol=1e-5)  # of numerical derivatives
    np.testing.assert_allclose(model.predict_proba(X), found.predict(X), atol=1e-7)
    assert model.score(X, y) == np.mean(found.predict(X).argmax(axis=1) == y)


def test_orders_of_classes():
    X, y = drawn(3)
    texts = np.array(LEVELS)[y.astype(int)]
    plain = FederatedOrdinalRegression().fit(X, y)
    given_ = FederatedOrdinalRegression(levels=LEVELS).fit(X, texts)
    ordered = FederatedOrdinalRegression().fit(
        X, pd.Series(pd.Categorical(texts, LEVELS, ordered=True))
    )
    np.testing.assert_array_equal(given_.coef_, plain.coef_)
    np.testing.assert_array_equal(ordered.coef_, plain.coef_)
    assert given_.predict(X[:5]).tolist() == [LEVELS[int(k)] for k in plain.predict(X[:5])]
    backwards = FederatedOrdinalRegression(levels=LEVELS[::-1]).fit(X, texts)
    np.testing.assert_allclose(backwards.coef_, -plain.coef_, rtol=1e-6)
    np.testing.assert_allclose(backwards.thresholds_, -plain.thresholds_[::-1], rtol=1e-6)


def test_weights_of_zero_and_copies():
    X, y = drawn(4)
    counts = np.arange(90) % 3
    made = FederatedOrdinalRegression(inference="robust", tol=1e-12)
    one = made.fit(X, y, np.arange(90) % 2, counts)
    weighted = [one.coef_, one.thresholds_, one.bse_, one.thresholds_bse_]
    rows = np.repeat(np.arange(90), counts)
    two = made.fit(X[rows], y[rows], rows % 2)
    copies = [two.coef_, two.thresholds_, two.bse_, two.thresholds_bse_]
    for a, b in zip(weighted, copies, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_two_classes_are_logistic_regression():
    X, y = drawn(4)
    two = FederatedOrdinalRegression(inference="model").fit(X, y > 1, np.arange(90) % 3)
    odds = FederatedLogisticRegression(C=np.inf, inference="model").fit(X, y > 1)
    np.testing.assert_allclose(two.coef_, odds.coef_[0], rtol=1e-6)
    np.testing.assert_allclose(-two.thresholds_, odds.intercept_, rtol=1e-6)
    np.testing.assert_allclose(two.bse_, odds.bse_[0], rtol=1e-6)


def test_a_class_of_weight_0_counts_nowhere():
    X, y = drawn(4)
    some = y != 2
    weighted = FederatedOrdinalRegression().fit(X, y, sample_weight=some.astype(float))
    without = FederatedOrdinalRegression().fit(X[some], y[some])
    assert weighted.classes_.tolist() == without.classes_.tolist() == [0, 1, 3]
    np.testing.assert_allclose(weighted.coef_, without.coef_, rtol=1e-12)
    np.testing.assert_allclose(weighted.thresholds_, without.thresholds_, rtol=1e-12)


X3, Y3 = drawn(5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FederatedOrdinalRegression().fit(X3, np.array(LEVELS)[Y3.astype(int)]),
         "have no order of their own: give levels"),
        (lambda: FederatedOrdinalRegression().fit(X3, 0 * Y3), "two classes or more"),
        (lambda: FederatedOrdinalRegression(levels=[0, 1, 2]).fit(X3, Y3), "y has 3.0"),
        (lambda: FederatedOrdinalRegression(levels=[0, 1, 2, 3, 4]).fit(X3, Y3), "without rows"),
        (lambda: ProportionalOdds(X3, Y3 + 0.5, 4), "must be 0, 1, ..., 3"),
        (lambda: WithThresholds(ProportionalOdds(X3, Y3, 4, l2=1.0)), "without l2"),
        (lambda: Schema.load(SCHEMA | {"levels": ["a", "b"]}), "three different values or more"),
        (lambda: Schema.load(SCHEMA | {"loss": "squared"}), "levels is for"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises((ConfigError, ValueError), match=said):
        make()


# --- tables --------------------------------------------------------------------------------------


@pytest.fixture
def frame(tmp_path):
    X, y = drawn(6)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.array(LEVELS)[y.astype(int)]})
    deal(tmp_path, frame)
    return frame


def test_a_table_is_fitted_predicted_and_reported(frame, tmp_path):
    y = frame["y"].map(LEVELS.index).to_numpy()
    X = frame[["a", "b"]].to_numpy()
    found, thresholds = reference(X, y)
    made = tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA, inference="model")
    report = run(made, 12, run_dir=tmp_path / "run").report
    assert ": converged (" in report.text
    file = coefficients(tmp_path / "run")
    np.testing.assert_allclose(file.loc[["a", "b"], "per_unit"], found.params[:2], rtol=1e-7)
    np.testing.assert_allclose(file.loc[["a", "b"], "std_error"], found.bse[:2], rtol=1e-5)
    np.testing.assert_allclose(file.loc["(intercept)", "per_unit"], -thresholds[0], rtol=1e-7)
    assert file.loc[["(intercept)", "log gap to severe|worst"], "odds_ratio"].isna().all()
    assert file.loc["log gap to severe|worst", ["z", "p_value"]].isna().all()  # of no question
    assert f"mild|severe {thresholds[1]:.5g} (" in report.text
    model = load_model(tmp_path / "run")
    np.testing.assert_allclose(model.predict_proba(frame), found.predict(X), atol=1e-7)
    content = kept(tmp_path / "run")
    assert (content["link"], content["classes"]) == ("cumulative logit", LEVELS)
    np.testing.assert_allclose(content["thresholds"], thresholds, rtol=1e-7)
    columns = model.columns_of(frame)
    assert [name for name in columns if name.startswith("prob")] == [
        f"probability [{mark}]" for mark in LEVELS
    ]
    assert (columns["prediction"] == np.array(LEVELS)[found.predict(X).argmax(axis=1)]).all()
    assert model.contrast({"a": 1.0}, {"a": 0.0}).values[0] == pytest.approx(found.params[0])


def test_held_out_rows_have_their_accuracy_and_loss(frame, tmp_path):
    made = tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA | {"test_fraction": 0.3})
    history = run(made, 12)
    assert 0.0 < history["test_accuracy"][-1] <= 1.0
    assert 0.0 < history["test_loss"][-1] < 2.0


def test_a_column_that_separates_is_named(tmp_path):
    frame = pd.DataFrame({"a": np.arange(40) % 8 * 1.0, "b": np.sin(np.arange(40))})
    frame["y"] = np.array(LEVELS)[(frame["a"] // 2).astype(int)]
    deal(tmp_path, frame)
    report = run(tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA, inference="model"), 40).report
    assert "NOT CONVERGED" in report.text
    assert "separate" in report.text


def test_a_level_without_rows_is_refused(frame, tmp_path):
    levels = [*LEVELS, "beyond"]
    with pytest.raises(ConfigError, match=r"'beyond'"):
        run(tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA | {"levels": levels}), 3)


def test_a_penalty_and_other_intercepts_are_refused(frame, tmp_path):
    with pytest.raises(ConfigError, match=r'has no penalty.*loss = "multinomial"'):
        tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA, l1=0.1)
    with pytest.raises(ConfigError, match='the schema has loss = "ordinal"'):
        tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA, site_effects="own")


@on_grid
def test_nodes_find_the_model_of_this_process(frame, tmp_path):
    made = tables(data=f"{tmp_path}/site*.csv", schema=SCHEMA, inference="robust")
    run(made, 9, run_dir=tmp_path / "here")
    start(
        sorted(tmp_path.glob("site*.csv")), Schema.load(SCHEMA), 9, Policy.open(),
        made=FedNewton(made.regularizer), inference="robust", run_dir=tmp_path / "there",
    )  # fmt: skip
    same_files(tmp_path / "here", tmp_path / "there", "coefficients.csv", "model.json")


def test_first_order_methods_and_engines(caplog):
    """Any step is possible, as gaps stay above 0; engines of arrays say why they do not run it."""
    X, y = drawn(7)
    clients = [
        WithThresholds(ProportionalOdds(X[k::3], y[k::3], 4, intercept=True)) for k in range(3)
    ]
    problem = FederatedProblem(clients)
    best = simulate(FedNewton(), problem, 12)
    method = CompositeFL(None, client_lr=0.5, local_steps=1, server_lr=1.0)
    slow = simulate(method, problem, 800)
    np.testing.assert_allclose(slow.x, best.x, atol=1e-4)
    for engine in ("stacked", "jax"):
        caplog.clear()
        simulate(method, problem, 1, engine=engine)
        assert "a WithThresholds, which has no stacked form; running on the local" in caplog.text
