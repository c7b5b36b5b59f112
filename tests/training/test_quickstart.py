"""Flower's PyTorch quickstart becomes a method of this package by at most eight changed lines."""

from __future__ import annotations

import numpy as np
import pytest
from apps import AppGrid, modules, run_config
from deployment import Deployment, DeploymentError, Simulation
from fake_grid import on_grid
from flwr.app import ArrayRecord, Context, RecordDict
from processes import wait_until
from quickstart import (
    APPS,
    CLIENTS,
    VARIANTS,
    app,
    changes,
    model_here,
    needing_all,
    run_here,
    same_model,
)

from flower_fedcon.errors import ConfigError
from flower_fedcon.flower import nodes
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedAvg, FedFW, FedProx, Scaffold

pytestmark = on_grid

# Rounds and learning rate. Scaffold diverges at 0.05 with a momentum of 0.9, which is as 0.5
# without; FedDualAvg has no momentum.
ROUNDS = {"fedprox": (9, 0.05), "scaffold": (30, 0.01), "feddyn": (32, 0.05),
          "feddualavg": (40, 0.05)}  # fmt: skip
EACH = pytest.mark.parametrize("variant", VARIANTS)
PROX = FedProx(proximal=0.1)

torch = pytest.importorskip("torch", reason="the quickstart is PyTorch's: pip install '.[torch]'")


@pytest.mark.parametrize("kind", APPS)
@EACH
def test_at_most_eight_lines(variant, kind):
    """With sampling, and weighting by examples."""
    added, removed = changes(variant, kind)
    assert added <= 8
    assert removed <= added


@EACH
def test_a_variant_of_the_fuller_app_trains(variant, tmp_path):
    """A sample of two of three unequal clients, whose loops have a schedule, autocast, clipping."""
    folder = app(tmp_path / "app", variant, "fuller")
    result = run_here(folder, tmp_path / "m.pt", **{"num-server-rounds": 2, "local-epochs": 1})
    row = result.history.rows[-1]
    assert (row["replies"], row["dropped"]) == (2, 0)
    first, last = (result.evaluate_metrics_serverapp[number]["loss"] for number in (0, 2))
    assert last < first
    with modules(folder) as (client, _):
        before = client.ResNet().state_dict()
    assert list(result.arrays) == list(before)


@EACH
def test_a_variant_trains_and_records_every_client(variant, tmp_path):
    """With momentum, batch normalisation and shuffled epochs, as the quickstart has them."""
    folder = app(tmp_path / "app", variant)
    rounds, lr = ROUNDS[variant]
    config = {"num-server-rounds": rounds, "learning-rate": lr}
    result = run_here(folder, tmp_path / "model.pt", **config)
    row = result.history.rows[-1]
    assert row["accuracy"] > 0.85  # of the test set, by the app's evaluate_fn
    for name in ("train_loss", "eval_acc"):  # weighted by examples, and of each client
        each = [row[f"{name}/{j}"] for j in range(CLIENTS)]
        assert min(each) <= row[name] <= max(each)
    assert row["replies"] == CLIENTS
    assert row["dropped"] == 0
    with modules(folder) as (client, _):
        names = list(client.Net().state_dict())
        client.Net().load_state_dict(torch.load(tmp_path / "model.pt"))
    assert list(result.arrays) == names
    assert result.arrays["norm.num_batches_tracked"].numpy() == 13 * rounds


def test_metrics_are_weighted_by_examples(tmp_path):
    row = run_here(app(tmp_path / "app", "fedprox"), tmp_path / "m.pt").history.rows[-1]
    with modules(tmp_path / "app") as (client, _):
        loaders = [client.load_data(j, CLIENTS, 32) for j in range(CLIENTS)]
    for name, place in (("train_loss", 0), ("eval_loss", 1)):
        sizes = [len(pair[place].dataset) for pair in loaders]
        each = [row[f"{name}/{j}"] for j in range(CLIENTS)]
        assert row[name] == pytest.approx(np.average(each, weights=sizes), rel=1e-12)


def test_fedavg_is_flower_s(tmp_path):
    """The app as it is, and with this package's FedAvg in FedProx's place: the same model."""
    config = {"num-server-rounds": 2, "fraction-evaluate": 1.0}
    flowers = app(tmp_path / "flowers", None)
    with modules(flowers) as (client, server):
        told = {**run_config(flowers), "final-model": str(tmp_path / "flowers.pt"), **config}
        server.main(AppGrid(client.app, told), Context(1, 1, {}, RecordDict(), told))
    ours = app(tmp_path / "ours", "fedprox")
    file = ours / "pytorchexample" / "server_app.py"
    file.write_text(file.read_text().replace("FedProx(proximal=0.1, ", "FedAvg("))
    same_model(tmp_path / "flowers.pt", model_here(ours, tmp_path / "ours.pt", 2))


# --- what cannot be is refused before round 1, and says what to change ---------------------------


@pytest.fixture
def at_once(monkeypatch):
    """Wait for nobody who might still mend an app."""
    monkeypatch.setattr(nodes, "_HOPELESS", 0.0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("variant", "strategy", "changed", "said"),
    [
        (None, PROX, {}, r"write @train_step .* under its @app.train\(\)"),
        ("fedprox", FedFW(L1Ball(9.0), penalty=1.0), {}, "fedfw cannot correct a train loop"),
        ("fedprox", PROX, {"initial_arrays": None}, "give initial_arrays, for example"),
        (
            "fedprox",
            PROX,
            {"initial_arrays": "half"},
            r"initial_arrays\['conv1.weight'\] is float16",
        ),
        ("fedprox", PROX, {"certificates": True}, "certificates need"),
        ("fedprox", PROX, {"buffers": ["nrm.*"]}, "'nrm.*' fits none of initial_"),
        ("scaffold", Scaffold(client_lr=0.1, local_steps=2, option="I"), {}, 'use option="II"'),
        ("fedprox", FedAvg(batch_size=32), {}, "draws its batches: leave batch_size out"),
    ],
)
def test_refused_before_round_1(variant, strategy, changed, said, tmp_path):
    with modules(app(tmp_path / "app", variant)) as (client, server):
        grid, net = AppGrid(client.app), server.Net()
        arguments = {"initial_arrays": ArrayRecord(net.state_dict()), **changed}
        if arguments["initial_arrays"] == "half":
            arguments["initial_arrays"] = ArrayRecord(net.half().state_dict())
        with pytest.raises(ConfigError, match=said):
            strategy.start(grid, num_rounds=1, **arguments)
        rounds = [m.content["fitins.config"]["action"] for m in grid.pushed]
        assert "train" not in rounds


# --- by `flwr run`: in Flower's simulation, and on SuperNodes that die ---------------------------

TWO = 2  # rounds: the second needs what the clients have kept of the first
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
        each: model_here(folder, tmp_path / f"{'-'.join(each)}.pt", TWO)
        for each, folder in apps.items()
    }


def config(path):
    return {"num-server-rounds": TWO, "final-model": str(path)}


@pytest.mark.nightly
@pytest.mark.ray
def test_flwr_run_in_simulation(apps, here, tmp_path):
    with Simulation(tmp_path / "flower", CLIENTS) as simulation:
        for each, folder in apps.items():
            path = tmp_path / f"{'-'.join(each)}-simulated.pt"
            output = simulation.run(folder, config(path), timeout=900).output
            same_model(path, here[each])
            assert f"[ROUND {TWO}/{TWO}] train_loss" in output
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
            first = f"[ROUND 1/{TWO}]"
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
