"""Standard errors of runs on tables: of the pooled rows, whoever holds the clients."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from harness import refusal
from scipy.stats import chi2
from tabular import coefficients, deal, kept, numeric, run

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import FederatedLasso, FederatedLogisticRegression
from flower_fedcon.lab.report.contents import read_run
from flower_fedcon.objectives import HuberRegression
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.strategies import FedAvg
from flower_fedcon.tables.builders import tables

COLUMNS = ["rate_marriage", "age", "yrs_married"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("sites")
    d = sm.datasets.fair.load_pandas().data[::10].reset_index(drop=True)
    d["kind"] = np.array(["none", "few", "many"])[np.digitize(d["affairs"], [0.1, 3.0])]
    d["any"] = np.where(d["affairs"] > 0, "yes", "no")
    d.to_csv(where / "all.txt", index=False)
    for site in range(4):
        d[site::4].to_csv(where / f"site{site}.csv", index=False)
    return where


def problem(folder, target, loss, inference="model", **more):
    schema = {"target": target, "loss": loss, "features": numeric(*COLUMNS)}
    if loss == "logistic":
        schema["positive"] = ["yes"]
    data = f"{folder}/site*.csv"
    return tables(data=data, schema=schema, inference=inference, **more)


def pooled(folder):
    d = pd.read_csv(folder / "all.txt", keep_default_na=False)
    return d, sm.add_constant(d[COLUMNS], prepend=False)


def test_a_run_leaves_coefficients_with_errors(folder, tmp_path):
    d, X = pooled(folder)
    found = sm.Logit(d["any"] == "yes", X).fit(disp=0)
    history = run(problem(folder, "any", "logistic"), run_dir=tmp_path / "run")
    file = coefficients(tmp_path / "run")
    ends = found.conf_int()
    for name, known in {
        "per_unit": found.params,
        "std_error": found.bse,
        "z": found.tvalues,
        "p_value": found.pvalues,
        "lower": ends[0],
        "upper": ends[1],
    }.items():
        np.testing.assert_allclose(file[name], known, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(file["odds_ratio_upper"][:-1], np.exp(ends[1])[:-1], rtol=1e-6)
    assert np.isnan(file["odds_ratio_lower"].iloc[-1])
    np.testing.assert_allclose(history.report.estimates.loglik, found.llf, rtol=1e-9)
    assert "P>|z|" in (tmp_path / "run" / "report.txt").read_text()
    model = kept(tmp_path / "run")
    np.testing.assert_allclose(model["covariance"], found.cov_params(), rtol=1e-5)


@pytest.mark.parametrize("how", [{"engine": "stacked"}, {"workers": 2}])
def test_the_same_numbers_whoever_holds_the_clients(folder, how):
    made = problem(folder, "any", "logistic", inference="robust")
    known = run(made, 12).report.errors
    np.testing.assert_allclose(run(made, 12, **how).report.errors, known, rtol=1e-9)


def test_few_clusters_are_said(folder):
    report = run(problem(folder, "affairs", "squared", inference="cluster")).report
    assert "4 clusters are not more than the 4 parameters" in report.text
    with pytest.raises(ConfigError, match="needs more than 4 clusters, got 4"):
        report.estimates.joint_test(range(4))


@pytest.mark.parametrize(("cluster", "inference", "said"), [
    ("", "model", ""), ("occupation", "cluster", ""),
    ("occupation", "robust", 'of one cluster of \'occupation\'; .*: use inference="cluster"'),
    ("age", "debiased", 'fit without a penalty, and use inference="cluster"'),
    ("row", "model", "each row of every client is a cluster of its own"),
    ("row", "cluster", "each row of every client is a cluster of its own"),
])  # fmt: skip
def test_errors_that_ignore_clusters_and_clusters_that_group_nothing(
    folder, tmp_path, cluster, inference, said
):
    d, _ = pooled(folder)
    data = deal(tmp_path, d.assign(row=d.index), 4)
    features = {name: "numeric" for name in COLUMNS if name != cluster}
    schema = {"target": "affairs", "features": features} | ({"cluster": cluster} if cluster else {})
    l1 = 0.1 if inference == "debiased" else 0
    text = run(tables(data=data, schema=schema, inference=inference, l1=l1)).report.text
    words = ("errors take all rows as independent", "is a cluster of its own")
    about = [line for line in text.splitlines() if any(word in line for word in words)]
    assert len(about) == bool(said)
    assert re.search(said, "".join(about))


@pytest.mark.parametrize("inference", ["model", "cluster"])
def test_columns_of_one_term_are_tested_together(folder, inference):
    d, _ = pooled(folder)
    terms = ["poly(age, 3, raw=True)", "children", "yrs_married"]
    schema = {
        "target": "affairs",
        "cluster": "occupation",
        "terms": terms,
        "features": {"age": "numeric", "yrs_married": "numeric", "children": "categorical"},
    }
    made = tables(data=f"{folder}/site*.csv", schema=schema, inference=inference)
    report = run(made).report
    pairs = np.unique(10 * (np.arange(len(d)) % 4) + d["occupation"], return_inverse=True)[1]
    how = {"cov_type": "cluster", "cov_kwds": {"groups": pairs}, "use_t": True}
    d["z"] = d["age"] - d["age"].mean()  # the same space, with digits
    model = sm.OLS.from_formula("affairs ~ z + I(z**2) + I(z**3) + C(children) + yrs_married", d)
    found = model.fit(**(how if inference == "cluster" else {}))
    names = np.array(model.exog_names)
    for words, own in {
        f"all columns of {terms[0]}": np.char.find(names, "z") >= 0,
        "all columns of children": np.char.startswith(names, "C("),
    }.items():
        known = found.f_test(np.eye(len(names))[own])
        line = next(line for line in report.lines if line.startswith(f"{words}: F "))
        df = f"degrees of freedom {own.sum()} and {known.df_denom:.0f}"
        assert line == f"{words}: F {known.fvalue:.5g}, {df}, p = {known.pvalue:.3g}"
    assert sum(line.startswith("nonlinear columns of poly(age, 3") for line in report.lines) == 1
    assert not any("yrs_married:" in line for line in report.lines)


def test_a_term_is_tested_with_its_products(folder):
    """As `anova` of rms has it: Wald's statistic of a pooled fit, by its covariance."""
    d, _ = pooled(folder)
    curve, both = "poly(age, 2)", "poly(age, 2):yrs_married"
    schema = {
        "target": "any",
        "positive": ["yes"],
        "terms": [curve, "yrs_married", both, "religious"],
        "features": dict.fromkeys(("age", "yrs_married", "religious"), "numeric"),
    }
    report = run(tables(data=f"{folder}/site*.csv", schema=schema, inference="model"), 20).report
    d["z"], d["y"] = (d["age"] - d["age"].mean()) / 10, (d["any"] == "yes").astype(float)
    formula = "y ~ (z + I(z**2)) * yrs_married + religious"
    found = sm.GLM.from_formula(formula, d, family=sm.families.Binomial()).fit(tol=1e-14)
    names = found.params.index
    bent, age = names.str.contains("**", regex=False), names.str.contains("z")
    years = names.str.contains("yrs")
    known = {
        f"all columns of {curve} with those of {both}": age,
        f"nonlinear columns of {curve} with those of {both}": bent,
        f"all columns of yrs_married with those of {both}": years,
        f"all columns of {both}": age & years,
        f"nonlinear columns of {both}": bent & years,
    }
    lines = [line.partition(": chi2 ") for line in report.lines if "columns of" in line]
    assert [line[0] for line in lines] == list(known)
    for (_, _, said), own in zip(lines, known.values(), strict=True):
        b, V = found.params.to_numpy()[own], found.cov_params().to_numpy()[np.ix_(own, own)]
        statistic = b @ np.linalg.solve(V, b)
        p = chi2.sf(statistic, own.sum())
        assert said == f"{statistic:.5g}, degrees of freedom {own.sum()}, p = {p:.3g}"


