"""Nodes send no rows: sums of standard errors show an outcome that is turned round at one."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import on_grid
from table_nodes import start
from tabular import deal, judged, numeric

from flower_fedcon.tables import Schema


@on_grid
@pytest.mark.parametrize("phases", ["train,evaluate,prepare,certify,statistics", ""])
def test_nodes_show_it_by_the_sums_of_errors(phases, tmp_path):
    """And not without these, where a policy does not list them."""
    frame, site = judged((1,))
    deal(tmp_path, frame, [np.flatnonzero(site == k) for k in range(3)], "s")
    files = [tmp_path / f"s{k}.csv" for k in range(3)]
    schema = {"target": "y", "features": numeric(*"abcde"), "positive": [1], "negative": [0]}
    node = {"policy.phases": phases} if phases else {"policy.phases": "train,evaluate,prepare"}
    report = start(files, Schema.load(schema), 12, node=node, inference="model").report
    assert ["at s1 (" in line for line in report.remarks] == [True] * bool(phases)


@on_grid
def test_nodes_show_a_number_that_is_turned_round(tmp_path):
    frame, site = judged()
    rng = np.random.default_rng(0)
    frame["y"] = (frame["a"] - frame["b"] + rng.normal(size=300)) * (1 - 2 * (site == 1))
    deal(tmp_path, frame, [np.flatnonzero(site == k) for k in range(3)], "s")
    files = [tmp_path / f"s{k}.csv" for k in range(3)]
    schema = Schema("y", numeric(*"abcde"))
    (said,) = start(files, schema, 6, inference="model").report.remarks
    assert said.startswith("columns have effects on the outcome opposite to those elsewhere at s1:")


@on_grid
def test_nodes_show_counts_of_0_and_1(tmp_path):
    rng = np.random.default_rng(0)
    frame, site = judged()
    frame["y"] = rng.poisson(1.5, 300)
    frame.loc[site == 1, "y"] = np.minimum(frame["y"], 1)
    deal(tmp_path, frame, [np.flatnonzero(site == k) for k in range(3)], "s")
    files = [tmp_path / f"s{k}.csv" for k in range(3)]
    (said,) = start(files, Schema("y", numeric(*"abcde"), loss="poisson"), 1).report.remarks
    mean = frame["y"][100:200].mean()
    above = 100 * (1 - np.exp(-mean) * (1 + mean))
    assert said == (
        f"column 'y': all counts at s1 are 0 or 1, where about {above:.0f} would be above 1 at its "
        f"own rate: does 1 stand for one or more there?"
    )


@on_grid
def test_nodes_show_an_exposure_in_another_unit(tmp_path):
    """By the sums before round 1, which every node's policy allows."""
    rng = np.random.default_rng(0)
    frame = judged()[0].assign(years=lambda d: rng.uniform(1, 3, len(d)))
    frame["y"] = rng.poisson(frame["years"])
    frame.loc[100:199, "years"] *= 365.25
    deal(tmp_path, frame, [range(k * 100, (k + 1) * 100) for k in range(3)], "s")
    files = [tmp_path / f"s{k}.csv" for k in range(3)]
    features = numeric(*"abcde")
    schema = Schema("y", features, loss="poisson", exposure="years")
    node = {"policy.phases": "train,evaluate,prepare"}
    (said,) = start(files, schema, 1, node=node).report.remarks
    rate = frame["y"][100:200].sum() / frame["years"][100:200].sum()
    assert said.startswith("column 'years': values at s1 are about 360 times those of the others")
    assert f"'y' per exposure is {rate:.3g} there" in said
