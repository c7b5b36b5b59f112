"""Table 1 by the levels of a column: sums of sites are scipy's on pooled rows; small cells."""

from __future__ import annotations

import csv
import re
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tabular import deal, run

from flower_fedcon.errors import ConfigError
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import prepared_problem, tables
from flower_fedcon.tables.by_level import MERGED, MISSING, asked_by_level, told_by_level

FEATURES = {
    "age": "numeric", "dose": {"transform": "sqrt"}, "sex": "categorical",
    "stage": "categorical", "arm": "categorical",
}  # fmt: skip
SCHEMA = {"target": "y", "positive": ["yes"], "features": FEATURES, "describe_by": "arm"}


def trial(rng, rows=240, arms=("new", "usual")):
    """Rows of a trial with missing values."""
    frame = pd.DataFrame({
        "age": rng.normal(60, 9, rows).round(1), "dose": rng.exponential(3, rows),
        "sex": rng.choice(["f", "m"], rows), "stage": rng.choice(list("IJKL"), rows),
        "arm": rng.choice(arms, rows), "y": rng.choice(["yes", "no"], rows),
    })  # fmt: skip
    frame.loc[frame["arm"] == arms[0], "age"] += 2
    for column, share in (("age", 0.05), ("stage", 0.1)):
        frame.loc[rng.random(rows) < share, column] = None
    return frame


def distance(a, b):
    """Yang and Dalton's: categories of two groups, the first left out (as R's tableone)."""
    S = sum(np.diag(p[1:]) - np.outer(p[1:], p[1:]) for p in (a, b)) / 2
    return float(np.sqrt((a - b)[1:] @ np.linalg.solve(S, (a - b)[1:])))


@pytest.mark.parametrize("arms", [("new", "usual"), ("a", "b", "c")])
def test_sums_of_sites_give_the_tests_of_pooled_rows(arms, tmp_path):
    frame = trial(np.random.default_rng(len(arms)), arms=arms)
    made = tables(data=deal(tmp_path, frame), schema=SCHEMA)
    found = made.preparation.by_level
    tests = {one.column: one for one in found.tests}
    for column in ("sex", "stage", "y"):
        table = pd.crosstab(frame["arm"], frame[column])
        told = stats.chi2_contingency(table, correction=False)
        one = tests[column]
        assert (one.statistic, one.df) == (pytest.approx(told.statistic, rel=1e-10), told.dof)
        assert one.pvalue == pytest.approx(told.pvalue, rel=1e-10)
        assert one.least_expected == pytest.approx(told.expected_freq.min(), rel=1e-12)
        shares = table.to_numpy() / table.to_numpy().sum(axis=1, keepdims=True)
        pairs = [distance(a, b) for a, b in combinations(shares, 2)]
        assert one.smd == pytest.approx(np.mean(pairs), rel=1e-10)
    for column, values in (("age", frame["age"]), ("sqrt(dose)", np.sqrt(frame["dose"]))):
        parts = [values[frame["arm"] == arm].dropna() for arm in arms]
        one = tests[column]
        if len(arms) == 2:
            told = stats.ttest_ind(*parts, equal_var=False)
            assert one.df == pytest.approx(told.df, rel=1e-10)
        else:
            told = stats.f_oneway(*parts)
            assert (one.df, one.df_within) == (2, sum(map(len, parts)) - 3)
        assert one.statistic == pytest.approx(told.statistic, rel=1e-9)
        assert one.pvalue == pytest.approx(told.pvalue, rel=1e-9)
        pairs = [abs(a.mean() - b.mean()) / np.sqrt((a.var() + b.var()) / 2)
                 for a, b in combinations(parts, 2)]  # fmt: skip
        assert one.smd == pytest.approx(np.mean(pairs), rel=1e-10)
    marks, cells = found.tables["stage"]
    assert marks == (*"IJKL", MISSING)
    assert cells.sum() == len(frame)


def test_a_run_leaves_the_table_and_its_tests(tmp_path):
    frame = trial(np.random.default_rng(0))
    made = tables(data=deal(tmp_path, frame), schema=SCHEMA)
    report = run(made, 5, run_dir=tmp_path / "run").report
    assert "  new (n = " in report.text
    with open(tmp_path / "run" / "by_level.csv", newline="") as file:
        rows = {(r["column"], r["category"], r["level"]): r for r in csv.DictReader(file)}
    own = frame[frame["arm"] == "new"]
    assert float(rows["age", "", "new"]["mean"]) == pytest.approx(own["age"].mean(), rel=1e-12)
    assert float(rows["age", "", "new"]["std_dev"]) == pytest.approx(own["age"].std(), rel=1e-12)
    assert rows["sex", "f", "new"]["values"] == str((own["sex"] == "f").sum())
    expected = stats.contingency.expected_freq(pd.crosstab(frame["arm"], frame["sex"]))
    assert float(rows["sex", "f", "new"]["expected"]) == pytest.approx(expected[0, 0], rel=1e-12)
    with open(tmp_path / "run" / "by_level_tests.csv", newline="") as file:
        told = {r["column"]: r for r in csv.DictReader(file)}
    assert told["age"]["test"] == "Welch t"
    assert told["sex"]["df_within"] == ""