def test_huber_errors_are_the_sandwich_of_the_pooled_rows(folder):
    d, X = pooled(folder)
    report = run(problem(folder, "affairs", "huber", inference="robust"), 30).report
    X, delta = X.to_numpy(), HuberRegression(np.ones((1, 1)), np.ones(1)).delta
    left = d["affairs"].to_numpy() - X @ report.estimates.values
    scores = np.clip(left, -delta, delta)[:, None] * X
    np.testing.assert_allclose(scores.sum(axis=0), 0.0, atol=1e-6)
    bread = np.linalg.inv(X[np.abs(left) <= delta].T @ X[np.abs(left) <= delta])
    n, p = X.shape
    V = bread @ scores.T @ scores @ bread * n / (n - p)
    np.testing.assert_allclose(report.estimates.bse, np.sqrt(np.diag(V)), rtol=1e-6)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_debiased_intervals_beside_an_l1_norm(folder, tmp_path, loss):
    d, _ = pooled(folder)
    target = "any" if loss == "logistic" else "affairs"
    made = problem(folder, target, loss, inference="debiased", l1=0.05)
    report = run(made, 30, run_dir=tmp_path / "run").report
    Z, n = (d[COLUMNS] - d[COLUMNS].mean()) / d[COLUMNS].std(ddof=0), len(d)
    known = FederatedLasso(alpha=0.05, inference="debiased")
    if loss == "logistic":
        known = FederatedLogisticRegression(C=1 / (0.05 * n), l1_ratio=1, inference="debiased")
    known.fit(Z, d[target], np.arange(n) % 4)
    scales = d[COLUMNS].std(ddof=0).to_numpy()
    file = coefficients(tmp_path / "run")
    own = file.loc[COLUMNS]
    for name, values in {
        "coefficient": known.coef_.reshape(-1),
        "debiased": known.coef_debiased_.reshape(-1) / scales,
        "std_error": known.bse_.reshape(-1) / scales,
        "p_value": known.pvalues_.reshape(-1),
        "upper": known.conf_int().reshape(-1, 2)[:, 1] / scales,
    }.items():
        np.testing.assert_allclose(own[name], values, rtol=1e-5, atol=1e-9, err_msg=name)
    assert np.isnan(file["std_error"]["(intercept)"])
    assert "debiased lasso" in report.text
    if loss == "logistic":  # a ratio and its interval are of the same coefficient
        np.testing.assert_allclose(own["odds_ratio"], np.exp(own["debiased"]), rtol=1e-12)
        np.testing.assert_allclose(own["lasso_odds_ratio"], np.exp(own["per_unit"]), rtol=1e-12)
        assert own["odds_ratio"].between(own["odds_ratio_lower"], own["odds_ratio_upper"]).all()
        assert np.isnan(file["odds_ratio"]["(intercept)"])
        heads = [line for line in report.text.splitlines() if line.endswith("odds ratio")]
        assert [" lasso odds ratio" in head for head in heads] == [True, False]
    assert kept(tmp_path / "run")["covariance"] is None
    shown = read_run(tmp_path / "run", "run")
    middle, low, high = shown.intervals["age"]
    assert low < middle < high
    known = own["debiased"]["age"]
    assert middle == pytest.approx(np.exp(known) if loss == "logistic" else known)


