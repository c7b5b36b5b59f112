"""Runs on tables find what estimators find, with an intercept for all sites or for each."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sites import COLUMNS, problem, stated, written
from sklearn.base import clone
from tabular import coefficients, kept, lines, numeric, run
from typer.testing import CliRunner

from flower_fedcon import load_model
from flower_fedcon.cli.command import app
from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedElasticNet,
    FederatedGammaRegressor,
    FederatedLogisticRegression,
    FederatedNegativeBinomial,
    FederatedPoissonRegressor,
)
from flower_fedcon.lab.report.page import write_report
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables.builders import clients_of, prepared_problem, tables
from flower_fedcon.tables.ending.final_heterogeneity import lines_of
from flower_fedcon.tables.own_files import written_by
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.wire.digests import digest

ESTIMATORS = {
    "squared": FederatedElasticNet(0),
    "logistic": FederatedLogisticRegression(C=np.inf),
    "multinomial": FederatedLogisticRegression(C=np.inf),
    "poisson": FederatedPoissonRegressor(0),
    "gamma": FederatedGammaRegressor(0),
    "negative_binomial": FederatedNegativeBinomial(),
    "cox": FederatedCoxRegression(0.0, ties="efron"),
}
TARGETS = {
    "gamma": {"target": "cost"},
    "multinomial": {"target": "kind", "classes": ["few", "many", "none"]},
    "cox": {"target": "disea", "event": "died", "ties": "efron", "features": numeric("idp", "lpi")},
}
CASES = [  # loss, intercepts, errors, and what the schema has beside them
    ("squared", "common", "model", {}),
    ("squared", "own", "model", {}),
    ("squared", "common", "cluster", {}),  # whose clusters are the sites
    ("squared", "common", "cluster", {"cluster": "plan"}),
    ("squared", "own", "robust", {"weight": "w"}),
    ("logistic", "common", "robust", {"offset": "known"}),
    ("logistic", "own", "model", {}),
    ("multinomial", "common", "model", {}),
    ("poisson", "common", "quasi", {"exposure": "years", "weight": "w"}),
    ("poisson", "common", "model", {}),
    ("poisson", "own", "model", {"exposure": "years", "terms": [*COLUMNS, "lncoins:idp"]}),
    ("poisson", "own", "robust", {}),
    ("poisson", "own", "cluster", {"cluster": "plan"}),
    ("gamma", "common", "robust", {"exposure": "years", "offset": "known"}),
    ("negative_binomial", "common", "model", {"exposure": "years"}),
    ("cox", "common", "model", {}),
]
FOUND = ("values", "covariance", "n", "loglik", "deviance", "pearson", "dispersion", "shape",
         "clusters", "df", "more", "counted", "events")  # fmt: skip
APART = ("values", "bse", "q", "i2", "tau2", "fixed", "fixed_bse", "random", "random_bse")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = written(tmp_path_factory.mktemp("sites"))
    d = pd.read_csv(where / "all.txt")
    d["years"], d["known"] = 1.0 + np.arange(len(d)) % 3, np.sin(np.arange(len(d))) / 5
    d["cost"], d["died"] = 1.0 + d["mdvis"] * d["years"], (np.arange(len(d)) % 3 > 0) * 1
    d["kind"] = np.array(["none", "few", "many"])[np.digitize(d["mdvis"], [2.0, 5.0])]
    d["w"], d["lncoins:idp"] = 1.0 + np.arange(len(d)) % 2, d["lncoins"] * d["idp"]
    d.to_csv(where / "all.txt", index=False)
    return each(where, d)


def each(where, d):
    for site, own in d.groupby("site"):
        own.to_csv(where / f"s{site}.csv", index=False)
    return where


def pooled(folder):
    return pd.read_csv(folder / "all.txt", keep_default_na=False)


def estimator(folder, loss, effects, inference, more):
    d, schema = pooled(folder), stated(loss, **TARGETS.get(loss, {}), **more)
    model = clone(ESTIMATORS[loss]).set_params(inference=inference)
    if effects != "common":
        model.set_params(site_effects=effects)
    y = d[[schema["target"], "died"]].to_numpy() if loss == "cox" else d[schema["target"]]
    roles = {"sample_weight": "weight", "clusters": "cluster"}
    roles |= {"offset": "offset", "exposure": "exposure"}
    given = {role: d[schema[key]] for role, key in roles.items() if key in schema}
    columns = schema.get("terms", list(schema["features"]))
    return model.fit(d[columns], y, d["site"].astype(str), **given)


@pytest.mark.parametrize(("loss", "effects", "inference", "more"), CASES, ids=range(len(CASES)))
def test_a_run_finds_what_an_estimator_finds(folder, tmp_path, loss, effects, inference, more):
    known = estimator(folder, loss, effects, inference, more)
    compared = loss in ("squared", "logistic", "poisson") and inference == "model"
    given = {"inference": inference, "site_effects": effects, "heterogeneity": compared}
    made = problem(folder, loss, TARGETS.get(loss, {}) | more, **given)
    report = run(made, 25, run_dir=tmp_path / "run").report
    for name in FOUND:
        one, other = getattr(report.estimates, name), getattr(known.estimates_, name)
        near = 1e-9 if name == "values" else 1e-12
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=near, err_msg=name)
    assert report.estimates.names == known.estimates_.names
    file, model = coefficients(tmp_path / "run"), kept(tmp_path / "run")
    if loss == "multinomial":  # classes that are centred: one number more changes no probability
        expected = np.column_stack([known.coef_, known.intercept_]).ravel()
        np.testing.assert_allclose(file["per_unit"], expected, rtol=1e-5)
        expected = np.column_stack([known.bse_[:, 1], known.intercept_bse_]).ravel()
        own = file.filter(regex=r"^(idp|\(intercept\))", axis=0)["std_error"]
        np.testing.assert_allclose(own, expected, rtol=1e-5)
        return
    ends, p = known.conf_int().reshape(-1, 2), known.coef_.size
    shown = {"per_unit": known.coef_, "std_error": known.bse_, "p_value": known.pvalues_,
             "lower": ends[:, 0], "upper": ends[:, 1]}  # fmt: skip
    for name, values in shown.items():
        np.testing.assert_allclose(file[name][:p], np.ravel(values), rtol=2e-6, atol=1e-9)
    np.testing.assert_allclose(model["covariance"], known.covariance_, rtol=1e-5, atol=1e-12)
    if effects == "own":
        assert "each of 4 sites has its own intercept" in report.text
        assert (model["site_effects"], model["intercept"]) == ("own", None)
    if compared:
        check_heterogeneity(report, known, tmp_path, effects, loss)
        check_errors_of_predictors(folder, tmp_path, known, more.get("terms", COLUMNS))


def check_heterogeneity(report, model, folder, effects, loss):
    """Check what sites find alone: the estimators' numbers, in a file and on the page."""
    found, known, p = report.heterogeneity, model.heterogeneity(), model.coef_.size
    assert found.names == known.names
    assert found.sites == tuple(f"s{name}" for name in known.sites)
    for name in APART:  # the intercept is that of the columns' means, and then of zeros
        one, other = getattr(found, name), getattr(known, name)
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-12, err_msg=name)
    assert (found.ratio_df == known.ratio_df).all()
    if effects == "own":  # a common intercept is that of the columns' means here
        np.testing.assert_allclose(found.ratio, known.ratio, rtol=1e-6)
    file = pd.read_csv(folder / "run" / "heterogeneity.csv", index_col="column")
    np.testing.assert_allclose(file["pooled"][:p], np.ravel(model.coef_), rtol=1e-6)
    np.testing.assert_allclose(file["pooled_std_error"][:p], np.ravel(model.bse_), rtol=1e-6)
    np.testing.assert_allclose(file["s2"], known.values[2], rtol=2e-6)
    np.testing.assert_allclose(file["s2 std_error"], known.bse[2], rtol=2e-6)
    assert written_by([file.index.name, *file.columns]) == "a run"
    assert "heterogeneity between 4 sites, always by the model's errors of each" in report.text
    assert all(f"  {name}: Q " in report.text for name in found.names)
    write_report([folder / "run"], folder / "page.html")
    page = (folder / "page.html").read_text(encoding="utf-8")
    ratio = {"poisson": "rate ratio", "logistic": "odds ratio"}.get(loss, "coefficient")
    assert page.count(f'aria-label="Forest plot, {ratio}"') >= p + 1
    assert "Those of (pooled) use the run" in page
    assert page.count("(random effects)") >= len(found.names)


