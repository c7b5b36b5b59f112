"""Effects between values, from a run's folder: those of statsmodels on the pooled rows, and R's."""

from __future__ import annotations

import csv
import json
import re
import tomllib

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import blocks
from patsy import build_design_matrices, dmatrix
from scipy.stats import chi2
from sites import problem, run, written
from tabular import deal, numeric

from flower_fedcon import load_model
from flower_fedcon.cli import main
from flower_fedcon.errors import ConfigError
from flower_fedcon.tables.builders import tables

KNOTS = [3.0, 10.0, 20.0, 30.0]
BENT = {
    "terms": ["rcs(disea, [3, 10, 20, 30])", "idp", "rcs(disea, [3, 10, 20, 30]):idp",
              "poly(lpi, 2)", "lncoins"],
    "features": {"disea": "numeric", "idp": "categorical", "lpi": "numeric", "lncoins": "numeric"},
}  # fmt: skip
FORMULA = "(disea + n1 + n2) * C(idp) + lpi + I(lpi**2) + lncoins"
R_VALUES = [  # estimate, standard error, p-value, lower end
    [1.37063680504989, 0.36004178745745, 0.00014072952558235, 0.66496786870387],
    [0.72065308109341, 0.47730541498709, 0.13108517895210064, -0.21484834190723],
    [-0.64998372395648, 0.59782717127930, 0.27692919777607805, -1.82170344864337],
    [0.90276999627732, 0.36931274706955, 0.01450694294134961, 0.17893031298945],
]
FAMILIES = {
    "squared": sm.families.Gaussian(),
    "logistic": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
}


def natural(x):
    """Natural cubic splines of these knots, as Hastie, Tibshirani and Friedman (5.4) write them."""
    t, x = np.array(KNOTS), np.asarray(x, dtype=float)

    def d(k):
        cubes = np.maximum(x - t[k], 0.0) ** 3 - np.maximum(x - t[-1], 0.0) ** 3
        return cubes / (t[-1] - t[k])

    return {"n1": (d(0) - d(2)) / 1000, "n2": (d(1) - d(2)) / 1000}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = written(tmp_path_factory.mktemp("sites"))
    for loss in FAMILIES:
        for effects in ("common", "own"):
            made = problem(where, loss, BENT, site_effects=effects)
            run(made, 25, run_dir=where / f"{loss}-{effects}")
    return where


def pooled(folder, loss, effects):
    d = pd.read_csv(folder / "all.txt")
    d["y"] = (d["any"] == "yes").astype(float) if loss == "logistic" else d["mdvis"]
    d = d.assign(**natural(d["disea"]))
    X = dmatrix(FORMULA + (" + C(site)" if effects == "own" else ""), d)
    return sm.GLM(d["y"], X, family=FAMILIES[loss]).fit(tol=1e-15, maxiter=100), X.design_info


def rows(design, frame):
    """The difference of two rows of the pooled design, by patsy."""
    frame = frame.assign(**natural(frame["disea"]))
    matrix = np.asarray(build_design_matrices([design], frame)[0])
    return matrix[::2] - matrix[1::2]


