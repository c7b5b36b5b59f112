"""What weights of rows mean: numbers of equal rows, or sampling weights; and weights of zero."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import CoxPHFitter
from tabular import coefficients, deal, kept, numeric, run

from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import (
    FederatedCoxRegression,
    FederatedElasticNet,
    FederatedGammaRegressor,
    FederatedLogisticRegression,
    FederatedNegativeBinomial,
    FederatedPoissonRegressor,
)
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.row_weights import effective_number
from flower_fedcon.tables.small_cells import effective_rows

ROWS, P = 120, 3
FEATURES = numeric("a", "b")
CLOSE = {"rtol": 1e-6, "atol": 1e-12}


def frame(seed, target="linear"):
    """Rows of three sites with clusters and weights of sampling."""
    rng = np.random.default_rng(seed)
    d = pd.DataFrame({"a": rng.normal(size=ROWS), "b": rng.normal(size=ROWS)})
    score = 0.5 * d.a - 0.3 * d.b
    d["linear"] = score + rng.normal(size=ROWS) * (1 + d.a**2)
    d["binary"] = (rng.random(ROWS) < 1 / (1 + np.exp(-score))).astype(int)
    d["class"] = rng.integers(0, 3, ROWS)
    d["count"] = rng.poisson(rng.gamma(2, 0.5, ROWS) * np.exp(score))
    d["amount"] = rng.gamma(2, np.exp(score))
    d["time"], d["event"] = rng.exponential(np.exp(-score)), rng.random(ROWS) < 0.7
    d["event"] = d["event"].astype(int)
    d["w"] = rng.uniform(0.3, 6, ROWS)
    d["cluster"] = rng.integers(0, 12, ROWS)
    d["site"] = np.arange(ROWS) % 3
    return d


def fitted(d, target, weights="w", clusters=None, **settings):
    """Fit a family's estimator to rows."""
    kind, fixed = FAMILIES[target]
    y = d[["time", "event"]] if target == "time" else d[target]
    more = {} if clusters is None else {"clusters": d[clusters]}
    model = kind(**fixed, **settings)
    sample_weight = None if weights is None else d[weights]
    return model.fit(d[["a", "b"]], y, d["site"], sample_weight, **more)


def fitted_or_why(*arguments, **settings):
    """Return an estimator, or the error's text."""
    try:
        return fitted(*arguments, **settings)
    except ConfigError as error:
        return str(error)


FAMILIES = {
    "linear": (FederatedElasticNet, {"alpha": 0}),
    "binary": (FederatedLogisticRegression, {"C": np.inf}),
    "class": (FederatedLogisticRegression, {"C": np.inf}),
    "count": (FederatedPoissonRegressor, {"alpha": 0}),
    "amount": (FederatedGammaRegressor, {"alpha": 0}),
    "dispersed": (FederatedNegativeBinomial, {}),
    "time": (FederatedCoxRegression, {"alpha": 0}),
}


def sandwich(d, target, clusters=None):
    """Return the errors of sampling weights by their formula, for a generalised linear model."""
    X, w = np.column_stack([d.a, d.b, np.ones(len(d))]), d["w"].to_numpy()
    family = {"linear": sm.families.Gaussian(), "binary": sm.families.Binomial(),
              "count": sm.families.Poisson()}[target]  # fmt: skip
    found = sm.GLM(d[target], X, family=family, var_weights=w).fit(tol=1e-14)
    mean = found.fittedvalues.to_numpy()
    residuals = d[target].to_numpy() - mean
    curvature = {"linear": np.ones(len(d)), "binary": mean * (1 - mean), "count": mean}[target]
    scores = (w * residuals)[:, None] * X
    factor = len(d) / (len(d) - P)
    if clusters is not None:
        sums = pd.DataFrame(scores).groupby([d["site"], d[clusters]]).sum().to_numpy()
        scores, g = sums, len(sums)
        factor = g / (g - 1) * (len(d) - 1) / (len(d) - P)
    bread = np.linalg.inv(X.T @ ((w * curvature)[:, None] * X))
    V = factor * bread @ scores.T @ scores @ bread
    return found.params.to_numpy(), np.sqrt(np.diag(V))


