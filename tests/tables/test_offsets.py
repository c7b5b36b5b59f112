"""Offsets, exposures, and the losses of amounts and of dispersed counts, in tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular import coefficients, deal, kept, numeric, run

from flower_fedcon import cross_validate, load_model
from flower_fedcon.errors import ConfigError
from flower_fedcon.tables.builders import clients_of, tables
from flower_fedcon.tables.misfits import DataError

COLUMNS = ["lncoins", "idp", "physlm"]
LOG = {
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
    "negative_binomial": None,
}


@pytest.fixture(scope="module")
def data():
    """The RAND experiment's visits to doctors, by person: every eighth, in three parts."""
    d = sm.datasets.randhie.load_pandas().data[::8].reset_index(drop=True)
    d["years"] = 0.5 + (d.index % 7) / 2
    d["known"] = 0.3 * d["hlthg"] + 0.01
    d["cost"] = 1.0 + d["mdvis"] * d["years"] + d["disea"]
    return d


def schema_of(loss, **more):
    target = "cost" if loss == "gamma" else "mdvis"
    return {"target": target, "loss": loss, "features": numeric(*COLUMNS), **more}


def reference(d, loss, offset=None):
    X = sm.add_constant(d[COLUMNS], prepend=False)
    if loss == "negative_binomial":
        model = sm.NegativeBinomial(d["mdvis"], X, offset=offset)
        start = np.append(np.zeros(len(X.columns)), 1.0)
        start = model.fit(start_params=start, disp=0, method="bfgs", maxiter=300).params
        return model.fit(start_params=start, disp=0, method="newton", maxiter=50, tol=1e-14)
    family = {**LOG, "squared": sm.families.Gaussian()}[loss]
    y = d["cost"] if loss == "gamma" else d["mdvis"]
    scale = {"scale": 1.0} if loss == "poisson" else {}
    return sm.GLM(y, X, family=family, offset=offset).fit(tol=1e-13, **scale)


@pytest.mark.parametrize("loss", ["poisson", "gamma", "negative_binomial", "squared"])
def test_offset_and_exposure_are_those_of_the_pooled_reference(data, tmp_path, loss):
    files = deal(tmp_path, data)
    exposure = "" if loss == "squared" else "years"
    schema = schema_of(loss, offset="known", exposure=exposure)
    history = run(
        tables(data=files, schema=schema, inference="model"),
        run_dir=tmp_path / "run",
        certificates=True,
    )
    offset = data["known"] + (np.log(data["years"]) if exposure else 0.0)
    found = reference(data, loss, offset)
    assert "converged" in history.report.text, history.report.text
    file = coefficients(tmp_path / "run")
    names = [*COLUMNS, "(intercept)"]
    own = found.params[[*COLUMNS, "const"]].to_numpy()
    np.testing.assert_allclose(file.loc[names, "per_unit"], own, rtol=1e-6)
    errors = found.bse[[*COLUMNS, "const"]].to_numpy()
    np.testing.assert_allclose(file.loc[names, "std_error"], errors, rtol=1e-5)
    model = load_model(tmp_path / "run")
    rows = data[:5]
    linear = rows[COLUMNS].to_numpy() @ own[:-1] + own[-1] + offset[:5]
    expected = linear if loss == "squared" else np.exp(linear)
    np.testing.assert_allclose(model.predict(rows), expected, rtol=1e-6)
    said = kept(tmp_path / "run")
    assert (said["offset"], said["exposure"]) == ("known", exposure or None)
    if loss == "negative_binomial":
        np.testing.assert_allclose(said["alpha"], found.params["alpha"], rtol=1e-6)
        assert f"alpha {said['alpha']:.6g}" in history.report.text


def test_rows_to_predict_for_need_the_offset(data, tmp_path):
    files = deal(tmp_path, data, [slice(0, 300), slice(300, 600)])
    problem = tables(data=files, schema=schema_of("poisson", exposure="years"))
    run(problem, 8, run_dir=tmp_path / "run")
    with pytest.raises(DataError, match=r"no column 'years'.* an exposure of 1 gives rates"):
        load_model(tmp_path / "run").predict(data[COLUMNS])


def test_an_exposure_is_no_offset(data, tmp_path):
    """Days as the offset multiply counts by exp(days)."""
    d = data[:300].assign(days=365.0 * data["years"])
    with pytest.raises(
        DataError, match=r"'days'.*an offset from -700 to 50.*name it as the exposure"
    ):
        tables(data=deal(tmp_path, d, [slice(0, 300)]), schema=schema_of("poisson", offset="days"))
    tables(data=deal(tmp_path, d, [slice(0, 300)]), schema=schema_of("squared", offset="days"))


