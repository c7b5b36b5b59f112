"""SuperNode, SuperLink and ServerApp are killed while they work; nothing is lost, nothing doubled.

The nodes keep their clients' state in a `state-dir`, the server its checkpoint in the run
directory. Every run ends at the bytes of the undisturbed one.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from deployment import Deployment, DeploymentError
from problems import l1ls, l1ls_data

from flower_fedcon import FederatedProblem, History, simulate
from flower_fedcon.registry import strategy_class

APP = Path(__file__).parents[1] / "support" / "flower_app"
CLIENTS, ROUNDS, EVERY = 3, 10, 2
STEPS = {"local_steps": 2, "min_replies": CLIENTS}  # with fewer replies, ask again
RUNS = {
    "FedDualAvg": {"client_lr": 0.05, "oracle": "regularizer", **STEPS},
    "DualFL": {"strong_convexity": 0.1, "momentum": 0.0, "regularization": 0.1},
    "Scaffold": {"client_lr": 0.02, **STEPS},
}


def undisturbed(algorithm: str) -> np.ndarray:
    settings = dict(RUNS[algorithm])
    plain = l1ls(CLIENTS)
    problem = FederatedProblem(plain.objectives)
    if settings.pop("oracle", None):
        problem = l1ls(CLIENTS, l1=0.1)
        settings["regularizer"] = problem.regularizer
    strategy = strategy_class(algorithm)(**settings)
    return simulate(strategy, problem, ROUNDS, seed=3, evaluate_every=0).x


def wait_for_rounds(folder: Path, rounds: int, seconds: float = 300) -> None:
    history = folder / "history.csv"
    deadline = time.monotonic() + seconds
    while not history.exists() or EVERY * len(History.read_rows(history)) < rounds:
        assert time.monotonic() < deadline, f"{folder} has not reached round {rounds}"
        time.sleep(0.2)


@pytest.mark.deployment
@pytest.mark.usefixtures("one_thread")
def test_kill_nodes_and_server(tmp_path):
    configs = []
    for i, data in enumerate(l1ls_data(CLIENTS)):
        np.savez(tmp_path / f"client-{i}.npz", **data)
        configs.append(
            {
                "partition-id": i,
                "num-partitions": CLIENTS,
                "data": str(tmp_path / f"client-{i}.npz"),
                "state-dir": str(tmp_path / f"state-{i}"),
            }
        )

    def config(algorithm: str, *, resume: bool) -> dict[str, bool | int | str]:
        return {
            "num-server-rounds": ROUNDS,
            "seed": 3,
            "algorithm": algorithm,
            "arguments": json.dumps(RUNS[algorithm]).replace('"', "'"),
            "run-dir": str(tmp_path / algorithm),
            "evaluate-every": EVERY,
            "checkpoint-every": 2,
            "resume": resume,
        }

    hold = tmp_path / "hold"  # the faster runs wait for the slower ones: none ends undisturbed
    hold.touch()
    with Deployment(tmp_path / "flower", configs) as deployment:
        for algorithm in RUNS:
            deployment.submit(APP, config(algorithm, resume=False))
        wait_for_rounds(tmp_path / "Scaffold", 2)
        deployment.kill_node(1)
        deployment.restart_node(1)
        for algorithm in RUNS:
            wait_for_rounds(tmp_path / algorithm, 4)
        deployment.kill_superlink()
        for i in range(CLIENTS):
            deployment.kill_node(i)
        for algorithm in RUNS:  # killed in the middle, not at the end
            assert EVERY * len(History.read_rows(tmp_path / algorithm / "history.csv")) < ROUNDS
        hold.unlink()
        deployment.restart_superlink()
        for i in range(CLIENTS):
            deployment.restart_node(i)
        runs = [deployment.submit(APP, config(algorithm, resume=True)) for algorithm in RUNS]
        for run in runs:
            try:
                run.wait(timeout=400)
            except DeploymentError as error:
                pytest.fail(str(error))
    for algorithm in RUNS:
        with np.load(tmp_path / algorithm / "model.npz") as model:
            assert model["x"].tobytes() == undisturbed(algorithm).tobytes(), algorithm
        rows = History.read_rows(tmp_path / algorithm / "history.csv")
        assert [row["round"] for row in rows] == list(range(EVERY, ROUNDS + 1, EVERY))
        assert rows[-1]["lost"] == 0
