"""In Ray a worker that dies is started again, and nothing shows in the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from problems import q6, q6_objectives
from test_resume import untimed

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import Scaffold


class Dies(Quadratic):
    """Takes its worker with it, the first time that it is asked for a gradient."""

    flag = ""

    def gradient(self, x):
        if self.flag and not Path(self.flag).exists():
            Path(self.flag).touch()
            os._exit(1)
        return super().gradient(x)


@pytest.mark.nightly
@pytest.mark.ray
def test_a_worker_that_dies_is_started_again(tmp_path):
    objectives = list(q6_objectives())
    objectives[2] = Dies(objectives[2].Q, objectives[2].b)
    objectives[2].flag = str(tmp_path / "flag")
    strategy = Scaffold(client_lr=1 / 40, local_steps=2)
    options = {"engine": "ray", "clients_per_message": 3, "evaluate_every": 0}
    there = simulate(strategy, FederatedProblem(objectives), 3, **options)
    assert Path(objectives[2].flag).exists()
    here = simulate(strategy, q6(), 3, evaluate_every=0)
    assert there.x.tobytes() == here.x.tobytes()
    assert untimed(there) == untimed(here)
