"""The audit of privacy by canaries: honest mechanisms hold, broken ones are caught."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from harness import ran
from scipy import stats
from test_guides import blocks, page

from flower_fedcon.core.private import Private
from flower_fedcon.lab.canaries.canary_audit import audit, games_of
from flower_fedcon.lab.canaries.lower_bounds import by_counts, ratio_at_least
from flower_fedcon.privacy.noise import Grid

FILE = """
[problem]
name = "l1_logistic"
clients = 20
rows = 20
columns = 12

[run]
rounds = 8

[algorithm]
name = "FedDualAvg"
client_lr = 0.3
local_steps = 2
"""
RULE = 'type = "GaussianDP", clip = 0.5, target_delta = 1e-3'
CASES = {
    "everyone": f"privacy = {{{RULE}, noise_multiplier = 4.0}}",
    "bernoulli": "participation = {bernoulli = 0.3}\n"
    f"privacy = {{{RULE}, noise_multiplier = 1.0}}",
    "sample": f"participation = {{sample = 5}}\nprivacy = {{{RULE}, noise_multiplier = 2.0}}",
    "quantile": f"privacy = {{{RULE}, noise_multiplier = 4.0, quantile = 0.5}}",
    "clients": f'privacy = {{{RULE}, noise_multiplier = 4.0, noise_by = "clients", fewest = 12}}',
    "tree": 'participation = {type = "Cyclic", groups = 4}\n'
    f'privacy = {{{RULE}, noise_multiplier = 2.0, mechanism = "tree"}}',
    "banded": 'participation = {type = "Cyclic", groups = 4}\n'
    f'privacy = {{{RULE}, noise_multiplier = 2.0, mechanism = "banded"}}',
}
NODE = "[privacy]\nclip = 2.0\nnoise-multiplier = 1.0\ntarget-delta = 1e-3\nbatch-size = 300\n"


@pytest.fixture
def found(tmp_path):
    """Audit a case, with 1,000 runs each."""

    def call(case, runs=1000):
        file = tmp_path / "private.toml"
        file.write_text(NODE if case == "node" else FILE + CASES[case])
        games = games_of(file, [], 5 if case == "node" else None, 1000)
        return audit(games, runs, 0.99, 3, lambda: None)

    return call


@pytest.mark.parametrize("case", [*CASES, "node"])
def test_what_is_stated_holds_and_is_nearly_found(case, found):
    first, last = found(case)
    assert first.releases == 1
    assert last.releases == (5 if case == "node" else 8)
    for one in (first, last):
        assert one.holds
        assert one.silent == 0
        assert 0 <= one.by_counts <= one.stated
    least = 0.6 if case == "tree" else 0.7  # sums tell less than all releases of a tree
    assert least * last.stated < last.by_fit <= last.stated


@pytest.mark.parametrize("case", [*CASES, "node"])
def test_half_the_noise_is_caught(case, found, monkeypatch):
    noise = Grid.noise
    monkeypatch.setattr(Grid, "noise", lambda grid, size: noise(grid, size) // 2)
    assert not found(case)[-1].holds


def test_what_else_breaks_is_caught(found, monkeypatch):
    noise, cohort = Grid.noise, Private.cohort
    with monkeypatch.context() as patch:  # one of four entries
        quiet = np.tile([True, True, True, False], 1000)
        patch.setattr(Grid, "noise", lambda grid, size: np.where(quiet, noise(grid, size), 0))
        told = found("everyone")
        assert [one.silent for one in told] == [16, 16]
        assert [one.least for one in told] == [math.inf] * 2
    with monkeypatch.context() as patch:  # who is not drawn is drawn again
        twice = lambda private: sorted({*cohort(private), *cohort(private)})  # noqa: E731
        patch.setattr(Private, "cohort", twice)
        assert not found("bernoulli")[-1].holds
    with monkeypatch.context() as patch:  # nothing is clipped, and all is in whole steps
        steps = lambda grid, values: np.rint(values / grid._unit / 1e5).astype(np.int64)  # noqa: E731
        patch.setattr(Grid, "steps", steps)
        assert not found("everyone")[0].holds


def test_private_rows_of_an_experiment_are_played_as_often_as_a_run_asks_them(fedcon, monkeypatch):
    with open("own_rows.py", "w") as file:
        file.write(
            "import numpy as np\n"
            "from flower_fedcon import FederatedProblem\n"
            "from flower_fedcon.objectives import LeastSquares, PrivateObjective\n"
            "from flower_fedcon.privacy import ExampleDP\n"
            "def build():\n"
            "    rule = ExampleDP(1.0, 2.0, 1e-3, batch_size=20)\n"
            "    rows = np.eye(40, 3), np.ones(40)\n"
            "    return FederatedProblem([PrivateObjective(LeastSquares(*rows), rule)] * 2)\n"
        )
    with open("rows.toml", "w") as file:
        file.write(
            '[problem]\nname = "own_rows:build"\nreference = false\n[run]\nrounds = 3\n'
            '[algorithm]\nname = "FedAvg"\nclient_lr = 0.1\nlocal_steps = 2\n'
        )
    monkeypatch.syspath_prepend(".")
    command = ["privacy", "audit", "rows.toml", "--runs", "500", "--seed", "1", "--json", "a.json"]
    said = ran(fedcon, *command)
    assert "row" in said
    with open("a.json") as file:
        told = json.load(file)
    assert [one["releases"] for one in told["findings"]] == [1, 12]  # one ledger, of both clients
    assert told["runs"] == 500
    assert fedcon(*command)[1] == said
    noise = Grid.noise
    monkeypatch.setattr(Grid, "noise", lambda grid, size: noise(grid, size) // 2)
    code, said, _ = fedcon(*command)
    assert code == 1
    assert "EXCEEDED" in said


def test_what_cannot_be_audited_is_refused_in_words(fedcon):
    for options, told in (
        (["small.toml"], "has nothing private"),
        (["small.toml", "--runs", "5"], "--runs must be"),
        (["small.toml", "--confidence", "1"], "--confidence must be in [0.5, 1), got 1"),
    ):
        code, _, error = fedcon("privacy", "audit", *options)
        assert code == 2
        assert told in error


def test_the_page_s_command(fedcon):
    (line,) = (b for b in blocks("bash", page("privacy")) if "audit" in b)
    with open("mine.toml", "w") as file:
        file.write(FILE + CASES["bernoulli"].replace("1e-3", "1e-4"))
    said = ran(fedcon, *line.split()[1:])
    (shown,) = (b for b in blocks("text", page("privacy")) if "by counts" in b)
    rows = [row.split() for row in said.splitlines() if "holds" in row]
    for row, now in zip(shown.strip().splitlines()[1:], rows, strict=True):
        *then, holds = row.split()
        assert holds == "holds"
        assert [float(x) for x in now[2:7]] == pytest.approx([float(x) for x in then[2:]], rel=0.1)


def test_lower_bounds_are_too_high_no_more_often_than_they_say():
    rng, mu, delta = np.random.default_rng(5), 1.0, 0.01
    grid = np.linspace(-5, 6, 2001)
    fpr, tpr = stats.norm.sf(grid), stats.norm.sf(grid - mu)
    with np.errstate(divide="ignore", invalid="ignore"):
        truth = np.nanmax(np.log((tpr - delta) / fpr))
    high = [0, 0]
    for _ in range(100):
        absent, present = rng.standard_normal(500), mu + rng.standard_normal(500)
        high[0] += by_counts(absent, present, delta, 0.2) > truth
        high[1] += ratio_at_least(absent, present, 0.2) > mu
    assert high[0] <= 30
    assert 8 <= high[1] <= 35