def check_errors_of_predictors(folder, where, known, columns):
    """With own intercepts they are of the difference from a row of zeros of the same site."""
    new, model = pd.read_csv(folder / "s1.csv"), load_model(where / "run")
    A = new[columns].to_numpy()
    if A.shape[1] < len(known.covariance_):
        A = np.column_stack([A, np.ones(len(A))])
    expected = np.sqrt(np.einsum("ij,jk,ik->i", A, known.covariance_, A))
    np.testing.assert_allclose(model.standard_errors(folder / "s1.csv"), expected, rtol=1e-6)


def test_predictions_elsewhere_are_differences_within_a_site(folder, tmp_path):
    run(problem(folder, "logistic"), run_dir=tmp_path / "run")
    model, d = load_model(tmp_path / "run"), pd.read_csv(folder / "s0.csv")
    known = d[COLUMNS].to_numpy() @ model.preparation.in_units(model.x)
    np.testing.assert_allclose(model.linear_predictor(d), known, atol=1e-12)
    for ask in (model.predict, model.predict_proba):
        with pytest.raises(ConfigError, match="each site keeps its own intercept"):
            ask(d)
    out, source = tmp_path / "predictions.csv", str(folder / "s0.csv")
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), source, "-o", str(out)])
    assert done.exit_code == 0, done.output
    file = pd.read_csv(out, float_precision="round_trip")
    assert list(file) == ["row", "linear_predictor_without_intercept", "std_error"]
    assert file["std_error"].tolist() == model.standard_errors(source).tolist()
    assert "these are no predictions" in done.stderr
    assert "predictions for" not in done.stdout
    assert written_by(list(file)) == "`fedcon predict`"


