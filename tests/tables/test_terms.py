"""Terms: interactions, polynomials, splines, and what missing values become."""

from __future__ import annotations

import itertools
import math

import formulaic
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import nightly
from tabular import coefficients, deal, kept, numeric, run

from flower_fedcon import load_model, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.rows import is_sparse
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.strategies import FedAvg
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.design import name_of, spline, term_columns
from flower_fedcon.tables.quantiles import (
    INTERVALS,
    first_ends,
    quantiles,
    round_ends,
    second_ends,
    told_counts,
)

FAIR = ["age", "yrs_married", "rate_marriage", "religious"]
FEATURES = {**numeric(*FAIR), "school": "categorical", "work": "categorical"}


@pytest.fixture(scope="module")
def fair():
    d = sm.datasets.fair.load_pandas().data[::10].reset_index(drop=True)
    d["any"] = (d["affairs"] > 0).astype(int)
    d["school"] = np.array(["low", "mid", "high"])[np.digitize(d["educ"], [14, 16])]
    d["work"] = np.where(d["occupation"] > 3, "b", "a")
    return d


def schema_of(features=FEATURES, **more):
    return {"target": "any", "positive": [1], "features": features, **more}


# --- the references ------------------------------------------------------------------------------

FORMULAS = [
    "age * school + rcs(yrs_married, [2.5, 6, 13, 20]) + poly(rate_marriage, 2) + religious",
    "(age + school + work)^2",
    "school:work + age:school",
    "age * rcs(yrs_married, [2.5, 9, 16.5]) + school:poly(religious, 2, raw=True)",
    "poly(age, 3) * work",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_models_are_those_of_statsmodels_with_the_design_of_formulaic(fair, tmp_path, formula):
    """Columns, coefficients and errors; the spline's columns are written out."""
    schema = schema_of(formula=f"any ~ {formula}")
    problem = tables(data=deal(tmp_path, fair), schema=schema, inference="model")
    report = run(problem, 12, run_dir=tmp_path / "run", certificates=True).report
    assert report.reached.converged
    d = fair.copy()
    theirs = formula.replace("^", "**")
    for knots in ([2.5, 6.0, 13.0, 20.0], [2.5, 9.0, 16.5]):
        own = spline(d["yrs_married"].to_numpy(), knots)
        names = [f"spline{len(knots)}_{j}" for j in range(own.shape[1])]
        d[names] = own
        said = ", ".join(f"{knot:g}" for knot in knots)
        theirs = theirs.replace(f"rcs(yrs_married, [{said}])", f"({' + '.join(names)})")
    X = formulaic.model_matrix(theirs, d)
    found = sm.Logit(d["any"], np.asarray(X, float)).fit(disp=0, tol=1e-13, maxiter=60)
    file = coefficients(tmp_path / "run")
    assert len(file) == X.shape[1]
    ours = np.sort(file["per_unit"].to_numpy())
    np.testing.assert_allclose(ours, np.sort(found.params), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(np.sort(file["std_error"].to_numpy()), np.sort(found.bse), rtol=2e-6)
    names = ["age", "school[T.low]", "age:school[T.low]", "age:school[high]"]
    for name in names:
        if name in file.index and name in X.columns:
            place = list(X.columns).index(name)
            np.testing.assert_allclose(file["per_unit"][name], found.params.iloc[place], rtol=1e-6)
    expected = found.predict(np.asarray(X, float))
    predicted = load_model(tmp_path / "run").predict_proba(fair)[:, 1]
    np.testing.assert_allclose(predicted, expected, rtol=1e-7)
    np.testing.assert_allclose(by_model_json(tmp_path / "run", fair), expected, rtol=1e-7)


def test_a_spline_and_a_polynomial_are_those_of_r(tmp_path):
    # R 4.2.2, Hmisc 5.0-1: s <- rcspline.eval(disea, knots = c(3, 8, 13, 26), inclx = TRUE)
    # glm(mdvis ~ s + poly(lncoins, 2) + hlthg * idp + offset(log(years)), poisson)
    known = {
        "disea": (0.0326484992426, 0.0084530466401),
        "disea'": (0.1355209335109, 0.0526044410349),
        "disea''": (-0.3689271472701, 0.1236196987250),
        "poly(lncoins, 2)1": (-6.8199367742425, 0.6362208217750),
        "poly(lncoins, 2)2": (-0.8486450354655, 0.6511673831181),
        "hlthg": (-0.1311531481519, 0.0283747574017),
        "idp": (-0.4465241112233, 0.0393296298307),
        "hlthg:idp": (0.3785557799224, 0.0591164878960),
        "(intercept)": (-0.0720299134076, 0.0503190321491),
    }
    d = sm.datasets.randhie.load_pandas().data[::8].reset_index(drop=True)
    d["years"] = 0.5 + (d.index % 7) / 2
    schema = {
        "target": "mdvis", "loss": "poisson", "exposure": "years",
        "features": numeric("disea", "lncoins", "hlthg", "idp"),
        "terms": ["rcs(disea, [3, 8, 13, 26])", "poly(lncoins, 2)", "hlthg", "idp", "hlthg:idp"],
    }  # fmt: skip
    problem = tables(data=deal(tmp_path, d), schema=schema, inference="model")
    run(problem, 12, run_dir=tmp_path / "run")
    file = coefficients(tmp_path / "run")
    for name, (value, error) in known.items():
        np.testing.assert_allclose(file["per_unit"][name], value, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(file["std_error"][name], error, rtol=1e-6, err_msg=name)


def test_knots_and_medians_by_quantiles_are_in_the_model_that_they_say(tmp_path):
    """California's schools: rates with an exposure, over districts dealt out to four sites."""
    d = sm.datasets.star98.load_pandas().data.reset_index(drop=True)
    d["pupils"] = d["NABOVE"] + d["NBELOW"]
    d.loc[::20, "PCTAF"] = np.nan
    d["big"] = np.where(d["pupils"] > 300, "yes", "no")
    features = {"LOWINC": "numeric", "PERASIAN": "numeric", "big": "categorical",
                "PCTAF": {"missing": "median"}}  # fmt: skip
    schema = {"target": "NABOVE", "loss": "poisson", "exposure": "pupils", "features": features,
              "formula": "NABOVE ~ LOWINC * big + rcs(PERASIAN, 4) + PCTAF"}  # fmt: skip
    files = deal(tmp_path, d, 4)
    problem = tables(data=files, schema=schema, inference="model")
    run(problem, 12, run_dir=tmp_path / "run")
    knots = problem.preparation.design.knots["rcs(PERASIAN, 4)"]
    exact = np.quantile(d["PERASIAN"], [0.05, 0.35, 0.65, 0.95], method="inverted_cdf")
    np.testing.assert_allclose(knots, exact, atol=1e-3 * d["PERASIAN"].max())
    median = problem.preparation.design.fill["PCTAF"]
    assert abs(median - d["PCTAF"].median()) < 2e-3 * d["PCTAF"].max()
    d["PCTAF"] = d["PCTAF"].fillna(median)
    d[["s1", "s2", "s3"]] = spline(d["PERASIAN"].to_numpy(), knots)
    X = formulaic.model_matrix("LOWINC * big + s1 + s2 + s3 + PCTAF", d)
    family = sm.families.Poisson()
    fit = sm.GLM(d["NABOVE"], np.asarray(X, float), family=family, offset=np.log(d["pupils"]))
    found = fit.fit(tol=1e-14)
    file = coefficients(tmp_path / "run")
    ours = file.sort_values("per_unit")
    order = np.argsort(found.params.to_numpy())
    np.testing.assert_allclose(ours["per_unit"], found.params.iloc[order], rtol=1e-6)
    np.testing.assert_allclose(ours["std_error"], found.bse.iloc[order], rtol=2e-6)


def by_model_json(folder, d):
    """Predict by model.json and NumPy alone, as the file's format says."""
    model = kept(folder)
    scores = np.full(len(d), model["intercept"])
    columns = model["columns"]
    for factors, coefficient in zip(columns["factors"], columns["coefficient"], strict=True):
        column = np.ones(len(d))
        for factor in factors:
            fill, cells = model["missing"][factor["feature"]], d[factor["feature"]]
            gone = cells.isna().to_numpy()
            if factor.get("basis") == "missing":
                column = column * gone
                continue
            if "category" in factor:
                own = (cells == factor["category"]).to_numpy(float)
                column = column * np.where(gone, fill[factor["category"]], own)
                continue
            assert factor["transform"] == "none"
            x = cells.fillna(fill).to_numpy(float)
            if factor.get("basis") == "rcs":
                t, j = factor["knots"], factor["function"]
                if j:

                    def cubed(u):
                        return np.maximum(u, 0) ** 3

                    last, before, own = t[-1], t[-2], t[j - 1]
                    x = (
                        cubed(x - own)
                        - cubed(x - before) * (last - own) / (last - before)
                        + cubed(x - last) * (before - own) / (last - before)
                    ) / (last - t[0]) ** 2
            elif "power" in factor:
                x = x ** factor["power"]
            elif factor.get("basis") == "poly":
                z = (x - factor["mean"]) / factor["spread"]
                x = sum(c * z**k for k, c in enumerate(factor["coefficients"]))
            column = column * x
        scores = scores + coefficient * column
    return 1 / (1 + np.exp(-scores))


# --- what does not matter ------------------------------------------------------------------------


ROWS = pd.DataFrame(
    {
        "x": np.round(np.random.default_rng(1).lognormal(size=60), 2),
        "z": np.arange(60) % 9 * 1.0,
        "w": np.arange(60) % 11 / 4,
        "c": np.array(["a", "b", "c"])[np.random.default_rng(2).integers(3, size=60)],
    }
)
ROWS["y"] = np.round(np.log(ROWS["x"]) + (ROWS["c"] == "b") * ROWS["z"], 3)
ROWS.loc[[3, 17, 40], "x"] = np.nan
ROWS.loc[[5, 17], "c"] = None
TERMS = ["c", "z", "c:z", "rcs(x, 4)", "poly(w, 2)", "missing(c)"]


def dealt(folder, parts, terms):
    """Return the model of rows that are dealt out so, by name, and its design."""
    x, plain = {"impute": "median"}, "numeric"
    features = {"x": x, "z": plain, "w": plain, "c": "categorical"}
    schema = {"target": "y", "features": features, "terms": list(terms)}
    problem = tables(data=deal(folder, ROWS, parts), schema=schema)
    found = problem.preparation.in_units(run(problem, 3, evaluate_every=0).x)
    names = problem.preparation.names
    return dict(zip(names, found.tolist(), strict=False)), problem.preparation.design


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    return dealt(tmp_path_factory.mktemp("together"), [list(range(60))], TERMS)


@pytest.mark.parametrize("examples", [6, nightly(200)])
def test_however_rows_are_dealt_and_terms_are_ordered_the_numbers_are_the_same(
    tmp_path_factory, together, examples
):
    @settings(max_examples=examples)
    @given(st.permutations(range(60)), st.permutations(TERMS), st.integers(1, 4))
    def in_any_order(order, terms, sites):
        parts = [order[k::sites] for k in range(sites)]
        own, design = dealt(tmp_path_factory.mktemp("dealt"), parts, terms)
        known, other = together
        assert design.knots == other.knots
        assert design.fill["x"] == other.fill["x"] == ROWS["x"].dropna().sort_values().iloc[28]
        assert own.keys() == known.keys()
        expected = [known[name] for name in own]
        np.testing.assert_allclose(list(own.values()), expected, rtol=1e-7, atol=1e-9)

    in_any_order()


@given(st.lists(st.floats(-1e4, 1e4), min_size=5, max_size=60), st.integers(-4, 6))
def test_a_quantile_is_the_values_own_within_an_interval(values, size):
    x = np.array(values) * 10.0**size
    spread = float(x.std())
    ends = first_ends(float(x.mean()), spread)
    ends = second_ends(told_counts(x, ends, 1), ends)
    shares = [0.05, 0.35, 0.5, 0.95]
    found = quantiles(told_counts(x, ends, 1), ends, shares)
    exact = np.quantile(x, shares, method="inverted_cdf")
    step = float(ends[1] - ends[0])
    assert (np.array(found) >= exact - 1e-9 * np.abs(exact) - 1e-6 * step).all()
    assert (np.array(found) <= exact + step * (1 + 1e-6)).all()


@given(
    st.lists(st.floats(0, 100), max_size=40), st.integers(2, 10), st.floats(0, 50), st.floats(1, 50)
)
def test_no_interval_of_few_rows_is_told(values, least, low, width):
    counts = told_counts(np.array(values), round_ends(low, low + width), least)
    assert len(counts) == INTERVALS + 1
    assert ((counts == 0) | (counts >= least)).all()
    assert counts.sum() == (len(values) if len(values) >= least else 0)


# --- missing values ------------------------------------------------------------------------------


def test_medians_and_indicators_are_those_of_scikit_learn(fair, tmp_path):
    d = fair.copy()
    rng = np.random.default_rng(0)
    for name in ("age", "religious"):
        d.loc[rng.random(len(d)) < 0.1, name] = np.nan
    d.loc[rng.random(len(d)) < 0.1, "school"] = None
    features = {"age": {"missing": "median"}, "religious": {"missing": "indicator"},
                "school": {"type": "categorical", "missing": "indicator"}}  # fmt: skip
    schema = schema_of(features)
    problem = tables(data=deal(tmp_path, d), schema=schema, inference="model")
    report = run(problem, 10, run_dir=tmp_path / "run").report
    assert "errors and tests treat the filled-in cells as observed values" in report.text
    X = pd.DataFrame({
        "age": d["age"].fillna(d["age"].median()),
        "religious": d["religious"].fillna(d["religious"].mean()),
        "school=low": d["school"] == "low", "school=mid": d["school"] == "mid",
        "missing(religious)": d["religious"].isna(), "missing(school)": d["school"].isna(),
    }).astype(float)  # fmt: skip
    found = sm.Logit(d["any"], sm.add_constant(X, prepend=False)).fit(disp=0, tol=1e-13)
    file = coefficients(tmp_path / "run")
    np.testing.assert_allclose(file["per_unit"][X.columns], found.params[X.columns], rtol=1e-6)
    gone = d[["age", "religious", "school"]].isna().sum()
    assert (
        f"missing values, filled in: age {gone['age']} (median), religious "
        f"{gone['religious']} (indicator), school {gone['school']} (indicator)" in report.text
    )
    assert "reference categories: school=high" in report.text
    predicted = load_model(tmp_path / "run").predict_proba(d)[:, 1]
    np.testing.assert_allclose(predicted, found.predict(), rtol=1e-7)
    np.testing.assert_allclose(by_model_json(tmp_path / "run", d), found.predict(), rtol=1e-7)


# --- few rows ------------------------------------------------------------------------------------


def test_nothing_of_a_term_stands_on_few_rows_of_a_node(fair, tmp_path):
    """A cell of three rows hides the product there; a spline's tail of two rows its column."""
    d = fair[:120].copy()
    d["c"] = np.where(np.arange(120) < 60, "p", "q")
    d["w"] = np.where(np.arange(120) % 2, "a", "b")
    d.loc[(d["c"] == "q") & (d["w"] == "a") & (d.index > 65), "w"] = "b"
    d["v"] = np.arange(120) % 40 / 4
    d.loc[[7, 9, *range(100, 110)], "v"] = 40.0
    features = {"c": "categorical", "w": "categorical", "v": "numeric"}
    schema = schema_of(features, formula="c * w + rcs(v, [15, 20, 30])")
    parts = [slice(0, 100), slice(100, 120)]
    problem = tables(data=deal(tmp_path, d, parts), schema=schema, min_rows=5)
    names = problem.preparation.names
    assert problem.preparation.left_out == {"c[T.q]:w[T.b]": "constant"}  # told by one site alone
    schema = Schema.load(schema)
    A = read_table(tmp_path / "site0.csv", schema).matrix(problem.preparation, 5)
    np.testing.assert_allclose(A[:, names.index("v'")].std(), 0.0, atol=1e-12)
    assert A[:, names.index("v")].std() > 0.5


# --- units, digits -------------------------------------------------------------------------------


def test_numbers_in_another_unit_are_said_when_they_are_predicted_for(fair, tmp_path, caplog):
    problem = tables(data=deal(tmp_path, fair), schema=schema_of())
    run(problem, 8, run_dir=tmp_path / "run")
    model = load_model(tmp_path / "run")
    model.predict(fair)
    assert "another unit" not in caplog.text
    caplog.clear()  # of what the survey says of codes
    model.predict(fair.assign(age=12 * fair["age"]))
    assert "column 'age': " in caplog.text
    assert "in another unit?" in caplog.text
    assert "'religious'" not in caplog.text


def test_a_column_far_from_zero_is_not_called_singular(tmp_path, caplog):
    rng = np.random.default_rng(0)
    d = pd.DataFrame({"x": 1e6 + rng.normal(size=90), "u": rng.normal(size=90)})
    d["y"] = 2 * (d["x"] - 1e6) + d["u"] + 0.1 * rng.normal(size=90)
    schema = {"target": "y", "features": {"x": "numeric", "u": "numeric"}, "standardize": False}
    problem = tables(data=deal(tmp_path, d), schema=schema, inference="model")
    report = run(problem, 4, run_dir=tmp_path / "run").report
    centred = sm.OLS(d["y"], sm.add_constant(d[["x", "u"]] - [1e6, 0.0], prepend=False)).fit()
    file = coefficients(tmp_path / "run")
    np.testing.assert_allclose(file["per_unit"][["x", "u"]], centred.params[:2], rtol=1e-7)
    np.testing.assert_allclose(file["std_error"][["x", "u"]], centred.bse[:2], rtol=1e-7)
    assert report.doubts == ()
    assert "cannot be told apart" not in caplog.text


# --- many categories -----------------------------------------------------------------------------


def test_a_feature_of_many_categories_stays_sparse_beside_terms(tmp_path):
    rng = np.random.default_rng(0)
    d = pd.DataFrame({"zip": np.arange(492) % 205, "x": rng.normal(size=492)})
    d["y"] = np.round(d["x"] ** 2 + (d["zip"] % 7 == 0), 3)
    features = {"zip": "categorical", "x": "numeric"}
    schema = {"target": "y", "features": features, "terms": ["zip", "poly(x, 2)"]}
    files = deal(tmp_path, d)
    problem = tables(data=files, schema=schema, l1=0.01)
    assert is_sparse(problem.objectives[0].A)
    history = run(problem, 4, run_dir=tmp_path / "run", certificates=True)
    assert history.report.reached.converged
    d["q"] = d["x"] ** 2
    features = {"zip": "categorical", "x": "numeric", "q": "numeric"}
    plain = tables(data=deal(tmp_path, d), schema={"target": "y", "features": features})
    own = run(tables(data=files, schema=schema), 4)["objective"][-1]
    assert math.isclose(run(plain, 4)["objective"][-1], own, rel_tol=1e-8)
    predicted = load_model(tmp_path / "run").predict(d)
    assert np.isfinite(predicted).all()
    with pytest.raises(ConfigError, match="'zip' has more than 200 categories, which stand alone"):
        tables(data=files, schema={**schema, "terms": ["zip:x"]})


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(("term", "words"), [
    ("rcs(rate_marriage, 5)", r"rcs\(rate_marriage, 5\): knots coincide, at"),
    ("poly(two, 2)", "too few values over all nodes for this degree"),
])  # fmt: skip
def test_terms_of_too_few_values_are_refused_by_name(fair, tmp_path, term, words):
    d = fair[::3].assign(two=np.arange(len(fair[::3])) % 2)
    with pytest.raises(ConfigError, match=words):
        tables(
            data=deal(tmp_path, d), schema=schema_of({**FEATURES, "two": "numeric"}, terms=[term])
        )


def test_a_term_that_is_a_combination_of_others_is_named(fair, tmp_path, caplog):
    d = fair.assign(copy=2 * fair["age"] * fair["religious"] + 1)
    schema = schema_of({**FEATURES, "copy": "numeric"}, formula="age * religious + copy")
    tables(data=deal(tmp_path, d), schema=schema)
    assert "'age:religious'" in caplog.text
    assert "'copy'" in caplog.text


def test_a_level_that_a_site_lacks_is_no_reason_to_stop(fair, tmp_path):
    parts = [np.flatnonzero(fair["school"] != "low"), np.flatnonzero(fair["school"] == "low")]
    schema = schema_of(formula="age * school")
    apart = tables(data=deal(tmp_path, fair, parts), schema=schema)
    (tmp_path / "one").mkdir()
    whole = tables(data=deal(tmp_path / "one", fair, [slice(0, None)]), schema=schema)
    np.testing.assert_allclose(run(apart).x, run(whole).x, rtol=1e-7)


def test_private_runs_find_no_knots(fair, tmp_path):
    files = deal(tmp_path, fair)
    method = FedAvg(
        client_lr=0.1, local_steps=1,
        privacy=GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5),
    )  # fmt: skip
    problem = tables(data=files, schema=schema_of(terms=["rcs(age, 4)"]))
    with pytest.raises(ConfigError, match=r"quantiles of 'age' beside privacy=GaussianDP"):
        simulate(method, problem, 2)
    given = tables(data=files, schema=schema_of(terms=["rcs(age, [20, 30, 40])"]))
    assert simulate(method, given, 2).x.shape == (3,)


@pytest.mark.parametrize("basis", ["rcs(x, [1, 2, 3])", "poly(x, 2)", "poly(x, 2, raw=True)"])
def test_a_basis_has_its_feature_s_slope(basis):
    """So that its product with a category needs no more than the category's contrasts."""
    schema = Schema("y", {"x": "numeric", "u": "categorical"}, terms=[basis, "u", "x:u"])
    names = [name_of(parts) for _, parts in term_columns(schema, {"u": ("a", "b")})]
    assert names[-2:] == ["u[T.b]", "x:u[T.b]"]
    beside = Schema("y", {"x": "numeric"}, terms=["x", basis])
    assert len(term_columns(beside, {})) == len(names) - 2


CODED = [
    "u:v", "u + u:v", "v + u:v", "u * v", "x:u", "x + x:u", "u:v:x", "x + u:v:x", "u + u:v:x",
    "u:v + v:w", "u*v*w", "u:v:w", "x:u + x:v + w", "u + v + u:v:w",
]  # fmt: skip


@pytest.mark.parametrize("formula", CODED)
def test_coding_follows_the_terms_that_are_there(formula):
    """Columns are of full rank, and span those of formulaic."""
    d = pd.DataFrame(itertools.product("ab", "pqr", "st", [1.0, 2.0, 5.0]), columns=list("uvwx"))
    kinds = dict.fromkeys("uvw", "categorical")
    schema = Schema("y", {**kinds, "x": "numeric"}, formula=formula)
    columns = term_columns(schema, {"u": ("a", "b"), "v": ("p", "q", "r"), "w": ("s", "t")})
    own = [np.ones(len(d))]
    for _, parts in columns:
        column = np.ones(len(d))
        for part in parts:
            mark = part.name.rstrip("]").split("[")[-1].removeprefix("T.")
            column = column * (d["x"] if part.name == "x" else d[part.factor.feature] == mark)
        own.append(column)
    ours = np.stack(own, axis=1)
    theirs = np.asarray(formulaic.model_matrix(formula, d), float)
    assert ours.shape == theirs.shape
    rank = np.linalg.matrix_rank
    assert rank(ours) == ours.shape[1] == rank(np.concatenate([ours, theirs], axis=1))
