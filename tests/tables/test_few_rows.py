"""What stands on few of a node's rows, by weight, is unknown there, whatever a server prepares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import nightly
from tabular import lines

from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.objectives import CoxRegression, LeastSquares
from flower_fedcon.problems import tables
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import prepare, prepared_problem
from flower_fedcon.tables.design import Design
from flower_fedcon.tables.encoding import dummies
from flower_fedcon.tables.held_out import HeldOut
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.quality import binned_counts
from flower_fedcon.tables.quantiles import INTERVALS, told_counts
from flower_fedcon.tables.risk_counts import risk_counts
from flower_fedcon.tables.schema import Feature
from flower_fedcon.tables.small_cells import effective_counts, effective_rows, is_few
from flower_fedcon.tables.statistics.group_sums import variance_ratio
from flower_fedcon.tables.statistics.hazards import baseline, in_time
from flower_fedcon.tables.statistics.site_sums import KINDS, estimates, set_clusters
from flower_fedcon.tables.table import Table

LEAST = 20


# --- products, polynomials, splines --------------------------------------------------------------


def rows_of(x, terms, marks=None, weights=None, least=LEAST):
    """Return the model's rows of one numeric column, and of categories."""
    m = len(x)
    marks = np.full(m, "a") if marks is None else marks
    features = {"x": "numeric", "c": "categorical"}
    schema = Schema("y", features, terms=[*terms, "c"])
    table = Table("a.csv", schema, np.zeros(m), weights, x[:, None], np.array(marks)[:, None])
    made = prepared_problem([table], ["a"]).preparation  # as if no node withheld a thing
    return table.matrix(made, least)


def told_apart(A, rows):
    """Return whether columns and intercept have a combination that is 0 in all but these rows."""
    whole = np.column_stack([A, np.ones(len(A))])
    others = np.ones(len(A), dtype=bool)
    others[rows] = False
    return np.linalg.matrix_rank(whole, tol=1e-8) > np.linalg.matrix_rank(whole[others], tol=1e-8)


@pytest.mark.parametrize(("terms", "values"), [
    (["poly(x, 2, raw=True)"], [0.0, 1.0]),
    (["poly(x, 2)"], [0.0, 1.0]),
    (["rcs(x, [0, 5, 8])"], [9.0, 10.0, 11.0, 12.0]),
])  # fmt: skip
def test_no_curve_is_zero_in_all_rows_but_one(terms, values):
    """Before, x^2 - x was the row of the value 2, and a spline the row below its last knot."""
    x = np.resize(values, 100)
    x[37] = 2.0
    assert told_apart(rows_of(x, terms, least=1), [37])
    assert not told_apart(rows_of(x, terms), [37])


def test_a_number_that_is_alike_in_all_but_one_row_of_a_category_tells_no_row():
    x, marks = np.arange(100.0), np.resize(["a", "b"], 100)
    x[marks == "b"], x[37] = 5.0, 7.0
    assert told_apart(rows_of(x, ["x", "x:c"], marks, least=1), [37])
    assert not told_apart(rows_of(x, ["x", "x:c"], marks), [37])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=12, max_size=40),
    st.sampled_from(["poly(x, 2, raw=True)", "poly(x, 3, raw=True)", "x"]),
)
def test_no_values_of_few_rows_are_told_apart(values, term):
    x = np.array(values, dtype=float)
    if len(np.unique(x)) < 5:
        return  # fewer values than columns need
    A, least = rows_of(x, [term], least=5), 5
    for value in np.unique(x):
        rows = np.flatnonzero(x == value)
        assert len(rows) >= least or not told_apart(A, rows)


def test_columns_of_many_different_values_are_as_without_a_threshold():
    rng = np.random.default_rng(0)
    x, marks = rng.normal(size=200), np.resize(["a", "b"], 200)
    for terms in (["rcs(x, 5)"], ["poly(x, 3)"], ["x", "x:c"]):
        found, plain = rows_of(x, terms, marks), rows_of(x, terms, marks, least=1)
        np.testing.assert_array_equal(found, plain)


