"""Flower's PyTorch quickstart, a fuller app, and their variants: with a file of changes applied."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from apps import CLIENTS as CLIENTS
from apps import played

HOME = Path(__file__).parents[2] / "examples" / "pytorch"
VARIANTS = ("fedprox", "scaffold", "feddyn", "feddualavg")
APPS = ("quickstart", "fuller")


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


def run_here(folder: Path, model: Path, **config):
    """Run an app that saves its model where its configuration says, on nodes in this process."""
    return played(folder, **{"final-model": str(model), **config})


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
