"""Flower's processes on loopback: known nodes over TLS, a simulation, and none left when killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from deployment import CONNECTION, Deployment, Simulation
from problems import l1ls
from processes import FlowerProcess, free_ports, processes_of, wait_until
from row_nodes import APP, model_of, node_configs, run_config
from security import Security

from flower_fedcon import Sample, simulate
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.strategies import FedFW

TESTS = Path(__file__).parents[1]
SIMS = TESTS.parent / "sims"


@pytest.mark.nightly
@pytest.mark.deployment
def test_known_nodes_over_tls(tmp_path):
    security = Security(tmp_path / "keys", nodes=3, names={1: "lyon"})
    configs = node_configs(tmp_path, 2, keep=False)
    with Deployment(tmp_path / "flower", configs, security=security) as deployment:
        command = [
            "flower-supernode", *security.node_options(2),  # a key that nobody registered
            "--superlink", f"127.0.0.1:{deployment.port}", "--host", "127.0.0.1",
            "--port", str(free_ports(1)[0]), "--max-retries", "1",
        ]  # fmt: skip
        stranger = FlowerProcess(deployment.root, "stranger", command)
        try:
            stranger.start()
            arguments = {"penalty": 0.1, "oracle": "constraint", "sample": 1}
            given = {"seed": 5, "authenticated": True}
            config = run_config("FedFW", arguments, 3, tmp_path / "run", **given)
            deployment.run(APP, config, timeout=150)
            assert wait_until(lambda: not stranger.alive(), 60), stranger.log_tail()
            assert "SuperNode ID" not in stranger.log()
        finally:
            stranger.kill()
        listed = json.loads(deployment.flwr("supernode", "list", CONNECTION, "--format", "json"))
        assert len(listed["nodes"]) == 2
    began, *_ = (tmp_path / "run" / "audit.jsonl").read_text().splitlines()
    assert list(json.loads(began)["clients"]) == ["0", "lyon"]  # as it says, or as registered
    problem = l1ls(2)
    strategy = FedFW(problem.constraint, penalty=0.1, participation=Sample(count=1))
    expected = simulate(strategy, problem, 3, seed=5).x
    assert model_of(tmp_path / "run").tobytes() == expected.tobytes()


@pytest.mark.nightly
@pytest.mark.ray
def test_flwr_run_sims_finds_what_fedcon_run_finds(tmp_path):
    config = {"num-server-rounds": 4, "evaluate-every": 2, "run-dir": str(tmp_path / "run")}
    with Simulation(tmp_path / "flower", 10) as simulation:
        simulation.run(SIMS, config, timeout=240)
    experiment = Experiment.load(SIMS / "digits_l1.toml")
    local = simulate(experiment.strategy(), experiment.problem(), 4, evaluate_every=0)
    with np.load(tmp_path / "run" / "model.npz") as model:
        assert model["x"].tobytes() == local.x.tobytes()


KILLED = """
import sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from processes import FlowerProcess, free_ports

link, port = free_ports(2)
node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port)]
FlowerProcess(Path(sys.argv[2]), "node", node).start()
print("started", flush=True)
time.sleep(60)
"""


def test_a_killed_test_leaves_no_process(tmp_path):
    command = [sys.executable, "-c", KILLED, TESTS / "support", tmp_path]
    test = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert test.stdout is not None
        assert test.stdout.readline() == "started\n"
        # A process that has only just been started may not show its environment yet.
        assert wait_until(lambda: bool(processes_of(tmp_path)), 15)
    finally:
        test.kill()
        test.communicate()
    try:
        assert wait_until(lambda: not processes_of(tmp_path), 15)
    finally:
        for pid in processes_of(tmp_path):
            os.kill(pid, signal.SIGKILL)
