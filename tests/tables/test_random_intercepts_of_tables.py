"""Runs on tables whose sites, or clusters within them, have random intercepts: lme4's numbers."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lme4_values import (
    ANY,
    COLUMNS,
    COUNTS,
    FAMILIES_LINEAR,
    GRUNFELD,
    PLANS_ANY,
    PLANS_LINEAR,
    firms,
    visits,
)
from scipy.stats import chi2, poisson
from typer.testing import CliRunner

from flower_fedcon import load_model, simulate
from flower_fedcon.cli.command import app
from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.estimators import (
    FederatedElasticNet,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)
from flower_fedcon.objectives import LeastSquares, PoissonRegression
from flower_fedcon.privacy import ExampleDP, GaussianDP
from flower_fedcon.strategies import FedAvg, FedNewton
from flower_fedcon.tables.builders import clients_of, prepared_problem, tables
from flower_fedcon.tables.ending import final_intercepts
from flower_fedcon.tables.statistics.group_sums import marginal, variance_ratio
from flower_fedcon.tables.statistics.site_sums import set_clusters

FIRMS = {"target": "invest", "features": {"value": "numeric", "capital": "numeric"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("grouped")
    d = visits()
    d["any"], d["log"] = np.where(d["mdvis"] > 0, "yes", "no"), np.log1p(d["mdvis"])
    kept = ["mdvis", "any", "log", "family", "years", *COLUMNS]
    for plan, own in d.groupby("plan"):
        own[kept].to_csv(where / f"plan{plan}.csv", index=False)
    for firm, own in firms().groupby("firm"):
        own.to_csv(where / f"firm {firm}.csv", index=False)
    return where


def visiting(folder, loss, site_effects="random", **more):
    """Return the problem of the plans' tables."""
    schema = {"target": "mdvis", "loss": loss, "features": dict.fromkeys(COLUMNS, "numeric")}
    schema |= {
        "squared": {"target": "log"},
        "logistic": {"target": "any", "positive": ["yes"]},
    }.get(loss, {})
    return tables(data=f"{folder}/plan*.csv", schema=schema | more, site_effects=site_effects)


def of_firms(folder, data="firm*", more=None, **settings):
    return tables(
        data=f"{folder}/{data}.csv", schema=FIRMS | (more or {}),
        **{"site_effects": "random"} | settings,
    )  # fmt: skip


def run(made, rounds=12, **settings):
    return simulate(FedNewton(made.regularizer), made, rounds, **settings)


def same(file, sd, coefficients, errors, group="site"):
    """Check a file of coefficients against lme4's numbers, of which the intercept comes first."""
    names, errors = ["(intercept)", *file.index[: len(errors) - 1]], np.array(errors)
    np.testing.assert_allclose(
        file.loc[names, "per_unit"], coefficients, rtol=1e-6, atol=1e-6 * errors.min()
    )
    np.testing.assert_allclose(file.loc[names, "std_error"], errors, rtol=1e-6)
    np.testing.assert_allclose(file.loc[f"({group} sd)", "per_unit"], sd, rtol=1e-6)


def test_sites_of_a_linear_model(folder, tmp_path):
    sd, coefficients, errors, residual, loglik, _ = GRUNFELD[False]
    history = run(of_firms(folder), 3, run_dir=tmp_path / "run")
    file = pd.read_csv(tmp_path / "run" / "coefficients.csv", index_col="column")
    same(file, sd, coefficients, errors)
    estimates, random = history.report.estimates, history.report.random
    np.testing.assert_allclose(file.loc["(residual sd)", "per_unit"], residual, rtol=1e-8)
    np.testing.assert_allclose(estimates.loglik, loglik, rtol=1e-12)
    assert (estimates.counted, random.groups) == (4, 11)
    common = run(of_firms(folder, site_effects="common", inference="model"), 3)
    ratio = 2 * (loglik - common.report.estimates.loglik)
    np.testing.assert_allclose(file.loc["(site sd)", "p_value"], chi2.sf(ratio, 1) / 2, rtol=1e-6)
    assert np.isfinite(file.loc["value", ["lower", "upper"]]).all()
    for said in ("Groups:                            11", "Site sd:                       77.267"):
        assert said in history.report.text
    assert "likelihood ratio against none 213.7, p = 1.07e-48 by (chi^2_0" in history.report.text
    kept = json.loads((tmp_path / "run" / "model.json").read_text())
    assert kept["site_effects"] == "random"
    np.testing.assert_allclose([kept["site_sd"], kept["residual_sd"]], [sd, residual], rtol=1e-8)
    np.testing.assert_allclose(kept["intercept"], coefficients[0], rtol=1e-8)
    np.testing.assert_array_equal(np.load(tmp_path / "run" / "model.npz")["x"], history.x)
    again = run(of_firms(folder), 3, run_dir=tmp_path / "run", resume=True)
    assert again.report.errors == history.report.errors
    assert again.report.rows == history.report.rows