def told_at(folder, frame, least, schema=SCHEMA):
    """A site's answer by level, with its categories, as arrays of levels."""
    frame.to_csv(folder / "site.csv", index=False)
    table = read_table(folder / "site.csv", Schema.load(schema))
    own = table.schema
    agreed = {f.name: tuple(np.unique(table.categories[:, j]).tolist())
              for j, f in enumerate(own.categorical)}  # fmt: skip
    agreed = {name: tuple(m for m in marks if m) for name, marks in agreed.items()}
    down = asked_by_level(np.zeros(len(own.numeric)), agreed)
    told = told_by_level(table, down, 1, least)
    levels = len(agreed[own.describe_by])
    counts = told["level_counts"].reshape(levels, -1)
    return agreed, told["level_rows"], told["level_sums"].reshape(levels, -1, 3), counts


@given(st.integers(0, 10**6), st.integers(2, 6))
def test_no_count_of_few_rows_leaves_a_site_nor_follows(tmp_path_factory, seed, least):
    """Neither a told count, nor what a level's rows leave of those, nor the values of a column."""
    rng = np.random.default_rng(seed)
    frame = trial(rng, int(rng.integers(20, 120)))
    frame.loc[rng.random(len(frame)) < rng.choice([0.02, 0.3]), "arm"] = rng.choice(["z", ""])
    frame.loc[rng.random(len(frame)) < 0.03, "stage"] = "rare"
    _, rows, sums, counts = told_at(tmp_path_factory.mktemp("site"), frame, least)
    place = 1
    told = [counts[:, :1]]  # the outcome
    for column in ("sex", "stage"):
        size = frame[column].dropna().nunique()
        told.append(counts[:, place : place + size])
        place += size
    assert place == counts.shape[1]
    for cells in told:
        known = cells[:, ~np.isnan(cells).any(axis=0)]
        assert np.isnan(cells).all(axis=0).sum() + known.shape[1] == cells.shape[1]
        rest = rows - known.sum(axis=1)
        if known.shape[1]:
            assert ((known == 0) | (known >= least)).all()
            assert ((rest == 0) | (rest >= least)).all()
    n = sums[:, :, 0]
    hidden = np.isnan(n).any(axis=0)
    assert (np.isnan(n).all(axis=0) == hidden).all()
    values, lacking = n[:, ~hidden], rows[:, None] - n[:, ~hidden]
    assert ((values == 0) | (values >= least)).all()
    assert ((lacking == 0) | (lacking >= least)).all()


def test_the_answer_does_not_depend_on_the_order_of_categories(tmp_path):
    rng = np.random.default_rng(3)
    frame = trial(rng, 60)
    frame.loc[:1, "stage"] = "rare"
    agreed, rows, sums, counts = told_at(tmp_path, frame, 3)
    table = read_table(tmp_path / "site.csv", Schema.load(SCHEMA))
    turned = {name: tuple(reversed(marks)) for name, marks in agreed.items()}
    again = told_by_level(table, asked_by_level(np.zeros(2), turned), 1, 3)
    np.testing.assert_array_equal(again["level_rows"], rows[::-1])
    np.testing.assert_array_equal(again["level_sums"].reshape(2, -1, 3), sums[::-1])
    other = again["level_counts"].reshape(2, -1)[::-1]
    np.testing.assert_array_equal(other[:, 3:], counts[:, 3:][:, ::-1])


def test_a_category_that_one_site_merges_is_merged_over_all(tmp_path):
    rng = np.random.default_rng(4)
    frame = trial(rng, 200).dropna()
    frame.loc[frame.index[0], "stage"] = "rare"
    made = tables(data=deal(tmp_path, frame, 2), schema=SCHEMA, min_rows=3)
    marks, cells = made.preparation.by_level.tables["stage"]
    assert "rare" not in marks
    whole = pd.crosstab(frame["arm"], frame["stage"])
    np.testing.assert_array_equal(cells.sum(axis=1), whole.sum(axis=1))
    for mark, own in zip(marks, cells.T, strict=True):
        if mark not in (MERGED, MISSING):
            assert abs(own - whole[mark]).max() <= 1  # the rare one counts as the most frequent


@pytest.mark.parametrize("mark", [MERGED, MISSING])
def test_a_category_with_the_name_of_no_category_is_refused(tmp_path, mark):
    """Otherwise its rows were left out of the tests, or counted with the others."""
    frame = trial(np.random.default_rng(0)).replace({"stage": {"L": mark}})
    data = deal(tmp_path, frame)
    with pytest.raises(ConfigError, match=rf"column 'stage' has a category '{re.escape(mark)}'"):
        tables(data=data, schema=SCHEMA)
    plain = {name: value for name, value in SCHEMA.items() if name != "describe_by"}
    tables(data=data, schema=plain)


def test_schemas_and_private_tables(tmp_path):
    with pytest.raises(ConfigError, match="describe_by must be a categorical feature, got 'age'"):
        Schema.load(SCHEMA | {"describe_by": "age"})
    features = {"age": {"range": [0, 120]}, "arm": {"type": "categorical",
                                                    "categories": ["a", "b"]}}  # fmt: skip
    schema = {"target": "y", "positive": ["1"], "negative": ["0"], "features": features,
              "describe_by": "arm"}  # fmt: skip
    (tmp_path / "a.csv").write_text("age,arm,y\n" + "20,a,1\n30,b,0\n" * 30)
    table = read_table(tmp_path / "a.csv", Schema.load(schema))
    with pytest.raises(ConfigError, match="no noise protects sums by 'arm'"):
        prepared_problem([table], ["a"], privacy=ExampleDP(1.0, 2.0, 1e-5))


def test_a_level_that_is_no_term_is_described(tmp_path):
    frame = trial(np.random.default_rng(5))
    made = tables(data=deal(tmp_path, frame), schema=SCHEMA | {"terms": ["age", "sex"]})
    assert not any(name.startswith("arm") for name in made.preparation.names)
    assert made.preparation.by_level.levels == ("new", "usual")