@pytest.mark.parametrize("clusters", [None, "cluster"])
@pytest.mark.parametrize("target", ["linear", "binary", "count"])
def test_errors_of_sampling_weights_are_those_of_the_sandwich(target, clusters):
    d = frame(1)
    method = "robust" if clusters is None else "cluster"
    model = fitted(d, target, clusters=clusters, inference=method, weight_kind="sampling")
    values, errors = sandwich(d, target, clusters)
    np.testing.assert_allclose(
        np.append(model.coef_, model.intercept_), values, rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(np.append(model.bse_, model.intercept_bse_), errors, **CLOSE)
    assert model.estimates_.n == ROWS
    assert math.isnan(model.loglik_)
    text = model.summary()
    assert "Weights:" in text
    assert "sampling" in text


def test_linear_errors_are_those_of_weighted_least_squares():
    """Of statsmodels, whose weights are of sampling: HC1 of R's sandwich."""
    d = frame(2)
    found = sm.WLS(d["linear"], sm.add_constant(d[["a", "b"]]), d["w"]).fit(cov_type="HC1")
    model = fitted(d, "linear", inference="robust", weight_kind="sampling")
    np.testing.assert_allclose(model.bse_, found.bse[["a", "b"]], **CLOSE)
    np.testing.assert_allclose(model.pvalues_, found.pvalues[["a", "b"]], rtol=1e-5)


def test_cox_errors_are_those_of_robust_weights():
    """Of lifelines, which are R's coxph with robust=TRUE."""
    d = frame(3).assign(site=0)
    columns = ["a", "b", "time", "event", "w"]
    found = CoxPHFitter(baseline_estimation_method="breslow").fit(
        d[columns], "time", "event", weights_col="w", robust=True, fit_options={"precision": 1e-12}
    )
    model = fitted(d, "time", inference="robust", weight_kind="sampling")
    np.testing.assert_allclose(model.coef_, found.params_, rtol=1e-6)
    np.testing.assert_allclose(model.bse_, found.standard_errors_, rtol=1e-5)


@pytest.mark.parametrize("target", sorted(FAMILIES))
def test_a_scale_of_sampling_weights_changes_nothing(target):
    """Nor do they count rows: twice the weights are not twice the rows."""
    d = frame(4).assign(dispersed=lambda d: d["count"])
    half = d.assign(w=d["w"] / 2)
    ours, other = (
        fitted(one, target, inference="robust", weight_kind="sampling") for one in (d, half)
    )
    np.testing.assert_allclose(ours.bse_, other.bse_, rtol=1e-5)
    assert ours.estimates_.n == other.estimates_.n == ROWS


def test_frequencies_are_rows():
    d = frame(5).assign(w=lambda d: d["w"].round() + 1)
    rows = d.loc[d.index.repeat(d["w"].astype(int))]
    for kind in (None, "frequency"):
        ours = fitted(d, "count", inference="robust", weight_kind=kind)
        written = fitted(rows, "count", None, inference="robust")
        np.testing.assert_allclose(ours.bse_, written.bse_, rtol=1e-9)
        assert ours.estimates_.n == len(rows)


# --- rows of weight 0 ----------------------------------------------------------------------------


@given(seed=st.integers(0, 2**16), target=st.sampled_from(sorted(FAMILIES)), data=st.data())
@settings(max_examples=25)
def test_rows_of_weight_0_count_nowhere(seed, target, data):
    """Among them whole clusters, a site and a class: as a fit without them."""
    d = frame(seed).assign(dispersed=lambda d: d["count"], w=lambda d: d["w"].round() + 1)
    gone = np.random.default_rng(seed).random(ROWS) < 0.2
    gone |= (d["cluster"] < 3).to_numpy()
    gone |= (d["class"] == 2).to_numpy() if target == "class" else False
    if data.draw(st.booleans()):
        gone |= (d["site"] == 1).to_numpy()
    method = data.draw(st.sampled_from(["model", "robust", "cluster"]))
    clusters = "cluster" if method == "cluster" else None
    zero = d.assign(w=np.where(gone, 0.0, d["w"]))
    ours, without = (
        fitted_or_why(rows, target, clusters=clusters, inference=method)
        for rows in (zero, d[~gone])
    )
    if isinstance(without, str):
        assert ours == without
        return
    for name in ("coef_", "bse_", "pvalues_", "loglik_", "aic_", "bic_", "groups_"):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(without, name), rtol=1e-12, atol=1e-12, err_msg=name
        )
    assert ours.summary() == without.summary()


@pytest.mark.parametrize("site_effects", ["own", "random"])
def test_groups_of_weight_0_are_no_groups(site_effects):
    d = frame(6).assign(w=lambda d: d["w"].round() + 1)
    gone = ((d["cluster"] < 4) | (d["site"] == 2)).to_numpy()
    settings = {"site_effects": site_effects, "inference": "model"}
    more = {"clusters": "cluster"} if site_effects == "random" else {}
    ours = fitted(d.assign(w=np.where(gone, 0.0, d["w"])), "linear", **settings, **more)
    without = fitted(d[~gone], "linear", **settings, **more)
    np.testing.assert_allclose(ours.bse_, without.bse_, rtol=1e-12)
    assert ours.summary() == without.summary()
    if site_effects == "random":
        assert ours.random_effects_ == without.random_effects_