def test_predictions_are_for_a_site_with_the_mean_intercept(folder, tmp_path):
    coefficients = GRUNFELD[False][1]
    run(of_firms(folder), 3, run_dir=tmp_path / "run")
    model, d = load_model(tmp_path / "run"), firms()
    known = coefficients[0] + d[["value", "capital"]].to_numpy() @ coefficients[1:]
    np.testing.assert_allclose(model.predict(d), known, rtol=1e-7, atol=1e-7)
    source, out = folder / "firm IBM.csv", tmp_path / "predictions.csv"
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), str(source), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "for a site, or group, with the mean random intercept" in done.output
    found = pd.read_csv(out)["prediction"]
    np.testing.assert_allclose(found, known[d["firm"] == "IBM"], rtol=1e-7)


def test_clusters_of_a_linear_model(folder):
    report = run(visiting(folder, "squared", cluster="family"), 3).report
    assert "\nrandom intercepts: converged after " in report.text
    assert "Family sd:  " in report.text
    sd, coefficients, errors, loglik = FAMILIES_LINEAR[False]
    same(frame(report), sd, coefficients, errors, "family")
    np.testing.assert_allclose(report.estimates.loglik, loglik, rtol=1e-9)
    assert report.random.groups == 630
    assert "one label at two sites means two groups" in report.text


def frame(report):
    """Return a report's rows as its file has them."""
    pairs = zip(report.rows, report.errors, strict=True)
    rows = [(name, unit, own[0]) for (name, _, unit, _), own in pairs]
    return pd.DataFrame(rows, columns=["column", "per_unit", "std_error"]).set_index("column")


@pytest.mark.parametrize("case", [*COUNTS, "any"])
def test_counts_and_classes(folder, case):
    sd, sd_error, coefficients, errors, loglik, _ = COUNTS.get(case, ANY)
    more = {} if case == "plan" else {"cluster": "family"}
    more |= {"exposure": "years"} if case == "exposure" else {}
    report = run(visiting(folder, "logistic" if case == "any" else "poisson", **more)).report
    same(frame(report), sd, coefficients, errors, more.get("cluster", "site"))
    np.testing.assert_allclose(report.random.sd_bse, sd_error, rtol=1e-6)
    y = visits()["mdvis"]
    loglik += 0.0 if case == "any" else poisson.logpmf(y, y).sum()  # lme4 leaves it out
    np.testing.assert_allclose(report.estimates.loglik, loglik, rtol=1e-9)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_sites_are_fixed_and_groups_within_them_random(tmp_path, loss):
    """The page's recipe: the site's name in each row is a category, beside the schema's cluster."""
    d = visits()
    d = d[d["plan"] <= 4][:: 3 if loss == "logistic" else 1]
    d["any"], d["log"] = np.where(d["mdvis"] > 0, "yes", "no"), np.log1p(d["mdvis"])
    for plan, own in d.groupby("plan"):
        own.to_csv(tmp_path / f"plan{plan}.csv", index=False)
    columns = COLUMNS[:3] if loss == "logistic" else COLUMNS
    features = dict.fromkeys(columns, "numeric") | {"plan": "categorical"}
    report = run(visiting(tmp_path, loss, features=features, cluster="family")).report
    sd, coefficients, errors, loglik = PLANS_ANY if loss == "logistic" else PLANS_LINEAR
    same(frame(report), sd, coefficients, errors, "family")
    np.testing.assert_allclose(report.estimates.loglik, loglik, rtol=1e-9)


