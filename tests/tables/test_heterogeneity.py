"""What sites find alone in a run on tables: the estimators' numbers, in a file and on the page."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sites import COLUMNS, problem, run, written

from flower_fedcon.errors import ConfigError
from flower_fedcon.estimators import FederatedElasticNet, FederatedPoissonRegressor
from flower_fedcon.lab.report.page import write_report
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.ending.final_heterogeneity import lines_of
from flower_fedcon.tables.own_files import written_by


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("sites"))


def asked(folder, loss, effects="own", **more):
    return problem(folder, loss, site_effects=effects, heterogeneity=True, **more)


@pytest.mark.parametrize("effects", ["own", "common"])
@pytest.mark.parametrize(("loss", "kind"), [
    ("squared", FederatedElasticNet), ("poisson", FederatedPoissonRegressor),
])  # fmt: skip
def test_a_run_finds_what_an_estimator_finds(folder, tmp_path, loss, kind, effects):
    d = pd.read_csv(folder / "all.txt")
    model = kind(alpha=0, inference="model", site_effects=effects)
    known = model.fit(d[COLUMNS], d["mdvis"], d["site"].astype(str)).heterogeneity()
    history = run(asked(folder, loss, effects), run_dir=tmp_path / "run")
    found = history.report.heterogeneity
    assert found.names == known.names
    assert found.sites == tuple(f"s{name}" for name in known.sites)
    p = len(COLUMNS)  # the intercept is that of the columns' means, and then of zeros
    for name in ("values", "bse", "q", "i2", "tau2", "fixed", "fixed_bse", "random", "random_bse"):
        one, other = getattr(found, name), getattr(known, name)
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-12, err_msg=name)
    assert (found.ratio_df == known.ratio_df).all()
    if effects == "own":  # a common intercept is that of the columns' means here
        np.testing.assert_allclose(found.ratio, known.ratio, rtol=1e-6)
    file = pd.read_csv(tmp_path / "run" / "heterogeneity.csv", index_col="column")
    np.testing.assert_allclose(file["pooled"][:p], model.coef_, rtol=1e-6)
    np.testing.assert_allclose(file["pooled_std_error"][:p], model.bse_, rtol=1e-6)
    np.testing.assert_allclose(file["s2"], known.values[2], rtol=2e-6)
    np.testing.assert_allclose(file["s2 std_error"], known.bse[2], rtol=2e-6)
    assert written_by([file.index.name, *file.columns]) == "a run"
    said = history.report.text
    assert "heterogeneity between 4 sites, always by the model's errors of each" in said
    assert all(f"  {name}: Q " in said for name in found.names)
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    ratio = "rate ratio" if loss == "poisson" else "coefficient"
    assert page.count(f'aria-label="Forest plot, {ratio}"') >= p + 1
    assert "Those of (pooled) use the run" in page
    assert page.count("(random effects)") >= len(found.names)


def test_a_resumed_run_asks_in_the_end(folder, tmp_path):
    made = asked(folder, "logistic")
    known = run(made).report.heterogeneity
    run(made, 3, run_dir=tmp_path / "run")
    found = run(made, run_dir=tmp_path / "run", resume=True).report.heterogeneity
    assert found.values.tobytes() == known.values.tobytes()
    assert found.ratio.tobytes() == known.ratio.tobytes()


def test_sites_that_cannot_be_fitted_alone_are_named(folder, tmp_path):
    d = pd.read_csv(folder / "all.txt")
    d["sign"] = np.where(d["any"] == "yes", 1.0, -1.0) * np.where(d["site"] == 1, 1.0, 0.0)
    d["sign"] += 0.3 * (np.arange(len(d)) % 3) * (d["site"] != 1)
    d.loc[d["site"] == 2, "lpi"] = 3.5
    few = d[(d["site"] != 3) | (d.groupby("site").cumcount() < 5)]
    for site, own in few.groupby("site"):
        own.to_csv(tmp_path / f"s{site}.csv", index=False)
    features = dict.fromkeys(["idp", "lpi", "sign"], "numeric")
    made = problem(tmp_path, "logistic", {"features": features}, heterogeneity=True)
    report = run(made, 20).report
    assert report.heterogeneity is None
    assert "heterogeneity needs at least two sites" in report.text
    assert "s1: column sign separates the outcome there" in report.text
    assert "s2: the rows carry no information on parameter lpi" in report.text
    for extra in ("s4", "s5"):
        d[d["site"] == 0].to_csv(tmp_path / f"{extra}.csv", index=False)
    made = problem(tmp_path, "logistic", {"features": features}, heterogeneity=True)
    report = run(made, 20).report
    assert report.heterogeneity.sites == ("s0", "s4", "s5")
    assert sorted(report.heterogeneity.left_out) == ["s1", "s2", "s3"]
    assert "not fitted alone: s1" in report.text


def test_a_site_without_a_category_is_named_with_the_category(tmp_path):
    rng = np.random.default_rng(5)
    for site in ("graz", "lyon", "porto"):
        marks = ["flu", "cold", *["rare"] * (site == "lyon")]
        rows = [f"{rng.normal():.4f},{rng.normal():.4f},{marks[k % len(marks)]}" for k in range(60)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["y,x,illness", *rows]))
    schema = {"target": "y", "features": {"x": "numeric", "illness": "categorical"}}
    asked_for = {"inference": "model", "heterogeneity": True}
    text = run(tables(data=f"{tmp_path}/*.csv", schema=schema, **asked_for)).report.text
    assert "got 1 (graz, porto: no row has illness=rare)" in text
    assert "singular" not in text


def test_what_it_is_not_for_is_refused(folder):
    with pytest.raises(ConfigError, match='give inference = "model", too'):
        asked(folder, "squared", inference=None)
    with pytest.raises(ConfigError, match='give inference="model", too'):
        run(problem(folder, "squared", inference=None), heterogeneity=True)
    with pytest.raises(ConfigError, match="this one is huber: leave it out"):  # before round 1
        run(asked(folder, "huber", "common", inference="robust"))


def test_all_of_few_columns_are_in_the_report():
    def lines(columns):
        own = np.ones(columns)
        names = [f"x{k}" for k in range(columns)]
        parts = ("q", "pvalues", "i2", "tau2", "fixed", "random", "ratio", "ratio_df",
                 "ratio_pvalues")  # fmt: skip
        found = SimpleNamespace(sites=("a", "b"), names=names, df=1, left_out={})
        vars(found).update(dict.fromkeys(parts, own))
        return lines_of(found)

    assert len(lines(14)) == 15
    assert "all are in" not in lines(14)[0]
    assert len(lines(15)) == 6
    assert "heterogeneity.csv has all" in lines(15)[0]


def test_a_loss_without_comparison_is_refused_before_files_are_read(tmp_path):
    schema = {"target": "months", "event": "died", "features": {"age": "numeric"}}
    with pytest.raises(ConfigError, match=r"heterogeneity is for .*, and this one is cox"):
        tables(
            data=str(tmp_path / "none.csv"), schema=schema, inference="model", heterogeneity=True
        )


def test_a_loss_without_comparison_is_refused_before_round_1(tmp_path):
    pd.DataFrame({"t": [1, 2, 3, 4, 5], "d": [1, 1, 0, 1, 1], "x": [0, 1, 2, 1, 0]}).to_csv(
        tmp_path / "a.csv", index=False
    )
    schema = {"target": "t", "event": "d", "loss": "cox", "features": {"x": "numeric"}}
    made = tables(data=str(tmp_path / "a.csv"), schema=schema, inference="model")
    made.heterogeneity = True
    with pytest.raises(ConfigError, match="this one is cox: leave it out"):
        run(made)