@pytest.mark.parametrize("effects", ["common", "own"])
@pytest.mark.parametrize("loss", FAMILIES)
def test_of_splines_products_and_polynomials(folder, loss, effects):
    fit, design = pooled(folder, loss, effects)
    model = load_model(folder / f"{loss}-{effects}")
    found = model.contrast({"disea": [25, 33]}, {"disea": 6}, by="idp")
    pairs = [(x, idp) for x in (25.0, 33.0) for idp in (0.0, 1.0)]
    new = pd.DataFrame(
        {
            "disea": [v for x, _ in pairs for v in (x, 6.0)],
            "idp": [idp for _, idp in pairs for _ in (0, 1)],
            "lpi": 1.0, "lncoins": 2.0, "site": 0,
        }
    )  # fmt: skip
    matrix = rows(design, new)
    known = fit.t_test(matrix, use_t=loss == "squared")
    np.testing.assert_allclose(found.values, known.effect, rtol=1e-8)
    np.testing.assert_allclose(found.bse, known.sd.ravel(), rtol=1e-8)
    np.testing.assert_allclose(found.statistics, known.tvalue.ravel(), rtol=1e-8)
    np.testing.assert_allclose(found.pvalues, known.pvalue, rtol=1e-6)
    np.testing.assert_allclose(found.conf_int(), known.conf_int(), rtol=1e-7)
    assert found.names[1] == "disea=25 against disea=6 at idp=1"
    differ = found.differences()
    more = fit.t_test(matrix[1::2] - matrix[::2], use_t=loss == "squared")
    np.testing.assert_allclose(differ.values, more.effect, rtol=1e-8)
    np.testing.assert_allclose(differ.bse, more.sd.ravel(), rtol=1e-8)
    assert differ.names[0] == "disea=25 against disea=6 at idp=1 less idp=0"
    statistic, p = differ.joint_test([0, 1])
    wald = fit.wald_test(matrix[1::2] - matrix[::2], use_f=loss == "squared", scalar=True)
    np.testing.assert_allclose([statistic, p], [wald.statistic, wald.pvalue], rtol=1e-6)


def test_as_r_has_them(folder, tmp_path):
    """R 4.2: glm(any ~ ns(disea, ...) * factor(idp) + poly(lpi, 2) + lncoins, binomial), vcov."""
    model = load_model(folder / "logistic-common")
    effects = model.contrast({"disea": 25}, {"disea": 6}, by="idp")
    differ, bent = effects.differences(), model.contrast({"lpi": 7}, {"lpi": 3})
    known = np.array(R_VALUES)
    for found, own in ((effects, known[:2]), (differ, known[2:3]), (bent, known[3:])):
        columns = np.array([found.values, found.bse, found.pvalues, found.conf_int()[:, 0]]).T
        np.testing.assert_allclose(columns, own, rtol=2e-8)
    out = tmp_path / "effects.csv"
    values = ["disea=25", "--against", "disea=6", "--by", "idp", "-o", str(out)]
    assert main(["contrast", str(folder / "logistic-common"), *values]) == 0
    with out.open() as lines:
        written_rows = list(csv.DictReader(lines))
    assert [float(row["estimate"]) for row in written_rows] == [*effects.values, *differ.values]
    assert float(written_rows[0]["odds_ratio"]) == np.exp(effects.values[0])
    assert float(written_rows[2]["ratio_of_odds_ratios_upper"]) == np.exp(differ.conf_int()[0, 1])


def test_the_command_prints_a_table_with_a_test_of_the_interaction(folder, capsys):
    run_dir = str(folder / "logistic-common")
    assert main(["contrast", run_dir, "disea=25", "--against", "disea=6", "--by", "idp"]) == 0
    said = capsys.readouterr().out
    assert "disea=25 against disea=6 at idp=0" in said
    assert "odds ratio" in said
    assert "ratio of odds ratios" in said
    found = load_model(folder / "logistic-common").contrast({"disea": 25}, {"disea": 6}, by="idp")
    _, p = found.differences().joint_test([0])
    assert f"whether they differ at all: chi2 {found.differences().statistics[0] ** 2:.5g}" in said
    assert f"p = {p:.3g}" in said
    assert main(["contrast", run_dir, "--coefficient", "lncoins=2"]) == 0
    assert "2 * lncoins" in capsys.readouterr().out


