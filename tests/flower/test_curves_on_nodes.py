"""Curves of tables on nodes: this process's numbers, where a node's policy lists them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from trials import gbsg2

from flower_fedcon import client_app, simulate
from flower_fedcon.errors import FedConError
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedNewton
from flower_fedcon.survival import logrank
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.packed_text import packed_text

FILES = ["I.csv", "II.csv", "III.csv"]
SCHEMA = {
    "target": "time",
    "event": "cens",
    "curve_times": [200.0, 500.0, 1000.0, 1500.0, 2000.0],
    "curve_by": "horTh",
    "features": {"age": "numeric", "horTh": "categorical"},
}


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """Return gbsg2 and its schema with times of curves; each site has a file."""
    monkeypatch.chdir(tmp_path)
    study = gbsg2()
    for file in FILES:
        study[study["tgrade"] == file.removesuffix(".csv")].to_csv(file, index=False)
    return study, SCHEMA


def start(schema, policy, folder, **more):
    known = Schema.load(schema)

    def make(load):
        return client_app(lambda context: read_table(context.node_config["data"], known))

    grid = FakeGrid(FILES, make=make)
    for j, file in enumerate(FILES):
        config = {"data": file, "name": file.removesuffix(".csv"), **policy}
        grid.nodes[1000 - j].node_config |= config
    strategy = FedNewton(L1(0.01))
    return strategy.start(
        grid, num_rounds=2, schema=schema, weighting="examples", run_dir=folder, **more
    ).history


@on_grid
def test_nodes_count_what_this_process_counts(sites):
    study, schema = sites
    policy = {"policy.phases": "train,query,evaluate,prepare,curves", "policy.min-rows": 5}
    there = start(schema, policy, "nodes")
    problem = tables(data=FILES, schema=schema, l1=0.01, min_rows=5)
    here = simulate(FedNewton(L1(0.01)), problem, 2, run_dir="here")
    said = [line for line in here.report.lines if "log-rank" in line or "median" in line]
    assert len(said) == 3
    assert said == there.report.lines[-3:]
    assert there.x.tobytes() == here.x.tobytes()
    assert Path("nodes/curves.csv").read_bytes() == Path("here/curves.csv").read_bytes()
    time, event, arm, site = (study[name] for name in ("time", "cens", "horTh", "tgrade"))
    test = logrank(time, event, arm, site, stratified=True, grid=SCHEMA["curve_times"], min_rows=5)
    assert f"stratified by client: chi2 {test.statistic:.5g}, degrees" in here.report.text
    assert "not a number at risk at a time" in here.report.text
    header, *rows = csv.reader(Path("here/curves.csv").read_text().splitlines())
    assert header[2] == "adjusted_at_risk"  # less some of the rows censored in the interval
    assert [row[0] for row in rows] == ["no"] * 5 + ["yes"] * 5
    assert all(int(count) == 0 or int(count) >= 5 for row in rows for count in row[2:4])


@on_grid
def test_a_node_counts_only_where_its_policy_says_so(sites):
    with pytest.raises(FedConError, match=r"policy has policy\.phases = train.*, not curves"):
        start(sites[1], {}, "nodes", max_retries=0)


def test_an_answer_says_no_more_of_other_arms(sites):
    """Whichever arms a server asks for, intervals are merged for the node's own."""
    table = read_table("I.csv", Schema.load(sites[1]))
    both, alone, none = (
        table.answer("curves", {"categories": packed_text({"horTh": arms})}, 5)
        for arms in (["no", "yes"], ["yes"], ["other"])
    )
    for name in ("at_risk", "events"):
        np.testing.assert_array_equal(both[name].reshape(-1, 2)[:, 1], alone[name])
        assert not none[name].any()
    asked = {"categories": packed_text({"horTh": ["no", "yes"]})}
    assert not table.answer("curves", asked, 10_000)["at_risk"].any()  # of no arm enough rows
