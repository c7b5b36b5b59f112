"""Flower's PyTorch quickstart and its variants: with a file of changes applied, in a folder."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

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
