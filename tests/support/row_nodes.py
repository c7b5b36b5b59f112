"""Nodes with rows of least squares, and what the test app is told of a run on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from problems import l1ls_data
from processes import Value

APP = Path(__file__).parent / "flower_app"


def node_configs(
    root: Path, clients: int, *, keep: bool = True, data: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Value]]:
    """Write each node's data file; return the nodes' configurations, whose state is kept or not."""
    configs: list[dict[str, Value]] = []
    for i, rows in enumerate(data or l1ls_data(clients)):
        np.savez(root / f"client-{i}.npz", **rows)
        own = {"state-dir": str(root / f"state-{i}")} if keep else {}
        data_file = str(root / f"client-{i}.npz")
        configs.append({"partition-id": i, "num-partitions": clients, "data": data_file, **own})
    return configs


def run_config(
    algorithm: str, arguments: Mapping[str, Any], rounds: int, run_dir: Path, **more: Value
) -> dict[str, Value]:
    """Return a run's configuration; `more` has underscores for hyphens."""
    return {
        "num-server-rounds": rounds,
        "algorithm": algorithm,
        "arguments": json.dumps(arguments).replace('"', "'"),
        "run-dir": str(run_dir),
        **{key.replace("_", "-"): value for key, value in more.items()},
    }


def model_of(run_dir: Path) -> Any:
    """Return the model that a run has left."""
    with np.load(run_dir / "model.npz") as model:
        return model["x"]