@pytest.mark.parametrize(("column", "low", "high", "more"), [
    ("disea", 5, 30, {"target": "kind", "classes": ["few", "many", "none"]}),
    ("disea", 5, 30, {"target": "mdvis", "loss": "negative_binomial"}),  # log alpha is in none
    ("lpi", 1, 4, {"target": "disea", "event": "died", "ties": "efron",
                   "features": numeric("lncoins", "lpi")}),
])  # fmt: skip
def test_of_classes_of_counts_that_vary_more_and_of_hazards(tmp_path, column, low, high, more):
    """Each class is against the first, and hazard ratios have no intercept."""
    d = sm.datasets.randhie.load_pandas().data[::40].reset_index(drop=True)
    d["died"] = (np.arange(len(d)) % 3 > 0) * 1
    d["kind"] = np.array(["none", "few", "many"])[np.digitize(d["mdvis"], [1, 4])]
    schema = {"features": numeric("lncoins", "disea"), **more}
    made = tables(data=deal(tmp_path, d, 2), schema=schema, inference="model")
    known = run(made, 20, run_dir=tmp_path / "run").report.estimates
    found = load_model(tmp_path / "run").contrast({column: high}, {column: low})
    own = np.array([name.startswith(column) for name in known.names])
    np.testing.assert_allclose(found.values, (high - low) * known.values[own], rtol=1e-9)
    np.testing.assert_allclose(found.bse, (high - low) * known.bse[own], rtol=1e-9)
    assert len(found.values) == (2 if "classes" in more else 1)
    if "classes" in more:
        assert found.names[1] == "disea=30 against disea=5 [none against few]"
    assert ("hazard_ratio_lower" in found.columns_of()) == ("event" in more)


