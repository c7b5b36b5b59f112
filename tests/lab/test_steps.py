"""The study of steps: rounds by rule and by race beside the best of a grid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flower_fedcon import FederatedProblem, Full, simulate
from flower_fedcon.cli import main
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.steps.cells import StepStudy, in_units
from flower_fedcon.lab.steps.measuring import _read, run_steps
from flower_fedcon.lab.steps.outcome import cells_of, grown, share_of, to_markdown
from flower_fedcon.problems.papers.quadratics import quadratics
from flower_fedcon.strategies import FedDyn

ROOT = Path(__file__).parents[2]
SMALL = """
title = "small"
levels = [1e-2, 1e-3]
rounds = 60
powers = 3
cohorts = [4, 2]
conditions = [10.0, 100.0]
seeds = [0]

[[family]]
label = "a family"
problem = {name = "quadratics", clients = 4, columns = 5}
methods = ["FedDyn.proximal"]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)
    return Path("small.toml")


def test_a_study_is_played_once_and_shown(file, capsys):
    command = ["steps", str(file), "--run-dir", "runs", "--workers", "1", "--figure", "steps.png"]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "| FedDyn.proximal | " in told
    assert "| 4 in a round | " in told
    assert Path("steps.png").stat().st_size > 10_000
    before = {path.name: path.stat().st_mtime_ns for path in Path("runs").iterdir()}
    assert len(before) == 2
    assert main([*command, "--markdown", "table.md"]) == 0
    assert "2 of 2 problems found" in capsys.readouterr().out
    assert {path.name: path.stat().st_mtime_ns for path in Path("runs").iterdir()} == before
    assert Path("table.md").read_text() in told


def test_rounds_are_those_of_runs(file):
    study = StepStudy.load(file)
    rows = run_steps(study, Path("runs"), workers=1, say=lambda _: None)
    (row,) = [row for row in rows if (row["condition"], row["cohort"]) == (10.0, 4)]
    problem = next(study.jobs()).problem()
    problem.optimum  # noqa: B018  (then residuals are recorded)
    gap = problem.objective(problem.start) - problem.optimum.value
    for way, value in (("rule", None), ("race", "auto")):
        history = simulate(FedDyn(participation=Full(), proximal=value), problem, 60, seed=0)
        for level, rounds in zip(study.levels, row[way], strict=True):
            first = next(r["round"] for r in history.rows if r["residual"] <= level * gap)
            assert first == rounds
    columns = zip(*row["grid"].values(), strict=True)
    assert row["best"] == [min(filter(None, column)) for column in columns]
    assert grown(rows) == []


def test_a_folder_of_another_study_is_refused(file):
    main(["steps", str(file), "--run-dir", "runs", "--workers", "1"])
    file.write_text(SMALL.replace("rounds = 60", "rounds = 61"))
    with pytest.raises(ConfigError, match="holds runs of another study"):
        run_steps(StepStudy.load(file), Path("runs"), workers=1, say=lambda _: None)


@pytest.mark.parametrize(
    ("there", "here", "said"),
    [
        ("rounds = 60\n", "", "rounds is missing"),
        ('label = "a family"', "label = 3", "label must be a text in quotes, got 3"),
        ('"quadratics"', '"quadratic"', "problem.name must be"),
        ("seeds = [0]", "seed = [0]", "unknown key 'seed'"),
    ],
)
def test_files_that_are_refused(file, there, here, said):
    file.write_text(SMALL.replace(there, here))
    with pytest.raises(ConfigError, match=said):
        StepStudy.load(file)


def test_units_change_numbers_and_nothing_else():
    plain = quadratics(clients=3, columns=4, l1=0.1)
    other = in_units(plain, 100.0, 1e-3)
    found = FederatedProblem(other.objectives, regularizer=other.regularizer).optimum
    assert found.x == pytest.approx(other.optimum.x, rel=1e-6, abs=1e-9)
    assert found.value == pytest.approx(1e-3 * plain.optimum.value, rel=1e-9)


def test_a_cell_is_the_median_of_its_seeds_and_undecided_where_the_grid_arrives_seldom():
    def row(seed, race, best):
        who = {"family": "f", "method": "m", "condition": 10.0, "cohort": 1, "seed": seed}
        return {**who, "race": [race], "best": [best]}

    rows = [row(0, 30, 10), row(1, 15, 10), row(2, None, 10)]
    assert list(cells_of(rows, "race").values()) == [3.0]
    assert list(cells_of(rows[:2], "race").values()) == [2.25]
    assert cells_of([row(0, 30, 10), row(1, None, None)], "race") == {}
    assert cells_of(rows, "paper") == {}
    assert share_of([1.0, 3.0])[:2] == (1, 2)


def test_the_page_has_the_table_of_the_recorded_runs():
    study = StepStudy.load(ROOT / "sims/benchmarks/steps.toml")
    folder = ROOT / "sims/benchmarks/steps"
    there = {path.stem for path in folder.iterdir()}
    jobs = [job for job in study.jobs() if job.name in there]
    assert len(jobs) == len(there) >= 21
    rows = [row for job in jobs for row in _read(folder / f"{job.name}.json", job, study)]
    page = (ROOT / "docs/server_steps.md").read_text(encoding="utf-8")
    assert to_markdown(rows, study.levels) in page


def test_the_shipped_study_can_be_made():
    study = StepStudy.load(ROOT / "sims/benchmarks/steps.toml")
    for job in {job.family.label: job for job in study.jobs()}.values():
        problem = job.problem()
        mu = min(f.strong_convexity for f in problem.objectives)
        L = max(f.smoothness for f in problem.objectives)
        assert L / mu == pytest.approx(job.condition, rel=1e-6)
        assert json.dumps(job.family.problem)