# --- rows by weight ------------------------------------------------------------------------------


def test_rows_of_weight_0_hide_no_row_of_a_category(tmp_path):
    """Of 30 rows in z one has a weight; the others are left out, and hide it no more."""
    rng = np.random.default_rng(0)
    rows = [(i % 2, float(i >= 30 or i == 7), "z" if i < 30 else "ab"[i % 2], rng.normal())
            for i in range(200)]  # fmt: skip
    lines(tmp_path, a=["y,w,ward,age", *rows])
    features = {"ward": "categorical", "age": "numeric"}
    schema = Schema("y", features, positive=[1], weight="w")
    table = read_table(tmp_path / "a.csv", schema)
    assert prepared_problem([table], ["a"]).preparation.names == ("age", "ward=b", "ward=z")
    found = prepared_problem([table], ["a"], min_rows=LEAST).preparation
    assert found.names == ("age", "ward=b")
    assert found.described.counts[0, -2:].sum() == 171  # with those that count as the usual ward


def weighted(codes, w):
    rng = np.random.default_rng(0)
    A, y = rng.normal(size=(len(w), 2)), rng.normal(size=len(w))
    f = LeastSquares(A, y, intercept=True, sample_weight=w)
    set_clusters(f, codes)
    return f


@pytest.mark.parametrize("light", [0.0, 1e-9])
def test_clusters_and_groups_of_one_heavy_row_are_refused(light):
    codes, w = np.repeat(np.arange(2), 100), np.ones(200)
    even = weighted(codes, w)
    assert estimates(even, {"x": np.zeros(3), "method": KINDS["cluster"]}, LEAST)["meat"].any()
    assert variance_ratio(even, {"x": np.zeros(3), "ratio": 1.0}, LEAST)["products"].any()
    w[1:100] = light
    f = weighted(codes, w)
    with pytest.raises(RefusedError, match="of 2 clusters here the smallest has fewer than 20"):
        estimates(f, {"x": np.zeros(3), "method": KINDS["cluster"]}, LEAST)
    with pytest.raises(RefusedError, match=r"fewer than 20 rows here .* of one size"):
        variance_ratio(f, {"x": np.zeros(3), "ratio": 1.0}, LEAST)


def test_light_clusters_hide_no_small_one():
    """Many clusters hide a small one, but only those that weigh something."""
    codes = np.repeat(np.arange(30), 4)
    x = {"x": np.zeros(3), "method": KINDS["cluster"]}
    assert estimates(weighted(codes, np.ones(120)), x, LEAST)["meat"].any()
    with pytest.raises(RefusedError, match="their sums could reveal it"):
        estimates(weighted(codes, np.where(codes < 2, 1.0, 1e-9)), x, LEAST)


def test_events_of_weight_0_hide_no_event():
    rng = np.random.default_rng(0)
    A, time, event = rng.normal(size=(100, 2)), rng.exponential(1, 100), np.arange(100) < 30
    down = {"x": np.zeros(2), "transform": 1.0, "center": 0.0, "times": np.array([9.0])}
    for weights, told in ((None, True), (np.where(np.arange(100) % 29 == 0, 1.0, 1e-9), False)):
        f = CoxRegression(A, time, event, sample_weight=weights)
        assert bool(baseline(f, down, LEAST)["hazard"].any()) == told
        if told:
            assert in_time(f, down, LEAST)["moments"][1] == 30
            continue
        with pytest.raises(RefusedError, match="fewer than 20 events"):
            in_time(f, down, LEAST)


WEIGHTS = st.lists(st.sampled_from([0.0, 0.1, 1.0, 9.0]), min_size=30, max_size=30)


