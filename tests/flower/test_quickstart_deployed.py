"""The quickstart's variants by `flwr run`: in Flower's simulation, and on SuperNodes that die."""

from __future__ import annotations

import numpy as np
import pytest
from deployment import Deployment, DeploymentError, Simulation
from processes import wait_until
from quickstart import CLIENTS, VARIANTS, app, run_here

torch = pytest.importorskip("torch", reason="the quickstart is PyTorch's: pip install '.[torch]'")

ROUNDS = 2  # the second needs what the clients have kept of the first


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    """The variants' folders; a round needs all clients, so that a node's death changes nothing."""
    folders = {}
    for variant in VARIANTS:
        folder = app(tmp_path_factory.mktemp(variant) / "app", variant)
        server = folder / "pytorchexample" / "server_app.py"
        text = server.read_text()
        for arguments in ("Scaffold(", "client_lr=lr", "proximal=0.1"):
            after = (
                f"{arguments}min_replies=3"
                if arguments[-1] == "("
                else f"{arguments}, min_replies=3"
            )
            text = text.replace(arguments, after, 1)
        assert "min_replies=3" in text
        server.write_text(text)
        folders[variant] = folder
    return folders


@pytest.fixture
def here(apps, tmp_path, identity):
    """The models that the same apps find in this process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {
        v: model(run_here(folder, tmp_path / f"{v}.pt", **{"num-server-rounds": ROUNDS}))
        for v, folder in apps.items()
    }
    torch.set_num_threads(threads)


def model(result):
    return {name: array.numpy() for name, array in result.arrays.items()}


def config(path):
    return {"num-server-rounds": ROUNDS, "final-model": str(path)}


def assert_same(path, expected):
    found = torch.load(path)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name].numpy(), array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.nightly
@pytest.mark.ray
def test_flwr_run_in_simulation(apps, here, tmp_path):
    with Simulation(tmp_path / "flower", CLIENTS) as simulation:
        for variant, folder in apps.items():
            path = tmp_path / f"{variant}-simulated.pt"
            output = simulation.run(folder, config(path), timeout=240).output
            assert_same(path, here[variant])
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
        assert_same(path, here[variant])
        assert "eval_acc/2" in runs[variant].output
        assert "lost 0" in runs[variant].output
