"""`fedcon data curves`: what tables with a schema give is what their columns give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import Command, refusal
from trials import gbsg2

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.cohorts import unscaled
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.strategies import FedAvg, FedNewton
from flower_fedcon.survival import kaplan_meier, logrank
from flower_fedcon.survival.of_tables import curves_of_tables
from flower_fedcon.tables.builders import clients_of, prepared_problem

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
    with pytest.raises(ConfigError, match="'age' is not a categorical feature"):
        curves_of_tables(clients, names, "age")


def test_ties_reach_the_model(study):
    clients, names = clients_of("all.csv", "schema.toml", "tgrade")
    problem = prepared_problem(clients, names)
    assert {f.ties for f in (unscaled(f)[0] for f in problem.objectives)} == {"efron"}


def test_private_runs_have_no_curves(study):
    """Before, such a run wrote each client's numbers of events at each time into its folder."""
    privacy = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    method = FedAvg(client_lr=0.1, local_steps=1, privacy=privacy)
    made = [prepared_problem(*clients_of("all.csv", "schema.toml", "tgrade"))]
    Path("schema.toml").write_text("curve_times = [500, 1000]" + SCHEMA)
    made.append(prepared_problem(*clients_of("all.csv", "schema.toml", "tgrade")))
    assert simulate(method, made[0], 1).stopped is False
    with pytest.raises(ConfigError, match="curve_times cannot be used with privacy="):
        simulate(method, made[1], 1)


def test_a_report_says_between_which_times_a_median_lies(study):
    exact = kaplan_meier(study["time"], study["cens"], groups=study["tgrade"]).median
    Path("schema.toml").write_text("curve_times = [400, 900, 1900, 2500]" + SCHEMA)
    made = prepared_problem(*clients_of("all.csv", "schema.toml", "tgrade"))
    text = simulate(FedNewton(made.regularizer), made, 2).report.text
    (said,) = re.findall(r"median time to the event: all after (\d+), up to (\d+)\n", text)
    assert float(said[0]) < exact <= float(said[1])
    Path("schema.toml").write_text("curve_times = [400, 900]" + SCHEMA)
    made = prepared_problem(*clients_of("all.csv", "schema.toml", "tgrade"))
    text = simulate(FedNewton(made.regularizer), made, 2).report.text
    assert "median time to the event: all not reached\n" in text


def test_commands_that_look_at_data_need_no_rounds(study, run_command: Command):
    """Before: "rounds is missing: write rounds = 100, or another number, below [run]"."""
    Path("study.toml").write_text(Path("study.toml").read_text().partition("[run]")[0])
    assert run_command("data", "curves", "study.toml", "--by", "horTh")[0] == 0
    assert run_command("data", "partition", "study.toml", "-o", "rows.svg")[0] == 0
    assert "rounds is missing" in refusal(run_command, "run", "study.toml")


def test_the_command(study, run_command: Command):
    code, out, _ = run_command(
        "data", "curves", "study.toml", "--by", "horTh", "--stratified", "-o", "c.svg"
    )
    assert code == 0
    assert "stratified log-rank test: chi2 7.396, 1 degrees of freedom, p = 0.00654" in out
    assert "figure: c.svg" in out
    code, out, _ = run_command(
        "data", "curves", "study.toml", "--by", "horTh", "--grid", "100,2000,2999", "--min-rows",
        "40",
    )  # fmt: skip
    assert code == 0
    assert "nan" not in out
    assert "events, in counts below --min-rows" in out
    assert "median: up to the next grid time" in out
    told = refusal(run_command, "data", "curves", "study.toml", "--grid", "90,x")
    assert "--grid must be times separated by commas, such as 30,60,90, got '90,x'" in told
    told = refusal(run_command, "data", "curves", "study.toml", "--grid", "90", "-o", "c.gif")
    assert "c.gif" in told
