"""Random intercepts of sites, or of clusters within them: lme4's, in runs and estimators."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lme4_values import COLUMNS, LME4, firms, visits
from scipy.stats import chi2, poisson
from sklearn.base import clone
from tabular import coefficients, kept, numeric, run
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

FIRMS = {"target": "invest", "features": numeric("value", "capital")}
LINEAR = {"target": "log", "features": numeric(*COLUMNS)}
COUNTS = {"target": "mdvis", "loss": "poisson", "features": numeric(*COLUMNS)}
ANY = {"target": "any", "positive": ["yes"], "features": numeric(*COLUMNS)}
SCHEMAS = {
    "firms": FIRMS,
    "families": LINEAR | {"cluster": "family"},
    "counts": COUNTS,
    "counts of families": COUNTS | {"cluster": "family"},
    "rates of families": COUNTS | {"cluster": "family", "exposure": "years"},
    "any of families": ANY | {"cluster": "family"},
    # The page's recipe: the site's name in each row is a category, beside the schema's cluster.
    "families in plans": LINEAR
    | {"features": numeric(*COLUMNS, plan="categorical"), "cluster": "family"},
}
ESTIMATORS = {
    "squared": FederatedElasticNet(0, site_effects="random", inference="model"),
    "logistic": FederatedLogisticRegression(C=np.inf, site_effects="random", inference="model"),
    "poisson": FederatedPoissonRegressor(0, site_effects="random", inference="model"),
}


def written(folder, d, site, *columns):
    for name, own in d.groupby(site):
        own[list(columns) or list(d)].to_csv(folder / f"{site}{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where, d = tmp_path_factory.mktemp("grouped"), visits()
    written(where, d, "plan", "mdvis", "any", "log", "family", "years", *COLUMNS)
    return written(where, firms(), "firm")


def grouped(folder, schema, data=None, **settings):
    """Return the problem of the firms' tables or the plans', by default with random intercepts."""
    data = data or ("firm*" if schema["target"] == "invest" else "plan*")
    settings = {"site_effects": "random"} | settings
    return tables(data=f"{folder}/{data}.csv", schema=schema, **settings)


def alike(found, known):
    """Check coefficients to 1e-6 of themselves or of standard errors, the intercept first."""
    sd, values, errors, loglik, sd_error, residual = found
    near = 1e-6 * min(known.errors)
    np.testing.assert_allclose(values, known.coefficients, rtol=1e-6, atol=near)
    np.testing.assert_allclose(errors, known.errors, rtol=1e-6)
    np.testing.assert_allclose(loglik, known.loglik, rtol=1e-9)
    np.testing.assert_allclose(sd, known.sd, rtol=1e-6)
    if known.sd_error:
        np.testing.assert_allclose(sd_error, known.sd_error, rtol=1e-6)
    if known.residual:
        np.testing.assert_allclose(residual, known.residual, rtol=1e-8)


def numbers(report):
    own, random = report.estimates, report.random
    residual = {name: unit for name, _, unit, _ in report.rows}.get("(residual sd)")
    return (random.sd, np.roll(own.values, 1), np.roll(own.bse, 1), own.loglik, random.sd_bse,
            residual)  # fmt: skip


def by_estimator(d, schema, site, reml=False):
    loss = schema.get("loss", "logistic" if "positive" in schema else "squared")
    model = clone(ESTIMATORS[loss]).set_params(**{"reml": True} if reml else {})
    roles = {"clusters": schema.get("cluster"), "exposure": schema.get("exposure")}
    roles = {role: d[column] for role, column in roles.items() if column}
    model.fit(d[list(schema["features"])], d[schema["target"]], d[site], **roles)
    values = np.append(model.intercept_, model.coef_)
    errors = np.append(model.intercept_bse_, model.bse_)
    residual = getattr(model, "residual_sd_", None)
    return model, (model.site_sd_, values, errors, model.loglik_, model.site_sd_bse_, residual)


CASES = [(case, "run") for case in SCHEMAS]
CASES += [(case, "estimator") for case in SCHEMAS if not case.endswith("in plans")]
CASES += [("firms", "reml"), ("families", "reml")]


@pytest.mark.parametrize(("case", "how"), CASES)
def test_numbers_are_those_of_lme4(folder, tmp_path, case, how):
    schema, reml = SCHEMAS[case], how == "reml"
    d, site = (firms(), "firm") if case == "firms" else (visits(), "plan")
    if case.endswith("in plans"):
        d = d[d["plan"] <= 4]
        folder = written(tmp_path, d, "plan")
    known = LME4[f"{case}, reml" if reml else case]
    if schema.get("loss") == "poisson":  # lme4 leaves the counts' factorials out
        known = known._replace(loglik=known.loglik + poisson.logpmf(d["mdvis"], d["mdvis"]).sum())
    if how == "run":
        report = run(grouped(folder, schema), 12).report
        alike(numbers(report), known)
        if case == "families":
            assert "\nrandom intercepts: converged after " in report.text
            assert "Family sd:  " in report.text
            assert report.random.groups == 630
            assert "one label at two sites means two groups" in report.text
        return
    model, found = by_estimator(d, schema, site, reml)
    alike(found, known)
    effects = list(model.random_effects_.values())[: len(known.effects)]
    rtol, atol = {"firms": (1e-7, 0), "families": (1e-2, 0)}.get(case, (1e-3, 1e-4))
    np.testing.assert_allclose(effects, known.effects, rtol, atol)


@pytest.fixture(scope="module")
def of_firms(folder):
    """A run on the firms, with its folder."""
    return run(grouped(folder, FIRMS), 3, run_dir=folder / "run"), folder / "run"


def test_what_a_run_leaves(folder, of_firms):
    history, run_dir = of_firms
    known, file = LME4["firms"], coefficients(run_dir)
    names = ["(intercept)", "value", "capital", "(site sd)", "(residual sd)"]
    values = [*known.coefficients, known.sd, known.residual]
    np.testing.assert_allclose(file.loc[names, "per_unit"], values, rtol=1e-6)
    np.testing.assert_allclose(file.loc[names[:3], "std_error"], known.errors, rtol=1e-6)
    estimates, random = history.report.estimates, history.report.random
    np.testing.assert_allclose(estimates.loglik, known.loglik, rtol=1e-12)
    assert (estimates.counted, random.groups) == (4, 11)
    common = run(grouped(folder, FIRMS, site_effects="common", inference="model"), 3)
    ratio = 2 * (known.loglik - common.report.estimates.loglik)
    np.testing.assert_allclose(file.loc["(site sd)", "p_value"], chi2.sf(ratio, 1) / 2, rtol=1e-6)
    assert np.isfinite(file.loc["value", ["lower", "upper"]]).all()
    for said in ("Groups:                            11", "Site sd:                       77.267",
                 "likelihood ratio against none 213.7, p < 1e-16 by (chi^2_0"):  # fmt: skip
        assert said in history.report.text
    model = kept(run_dir)
    assert model["site_effects"] == "random"
    found = [model["site_sd"], model["residual_sd"], model["intercept"]]
    expected = [known.sd, known.residual, known.coefficients[0]]
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    np.testing.assert_array_equal(np.load(run_dir / "model.npz")["x"], history.x)
    again = run(grouped(folder, FIRMS), 3, run_dir=run_dir, resume=True)
    assert again.report.errors == history.report.errors
    assert again.report.rows == history.report.rows


def test_predictions_are_for_a_site_with_the_mean_intercept(folder, of_firms, tmp_path):
    (intercept, *slopes), d = LME4["firms"].coefficients, firms()
    known = intercept + d[["value", "capital"]].to_numpy() @ slopes
    np.testing.assert_allclose(load_model(of_firms[1]).predict(d), known, rtol=1e-7, atol=1e-7)
    source, out = folder / "firmIBM.csv", tmp_path / "predictions.csv"
    done = CliRunner().invoke(app, ["predict", str(of_firms[1]), str(source), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "for a site, or group, with the mean random intercept" in done.output
    found = pd.read_csv(out)["prediction"]
    np.testing.assert_allclose(found, known[d["firm"] == "IBM"], rtol=1e-7)


def test_quality_on_rows_held_out_is_of_the_coefficients_that_are_shown(folder):
    made = grouped(folder, LINEAR | {"cluster": "family", "test_fraction": 0.25})
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


def test_sites_that_do_not_differ(tmp_path):
    d, names = firms(), ["invest", "value", "capital"]
    d[names] -= d.groupby("firm")[names].transform("mean")
    history = run(grouped(written(tmp_path, d, "firm"), FIRMS), 3, run_dir=tmp_path / "run")
    assert (history.report.random.sd, history.report.random.pvalue) == (0.0, 1.0)
    assert "Their standard deviation is 0, at the boundary" in history.report.text
    assert "coefficient 0" not in history.report.text
    file = coefficients(tmp_path / "run")
    assert file.loc["(site sd)", "per_unit"] == 0.0
    assert np.isnan(file.loc["(site sd)", "std_error"])
    assert load_model(tmp_path / "run").site_sd == 0.0


def beside_noise(folder):
    made = grouped(folder, FIRMS)
    private = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    method = FedAvg(client_lr=0.1, local_steps=1, regularizer=made.regularizer, privacy=private)
    simulate(method, made, 1)


def of_private_rows(folder):
    ranges = {"value": {"range": [0, 1e5]}, "capital": {"range": [0, 1e5]}}
    read, names = clients_of(f"{folder}/firm*.csv", FIRMS | {"features": ranges})
    private = ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    prepared_problem(read, names, privacy=private, site_effects="random")


def of_a_row_each(folder):
    written(folder, firms()[:8].assign(row=range(8)), "row")
    run(grouped(folder, FIRMS, "row*"))


def plain(folder, data=None, **settings):
    run(grouped(folder, FIRMS, data, **settings))


REFUSED = [
    (lambda f: plain(f, "firmIBM"), "need at least two groups, and there is one"),
    (of_a_row_each, "8 groups for 8 rows"),
    (lambda f: plain(f, l1=0.1), "there is a penalty or a constraint: take l1 = 0"),
    (lambda f: plain(f, inference="robust"), r"by the model alone, got inference = 'robust'"),
    (lambda f: plain(f, inference="model", heterogeneity=True),
     'random: use site_effects = "own"'),
    (lambda f: plain(f, weighting="uniform"), 'needs weighting = "examples"'),
    (lambda f: grouped(f, FIRMS | {"loss": "huber"}), 'the schema has loss = "huber"'),
    (beside_noise, "beside privacy: no noise covers the sums over groups"),
    (of_private_rows, "site_effects = 'random' cannot be used with ExampleDP"),
    (lambda f: FedNewton().start(None, num_rounds=1, site_effects="random"),
     "is for clients with tables"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_is_refused_before_round_1(folder, make, words):
    with pytest.raises(ConfigError, match=words):
        make(folder)


def check_study(seed, folder):
    """Check a run on tables drawn at random against the estimators, who have the rows at hand."""
    rng = np.random.default_rng(seed)
    loss = ["squared", "logistic", "poisson"][seed % 3]
    sites, m = int(rng.integers(2, 5)), int(rng.integers(60, 120))
    d = pd.DataFrame({"site": np.arange(m) % sites, "ward": rng.integers(4, size=m)})
    d["a"], d["b"] = rng.normal(50, 10, size=m), rng.normal(size=m)
    d["both"] = group = d["site"] * 4 + d["ward"] if seed % 2 else d["site"]
    scores = 0.05 * (d["a"] - 50) - 0.3 * d["b"] + 0.5 + rng.normal(size=20)[group]
    d["y"] = {
        "squared": scores + rng.normal(size=m),
        "logistic": (rng.random(m) < 1 / (1 + np.exp(-scores))).astype(int),
        "poisson": rng.poisson(np.exp(np.minimum(scores, 4))),
    }[loss]
    d.to_csv(folder / "all.csv", index=False)
    schema = {"target": "y", "loss": loss, "features": numeric("a", "b")}
    schema |= {"positive": ["1"]} if loss == "logistic" else {}
    clusters = [{"cluster": "ward"}, {"cluster": "both"}] if seed % 2 else [{}, {}]
    report = run(grouped(folder, schema | clusters[0], "all", client_column="site"), 20).report
    model, known = by_estimator(d, schema | clusters[1], "site")
    sd, values, errors, loglik, *_ = known
    np.testing.assert_allclose(report.random.sd, sd, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(report.random.pvalue, model.site_sd_test_[1], rtol=1e-6)
    _, own, own_errors, own_loglik, *_ = numbers(report)
    np.testing.assert_allclose(own_errors, errors, rtol=1e-6)
    np.testing.assert_allclose(own, values, rtol=1e-6, atol=1e-6 * errors.min())
    np.testing.assert_allclose(own_loglik, loglik, rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_studies_find_what_the_estimators_find(tmp_path, seed):
    check_study(seed, tmp_path)


@pytest.mark.nightly
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_any_study_finds_what_the_estimators_find(tmp_path_factory, seed):
    check_study(seed, tmp_path_factory.mktemp("study"))


def test_a_run_says_why_there_is_no_fit(folder, tmp_path, monkeypatch):
    """What only sites know, they find at the end; the model is then that of the rounds."""
    for column, data, why in (
        ("firm", "firmIBM", "need at least two groups, and there is one"),
        ("year", "firm*", "220 groups for 220 rows"),
    ):
        made = grouped(folder, FIRMS | {"cluster": column}, data)
        report = run(made, 3, run_dir=tmp_path / column).report
        assert "no random intercepts: " in report.text
        assert why in report.text
        assert (report.random, report.estimates) == (None, None)
        model = kept(tmp_path / column)
        assert (model["site_effects"], model.get("site_sd")) == ("common", None)
    made = grouped(folder, COUNTS)
    assert "no random intercepts: KKT residual" in run(made, 1).report.text
    monkeypatch.setattr(final_intercepts, "_MOST", 2)
    report = run(made, 12).report
    said = "the fit has not ended in 3 exchanges: the next step would move estimates by "
    assert f"note: random intercepts: {said}" in report.text
    assert f"random intercepts: NOT CONVERGED: {said}{report.random.left:.2g} stan" in report.text
    monkeypatch.setattr(final_intercepts, "_MOST", 4)
    assert final_intercepts._TOL < run(made, 12).report.random.left < report.random.left < 100


@pytest.mark.parametrize("kind", [LeastSquares, PoissonRegression])
def test_few_rows_in_groups_of_one_size_are_not_told(kind):
    """Nor is a group of one row because that row has a large weight."""
    rng = np.random.default_rng(0)
    A, y = rng.normal(size=(41, 2)), rng.poisson(2.0, 41).astype(float)
    weights, codes = np.ones(41), np.r_[np.repeat(np.arange(10), 4), 10]
    weights[40] = 7.0
    ask, place = (variance_ratio, 1) if kind is LeastSquares else (marginal, -2)
    down = {"x": np.zeros(3), "ratio": 0.5}
    if kind is PoissonRegression:
        down = {"x": np.zeros(4), "nodes": 7.0}
    f = kind(A, y, sample_weight=weights, intercept=True)
    set_clusters(f, codes)
    assert ask(f, down, 1)["numbers"][place] == 11
    with pytest.raises(
        RefusedError, match=r"fewer than 5 rows here .* are in the 1 group of one size"
    ):
        ask(f, down, 5)
    plain = kind(A[:10], y[:10], intercept=True)
    plain.clusters = np.array([0, 0, 1, 1, 2, 2, 3, 4, 5, 6])
    assert ask(plain, down, 4)["numbers"][0] == 10
    with pytest.raises(RefusedError, match="fewer than 5 rows here"):
        ask(plain, down, 5)
    plain.clusters = None
    assert ask(plain, down, 5)["numbers"][0] == 10