@settings(max_examples=60, deadline=None)
@given(WEIGHTS, st.integers(0, 99), st.integers(2, 5))
def test_intervals_bins_and_groups_hold_no_few_rows_by_weight(weights, seed, least):
    rng, w = np.random.default_rng(seed), np.array(weights)
    time, event = rng.integers(1, 12, 30).astype(float), rng.random(30) < 0.6
    grid = np.arange(1.0, 11.0)
    _, died = risk_counts(time, event, np.zeros(30, np.intp), 1, grid, least, w)
    begin = 0.0
    for end, n in zip(grid, died[:, 0], strict=True):
        if n:
            own = event & (time > begin) & (time <= end)
            assert not is_few(w, own, least)
            begin = end
    p = rng.random(30)
    if min(effective_rows(w, event), effective_rows(w, ~event)) >= least:
        counts, first = binned_counts(p, event, least, w), 0
        assert counts[:2].sum() == 30
        for end in np.flatnonzero(counts[:2].any(axis=0)).tolist():
            own = ((1000 * p).astype(int) >= first) & ((1000 * p).astype(int) <= end)
            assert counts[:2, end].sum() == own.sum()
            assert not is_few(w, own & event, least)
            assert not is_few(w, own & ~event, least)
            first = end + 1
    ends = np.arange(INTERVALS) / INTERVALS
    told = told_counts(p, ends, least, w)
    assert told.sum() in (0, 30)
    np.testing.assert_array_equal(told_counts(p, ends, least, w * 0 + 0.3),
                                  told_counts(p, ends, least))  # fmt: skip


def test_metrics_of_few_events_or_of_light_rows_are_not_told():
    """Before, the concordance of one event was told: the share of rows below its score."""
    rng = np.random.default_rng(0)
    A, t, e = rng.normal(size=(100, 2)), rng.exponential(1, 100), np.zeros(100)
    e[17], t[17] = 1, 0.01
    x = np.array([1.0, 0.0])
    assert HeldOut("cox", A, np.c_[t, e], 1)(x)["test_concordance"][1] == 99 - (t < 0.01).sum()
    assert HeldOut("cox", A, np.c_[t, e], LEAST)(x)["test_concordance"] == (0.0, 0.0)
    e[:20] = 1
    assert HeldOut("cox", A, np.c_[t, e], LEAST)(x)["test_concordance"][1] > 0
    w = np.where(np.arange(100) % 50 == 0, 1.0, 0.0)
    for loss, y in (("cox", np.c_[t, e]), ("squared", t), ("logistic", np.resize([1.0, -1], 100))):
        for own in HeldOut(loss, A, y, LEAST, weights=w)(x).values():
            assert own == (0.0, 0.0)


# --- what is left of what is told ----------------------------------------------------------------


def test_table_1_and_the_report_leave_no_few_rows_as_a_difference(tmp_path):
    """Before: sex f 399 of 400 rows, and "missing values, filled in: hiv 1, sex 1"."""
    for name, rare in (("north", True), ("south", False)):
        rng = np.random.default_rng(rare)
        sexes = ["m" if i == 7 else "f" for i in range(100)] if rare else ["f", "m"] * 50
        rows = [(i % 2, sex, "" if rare and i == 9 else i % 3, rng.random())
                for i, sex in enumerate(sexes)]  # fmt: skip
        lines(tmp_path, **{name: ["y,sex,hiv,age", *rows]})
    features = {"sex": {"type": "categorical", "categories": ["f", "m"]}, "hiv": "numeric",
                "age": "numeric"}  # fmt: skip
    schema = Schema("y", features, positive=[1])
    tables = [read_table(tmp_path / f"{name}.csv", schema) for name in ("north", "south")]
    found = prepared_problem(tables, ["north", "south"], min_rows=LEAST).preparation
    columns = found.described.table
    told = {
        (column, category, client): n
        for column, category, client, n in zip(
            *(columns[name] for name in ("column", "category", "client", "values")), strict=True
        )
    }
    assert told["sex", "f", "north"] == told["hiv", "", "north"] == 100
    assert told["sex", "m", "north"] is None
    assert told["sex", "m", "south"] == told["sex", "m", "(together)"] == 50
    assert not found.imputed
    plain = prepared_problem(tables, ["north", "south"]).preparation
    assert plain.imputed == {"hiv": 1}
    assert plain.described.counts[0].tolist()[-2:] == [99.0, 1.0]