@pytest.mark.parametrize("l1", [0.0, 0.05])
def test_tables_leave_rows_of_weight_0_out(tmp_path, l1):
    """Of means, scales, categories and held-out rows, too; their numbers are those of the file."""
    d = frame(7).assign(
        w=lambda d: d["w"].round() + 1, c=lambda d: np.where(d["cluster"] < 4, "rare", "often")
    )
    gone = (d["cluster"] < 4).to_numpy() | (np.arange(ROWS) % 7 == 0)
    schema = {"target": "linear", "weight": "w", "cluster": "cluster", "test_fraction": 0.2,
              "features": {**FEATURES, "c": "categorical"}}  # fmt: skip
    found = []
    for name, rows in (("zero", d.assign(w=np.where(gone, 0.0, d["w"]))), ("without", d[~gone])):
        parts = [np.flatnonzero(rows["site"] == k) for k in range(3)]
        (tmp_path / name).mkdir()
        problem = tables(
            data=deal(tmp_path / name, rows, parts),
            schema=schema,
            l1=l1,
            inference=None if l1 else "cluster",
        )
        found.append(run(problem, run_dir=tmp_path / f"{name}-run"))
    ours, without = found
    assert ours.report.rows == without.report.rows
    assert ours.rows[-1]["test_mse"] == without.rows[-1]["test_mse"]
    if not l1:
        ours, without = (coefficients(tmp_path / f"{name}-run") for name in ("zero", "without"))
        pd.testing.assert_frame_equal(ours, without)


# --- tables, and what is asked about -------------------------------------------------------------


def test_a_run_on_tables_has_the_errors_of_an_estimator(tmp_path):
    d = frame(8)
    schema = {"target": "linear", "weight": "w", "weight_kind": "sampling", "features": FEATURES}
    parts = [np.flatnonzero(d["site"] == k) for k in range(3)]
    problem = tables(data=deal(tmp_path, d, parts), schema=schema, inference="robust")
    history = run(problem, run_dir=tmp_path / "run")
    model = fitted(d, "linear", inference="robust", weight_kind="sampling")
    errors = coefficients(tmp_path / "run")["std_error"]
    np.testing.assert_allclose(errors[["a", "b"]], model.bse_, rtol=1e-8)
    told = kept(tmp_path / "run")["inference"]
    assert (told["weights"], told["observations"]) == ("sampling", ROWS)
    assert "weights are of sampling" in history.report.text


ASKED = 'depend on what they mean: give weight_kind="sampling" if'


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"inference": "robust"}, ASKED),
        ({"site_effects": "random"}, ASKED),
        ({"inference": "robust", "weight_kind": "aweight"}, "weight_kind must be"),
        ({"inference": "model", "weight_kind": "sampling"}, 'use inference="robust" or "cluster"'),
        ({"inference": "debiased", "weight_kind": "sampling"}, "takes a weight for so many rows"),
        ({"site_effects": "random", "weight_kind": "sampling"}, "gives? none without weights of"),
    ],
)
def test_estimators_ask_what_weights_mean(settings, says):
    with pytest.raises(ConfigError, match=says):
        fitted(frame(9), "linear", **settings)


@pytest.mark.parametrize("change", [lambda w: w, lambda w: w * 0 + 0.5 + (np.arange(len(w)) % 2)])
def test_tables_ask_what_weights_mean(tmp_path, change):
    """Also where weights were made to have the mean 1, so that their sum is whole."""
    d = frame(10).assign(w=lambda d: change(d["w"]))
    schema = {"target": "linear", "weight": "w", "features": FEATURES}
    problem = tables(data=deal(tmp_path, d), schema=schema, inference="robust")
    with pytest.raises(ConfigError, match=r"the weights of site0 sum to .* over 40 rows"):
        run(problem)
    plain = tables(data=deal(tmp_path, d), schema=schema)
    assert run(plain).report is not None


def test_what_needs_a_likelihood_is_refused():
    d = frame(11)
    linear = fitted(d, "linear", inference="robust", weight_kind="sampling")
    with pytest.raises(ConfigError, match="compares sites' own fits"):
        linear.heterogeneity()
    smaller = FederatedElasticNet(alpha=0, inference="robust", weight_kind="sampling")
    smaller.fit(d[["a"]], d["linear"], d["site"], d["w"])
    with pytest.raises(ConfigError, match="no likelihood-ratio test"):
        linear.likelihood_ratio(smaller)
    cox = fitted(d, "time", inference="robust", weight_kind="sampling")
    with pytest.raises(ConfigError, match="score tests take a weight for so many rows"):
        cox.proportionality()


def test_a_kind_without_weights_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="describes the column that weight names"):
        tables(
            data=deal(tmp_path, frame(12)),
            schema={"target": "linear", "weight_kind": "sampling", "features": FEATURES},
        )


