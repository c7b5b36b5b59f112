"""Flower's PyTorch quickstart and its variants: with a file of changes applied, in a folder."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict

HOME = Path(__file__).parents[2] / "examples" / "pytorch"
VARIANTS = ("fedprox", "scaffold", "feddyn", "feddualavg")
CLIENTS = 3
CONFIG = {
    "num-server-rounds": 3,
    "fraction-evaluate": 0.5,
    "local-epochs": 1,
    "learning-rate": 0.05,
    "batch-size": 32,
}


def changes(variant: str) -> tuple[int, int]:
    """Return how many lines a variant adds and removes."""
    lines = (HOME / f"{variant}.diff").read_text().splitlines()
    added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
    return added, removed


def app(folder: Path, variant: str | None) -> Path:
    """Return the folder of the app, with a variant's changes."""
    shutil.copytree(HOME / "quickstart", folder, ignore=shutil.ignore_patterns("__pycache__"))
    if variant is not None:
        diff = HOME / f"{variant}.diff"
        command = ["git", "apply", "--unidiff-zero", str(diff)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def needing_all(folder: Path) -> Path:
    """Let an app's round need all clients, so that a node's death changes nothing."""
    server = folder / "pytorchexample" / "server_app.py"
    text = server.read_text()
    for arguments in ("Scaffold(", "client_lr=lr", "proximal=0.1"):
        comma = "" if arguments[-1] == "(" else ", "
        text = text.replace(arguments, f"{arguments}{comma}min_replies={CLIENTS}", 1)
    assert f"min_replies={CLIENTS}" in text
    server.write_text(text)
    return folder


@contextmanager
def modules(folder: Path):
    """Yield the app's client and server modules."""
    sys.path.insert(0, str(folder))
    try:
        yield tuple(
            importlib.import_module(f"pytorchexample.{name}")
            for name in ("client_app", "server_app")
        )
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.startswith("pytorchexample")]:
            del sys.modules[name]


class AppGrid(FakeGrid):
    """Nodes that run a client app of their own."""

    def __init__(self, app, run_config=None, clients=CLIENTS, node=None):
        super().__init__([], make=lambda load: app)
        for j in range(clients):
            config = {"partition-id": j, "num-partitions": clients, **(node or {})}
            self.nodes[1000 - j] = Context(
                1, 1000 - j, config, RecordDict(), dict(run_config or {})
            )


def run_here(folder: Path, model: Path, **config):
    """Run the app's server function on nodes in this process; return its strategy's result."""
    from flower_fedcon.flower.strategy import FlowerStrategy

    results = []
    start = FlowerStrategy.start
    run_config = {**CONFIG, "final-model": str(model), **config}
    with modules(folder) as (client, server):

        def noted(self, *arguments, **options):
            results.append(start(self, *arguments, **options))
            return results[-1]

        FlowerStrategy.start = noted
        try:
            server.main(
                AppGrid(client.app, run_config), Context(1, 1, {}, RecordDict(), run_config)
            )
        finally:
            FlowerStrategy.start = start
    return results[0]


def model_here(folder: Path, path: Path, rounds: int) -> dict[str, np.ndarray]:
    """Return the model that an app finds in this process."""
    arrays = run_here(folder, path, **{"num-server-rounds": rounds}).arrays
    return {name: array.numpy() for name, array in arrays.items()}


def same_model(path: Path, expected: dict[str, np.ndarray]) -> None:
    """Compare a saved model with the one that is expected."""
    import torch

    found = torch.load(path)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name].numpy(), array, rtol=0, atol=1e-6, err_msg=name)
