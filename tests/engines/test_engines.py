"""One pair, three engines, the same iterates: in process, in Ray, and on loopback nodes."""

from __future__ import annotations

import json
import os

import pytest
from deployment import Deployment
from nightly import nightly
from own_algorithm import PAIR
from own_package import install
from problems import l1ls
from row_nodes import APP, model_of, node_configs, run_config
from test_resume import untimed

from flower_fedcon import (
    FederatedProblem,
    History,
    Sample,
    __version__,
    register,
    registry,
    simulate,
)
from flower_fedcon.registry import strategy_class

CLIENTS, ROUNDS, SEED = 4, 9, 3
RUNS = {  # what the problem has beside the objectives, and the method's settings
    "FedFW": ("constraint", {"penalty": 0.1}),
    "FedDualAvg": ("regularizer", {"client_lr": 0.05, "local_steps": 3, "batch_size": 4}),
    "FedMiD": ("regularizer", {"client_lr": 0.05, "local_steps": 2}),
    "own_momentum": (None, {"client_lr": 0.02, "local_steps": 2}),  # of another package
    "TAMUNA": (None, {"client_lr": 0.05, "communication_probability": 0.5}),
    "FedExProx": (None, {"step_size": 2.0, "extrapolation": "diversity"}),
}
COUNTED = ["uplink_bytes", "downlink_bytes", "cohort", "replies", "dropped", "retries"]


def run(algorithm: str, engine: str, **options) -> History:
    oracle, settings = RUNS[algorithm]
    problem = l1ls(CLIENTS, l1=0.1 if oracle == "regularizer" else 0.0)
    if oracle is None:
        problem = FederatedProblem(problem.objectives)
    given = {} if oracle is None else {oracle: getattr(problem, oracle)}
    strategy = strategy_class(algorithm)(**given, **settings, participation=Sample(count=2))
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
            arguments = {**settings, **({"oracle": oracle} if oracle else {}), "sample": 2}
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
    ],
)
def test_ray_finds_the_local_iterates(algorithm, block):
    local, ray = run(algorithm, "local"), run(algorithm, "ray", clients_per_message=block)
    assert ray.x.tobytes() == local.x.tobytes()
    assert untimed(ray) == untimed(local)
