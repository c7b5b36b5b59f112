"""Runs on tables in which each site has an intercept of its own: the pooled fit with dummies."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sites import COLUMNS, problem, run, stated, written
from typer.testing import CliRunner

from flower_fedcon import load_model
from flower_fedcon.cli.command import app
from flower_fedcon.errors import ConfigError
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables.builders import clients_of, prepared_problem, tables
from flower_fedcon.tables.own_files import written_by
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.wire.digests import digest

FAMILIES = {"logistic": sm.families.Binomial, "poisson": sm.families.Poisson}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("sites"))


def pooled(folder, loss):
    d = pd.read_csv(folder / "all.txt")
    dummies = pd.get_dummies(d["site"], prefix="site", dtype=float)
    y = (d["any"] == "yes").astype(float) if loss == "logistic" else d["mdvis"]
    X = pd.concat([d[COLUMNS], dummies], axis=1)
    made = sm.OLS(y, X) if loss == "squared" else sm.GLM(y, X, FAMILIES[loss]())
    return d, made, {} if loss == "squared" else {"tol": 1e-12}


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
def test_coefficients_and_errors_are_those_with_a_dummy_for_each_site(folder, tmp_path, loss):
    _, model, how = pooled(folder, loss)
    known = model.fit(**how)
    history = run(problem(folder, loss), run_dir=tmp_path / "run")
    file = pd.read_csv(tmp_path / "run" / "coefficients.csv", index_col="column")
    assert list(file.index) == COLUMNS
    ends = known.conf_int().loc[COLUMNS]
    for name, values in {
        "per_unit": known.params,
        "std_error": known.bse,
        "p_value": known.pvalues,
        "lower": ends[0],
        "upper": ends[1],
    }.items():
        np.testing.assert_allclose(file[name], values[COLUMNS], rtol=1e-6, atol=1e-12)
    estimates = history.report.estimates
    assert estimates.counted == len(COLUMNS) + 4
    assert estimates.aic == pytest.approx(known.aic, rel=1e-9)
    assert "each of 4 sites has its own intercept" in history.report.text
    kept = json.loads((tmp_path / "run" / "model.json").read_text())
    assert (kept["site_effects"], kept["intercept"]) == ("own", None)
    V = known.cov_params().loc[COLUMNS, COLUMNS]
    np.testing.assert_allclose(kept["covariance"], V, rtol=1e-5, atol=1e-14)


def test_robust_and_clustered_errors(folder):
    d, model, how = pooled(folder, "poisson")
    n, p = len(d), len(COLUMNS) + 4
    robust = run(problem(folder, "poisson", inference="robust")).report.estimates
    known = model.fit(cov_type="HC0", **how).bse[COLUMNS]
    np.testing.assert_allclose(robust.bse, known * np.sqrt(n / (n - p)), rtol=1e-6)
    made = problem(folder, "poisson", {"cluster": "plan"}, inference="cluster")
    codes = np.unique(d[["site", "plan"]].to_numpy(), axis=0, return_inverse=True)[1].reshape(-1)
    found = run(made).report
    assert found.estimates.clusters == codes.max() + 1
    known = model.fit(cov_type="cluster", cov_kwds={"groups": codes}, **how).bse[COLUMNS]
    np.testing.assert_allclose(found.estimates.bse, known, rtol=1e-6)


def test_an_l1_norm_leaves_the_intercepts_free(folder):
    """Of a squared loss: the lasso of columns and outcomes less their sites' means."""
    made = problem(folder, "squared", inference=None, l1=0.3)
    x, scales = run(made, 40).x, made.preparation.scales
    d = pd.read_csv(folder / "all.txt")
    both = d[[*COLUMNS, "mdvis"]] - d.groupby("site")[[*COLUMNS, "mdvis"]].transform("mean")
    A, y = both[COLUMNS].to_numpy() / scales, both["mdvis"].to_numpy()
    gradient = A.T @ (A @ x - y) / len(d)
    np.testing.assert_allclose(np.where(x, gradient + 0.3 * np.sign(x), 0.0), 0.0, atol=1e-9)
    assert (np.abs(gradient) <= 0.3 + 1e-9).all()
    assert 0 < np.count_nonzero(x) < len(x)