def test_quality_on_rows_held_out_is_of_the_coefficients_that_are_shown(folder):
    made = visiting(folder, "squared", cluster="family", test_fraction=0.25)
    history = run(made, 3)
    b = history.report.random.estimates.values
    np.testing.assert_allclose(made.preparation.in_units(history.x), b)
    read, _ = clients_of(f"{folder}/plan*.csv", made.preparation.stated.stated)
    left = [(t.targets - t.numeric @ b[:-1] - b[-1])[t.held_out_rows] for t in read]
    first, known = np.square(left[0]).mean(), np.square(np.concatenate(left)).mean()
    assert history.report.quality.pooled["mse"] == pytest.approx(known, rel=1e-9)
    assert history.report.quality.sites["plan1"]["mse"] == pytest.approx(first, rel=1e-9)
    text = history.report.text
    assert f"test_mse: plan1 {first:.4f}, " in text
    assert f"; pooled {known:.4f}\n" in text
    assert abs(history["test_mse"][-1] - known) > 1e-4  # of the rounds' model
    assert "held-out rows are predicted for a site with the mean intercept" in text


def test_sites_that_do_not_differ(folder, tmp_path):
    d = firms()
    d["invest"] -= d.groupby("firm")["invest"].transform("mean")
    d["value"] -= d.groupby("firm")["value"].transform("mean")
    d["capital"] -= d.groupby("firm")["capital"].transform("mean")
    for firm, own in d.groupby("firm"):
        own.to_csv(tmp_path / f"firm {firm}.csv", index=False)
    history = run(of_firms(tmp_path), 3, run_dir=tmp_path / "run")
    assert (history.report.random.sd, history.report.random.pvalue) == (0.0, 1.0)
    assert "Their standard deviation is 0, at the boundary" in history.report.text
    assert "coefficient 0" not in history.report.text
    file = pd.read_csv(tmp_path / "run" / "coefficients.csv", index_col="column")
    assert file.loc["(site sd)", "per_unit"] == 0.0
    assert np.isnan(file.loc["(site sd)", "std_error"])
    assert load_model(tmp_path / "run").site_sd == 0.0


def test_what_is_refused_before_round_1(folder, tmp_path):
    with pytest.raises(ConfigError, match="need at least two groups, and there is one"):
        run(of_firms(folder, "firm IBM"))
    for row, own in firms()[:8].iterrows():
        own.to_frame().T.to_csv(tmp_path / f"firm{row}.csv", index=False)
    with pytest.raises(ConfigError, match="8 groups for 8 rows"):
        run(of_firms(tmp_path))
    with pytest.raises(ConfigError, match="there is a penalty or a constraint: take l1 = 0"):
        run(of_firms(folder, l1=0.1))
    with pytest.raises(ConfigError, match=r"by the model alone, got inference = 'robust'"):
        run(of_firms(folder, inference="robust"))
    with pytest.raises(ConfigError, match='random: use site_effects = "own"'):
        run(of_firms(folder, inference="model", heterogeneity=True))
    with pytest.raises(ConfigError, match='needs weighting = "examples"'):
        of_firms(folder, weighting="uniform")
    with pytest.raises(ConfigError, match='the schema has loss = "huber"'):
        of_firms(folder, more={"loss": "huber"})
    made = of_firms(folder)
    private = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    method = FedAvg(client_lr=0.1, local_steps=1, regularizer=made.regularizer, privacy=private)
    with pytest.raises(ConfigError, match="beside privacy: no noise covers the sums over groups"):
        simulate(method, made, 1)
    features = {"value": {"range": [0, 1e5]}, "capital": {"range": [0, 1e5]}}
    read, names = clients_of(f"{folder}/firm*.csv", FIRMS | {"features": features})
    own = ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    with pytest.raises(ConfigError, match="site_effects = 'random' cannot be used with ExampleDP"):
        prepared_problem(read, names, privacy=own, site_effects="random")
    with pytest.raises(ConfigError, match="is for clients with tables"):
        FedNewton().start(None, num_rounds=1, site_effects="random")