@pytest.mark.parametrize("effects", ["common", "own"])
def test_two_runs_are_compared_by_their_likelihoods(folder, effects, tmp_path, capsys):
    """As R's anova(smaller, larger, test = "LRT") does."""
    features = {"features": numeric("disea", idp="categorical")}  # "idp=1", not [T.1]
    made = problem(folder, "logistic", features, site_effects=effects)
    run(made, 25, run_dir=tmp_path / "less")
    fit, _ = pooled(folder, "logistic", effects)
    d = pd.read_csv(folder / "all.txt")
    X = dmatrix("disea + idp" + (" + C(site)" if effects == "own" else ""), d)
    less = sm.GLM((d["any"] == "yes").astype(float), X, family=sm.families.Binomial()).fit(
        tol=1e-15
    )
    larger = load_model(folder / f"logistic-{effects}")
    smaller = load_model(tmp_path / "less")
    ratio, df, p = larger.likelihood_ratio(smaller)
    np.testing.assert_allclose(ratio, 2 * (fit.llf - less.llf), rtol=1e-8)
    assert (df, p) == (fit.df_model - less.df_model, pytest.approx(chi2.sf(ratio, df), rel=1e-9))
    assert larger.estimates.aic == pytest.approx(fit.aic, rel=1e-10)
    run_dir = str(folder / f"logistic-{effects}")
    assert main(["contrast", run_dir, "--smaller", str(tmp_path / "less")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"chi2 {ratio:.5g}, degrees of freedom {df}, p = {p:.3g}" in said
    assert f"AIC: {fit.aic:.6g} against {less.aic:.6g}" in said
    with pytest.raises(ConfigError, match="of the smaller model is not in the larger one"):
        smaller.likelihood_ratio(larger)
    other = load_model(folder / f"logistic-{'common' if effects == 'own' else 'own'}")
    with pytest.raises(ConfigError, match="their site_effects differ"):
        larger.likelihood_ratio(other)
    with pytest.raises(ConfigError, match="their outcomes differ: 'any' and 'mdvis'"):
        larger.likelihood_ratio(load_model(folder / f"poisson-{effects}"))


@given(st.lists(st.floats(0.0, 60.0), min_size=3, max_size=3, unique=True), st.sampled_from("01"))
@settings(max_examples=10, deadline=None)
def test_effects_add_up(folder, values, idp):
    model, (a, b, c) = load_model(folder / "squared-common"), values
    ab, bc, ac = (
        model.contrast({"disea": x, "idp": idp}, {"disea": y, "idp": idp})
        for x, y in ((a, b), (b, c), (a, c))
    )
    np.testing.assert_allclose(ab.values + bc.values, ac.values, rtol=1e-9, atol=1e-9)
    back = model.contrast({"disea": b}, {"disea": a}, by={"idp": [idp]})
    np.testing.assert_allclose([-back.values, back.bse], [ab.values, ab.bse], rtol=1e-12)


LPI = {"lpi": 7}, {"lpi": 3}
REFUSED = [
    (lambda m: m.contrast({"disea": 9}, {"disea": 3}),
     "depends on 'idp', by the term rcs.*--by idp"),
    (lambda m: m.contrast({"disea": 9, "idp": 0}, {"disea": 3, "idp": 0}, by="lpi"),
     "'lpi' names no values.*numeric"),
    (lambda m: m.contrast({"age": 9}, {"age": 3}), "no feature is called 'age'"),
    (lambda m: m.contrast({"idp": 2}, {"idp": 0}, by={"disea": 4}),
     "'idp' has no category '2' in the model.*0, 1"),
    (lambda m: m.contrast({"lpi": 9}, {"lncoins": 3}), "the same features"),
    (lambda m: m.contrast({"lpi": 9}, {"lpi": [1, 2]}), "against has one value of 'lpi', got 2"),
    (lambda m: m.contrast({"lpi": 9}, {"lpi": 9.0}), "tells them apart"),
    (lambda m: m.contrast({"lpi": []}, {"lpi": 9.0}), "'lpi' has no value"),
    (lambda m: m.contrast(*LPI, by={"lpi": 9}), "'lpi' is compared"),
    (lambda m: m.contrast({"lpi": "nine"}, {"lpi": 3}), "'nine'"),
    (lambda m: m.contrast(*LPI, by="idp").differences(),
     "the same at idp=0 and idp=1 by the model"),
    (lambda m: m.combination({"lncoin": 1.0}), "no coefficient is called 'lncoin': did you mean"),
    (lambda m: m.combination({"lncoins": np.inf}),
     "the weight of 'lncoins' must be a finite number"),
    (lambda m: m.combination({"lncoins": 1.0}).differences(),
     "differences are between effects at several values"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "said"), REFUSED)
def test_what_is_asked_amiss_is_refused(folder, ask, said):
    model = load_model(folder / "logistic-common")
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        ask(model)
    alike = model.contrast(*LPI, by="idp")
    assert alike.values[0] == alike.values[1]


def test_without_inference_or_by_an_earlier_version_there_are_none(folder, tmp_path):
    run(problem(folder, "poisson", site_effects="common", inference=None), 3, run_dir=tmp_path)
    with pytest.raises(ConfigError, match='repeat it with inference = "model"'):
        load_model(tmp_path).contrast({"lpi": 7}, {"lpi": 3})
    content = json.loads((folder / "logistic-common" / "model.json").read_text("utf-8"))
    del content["inference"]
    (tmp_path / "model.json").write_text(json.dumps(content), encoding="utf-8")
    earlier = load_model(tmp_path)
    assert earlier.predict({"disea": [4], "idp": [0], "lpi": [1], "lncoins": [2]}).shape == (1,)
    with pytest.raises(ConfigError, match=r"by an earlier version.*repeat the run"):
        earlier.contrast({"lpi": 7}, {"lpi": 3})


def test_the_page_s_questions(tmp_path, monkeypatch, capsys):
    """Its files, with inference: the last line is a combination by coefficients' names."""
    monkeypatch.chdir(tmp_path)
    make, ask, *_ = blocks("python", "docs/tables.md")
    exec(make, {})
    schema = tomllib.loads(blocks("toml", "docs/tables.md")[0])
    made = tables(data="*.csv", schema=schema, inference="model")
    run(made, 5, run_dir="trial")
    exec(ask, {})
    said = capsys.readouterr().out
    assert "dose=2 against dose=0" in said
    assert re.search(r"^2 \* dose \+ -1 \* sex=m +(2\.9|3\.0)", said, re.MULTILINE)
