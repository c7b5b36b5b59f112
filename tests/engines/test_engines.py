"""One pair, three engines, the same iterates: in process, in Ray, and on loopback nodes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import every_method
import every_node
import numpy as np
import pytest
from agreement import untimed
from apps import written
from chaos import Chaos
from deployment import Deployment
from flwr.serverapp import ServerApp
from nightly import nightly
from own_algorithm import PAIR
from own_package import install
from problems import l1ls, q6, q6_objectives
from processes import wait_until
from row_nodes import APP, model_of, node_configs, run_config

from flower_fedcon import (
    FederatedProblem,
    History,
    Sample,
    __version__,
    register,
    registry,
    simulate,
)
from flower_fedcon.flower.virtual_nodes import run_on_virtual_nodes
from flower_fedcon.objectives import Quadratic
from flower_fedcon.registry import strategy_class
from flower_fedcon.strategies import Scaffold

CLIENTS, ROUNDS, SEED = 4, 9, 3
RUNS = {  # what the problem has beside the objectives, and the method's settings
    "FedFW": ("constraint", {"penalty": 0.1}),
    "FedDualAvg": ("regularizer", {"client_lr": 0.05, "local_steps": 3, "batch_size": 4}),
    "FedMiD": ("regularizer", {"client_lr": 0.05, "local_steps": 2}),
    "own_momentum": (None, {"client_lr": 0.02, "local_steps": 2}),  # of another package
    "TAMUNA": (None, {"client_lr": 0.05, "communication_probability": 0.5}),
    "FedExProx": (None, {"step_size": 2.0, "extrapolation": "diversity"}),
    "Scaffnew": (  # ProxSkip-LSVRG, whose minibatches need rows
        None,
        {
            "client_lr": 0.01,
            "communication_probability": 0.5,
            "batch_size": 4,
            "refresh_probability": 0.3,
        },
    ),
}
EVERYONE = ["Scaffnew"]
COUNTED = ["uplink_bytes", "downlink_bytes", "cohort", "replies", "dropped", "retries"]


def run(algorithm: str, engine: str, **options) -> History:
    oracle, settings = RUNS[algorithm]
    problem = l1ls(CLIENTS, l1=0.1 if oracle == "regularizer" else 0.0)
    if oracle is None:
        problem = FederatedProblem(problem.objectives)
    given: dict = {} if oracle is None else {oracle: getattr(problem, oracle)}
    if algorithm not in EVERYONE:
        given["participation"] = Sample(count=2)
    strategy = strategy_class(algorithm)(**given, **settings)
    return simulate(strategy, problem, ROUNDS, engine=engine, seed=SEED, **options)


@pytest.fixture(scope="module", autouse=True)
def _own_package(tmp_path_factory):
    """Register the pair here, and install its package where nodes look."""
    folders = install(tmp_path_factory.mktemp("site"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_own", {})
        patch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
        register(*PAIR)
        yield


@pytest.fixture(scope="module")
def deployed(tmp_path_factory, _own_package):
    """The runs of all algorithms on four nodes, each with its own data file."""
    root = tmp_path_factory.mktemp("deployment")
    configs = node_configs(root, CLIENTS, keep=False)
    with Deployment(root / "flower", configs) as deployment:
        started = []
        for algorithm, (oracle, settings) in RUNS.items():  # together: Flower mostly waits
            arguments = {**settings, **({"oracle": oracle} if oracle else {})}
            arguments |= {} if algorithm in EVERYONE else {"sample": 2}
            folder = root / algorithm
            config = run_config(algorithm, arguments, ROUNDS, folder, seed=SEED, evaluate_every=5)
            started.append(deployment.submit(APP, config))
        for submitted in started:
            submitted.wait(timeout=900)
    return root


@pytest.mark.nightly
@pytest.mark.deployment
@pytest.mark.parametrize("algorithm", RUNS)
def test_nodes_find_the_local_iterates(algorithm, deployed):
    local = run(algorithm, "local")
    assert model_of(deployed / algorithm).tobytes() == local.x.tobytes()
    rows = History.read_rows(deployed / algorithm / "history.csv")
    assert [row["round"] for row in rows] == [5, 9]
    for row in rows:
        same = local.rows[int(row["round"]) - 1]
        assert row["objective"] == pytest.approx(same["objective"], rel=1e-12)
        assert {k: row[k] for k in COUNTED} == {k: same[k] for k in COUNTED}
    audit = (deployed / algorithm / "audit.jsonl").read_text().splitlines()
    start, *exchanges = map(json.loads, audit)
    assert [line["event"] for line in exchanges].count("applied") == ROUNDS
    assert len({client["data"] for client in start["clients"].values()} - {""}) == CLIENTS
    assert {client["version"] for client in start["clients"].values()} == {__version__}


@pytest.mark.ray
@pytest.mark.parametrize(
    ("algorithm", "block"),
    [
        ("own_momentum", None),
        nightly("FedFW", 3),
        nightly("FedDualAvg", 1),
        nightly("FedMiD", 2),
        nightly("TAMUNA", 4),
        nightly("FedExProx", 1),
        nightly("Scaffnew", 2),
    ],
)
def test_ray_finds_the_local_iterates(algorithm, block):
    local, ray = run(algorithm, "local"), run(algorithm, "ray", clients_per_message=block)
    assert ray.x.tobytes() == local.x.tobytes()
    assert untimed(ray) == untimed(local)


# --- every algorithm, in one simulation of Ray ----------------------------------------------------


@pytest.fixture(scope="module")
def found():
    """The histories of all algorithms, from one simulation."""
    histories = {}
    server = ServerApp()

    @server.main()
    def main(grid, context):
        for label in every_method.PLAYED:
            histories[label] = every_method.play(grid, label, 6, 6)

    run_on_virtual_nodes(server, every_node.client, 6)
    return histories


@pytest.mark.ray
@pytest.mark.parametrize("label", every_method.PLAYED)
def test_same_iterates(label, found):
    local = every_method.here(label, 6, 6)
    assert found[label].x.tobytes() == local.x.tobytes()
    assert untimed(found[label]) == untimed(local)


FEW = 3  # rounds on nodes, where each message is a process
APP_OF_ALL = {
    "client_app.py": "import every_node\n\napp = every_node.client\n",
    "server_app.py": "import every_method\n\napp = every_method.server\n",
    "pyproject.toml": (APP / "pyproject.toml").read_text() + "clients = 0\n",
}


@pytest.fixture(scope="module")
def on_nodes(tmp_path_factory):
    """The folder of all algorithms' runs, which one server app has played on four nodes."""
    root = tmp_path_factory.mktemp("all")
    app = written(root / "app", APP_OF_ALL)
    configs = [{"partition-id": i, "num-partitions": CLIENTS} for i in range(CLIENTS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the app's modules are in support/
        with Deployment(root / "flower", configs) as deployment:
            config = {"clients": CLIENTS, "num-server-rounds": FEW, "run-dir": str(root)}
            deployment.run(app, config, timeout=3600)
    return root


@pytest.mark.nightly
@pytest.mark.deployment
@pytest.mark.parametrize("label", every_method.PLAYED)
def test_same_iterates_on_nodes(label, on_nodes):
    local = every_method.here(label, CLIENTS, FEW, evaluate_every=0)
    assert np.load(on_nodes / label / "x.npy").tobytes() == local.x.tobytes()
    told = json.loads((on_nodes / label / "rows.json").read_text())
    assert told == json.loads(json.dumps(untimed(local)))


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


# --- nodes that are killed ------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.deployment
def test_every_run_ends_where_the_undisturbed_one_does(tmp_path):
    chaos = Chaos(tmp_path, seed=0, rounds=6)
    chaos.play(
        25,  # minutes at most: a machine may be slow
        misfortunes=[
            "a node dies twice",
            "a stranger joins",
            "the ServerApps die",
            "the server's machine goes down",
        ],
        pause=4,
    )
    assert chaos.wrong() == []


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_race_ends_where_the_undisturbed_one_does(tmp_path):
    """While values of client_lr race, a node dies and comes back, and then the ServerApp dies."""
    rounds, run = 14, tmp_path / "fedcon" / "run"
    problem = FederatedProblem(l1ls(3).objectives)
    alone = simulate(
        Scaffold(client_lr="auto", participation=Sample(count=2)), problem, rounds, seed=3
    )
    in_race = [int(row["round"]) for row in alone.rows][3]
    assert in_race == rounds - 2  # two values have a stage before them
    asked = {"client_lr": "auto", "sample": 2, "min_replies": 2}
    config = run_config(
        "Scaffold", asked, rounds, run, seed=3, evaluate_every=1, checkpoint_every=1
    )
    hold = run.parent / "hold"  # the server waits after the last four rounds
    run.parent.mkdir()
    hold.touch()
    with Deployment(tmp_path / "flower", node_configs(tmp_path, 3)) as deployment:
        held = deployment.submit(APP, config)
        told = f"[ROUND {in_race}/{rounds}] objective"
        assert wait_until(lambda: told in held.output, 1500), held.output
        deployment.kill_node(1)
        deployment.restart_node(1)
        deployment.kill_server_apps()
        hold.unlink()
        resumed = deployment.submit(APP, config | {"resume": True}).wait(1500).output
    assert model_of(run).tobytes() == alone.x.tobytes(), resumed
    rows = History.read_rows(run / "history.csv")
    assert [row["round"] for row in rows] == [row["round"] for row in alone.rows]
    for row, same in zip(rows, alone.rows, strict=True):
        assert (row["uplink_bytes"], row["lost"]) == (same["uplink_bytes"], same["lost"])