# --- categories ----------------------------------------------------------------------------------


FEW = 5
FEATURES = {"age": "numeric", "flag": "numeric", "dx": "categorical"}


def written(folder, name, rare, rows=60, seed=0):
    """Write a table in which so many rows have the rare category; the first one has a flag."""
    rng = np.random.default_rng(seed)
    own = [(rng.integers(20, 90), int(i == 0), "hiv" if i < rare else "ab"[i % 2], rng.normal())
           for i in range(rows)]  # fmt: skip
    lines(folder, **{name: ["age,flag,dx,effect", *own]})
    return folder / f"{name}.csv"


def problem(folder, **more):
    paths = [written(folder, "north", 1), written(folder, "south", 20, seed=1)]
    schema = {"target": "effect", "features": FEATURES}
    return tables(data=paths, schema=schema, l1=0.01, **more)


def test_a_category_of_one_patient_is_in_no_column_of_that_node(tmp_path):
    found = problem(tmp_path, min_rows=FEW)
    names = list(found.preparation.names)
    north, south = (f.rows for f in found.objectives)
    assert len(np.unique(north[:, names.index("dx=hiv")])) == 1
    assert len(np.unique(south[:, names.index("dx=hiv")])) == 2
    plain = problem(tmp_path).objectives[0].rows
    assert len(np.unique(plain[:, names.index("dx=hiv")])) == 2


@pytest.mark.parametrize("min_rows", [1, FEW])
def test_no_outcome_can_be_solved_for_from_the_first_gradient(tmp_path, min_rows):
    """The columns of 0s and 1s, and the intercept, tell the sum over the rows of a category."""
    found = problem(tmp_path, min_rows=min_rows)
    north = found.objectives[0]
    columns = [j for j, name in enumerate(found.preparation.names) if name != "age"]
    seen = np.column_stack([north.rows[:, columns], np.ones(len(north.rows))])
    alone = np.zeros(len(seen))
    alone[0] = 1.0  # the row with hiv, and with the flag
    weights = np.linalg.lstsq(seen, alone, rcond=None)[0]
    assert np.allclose(seen @ weights, alone) == (min_rows == 1)


def test_a_server_s_own_preparation_tells_no_more(tmp_path):
    found = problem(tmp_path).preparation  # as if no node withheld a thing
    names, p = list(found.names), len(found.names)
    made = Preparation.from_payload({**found.payload, "means": np.zeros(p), "scales": np.ones(p)})
    schema = Schema.load({"target": "effect", "features": FEATURES})
    rows = read_table(tmp_path / "north.csv", schema).objective(made, FEW).rows
    assert not rows[:, [names.index("dx=hiv"), names.index("flag")]].any()


def test_the_few_rows_without_a_category_look_like_others_whatever_a_server_s_shares(tmp_path):
    """Before, the row with hiv had the server's share alone, and its outcome was one gradient."""
    rows = [f"{i % 50 + 20},{'hiv' if i == 37 else 'ab'[i % 2]},{i}" for i in range(100)]
    (tmp_path / "a.csv").write_text("\n".join(["age,dx,effect", *rows]))
    for terms in ((), ("age", "dx")):
        own = {"target": "effect", "features": {"age": "numeric", "dx": "categorical"}}
        schema = Schema.load(own | ({"terms": list(terms)} if terms else {}))
        table = read_table(tmp_path / "a.csv", schema)
        found = prepare([table], ["a"], FEW)
        j = next(j for j, name in enumerate(found.names) if name.startswith("dx"))
        seen = []
        for share in (0.0, 1.0):
            means = found.means.copy()
            means[j] = share
            design = found.design and replace(found.design, shares={"dx": (share, share)})
            made = replace(found, means=means, scales=np.ones(len(means)), design=design)
            seen.append((table.matrix(made, FEW) + made.centers)[:, j])
        np.testing.assert_allclose(seen[0], seen[1], atol=1e-12)
        assert np.unique(seen[0], return_counts=True)[1].min() >= FEW


