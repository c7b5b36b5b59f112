"""What stands on few of a node's rows is unknown there, whatever a server has prepared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedcon.errors import ConfigError
from flower_fedcon.problems import tables
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import prepare
from flower_fedcon.tables.design import Design
from flower_fedcon.tables.encoding import dummies
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.schema import Feature
from flower_fedcon.tables.small_cells import effective_counts
from flower_fedcon.tables.table import Table

LEAST = 5
FEATURES = {"age": "numeric", "flag": "numeric", "dx": "categorical"}


def written(folder, name, rare, rows=60, seed=0):
    """Write a table in which so many rows have the rare category; the first one has a flag."""
    rng = np.random.default_rng(seed)
    path = folder / f"{name}.csv"
    with path.open("w") as file:
        print("age,flag,dx,effect", file=file)
        for i in range(rows):
            dx, flag = "hiv" if i < rare else "ab"[i % 2], int(i == 0)
            print(f"{rng.integers(20, 90)},{flag},{dx},{rng.normal():.3f}", file=file)
    return path


def problem(folder, **more):
    paths = [written(folder, "north", 1), written(folder, "south", 20, seed=1)]
    schema = {"target": "effect", "features": FEATURES}
    return tables(data=paths, schema=schema, l1=0.01, **more)


def test_a_category_of_one_patient_is_in_no_column_of_that_node(tmp_path):
    found = problem(tmp_path, min_rows=LEAST)
    names = list(found.preparation.names)
    north, south = (f.rows for f in found.objectives)
    assert len(np.unique(north[:, names.index("dx=hiv")])) == 1
    assert len(np.unique(south[:, names.index("dx=hiv")])) == 2
    plain = problem(tmp_path).objectives[0].rows
    assert len(np.unique(plain[:, names.index("dx=hiv")])) == 2


@pytest.mark.parametrize("min_rows", [1, LEAST])
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
    rows = read_table(tmp_path / "north.csv", schema).objective(made, LEAST).rows
    assert not rows[:, [names.index("dx=hiv"), names.index("flag")]].any()


def test_the_few_rows_without_a_category_look_like_others_whatever_a_server_s_shares(tmp_path):
    """Before, the row with hiv had the server's share alone, and its outcome was one gradient."""
    rows = [f"{i % 50 + 20},{'hiv' if i == 37 else 'ab'[i % 2]},{i}" for i in range(100)]
    (tmp_path / "a.csv").write_text("\n".join(["age,dx,effect", *rows]))
    for terms in ((), ("age", "dx")):
        own = {"target": "effect", "features": {"age": "numeric", "dx": "categorical"}}
        schema = Schema.load(own | ({"terms": list(terms)} if terms else {}))
        table = read_table(tmp_path / "a.csv", schema)
        found = prepare([table], ["a"], LEAST)
        j = next(j for j, name in enumerate(found.names) if name.startswith("dx"))
        seen = []
        for share in (0.0, 1.0):
            means = found.means.copy()
            means[j] = share
            design = found.design and replace(found.design, shares={"dx": (share, share)})
            made = replace(found, means=means, scales=np.ones(len(means)), design=design)
            seen.append((table.matrix(made, LEAST) + made.centers)[:, j])
        np.testing.assert_allclose(seen[0], seen[1], atol=1e-12)
        assert np.unique(seen[0], return_counts=True)[1].min() >= LEAST


@pytest.mark.parametrize("share", [-0.1, 1e6, np.nan])
def test_what_is_no_share_is_refused_as_the_mean_of_a_category(tmp_path, share):
    found = problem(tmp_path).preparation
    means = np.where([name.startswith("dx") for name in found.names], share, found.means)
    schema = Schema.load({"target": "effect", "features": FEATURES})
    with pytest.raises(ConfigError, match=r"share of a category is .*, expected one in \[0, 1\]"):
        read_table(tmp_path / "north.csv", schema).matrix(replace(found, means=means), LEAST)
    with pytest.raises(ConfigError, match=r"expected one in \[0, 1\]"):
        Design.of({"fill": {}, "shares": {"dx": [share]}, "knots": {}, "powers": {}})


MARKS = st.lists(st.sampled_from(["", *"abcde"]), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(MARKS, st.integers(2, 6), st.data())
def test_no_few_rows_are_told_apart_by_any_preparations(marks, least, data):
    """All columns of all references, orders, shares together: rows that differ at all are many."""
    expect_many(marks, least, data)


@pytest.mark.nightly
@settings(max_examples=3000, deadline=None)
@given(MARKS, st.integers(2, 6), st.data())
def test_no_few_rows_are_told_apart_by_any_preparations_at_length(marks, least, data):
    expect_many(marks, least, data)


def expect_many(marks, least, data):
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
