"""Who took part in each round stands in the run's folder."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flower_fedcon import (
    Available,
    Buffered,
    Clock,
    FederatedProblem,
    Sample,
    read_cohorts,
    simulate,
)
from flower_fedcon.errors import FedConError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.problems import digits
from flower_fedcon.strategies import FedAvg, FedFW

TRACE = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 1, 0]])
PRESENT = [[0, 1, 2, 3], [0, 2, 3], [2]]


def clients(kind=LeastSquares):
    rng = np.random.default_rng(0)
    return FederatedProblem(
        [kind(rng.standard_normal((5, 3)), rng.standard_normal(5)) for _ in TRACE[0]]
    )


class Failing(LeastSquares):
    """A client that answers for the first time in the third round that asks it."""

    def gradient(self, x):
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked < 3:
            raise RuntimeError("not yet")
        return super().gradient(x)


@pytest.mark.parametrize("engine", ["local", "stacked", "jax"])
def test_cohorts_are_those_of_the_trace_also_in_resumed_runs(engine, tmp_path):
    if engine == "jax":
        pytest.importorskip("jax")
    rule = FedAvg(participation=Available(TRACE), client_lr=0.1)
    options = {"engine": engine, "run_dir": tmp_path / "run", "evaluate_every": 4}
    simulate(rule, clients(), 8, **options)
    path = tmp_path / "run" / "cohorts.jsonl"
    with path.open("a") as file:
        file.write('{"round": 9, "dra')  # of a process that was killed
    assert len(read_cohorts(tmp_path / "run")) == 8
    simulate(rule, clients(), 12, resume=True, **options)
    rows = read_cohorts(tmp_path / "run")
    assert [row["round"] for row in rows] == [*range(1, 13)]
    assert [row["drawn"] for row in rows] == [row["used"] for row in rows] == PRESENT * 4
    assert path.read_text().splitlines()[:3] == [
        '{"clients": 4}',
        '{"round": 1, "drawn": "all", "used": "all"}',
        '{"round": 2, "drawn": "0 2-3", "used": "0 2-3"}',
    ]


def test_uploads_that_are_not_used_are_told_apart(tmp_path):
    problem = clients()
    problem.objectives[1] = Failing(np.eye(3), np.ones(3))
    method = FedAvg(client_lr=0.1, min_replies=2)
    simulate(method, problem, 5, run_dir=tmp_path / "run", audit=True)
    rows = read_cohorts(tmp_path / "run")
    assert [row["drawn"] for row in rows] == [[0, 1, 2, 3]] * 5
    lines = (tmp_path / "run" / "audit.jsonl").read_text().splitlines()
    applied = [line["used"] for line in map(json.loads, lines) if line["event"] == "applied"]
    assert [[*map(str, row["used"])] for row in rows] == applied
    assert applied[0] == ["0", "2", "3"]
    assert applied[-1] == ["0", "1", "2", "3"]


def test_two_exchanges_of_a_round_have_one_cohort(tmp_path):
    problem = digits(l1_radius=9.0)
    method = FedFW(problem.constraint, participation=Sample(count=3))
    simulate(method, problem, 4, run_dir=tmp_path / "run", audit=True)
    lines = (tmp_path / "run" / "audit.jsonl").read_text().splitlines()
    applied = [line["used"] for line in map(json.loads, lines) if line["event"] == "applied"]
    assert [[*map(str, row["used"])] for row in read_cohorts(tmp_path / "run")] == applied


def test_in_a_race_they_are_those_of_the_winner(tmp_path):
    """In the race they count its own rounds; after it all, as the history does."""
    method = FedAvg(client_lr="auto", participation=Sample(count=3))
    history = simulate(method, digits(), 30, run_dir=tmp_path / "run", audit=True)
    rows = read_cohorts(tmp_path / "run")
    numbers = [row["round"] for row in rows]
    assert numbers == sorted({*numbers})
    others = sum(row["rounds"] for row in history.race if not row["chosen"])
    assert 0 < len(rows) == 30 - others < 30
    assert all(len(row["used"]) == 3 for row in rows)


def test_runs_without_such_a_file(tmp_path):
    """Noise does not cover it, or there are steps in place of rounds."""
    private = FedAvg(
        client_lr=0.1, privacy=GaussianDP(1.0, noise_multiplier=1.0, target_delta=1e-5)
    )
    simulate(private, clients(), 2, run_dir=tmp_path / "private")
    flow = FedAvg(client_lr=0.1, participation=Buffered(buffer=2))
    simulate(flow, clients(), 2, run_dir=tmp_path / "flow", clock=Clock(compute=1.0))
    for name in ("private", "flow"):
        with pytest.raises(FedConError, match=r"cohorts.jsonl: no such file. A private run"):
            read_cohorts(tmp_path / name)


def test_damaged_files_are_refused(tmp_path):
    run = tmp_path / "run"
    simulate(FedAvg(client_lr=0.1), clients(), 3, run_dir=run)
    path = run / "cohorts.jsonl"
    whole = path.read_text()
    path.write_text(whole.replace('"all"', '"7-9"', 1))
    with pytest.raises(FedConError, match=r"cohorts.jsonl is damaged in line 2 \("):
        read_cohorts(run)
    path.write_text("".join(whole.splitlines(keepends=True)[:2]))
    with pytest.raises(FedConError, match=r"has 2 of the 4 lines .* restore the file"):
        simulate(FedAvg(client_lr=0.1), clients(), 5, run_dir=run, resume=True)