def beside_noise(folder):
    made = of_any(folder, "model")
    private = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    method = FedAvg(client_lr=0.1, local_steps=1, regularizer=made.regularizer, privacy=private)
    simulate(method, made, 2)


def of_any(folder, inference="debiased", **more):
    return problem(folder, "any", "logistic", inference=inference, **more)


REFUSED = [
    (lambda f: run(of_any(f, l1=0.0)), "is for fits with a penalty: give inference = "),
    (lambda f: run(of_any(f, l1=0.1, l2=0.1)), "removes the bias of an l1 norm only, got"),
    (lambda f: run(of_any(f, l1=0.1, penalty="group")), "removes the bias of an l1 norm only, got"),
    (lambda f: run(problem(f, "affairs", "huber", "debiased", l1=0.1)), "this one is huber"),
    (lambda f: of_any(f, "clustered"), r"inference must be .*'debiased'.*got 'clustered'"),
    (lambda f: run(of_any(f, "model", l1=0.01)), "with a penalty"),
    (lambda f: of_any(f, "model", weighting="uniform"), 'weighting = "examples"'),
    (lambda f: run(problem(f, "affairs", "huber")), "needs a likelihood"),
    (beside_noise, "no noise protects its sums"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_cannot_be_had_is_refused_before_round_1(folder, make, words):
    with pytest.raises(ConfigError, match=words):
        make(folder)


def test_a_run_that_has_not_converged_has_no_errors(folder):
    report = run(problem(folder, "any", "logistic"), 1).report
    assert report.estimates is None
    assert "no standard errors: " in report.text


def test_a_refusal_names_the_experiment_s_file(folder, run_command, tmp_path):
    """And comes before the reference solve."""
    (tmp_path / "fair.toml").write_text(
        '[problem]\nname = "tables"\ninference = "robust"\nl1 = 0.1\n'
        f'data = "{folder}/site*.csv"\n'
        'schema = {target = "affairs", features = {age = "numeric"}}\n[run]\nrounds = 2\n'
    )
    said = refusal(run_command, "run", "fair.toml")
    assert said.startswith(
        "error: fair.toml: [problem]: inference='robust' of a run with a penalty"
    )
    said = refusal(run_command, "run", "fair.toml", "--set", "l1=0", "--set", "inference=quasi")
    assert said.startswith('error: fair.toml: [problem]: inference="quasi" is for Poisson losses')


def test_a_report_counts_the_events(folder):
    """A results section needs them; a site with few says nothing of them."""
    d = pd.read_csv(folder / "all.txt", keep_default_na=False)
    each = [(d[site::4]["any"] == "yes").sum() for site in range(4)]
    sites = ", ".join(f"site{site} {events}" for site, events in enumerate(each))
    said = f"rows with a target 'any' of 'yes': {sum(each)} of {len(d)} ({sites})"
    assert said in run(problem(folder, "any", "logistic"), 3).report.lines
    least = min(each) + 1
    told = sum(events for events in each if events >= least)
    (line,) = [
        line
        for line in run(problem(folder, "any", "logistic", min_rows=least), 3).report.lines
        if line.startswith("rows with")
    ]
    assert f"'yes': {told} at the sites that tell it (" in line
    assert "not told, of few rows" in line
    report = run(problem(folder, "affairs", "poisson"), 3).report
    whole = f"{d['affairs'].sum():.10g}"
    assert f"sum of 'affairs': {whole}" in report.lines


def test_a_multinomial_run_writes_both_forms_of_its_coefficients(tmp_path):
    """Those that sum to 0, and those of each class against the first, which its report shows."""
    rng = np.random.default_rng(0)
    d = pd.DataFrame({"x": rng.normal(size=120), "kind": rng.choice(["a", "b", "c"], 120)})
    schema = {"target": "kind", "classes": ["a", "b", "c"], "features": {"x": "numeric"}}
    problem = tables(data=deal(tmp_path, d), schema=schema, inference="model")
    report = run(problem, run_dir=tmp_path / "run").report
    found = pd.read_csv(tmp_path / "run" / "coefficients_against_first.csv", index_col="column")
    known = sm.MNLogit(d["kind"], sm.add_constant(d[["x"]])).fit(disp=0, tol=1e-12)
    both = known.params.set_axis(["b", "c"], axis=1), known.bse.set_axis(["b", "c"], axis=1)
    for name, own in zip(("per_unit_against_first", "std_error"), both, strict=True):
        for mark in "bc":
            assert found.loc[f"x [{mark}]", name] == pytest.approx(own.loc["x", mark], rel=1e-5)
    assert found.loc["x [b]", "odds_ratio"] == pytest.approx(np.exp(both[0].loc["x", "b"]), 1e-5)
    assert np.isnan(found.loc["(intercept) [b]", "odds_ratio"])
    assert "coefficients_against_first.csv are of each class against the first" in report.text


@pytest.mark.parametrize("common", [False, True])
def test_a_cox_report_names_its_strata_and_counts_columns_that_it_does_not_show(tmp_path, common):
    rng = np.random.default_rng(0)
    d = pd.DataFrame(rng.normal(size=(150, 7)).round(2), columns=list("abcdefg"))
    d = d.assign(
        days=rng.exponential(size=150).round(3) + 0.01, dead=1, ward=rng.integers(0, 2, 150)
    )
    schema = {"target": "days", "event": "dead", "strata": "ward", "features": numeric(*"abcdefg")}
    schema |= {"stratified": False, "baseline_times": [0.5, 1.0, 2.0]} if common else {}
    text = run(tables(data=deal(tmp_path, d), schema=schema, inference="model")).report.text
    said = " with each value of 'ward': " if common else "stratified by site and 'ward': each"
    assert said in text
    assert ("common by ward" if common else "sites and ward") in text
    assert "  and 2 columns more (proportionality.csv has all)\n" in text


@pytest.mark.parametrize("cluster", ["", "couple"])
def test_heterogeneity_says_that_its_errors_ignore_clusters(folder, tmp_path, cluster):
    schema = {"target": "age", "features": numeric("yrs_married", "rate_marriage")}
    data = pd.read_csv(folder / "all.txt").assign(couple=lambda d: d.index // 12)
    schema |= {"cluster": cluster} if cluster else {}
    made = tables(data=deal(tmp_path, data), schema=schema, inference="robust", heterogeneity=True)
    assert ("take rows of one 'couple' as independent" in run(made).report.text) == bool(cluster)
