"""The quickstart's variants by `flwr run`: in Flower's simulation, and on SuperNodes that die."""

from __future__ import annotations

import pytest
from deployment import Deployment, DeploymentError, Simulation
from processes import wait_until
from quickstart import CLIENTS, VARIANTS, app, model_here, needing_all, same_model

pytest.importorskip("torch", reason="the quickstart is PyTorch's: pip install '.[torch]'")

ROUNDS = 2  # the second needs what the clients have kept of the first


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    """The variants' folders."""
    return {v: needing_all(app(tmp_path_factory.mktemp(v) / "app", v)) for v in VARIANTS}


@pytest.fixture
def here(apps, tmp_path, identity):
    """The models that the same apps find in this process."""
    return {v: model_here(folder, tmp_path / f"{v}.pt", ROUNDS) for v, folder in apps.items()}


def config(path):
    return {"num-server-rounds": ROUNDS, "final-model": str(path)}


@pytest.mark.nightly
@pytest.mark.ray
def test_flwr_run_in_simulation(apps, here, tmp_path):
    with Simulation(tmp_path / "flower", CLIENTS) as simulation:
        for variant, folder in apps.items():
            path = tmp_path / f"{variant}-simulated.pt"
            output = simulation.run(folder, config(path), timeout=240).output
            same_model(path, here[variant])
            assert f"[ROUND {ROUNDS}/{ROUNDS}] train_loss" in output
            assert "eval_acc/2" in output


@pytest.mark.nightly
@pytest.mark.deployment
def test_flwr_run_on_supernodes_of_which_one_dies(apps, here, tmp_path):
    nodes = [
        {"partition-id": j, "num-partitions": CLIENTS, "state-dir": str(tmp_path / f"state-{j}")}
        for j in range(CLIENTS)
    ]
    with Deployment(tmp_path / "flower", nodes) as deployment:
        paths = {variant: tmp_path / f"{variant}-deployed.pt" for variant in apps}
        runs = {v: deployment.submit(folder, config(paths[v])) for v, folder in apps.items()}
        first = f"[ROUND 1/{ROUNDS}]"
        assert wait_until(lambda: all(first in run.output for run in runs.values()), 300)
        deployment.kill_node(1)
        deployment.restart_node(1)
        for run in runs.values():
            try:
                run.wait(timeout=400)
            except DeploymentError as error:
                pytest.fail(str(error))
    for variant, path in paths.items():
        same_model(path, here[variant])
        assert "eval_acc/2" in runs[variant].output
        assert "lost 0" in runs[variant].output