@pytest.mark.parametrize("stated", [None, "frequency", "sampling"])
def test_whole_weights_are_said_to_count_rows(stated, tmp_path):
    """A survey's weights may be rounded, and the errors are then far too small."""
    d = frame(4).assign(w=lambda d: 10 + d.index % 7)
    settings = {} if stated is None else {"weight_kind": stated}
    fit = fitted(d, "linear", inference="robust", **settings)
    schema = {"target": "linear", "features": FEATURES, "weight": "w", **settings}
    report = run(tables(data=deal(tmp_path, d), schema=schema, inference="robust"), 4).report
    noted = f"the weights count {ROWS} rows as {d.w.sum()}: if a row stands for so many of a "
    assert (noted in str(fit.summary())) == (noted in str(report)) == (stated is None)


# --- what weights add up to, and one that decides ------------------------------------------------


@given(
    weights=st.lists(st.floats(0, 1e150), min_size=4, max_size=40).filter(lambda w: max(w) > 1e-9),
    cut=st.integers(1, 3),
)
def test_the_effective_number_of_rows_is_kish_of_the_pooled_rows(weights, cut):
    w = np.array(weights)
    parts = [part for part in (w[:cut], w[cut:]) if part.max() > 0]
    sums = [math.fsum(part) for part in parts]
    each = [effective_rows(part, np.arange(len(part))) for part in parts]
    scaled = w / w.max()
    known = scaled.sum() ** 2 / (scaled**2).sum()
    assert effective_number(sums, each) == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize("stated", ["frequency", "sampling"])
def test_estimators_and_runs_say_what_weights_add_up_to(stated, tmp_path):
    d = frame(13).assign(w=lambda d: d.index % 5)  # rows of weight 0 count nowhere
    counted = d[d.w > 0]
    kish = counted.w.sum() ** 2 / (counted.w**2).sum()
    said = f"{stated} (sum {d.w.sum()} over {len(counted)} rows"
    said += f"; effective number of rows {kish:.4g})" if stated == "sampling" else ")"
    fit = fitted(d, "linear", inference="robust", weight_kind=stated)
    assert f"Weights:          {said}\n" in fit.summary()
    schema = {"target": "linear", "features": FEATURES, "weight": "w", "weight_kind": stated}
    text = run(tables(data=deal(tmp_path, d), schema=schema, inference="robust"), 4).report.text
    assert f"\nWeights:          {said}\n" in text
    assert f"\nweights in 'w': {said}\n" in text
    assert "without its weight in 'w'" in text


def test_a_weight_that_decides_is_named_and_no_other_site_is(tmp_path, run_command):
    d = frame(14)
    d.loc[0, "w"] = 1e6  # row 1 of site0
    data = deal(tmp_path, d)
    schema = {"target": "linear", "features": FEATURES, "weight": "w", "weight_kind": "sampling"}
    remarks = run(tables(data=data, schema=schema, inference="robust"), 4).report.remarks
    assert any("one row of site0 has 100 % or more of the weight of all 120" in r for r in remarks)
    assert not any("values at site1" in r or "values at site2" in r for r in remarks)
    keys = "\n".join(f'{k} = "{v}"' for k, v in schema.items() if k != "features")
    features = "\n".join(f'{k} = "{v}"' for k, v in FEATURES.items())
    (tmp_path / "s.toml").write_text(f"{keys}\n[features]\n{features}\n")
    files = [f"{tmp_path}/site{k}.csv" for k in range(3)]
    _, out, _ = run_command("data", "check", *files, "--schema", f"{tmp_path}/s.toml")
    out = " ".join(out.split())
    assert "row 1 of site0 has 100 % of the weight of all 120 rows, whose effective number" in out
    assert "values at site1" not in out
    even = frame(14)
    (tmp_path / "even").mkdir()
    report = run(tables(data=deal(tmp_path / "even", even), schema=schema), 4).report
    assert not any("of the weight" in remark for remark in report.remarks)


@pytest.mark.parametrize("kind", ["frequency", "sampling"])
def test_a_table_1_says_that_rows_count_once(kind, tmp_path):
    d = frame(15).assign(w=lambda d: 1 + d.index % 3, arm=lambda d: d["cluster"].mod(2).map(str))
    schema = {
        "target": "linear", "weight": "w", "weight_kind": kind, "describe_by": "arm",
        "features": {**FEATURES, "arm": "categorical"},
    }  # fmt: skip
    report = run(tables(data=deal(tmp_path, d), schema=schema), 4).report
    assert report.by_level.rows.sum() == ROWS
    assert "each row counts once here, without its weight in 'w'" in report.by_level.notes