def test_an_l1_norm_leaves_the_intercepts_free(folder):
    """Of a squared loss: the lasso of columns and outcomes less their sites' means."""
    made = problem(folder, "squared", inference=None, l1=0.3)
    x, scales = run(made, 40).x, made.preparation.scales
    d = pooled(folder)
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
        left = table.targets - table.numeric @ b
        left = (left - left[table.training_rows].mean())[table.held_out_rows]
        known = pytest.approx(np.square(left).mean(), rel=1e-9)
        assert history[f"test_mse/{name}"][-1] == known
        assert history.report.quality.sites[name]["mse"] == known


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_a_site_whose_intercept_is_infinite_is_named_and_left_out(folder, tmp_path, loss):
    d = pooled(folder)
    d.loc[d["site"] == 2, ["any", "mdvis"]] = ["no", 0]
    each(tmp_path, d)
    report = run(problem(tmp_path, loss, {"test_fraction": 0.2})).report
    assert report.reached.converged
    assert "outcomes are all" in report.text
    assert "at site s2: its own intercept is infinite, so its rows carry no info" in report.text
    assert "s2" in report.quality.absent
    (tmp_path / "s2.csv").unlink()
    without = run(problem(tmp_path, loss, {"test_fraction": 0.2})).report.estimates
    for name in ("values", "bse", "aic", "n", "loglik"):
        np.testing.assert_allclose(getattr(report.estimates, name), getattr(without, name), 1e-6)


def test_a_resumed_run_has_the_same_numbers(folder, tmp_path):
    made = problem(folder, "poisson", inference="robust", heterogeneity=True)
    key, known = digest(made.objectives), run(made).report
    assert digest(made.objectives) == digest(pickle.loads(pickle.dumps(made.objectives))) == key
    run(made, 3, run_dir=tmp_path / "run")
    found = run(made, run_dir=tmp_path / "run", resume=True).report
    assert found.errors == known.errors
    for name in ("values", "ratio"):
        one, other = (getattr(own.heterogeneity, name) for own in (found, known))
        assert one.tobytes() == other.tobytes()


def test_sites_that_cannot_be_fitted_alone_are_named(folder, tmp_path):
    d = pooled(folder)
    d["sign"] = np.where(d["any"] == "yes", 1.0, -1.0) * np.where(d["site"] == 1, 1.0, 0.0)
    d["sign"] += 0.3 * (np.arange(len(d)) % 3) * (d["site"] != 1)
    d.loc[d["site"] == 2, "lpi"] = 3.5
    each(tmp_path, d[(d["site"] != 3) | (d.groupby("site").cumcount() < 5)])
    features = {"features": numeric("idp", "lpi", "sign")}
    report = run(problem(tmp_path, "logistic", features, heterogeneity=True), 20).report
    assert report.heterogeneity.sites == ("s0", "s2")
    assert "s1: column sign separates the outcome there" in report.text
    assert "lpi: rows of s2 alone tell nothing of it" in report.text
    each(tmp_path, d[d["site"] == 1])
    (tmp_path / "s2.csv").unlink()
    report = run(problem(tmp_path, "logistic", features, heterogeneity=True), 20).report
    assert report.heterogeneity is None
    assert "heterogeneity needs at least two sites" in report.text
    each(tmp_path, d[d["site"] == 2])
    for extra in (4, 5):
        each(tmp_path, d[d["site"] == 0].assign(site=extra))
    report = run(problem(tmp_path, "logistic", features, heterogeneity=True), 20).report
    found = report.heterogeneity
    assert found.sites == ("s0", "s2", "s4", "s5")
    assert sorted(found.left_out) == ["s1", "s3"]
    assert found.dfs.tolist() == [3, 2, 3]
    assert np.isnan(found.values).tolist() == [[False, j == 1, False] for j in range(4)]
    assert "not fitted alone: s1" in report.text