def any_study(seed, folder):
    """Check a run on tables drawn at random against the estimators, who have the rows at hand."""
    rng = np.random.default_rng(seed)
    loss = ["squared", "logistic", "poisson"][seed % 3]
    sites, m = int(rng.integers(2, 5)), int(rng.integers(60, 120))
    d = pd.DataFrame({"site": np.arange(m) % sites, "ward": rng.integers(4, size=m)})
    d["a"], d["b"] = rng.normal(50, 10, size=m), rng.normal(size=m)
    group = d["site"] * 4 + d["ward"] if seed % 2 else d["site"]
    scores = 0.05 * (d["a"] - 50) - 0.3 * d["b"] + 0.5 + rng.normal(size=20)[group]
    d["y"] = {
        "squared": scores + rng.normal(size=m),
        "logistic": (rng.random(m) < 1 / (1 + np.exp(-scores))).astype(int),
        "poisson": rng.poisson(np.exp(np.minimum(scores, 4))),
    }[loss]
    d.to_csv(folder / "all.csv", index=False)
    schema = {"target": "y", "loss": loss, "features": {"a": "numeric", "b": "numeric"}}
    schema |= {"positive": ["1"]} if loss == "logistic" else {}
    schema |= {"cluster": "ward"} if seed % 2 else {}
    made = tables(
        data=str(folder / "all.csv"), client_column="site", schema=schema, site_effects="random"
    )
    history = run(made, 20)
    known = {
        "squared": FederatedElasticNet(0, site_effects="random", inference="model"),
        "logistic": FederatedLogisticRegression(C=np.inf, site_effects="random", inference="model"),
        "poisson": FederatedPoissonRegressor(0, site_effects="random", inference="model"),
    }[loss].fit(d[["a", "b"]], d["y"], d["site"], clusters=group if seed % 2 else None)
    random, estimates = history.report.random, history.report.estimates
    np.testing.assert_allclose(random.sd, known.site_sd_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(random.pvalue, known.site_sd_test_[1], rtol=1e-6)
    errors = np.append(known.bse_, known.intercept_bse_)
    values = np.append(known.coef_, known.intercept_)
    np.testing.assert_allclose(estimates.bse, errors, rtol=1e-6)
    np.testing.assert_allclose(estimates.values, values, rtol=1e-6, atol=1e-6 * errors.min())
    np.testing.assert_allclose(estimates.loglik, known.loglik_, rtol=1e-9)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_studies_find_what_the_estimators_find(seed):
    with tempfile.TemporaryDirectory() as folder:
        any_study(seed, Path(folder))


@pytest.mark.nightly
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_any_study_finds_what_the_estimators_find(seed):
    with tempfile.TemporaryDirectory() as folder:
        any_study(seed, Path(folder))


def test_a_run_says_why_there_is_no_fit(folder, tmp_path, monkeypatch):
    """What only sites know, they find at the end; the model is then that of the rounds."""
    alone = of_firms(folder, more={"cluster": "firm"}, data="firm IBM")
    for made, why in (
        (alone, "need at least two groups, and there is one"),
        (of_firms(folder, more={"cluster": "year"}), "220 groups for 220 rows"),
    ):
        history = run(made, 3, run_dir=tmp_path / why[:3])
        assert "no random intercepts: " in history.report.text
        assert why in history.report.text
        assert (history.report.random, history.report.estimates) == (None, None)
        kept = json.loads((tmp_path / why[:3] / "model.json").read_text())
        assert (kept["site_effects"], kept.get("site_sd")) == ("common", None)
    made = visiting(folder, "poisson")
    assert "no random intercepts: KKT residual" in run(made, 1).report.text
    monkeypatch.setattr(final_intercepts, "_MOST", 2)
    report = run(made).report
    said = "the fit has not ended in 3 exchanges: the next step would move estimates by "
    assert f"note: random intercepts: {said}" in report.text
    assert f"random intercepts: NOT CONVERGED: {said}{report.random.left:.2g} stan" in report.text
    monkeypatch.setattr(final_intercepts, "_MOST", 4)
    assert final_intercepts._TOL < run(made).report.random.left < report.random.left < 100


@pytest.mark.parametrize("kind", [LeastSquares, PoissonRegression])
def test_a_heavy_row_is_one_row_of_its_group(kind):
    """A group of one row is not told because that row has a large weight."""
    rng = np.random.default_rng(0)
    A, y = rng.normal(size=(41, 2)), rng.poisson(2.0, 41).astype(float)
    weights, codes = np.ones(41), np.r_[np.repeat(np.arange(10), 4), 10]
    weights[40] = 7.0
    f = kind(A, y, sample_weight=weights, intercept=True)
    set_clusters(f, codes)
    if kind is LeastSquares:
        ask, down = variance_ratio, {"x": np.zeros(3), "ratio": 0.5}
    else:
        ask, down = marginal, {"x": np.zeros(4), "nodes": 7.0}
    assert ask(f, down, 1)["numbers"][1 if kind is LeastSquares else -2] == 11
    with pytest.raises(RefusedError, match="the 1 groups of one size have fewer than 5 rows"):
        ask(f, down, 5)
