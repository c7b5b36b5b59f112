"""What runs of `fedcon` left in their folders."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.runs.history import History

PNG, PDF = b"\x89PNG", b"%PDF"


def names_in(folder: str | Path) -> set[str]:
    """Return the names of what lies in a folder."""
    return {path.name for path in Path(folder).iterdir()}


def begins(path: str | Path, start: bytes) -> bool:
    """Return whether a file begins so."""
    return Path(path).read_bytes().startswith(start)


def rows_of(folder: str | Path) -> list[dict[str, float]]:
    """Return a run's history, row by row."""
    return History.read_rows(Path(folder, "history.csv"))


def config_of(folder: str | Path) -> dict[str, Any]:
    """Return the tables of a run's configuration."""
    return tomllib.loads(Path(folder, "config.toml").read_text())


def model_of(folder: str | Path) -> np.ndarray:
    """Return a run's last model."""
    with np.load(Path(folder, "model.npz")) as model:
        return model["x"]