def test_a_site_without_a_category_is_named_with_the_category(tmp_path):
    rng = np.random.default_rng(5)
    for site in ("graz", "lyon", "porto"):
        marks = ["flu", "cold", *["rare"] * (site == "lyon")]
        rows = [f"{rng.normal():.4f},{rng.normal():.4f},{marks[k % len(marks)]}" for k in range(60)]
        lines(tmp_path, **{site: ["y,x,illness", *rows]})
    schema = {"target": "y", "features": numeric("x", illness="categorical")}
    made = tables(data=f"{tmp_path}/*.csv", schema=schema, inference="model", heterogeneity=True)
    report = run(made).report
    assert "illness=rare: rows of graz, porto alone tell nothing of it" in report.text
    assert "singular" not in report.text
    found = report.heterogeneity
    place = found.names.index("x")
    known = [sm.OLS(rows["y"], sm.add_constant(pd.get_dummies(rows.drop(columns="y"),
             drop_first=True, dtype=float))).fit() for rows in map(pd.read_csv, sorted(
             tmp_path.glob("*.csv")))]  # fmt: skip
    np.testing.assert_allclose(found.values[:, place], [fit.params["x"] for fit in known])
    np.testing.assert_allclose(found.bse[:, place], [fit.bse["x"] for fit in known])
    assert found.dfs[place] == 2


def of_private_rows(folder):
    features = {name: {"range": [-20, 80]} for name in COLUMNS}
    read, names = clients_of(f"{folder}/s?.csv", stated("logistic", features=features))
    private = ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    prepared_problem(read, names, privacy=private, site_effects="own")


def compare_hazards(folder):
    schema = {"target": "disea", "event": "died", "loss": "cox", "features": numeric("lpi")}
    made = tables(data=f"{folder}/s*.csv", schema=schema, inference="model")
    made.heterogeneity = True
    run(made)


COX = {"target": "mdvis", "event": "idp", "features": numeric("lpi")}
COMPARED = {"inference": "model", "heterogeneity": True}
REFUSED = [
    (lambda f: problem(f, "squared", site_effects="fixed"), "site_effects must be"),
    (lambda f: problem(f, "huber", inference=None), 'the schema has loss = "huber"'),
    (lambda f: tables(data=f"{f}/s*.csv", schema=COX, site_effects="own"),
     "a stratum with its own baseline hazard"),
    (of_private_rows, "cannot be used with ExampleDP"),
    (lambda f: problem(f, "squared", inference=None, heterogeneity=True),
     'give inference = "model", too'),
    (lambda f: run(problem(f, "squared", inference=None), heterogeneity=True),
     'give inference="model", too'),
    (lambda f: run(problem(f, "huber", site_effects="common", inference="robust",
                           heterogeneity=True)),
     "this one is huber: leave it out"),
    (lambda f: tables(data=f"{f}/none.csv", schema=COX, **COMPARED),  # before files are read
     r"heterogeneity is for .*, and this one is cox"),
    (compare_hazards, "this one is cox: leave it out"),
    (lambda f: FedNewton().start(None, num_rounds=1, site_effects="own"),
     "is for clients with tables"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_own_intercepts_and_comparisons_are_not_for_is_refused(folder, make, words):
    with pytest.raises(ConfigError, match=words):
        make(folder)


def test_no_site_is_left(folder, tmp_path):
    d = pooled(folder)
    each(tmp_path, d.assign(site=d["any"]))
    with pytest.raises(ConfigError, match="all outcomes are alike at every client"):
        problem(tmp_path, "logistic")
    payload = problem(folder, "squared").preparation.payload
    assert Preparation.from_payload(payload).site_effects == "own"


def test_without_inference_predictors_have_no_errors(folder, tmp_path):
    made = problem(folder, "poisson", site_effects="common", inference=None)
    run(made, 3, run_dir=tmp_path / "run")
    model = load_model(tmp_path / "run")
    with pytest.raises(ConfigError, match='run it with inference = "model"'):
        model.standard_errors(folder / "s1.csv")
    assert "std_error" not in model.columns_of(folder / "s1.csv")


def test_all_of_few_columns_are_in_the_report():
    def said(columns):
        own = np.ones(columns)
        names = [f"x{k}" for k in range(columns)]
        parts = ("q", "pvalues", "i2", "tau2", "fixed", "random", "ratio", "ratio_df",
                 "ratio_pvalues")  # fmt: skip
        found = SimpleNamespace(sites=("a", "b"), names=names, dfs=own.astype(int), left_out={})
        found.values = np.ones((2, columns))
        vars(found).update(dict.fromkeys(parts, own))
        return lines_of(found)

    assert len(said(14)) == 15
    assert "all are in" not in said(14)[0]
    assert len(said(15)) == 6
    assert "heterogeneity.csv has all" in said(15)[0]
