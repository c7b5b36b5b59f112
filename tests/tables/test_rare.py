"""What stands on few of a node's rows is unknown there, whatever a server has prepared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedcon.problems import tables
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.encoding import unknown_here
from flower_fedcon.tables.preparation import Preparation

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
    found = problem(tmp_path, min_rows=LEAST).preparation
    names, p = list(found.names), len(found.names)
    made = Preparation.from_payload({**found.payload, "means": np.zeros(p), "scales": np.ones(p)})
    schema = Schema.load({"target": "effect", "features": FEATURES})
    rows = read_table(tmp_path / "north.csv", schema).objective(made, LEAST).rows
    assert not rows[:, [names.index("dx=hiv"), names.index("flag")]].any()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=40), st.integers(2, 6), st.integers(0, 4))
def test_no_few_rows_are_told_apart_by_columns(places, least, reference):
    """No combination of columns and intercept is 1 in few rows and 0 in all others."""
    places = np.array(places)
    columns = [k for k in range(5) if k != reference]
    block = (places[:, None] == np.array(columns)).astype(float)
    hidden = unknown_here(places, columns, np.arange(len(places)), least)
    means = np.array([0.1, 0.2, 0.15, 0.3])
    block[places < 0] = means
    for column in hidden:
        block[:, columns.index(column)] = means[columns.index(column)]
    seen = np.column_stack([block, np.ones(len(block))])
    kinds, counts = np.unique(seen, axis=0, return_counts=True)
    if len(places) < least:
        return  # such a node takes no part
    for k in np.flatnonzero(counts < least):
        others = np.delete(kinds, k, axis=0)
        assert np.linalg.matrix_rank(kinds) == np.linalg.matrix_rank(others)
