"""Flower's simulation, started from Python; only this file uses `flwr.simulation`.

Flower 1.42 deprecates `run_simulation` in favour of `flwr run`, which takes an app's folder, but no
problem, callback or client of this process. The page on versions of Flower says what happens to
`engine="ray"` when it is removed.
"""

from __future__ import annotations

import warnings
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from flower_fedcon.errors import needing
from flower_fedcon.flower.lasting_workers import lasting_workers

BACKEND: dict[str, Any] = {
    # By default a worker has two processors, and a dead worker is not replaced. Its message is sent
    # once more: a reply that did not arrive has changed no state.
    "client_resources": {
        "num_cpus": 1.0,
        "num_gpus": 0.0,
        "max_restarts": -1,
        "max_task_retries": 1,
    },
    "init_args": {"include_dashboard": False, "log_to_driver": False},
}


def require_ray() -> None:
    """Check that Ray is installed, before anything is prepared for it.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    with needing("Flower's simulation needs Ray", "simulation", 'take engine="local"'):
        import ray  # noqa: F401


def run_on_virtual_nodes(server: ServerApp, client: ClientApp, nodes: int) -> None:
    """Run both apps to their end on virtual nodes, the client's in Ray's worker processes.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    """
    require_ray()
    with lasting_workers(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run_simulation(
            server_app=server, client_app=client, num_supernodes=nodes, backend_config=BACKEND
        )