@pytest.mark.parametrize("loss", ["poisson", "negative_binomial"])
def test_quality_on_rows_held_out_counts_the_offset(data, tmp_path, loss):
    parts = [slice(0, 700), slice(700, 1500), slice(1500, None)]
    schema = schema_of(loss, test_fraction=0.3, offset="known")
    history = run(tables(data=deal(tmp_path, data, parts), schema=schema), 25,
                  run_dir=tmp_path / "run")  # fmt: skip
    model, read = load_model(tmp_path / "run"), clients_of(f"{tmp_path}/site*.csv", schema)[0]
    rows = pd.concat(
        [data[part].iloc[t.held_out_rows] for part, t in zip(parts, read, strict=True)]
    )
    linear, y = model.linear_predictor(rows), rows["mdvis"].to_numpy()
    family = sm.families.Poisson()
    if loss == "negative_binomial":
        family = sm.families.NegativeBinomial(alpha=kept(tmp_path / "run")["alpha"])
    slope = sm.GLM(y, sm.add_constant(linear - rows["known"].to_numpy()), family=family,
                   offset=rows["known"].to_numpy()).fit(tol=1e-12).params[1]  # fmt: skip
    found = kept(tmp_path / "run", "quality.json")["pooled"]["calibration_slope"]
    np.testing.assert_allclose(found, slope, rtol=1e-6)
    mean = family.deviance(y, family.link.inverse(linear)) / len(y)
    np.testing.assert_allclose(history["test_deviance"][-1], mean, rtol=1e-8)


@settings(max_examples=9)
@given(st.permutations(range(60)), st.integers(1, 4), st.sampled_from(sorted(LOG)))
def test_however_rows_are_dealt_the_numbers_are_the_same(tmp_path_factory, order, sites, loss):
    rng = np.random.default_rng(3)
    d = pd.DataFrame({"x": rng.normal(size=60), "e": rng.uniform(0.1, 9.0, size=60)})
    d["y"] = rng.poisson(3 * d["e"] * rng.gamma(1.0, size=60)) + (loss == "gamma")
    schema = {"target": "y", "loss": loss, "features": {"x": "numeric"}, "exposure": "e"}

    def found(parts):
        folder = tmp_path_factory.mktemp("dealt")
        problem = tables(data=deal(folder, d, parts), schema=schema)
        return run(problem, 12).x

    dealt = [order[k::sites] for k in range(sites)]
    np.testing.assert_allclose(found(dealt), found([list(range(60))]), rtol=1e-7, atol=1e-9)


def test_cross_validation_holds_out_rows_with_their_offsets(data, tmp_path):
    d = data[:600].assign(rest=data["mdvis"] - data["known"])
    files = deal(tmp_path, d, [slice(0, 250), slice(250, None)])
    problem = tables(data=files, schema=schema_of("squared", offset="known"), l1=0.1)
    plain = tables(data=files, schema=schema_of("squared") | {"target": "rest"}, l1=0.1)
    own, other = (cross_validate(p, p.regularizer, folds=3, num=4) for p in (problem, plain))
    np.testing.assert_allclose(own.losses, other.losses, rtol=1e-7)
    np.testing.assert_allclose(own.path.values, other.path.values, rtol=1e-9)


def test_dispersed_counts_take_no_penalty(data, tmp_path):
    files = deal(tmp_path, data[:400], [slice(0, None)])
    with pytest.raises(ConfigError, match="has no penalty, got l1"):
        tables(data=files, schema=schema_of("negative_binomial"), l1=0.1)


def test_counts_of_no_dispersion_are_said(tmp_path):
    rng = np.random.default_rng(0)
    d = pd.DataFrame({"x": rng.normal(size=200)})
    d["y"] = np.rint(np.exp(1.0 + 0.2 * d["x"]))
    schema = {"target": "y", "loss": "negative_binomial", "features": {"x": "numeric"}}
    history = run(tables(data=deal(tmp_path, d, [slice(0, None)]), schema=schema), 30)
    assert 'use loss = "poisson"' in history.report.text


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_a_run_starts_at_the_null_model(data, tmp_path, scale):
    """Rates a thousand times smaller or larger take no more rounds."""
    d = data[:400].assign(years=data["years"] * scale)
    files = deal(tmp_path, d, [slice(0, 200), slice(200, None)])
    problem = tables(data=files, schema=schema_of("poisson", exposure="years"))
    history = run(problem, 8, certificates=True)
    assert history.report.reached.converged


def test_penalised_with_an_offset_as_glmnet(data, tmp_path):
    # R 4.2.2, glmnet 4.1-6: coef(glmnet(X, mdvis, "poisson", offset = known, thresh = 1e-16,
    # lambda = c(1, 0.5, 0.2, 0.1)))[, 4], where columns are standardised, too.
    known = [-0.0453081945097, -0.2085288277707, 0.4379061177448, 0.9578605037328]
    files = deal(tmp_path, data, [slice(0, 1000), slice(1000, None)])
    problem = tables(data=files, schema=schema_of("poisson", offset="known"), l1=0.1)
    x = run(problem, 20).x
    np.testing.assert_allclose(problem.preparation.in_units(x), known, rtol=1e-6)
