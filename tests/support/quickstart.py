"""Flower's PyTorch quickstart, a fuller app, and their variants: with a file of changes applied."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict

HOME = Path(__file__).parents[2] / "examples" / "pytorch"
VARIANTS = ("fedprox", "scaffold", "feddyn", "feddualavg")
APPS = ("quickstart", "fuller")
CLIENTS = 3


def changed(variant: str, kind: str = "quickstart") -> Path:
    """Return the file of a variant's changes."""
    return HOME / (f"{variant}.diff" if kind == "quickstart" else f"{kind}-{variant}.diff")


def changes(variant: str, kind: str) -> tuple[int, int]:
    """Return how many lines a variant adds and removes."""
    lines = changed(variant, kind).read_text().splitlines()
    added = sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("--- ") for line in lines)
    return added, removed


def app(folder: Path, variant: str | None, kind: str = "quickstart") -> Path:
    """Return the folder of an app, with a variant's changes."""
    shutil.copytree(HOME / kind, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if variant is not None:
        command = ["git", "apply", "--unidiff-zero", str(changed(variant, kind))]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def needing_all(folder: Path, count: int = CLIENTS) -> Path:
    """Let an app's round need all whom it asks, so that a node's death changes nothing."""
    (server,) = folder.glob("*/server_app.py")
    text = server.read_text().replace("participation=", f"min_replies={count}, participation=")
    assert text.count(f"min_replies={count}") == 1
    server.write_text(text)
    return folder


@contextmanager
def modules(folder: Path):
    """Yield the app's client and server modules."""
    package = next(folder.glob("*/client_app.py")).parent.name
    sys.path.insert(0, str(folder))
    try:
        yield tuple(
            importlib.import_module(f"{package}.{name}") for name in ("client_app", "server_app")
        )
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.startswith(package)]:
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


def run_config(folder: Path) -> dict:
    """Return the run configuration that an app's own file states."""
    told = tomllib.loads((folder / "pyproject.toml").read_text())
    return told["tool"]["flwr"]["app"]["config"]


def run_here(folder: Path, model: Path, **config):
    """Run the app's server function on nodes in this process; return its strategy's result."""
    from flower_fedcon.flower.strategy import FlowerStrategy

    results = []
    start = FlowerStrategy.start
    told = {**run_config(folder), "final-model": str(model), **config}
    with modules(folder) as (client, server):

        def noted(self, *arguments, **options):
            results.append(start(self, *arguments, **options))
            return results[-1]

        FlowerStrategy.start = noted
        try:
            server.main(AppGrid(client.app, told), Context(1, 1, {}, RecordDict(), told))
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