def test_rows_held_out_are_predicted_with_their_sites_intercept(folder):
    made = problem(folder, "squared", {"test_fraction": 0.25}, inference=None)
    history = run(made)
    read, names = clients_of(f"{folder}/s*.csv", stated("squared", test_fraction=0.25))
    b = made.preparation.in_units(history.x)
    for table, name in zip(read, names, strict=True):
        means = table.numeric @ b
        own = (table.targets - means)[table.training_rows].mean()
        left = (table.targets - means - own)[table.held_out_rows]
        assert history[f"test_mse/{name}"][-1] == pytest.approx(np.square(left).mean(), rel=1e-9)
        quality = history.report.quality.sites[name]
        assert quality["mse"] == pytest.approx(np.square(left).mean(), rel=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_a_site_whose_intercept_is_infinite_is_named_and_left_out(folder, tmp_path, loss):
    d = pd.read_csv(folder / "all.txt")
    d.loc[d["site"] == 2, ["any", "mdvis"]] = ["no", 0]
    for site, own in d.groupby("site"):
        own.to_csv(tmp_path / f"s{site}.csv", index=False)
    report = run(problem(tmp_path, loss, {"test_fraction": 0.2})).report
    assert report.reached.converged
    assert "outcomes are all" in report.text
    assert (
        "at site s2: its own intercept is infinite, so its rows carry no information" in report.text
    )
    assert "s2" in report.quality.absent
    (tmp_path / "s2.csv").unlink()
    without = run(problem(tmp_path, loss, {"test_fraction": 0.2})).report.estimates
    for name in ("values", "bse", "aic", "n", "loglik"):
        np.testing.assert_allclose(getattr(report.estimates, name), getattr(without, name), 1e-6)


def test_no_site_is_left(folder, tmp_path):
    d = pd.read_csv(folder / "all.txt")
    for answer, own in d.groupby("any"):
        own.to_csv(tmp_path / f"s{answer}.csv", index=False)
    with pytest.raises(ConfigError, match="all outcomes are alike at every client"):
        problem(tmp_path, "logistic")


def test_a_resumed_run_has_the_same_numbers(folder, tmp_path):
    made = problem(folder, "poisson", inference="robust")
    key = digest(made.objectives)
    known = run(made).report.errors
    assert digest(made.objectives) == digest(pickle.loads(pickle.dumps(made.objectives))) == key
    run(made, 3, run_dir=tmp_path / "run")
    assert run(made, run_dir=tmp_path / "run", resume=True).report.errors == known


def test_predictions_elsewhere_are_differences_within_a_site(folder, tmp_path):
    run(problem(folder, "logistic"), run_dir=tmp_path / "run")
    model = load_model(tmp_path / "run")
    d = pd.read_csv(folder / "s0.csv")
    known = d[COLUMNS].to_numpy() @ model.preparation.in_units(model.x)
    np.testing.assert_allclose(model.linear_predictor(d), known, atol=1e-12)
    for ask in (model.predict, model.predict_proba):
        with pytest.raises(ConfigError, match="each site keeps its own intercept"):
            ask(d)
    out = tmp_path / "predictions.csv"
    done = CliRunner().invoke(
        app, ["predict", str(tmp_path / "run"), str(folder / "s0.csv"), "-o", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert list(pd.read_csv(out)) == [
        "row",
        "linear_predictor_without_intercept",
        "std_error",
    ]
    assert "these are no predictions" in done.stderr
    assert "predictions for" not in done.stdout
    assert written_by(list(pd.read_csv(out))) == "`fedcon predict`"


def test_what_own_intercepts_are_not_for_is_refused(folder):
    with pytest.raises(ConfigError, match="site_effects must be"):
        problem(folder, "squared", site_effects="fixed")
    with pytest.raises(ConfigError, match='the schema has loss = "huber"'):
        problem(folder, "huber", inference=None)
    schema = {"target": "mdvis", "event": "idp", "features": {"lpi": "numeric"}}
    with pytest.raises(ConfigError, match="a stratum with its own baseline hazard"):
        tables(data=f"{folder}/s*.csv", schema=schema, site_effects="own")
    features = {name: {"range": [-20, 80]} for name in COLUMNS}
    read, names = clients_of(f"{folder}/s*.csv", stated("logistic", features=features))
    private = ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    with pytest.raises(ConfigError, match="cannot be used with ExampleDP"):
        prepared_problem(read, names, privacy=private, site_effects="own")
    payload = problem(folder, "squared").preparation.payload
    assert Preparation.from_payload(payload).site_effects == "own"
    with pytest.raises(ConfigError, match="is for clients with tables"):
        FedNewton().start(None, num_rounds=1, site_effects="own")


def test_beside_exposures_and_terms(folder, tmp_path):
    d = pd.read_csv(folder / "all.txt")
    d["years"] = 1.0 + np.arange(len(d)) % 3
    for site, own in d.groupby("site"):
        own.to_csv(tmp_path / f"s{site}.csv", index=False)
    more = {"exposure": "years", "terms": [*COLUMNS, "lncoins:idp"]}
    report = run(problem(tmp_path, "poisson", more, heterogeneity=True)).report
    X = pd.concat([d[COLUMNS], pd.get_dummies(d["site"], prefix="site", dtype=float)], axis=1)
    X.insert(len(COLUMNS), "lncoins:idp", d["lncoins"] * d["idp"])
    known = sm.GLM(d["mdvis"], X, sm.families.Poisson(), exposure=d["years"].to_numpy()).fit(
        tol=1e-12
    )
    p = len(COLUMNS) + 1
    assert list(report.estimates.names) == list(X)[:p]
    np.testing.assert_allclose(report.estimates.values, known.params[:p], rtol=1e-6)
    np.testing.assert_allclose(report.estimates.bse, known.bse[:p], rtol=1e-6)
    own = d["site"] == 2
    first = [*COLUMNS, "lncoins:idp"]
    alone = sm.GLM(
        d["mdvis"][own], sm.add_constant(X[own][first], prepend=False), sm.families.Poisson(),
        exposure=d["years"][own].to_numpy(),
    ).fit(tol=1e-12)  # fmt: skip
    np.testing.assert_allclose(report.heterogeneity.values[2], alone.params[:p], rtol=1e-6)
    np.testing.assert_allclose(report.heterogeneity.bse[2], alone.bse[:p], rtol=1e-6)
