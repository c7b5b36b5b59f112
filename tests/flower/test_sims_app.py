"""`flwr run sims`, in Flower's simulation, finds what `fedcon run` finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from deployment import run_simulation_app

from flower_fedcon import simulate
from flower_fedcon.lab.experiments.experiment import Experiment

SIMS = Path(__file__).parents[2] / "sims"


@pytest.mark.nightly
@pytest.mark.ray
def test_flwr_run_sims(tmp_path):
    config = {"num-server-rounds": 4, "evaluate-every": 2, "run-dir": str(tmp_path / "run")}
    run_simulation_app(tmp_path / "flower", SIMS, 10, config, timeout=240)
    experiment = Experiment.load(SIMS / "digits_l1.toml")
    local = simulate(experiment.strategy(), experiment.problem(), 4, evaluate_every=0)
    with np.load(tmp_path / "run" / "model.npz") as model:
        assert model["x"].tobytes() == local.x.tobytes()