@pytest.mark.parametrize("share", [-0.1, 1e6, np.nan])
def test_what_is_no_share_is_refused_as_the_mean_of_a_category(tmp_path, share):
    found = problem(tmp_path).preparation
    means = np.where([name.startswith("dx") for name in found.names], share, found.means)
    schema = Schema.load({"target": "effect", "features": FEATURES})
    with pytest.raises(ConfigError, match=r"share of a category is .*, expected one in \[0, 1\]"):
        read_table(tmp_path / "north.csv", schema).matrix(replace(found, means=means), FEW)
    with pytest.raises(ConfigError, match=r"expected one in \[0, 1\]"):
        Design.of({"fill": {}, "shares": {"dx": [share]}, "knots": {}, "powers": {}})


MARKS = st.lists(st.sampled_from(["", *"abcde"]), min_size=1, max_size=40)


@pytest.mark.parametrize("examples", [60, nightly(3000)])
def test_no_few_rows_are_told_apart_by_any_preparations(examples):
    """All columns of all references, orders, shares together: rows that differ at all are many."""

    @settings(max_examples=examples, deadline=None)
    @given(MARKS, st.integers(2, 6), st.data())
    def are_many(marks, least, data):
        m = len(marks)
        weights = data.draw(
            st.none() | st.lists(st.sampled_from([0.0, 0.1, 1.0, 30.0]), min_size=m, max_size=m)
        )
        weights = None if weights is None else np.array(weights)
        table = in_memory(np.array(marks, dtype=str), weights)
        columns = []
        for _ in range(4):
            known = data.draw(st.permutations("abcde"))[: data.draw(st.integers(1, 5))]
            reference = data.draw(st.sampled_from(["", *"abcde"]))
            schema = Schema("y", (Feature("dx", "categorical", reference=reference),))
            own, share = replace(table, schema=schema), data.draw(st.floats(0, 1))
            names = dummies(schema.features[0], known)
            if not names:
                continue
            made = Preparation(
                schema.digest, tuple(names), (0,) * len(names), np.full(len(names), share),
                np.ones(len(names)), np.arange(len(names)), {"dx": tuple(known)}, {}, stated=schema,
            )  # fmt: skip
            columns.append(own.matrix(made, least))
        if not columns or not m or table.effective_rows < least:
            return  # such a node takes no part
        _, kinds = np.unique(np.concatenate(columns, axis=1), axis=0, return_inverse=True)
        assert effective_counts(kinds.reshape(-1), kinds.max() + 1, weights).min() >= least

    are_many()


def in_memory(marks, weights=None, numeric=None):
    m = len(marks)
    numeric = np.empty((m, 0)) if numeric is None else numeric
    schema = Schema("y", {"dx": "categorical"})
    return Table("a.csv", schema, np.zeros(m), weights, numeric, marks[:, None])


@settings(max_examples=100, deadline=None)
@given(MARKS)
def test_without_a_threshold_nothing_is_unknown(marks):
    table = in_memory(np.array(marks, dtype=str))
    assert table.known_categories(1)[0][0] is not None
    assert table.known_categories(1)[0][0].tolist() == marks
    assert not table.known_categories(1)[0][1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1e-9, 0.3, 1.0, 1e9]))))
def test_rows_count_by_weight_as_many_as_equally_heavy_ones(rows):
    codes = np.array([code for code, _ in rows], dtype=np.intp)
    weights = np.array([w for _, w in rows])
    found = effective_counts(codes, 4, weights)
    for cell in range(4):
        own = weights[codes == cell]
        there = int((own > 0).sum())
        assert 0.0 <= found[cell] <= there * (1 + 1e-12)
        if there and len(set(own[own > 0])) == 1:
            assert found[cell] == there  # to the last bit: it is compared with a threshold
        elif there:
            assert found[cell] == pytest.approx(own.sum() ** 2 / (own**2).sum())
    np.testing.assert_array_equal(effective_counts(codes, 4), np.bincount(codes, minlength=4))
