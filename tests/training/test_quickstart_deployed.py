"""The apps' variants by `flwr run`: in Flower's simulation, and on SuperNodes that die."""

from __future__ import annotations

import pytest
from deployment import Deployment, DeploymentError, Simulation
from processes import wait_until
from quickstart import APPS, CLIENTS, VARIANTS, app, model_here, needing_all, same_model

pytest.importorskip("torch", reason="the apps are PyTorch's: pip install '.[torch]'")

ROUNDS = 2  # the second needs what the clients have kept of the first
ASKED = {"quickstart": CLIENTS, "fuller": 2}  # in each round


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    """The variants' folders."""
    return {
        (kind, v): needing_all(app(tmp_path_factory.mktemp(v) / "app", v, kind), ASKED[kind])
        for kind in APPS
        for v in VARIANTS
    }


@pytest.fixture
def here(apps, tmp_path, identity):
    """The models that the same apps find in this process."""
    return {
        each: model_here(folder, tmp_path / f"{'-'.join(each)}.pt", ROUNDS)
        for each, folder in apps.items()
    }


def config(path):
    return {"num-server-rounds": ROUNDS, "final-model": str(path)}


@pytest.mark.nightly
@pytest.mark.ray
def test_flwr_run_in_simulation(apps, here, tmp_path):
    with Simulation(tmp_path / "flower", CLIENTS) as simulation:
        for each, folder in apps.items():
            path = tmp_path / f"{'-'.join(each)}-simulated.pt"
            output = simulation.run(folder, config(path), timeout=900).output
            same_model(path, here[each])
            assert f"[ROUND {ROUNDS}/{ROUNDS}] train_loss" in output
            assert "eval_acc 0." in output


@pytest.mark.nightly
@pytest.mark.deployment
def test_flwr_run_on_supernodes_of_which_one_dies(apps, here, tmp_path):
    nodes = [
        {"partition-id": j, "num-partitions": CLIENTS, "state-dir": str(tmp_path / f"state-{j}")}
        for j in range(CLIENTS)
    ]
    paths = {each: tmp_path / f"{'-'.join(each)}-deployed.pt" for each in apps}
    output = {}
    with Deployment(tmp_path / "flower", nodes) as deployment:
        for kind in APPS:
            runs = {
                each: deployment.submit(folder, config(paths[each]))
                for each, folder in apps.items()
                if each[0] == kind
            }
            first = f"[ROUND 1/{ROUNDS}]"
            assert wait_until(lambda: all(first in run.output for run in runs.values()), 900)  # noqa: B023
            deployment.kill_node(1)
            deployment.restart_node(1)
            for each, run in runs.items():
                try:
                    output[each] = run.wait(timeout=900).output
                except DeploymentError as error:
                    pytest.fail(str(error))
    for each, path in paths.items():
        same_model(path, here[each])
        assert "eval_acc 0." in output[each]
        assert "lost 0" in output[each]
