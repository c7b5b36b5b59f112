"""`fedcon data curves`: what tables with a schema give is what their columns give."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import pytest
from fake_grid import FakeGrid, on_grid
from harness import Command, refusal
from trials import gbsg2

from flower_fedcon import client_app, simulate
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives.cohorts import unscaled
from flower_fedcon.problems.tables import clients_of, prepared_problem, tables
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedNewton
from flower_fedcon.survival import kaplan_meier, logrank
from flower_fedcon.survival.of_tables import curves_of_tables
from flower_fedcon.tables import Schema, read_table

SCHEMA = """
target = "time"
event = "cens"
ties = "efron"
[features]
age = "numeric"
horTh = "categorical"
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """gbsg2 as one file of three sites."""
    monkeypatch.chdir(tmp_path)
    table = gbsg2()
    table.to_csv("all.csv", index=False)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "study.toml").write_text(
        '[problem]\nname = "tables"\ndata = "all.csv"\nschema = "schema.toml"\n'
        'client_column = "tgrade"\n[algorithm]\nname = "FedNewton"\n[run]\nrounds = 5\n'
    )
    return table


def test_tables_give_what_columns_give(study):
    clients, names = clients_of("all.csv", "schema.toml", "tgrade")
    curves, test = curves_of_tables(clients, names, "horTh", stratified=True)
    assert names == ["I", "II", "III"]
    own = study["horTh"] == "yes"
    time, event, site = study["time"], study["cens"], study["tgrade"]
    expected = kaplan_meier(time[own], event[own], groups=site[own])
    assert curves["yes"].at(expected.time) == pytest.approx(expected.survival, rel=1e-12)
    theirs = logrank(time, event, study["horTh"], groups=site, stratified=True)
    assert test.statistic == pytest.approx(theirs.statistic, rel=1e-12)
    alone, none = curves_of_tables(clients, names, grid=[500, 1000, 2000], min_rows=20)
    assert none is None
    assert list(alone) == ["all"]
    with pytest.raises(ConfigError, match="'age' is no categorical feature"):
        curves_of_tables(clients, names, "age")


FILES = ["I.csv", "II.csv", "III.csv"]
TIMES = [200.0, 500.0, 1000.0, 1500.0, 2000.0]


@pytest.fixture
def sites(study):
    """The same as a file for each site, of a schema with times of curves."""
    for file in FILES:
        study[study["tgrade"] == file.removesuffix(".csv")].to_csv(file, index=False)
    return tomllib.loads(f'curve_times = {TIMES}\ncurve_by = "horTh"\n{SCHEMA}')


def start(schema, policy, folder):
    known = Schema.load(schema)

    def make(load):
        return client_app(lambda context: read_table(context.node_config["data"], known))

    grid = FakeGrid(FILES, make=make)
    for j, file in enumerate(FILES):
        config = {"data": file, "name": file.removesuffix(".csv"), **policy}
        grid.nodes[1000 - j].node_config |= config
    strategy = FedNewton(L1(0.01))
    return strategy.start(
        grid, num_rounds=2, schema=schema, weighting="examples", run_dir=folder
    ).history


@on_grid
def test_nodes_count_what_this_process_counts(sites, study):
    policy = {"policy.phases": "train,query,evaluate,prepare,curves", "policy.min-rows": 5}
    there = start(sites, policy, "nodes")
    problem = tables(data=FILES, schema=sites, l1=0.01, min_rows=5)
    here = simulate(FedNewton(L1(0.01)), problem, 2, run_dir="here")
    assert there.report.text == here.report.text
    assert there.x.tobytes() == here.x.tobytes()
    assert Path("nodes/curves.csv").read_bytes() == Path("here/curves.csv").read_bytes()
    time, event, arm, site = (study[name] for name in ("time", "cens", "horTh", "tgrade"))
    test = logrank(time, event, arm, site, stratified=True, grid=TIMES, min_rows=5)
    assert f"stratified by client: chi2 {test.statistic:.5g}, degrees" in here.report.text
    _, *rows = csv.reader(Path("here/curves.csv").read_text().splitlines())
    assert [row[0] for row in rows] == ["no"] * 5 + ["yes"] * 5
    assert all(int(count) == 0 or int(count) >= 5 for row in rows for count in row[2:4])


@on_grid
def test_a_node_counts_only_where_its_policy_says_so(sites):
    with pytest.raises(FedConError, match=r"policy has policy\.phases = train.*, not curves"):
        start(sites, {}, "nodes")


WRONG = {
    "descending": ({"curve_times": [2, 1]}, "each later than the one before"),
    "no categories": ({"curve_times": [1], "curve_by": "age"}, "must be a categorical feature"),
    "no times": ({"curve_by": "horTh"}, "curve_by is for the curves"),
    "another loss": ({"event": "", "curve_times": [1]}, "curve_times is for loss"),
    "ties": ({"event": "", "ties": "efron"}, "ties = .* is for loss"),
    "no such ties": ({"ties": "exact"}, "'breslow', 'efron'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_schemas_that_cannot_be(case):
    more, words = WRONG[case]
    with pytest.raises(ConfigError, match=words):
        Schema.load(tomllib.loads(SCHEMA) | more)


def test_ties_reach_the_model(study):
    clients, names = clients_of("all.csv", "schema.toml", "tgrade")
    problem = prepared_problem(clients, names)
    assert {f.ties for f in (unscaled(f)[0] for f in problem.objectives)} == {"efron"}


def test_the_command(study, run_command: Command):
    code, out, _ = run_command(
        "data", "curves", "study.toml", "--by", "horTh", "--stratified", "-o", "c.svg"
    )
    assert code == 0
    assert "stratified log-rank test: chi2 7.396, 1 degrees of freedom, p = 0.00654" in out
    assert "figure: c.svg" in out
    told = refusal(run_command, "data", "curves", "study.toml", "--grid", "90,x")
    assert "--grid must be times with commas between, got '90,x'" in told
    told = refusal(run_command, "data", "curves", "study.toml", "--grid", "90", "-o", "c.gif")
    assert "c.gif" in told
