"""Flower's simulation, started from Python: the one file that uses `flwr.simulation`.

Flower 1.42 calls `run_simulation` deprecated and names `flwr run` in its place, which takes an
app's folder, and no problem, callback or client of this process. The page on versions of Flower
says what becomes of `engine="ray"` when it goes.
"""

from __future__ import annotations

import warnings
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from flower_fedcon.errors import needing

BACKEND: dict[str, Any] = {
    # By default two processors per worker, and one that dies is not replaced. Its message is tried
    # once more: what did not come back has moved no state.
    "client_resources": {
        "num_cpus": 1.0,
        "num_gpus": 0.0,
        "max_restarts": -1,
        "max_task_retries": 1,
    },
    "init_args": {"include_dashboard": False, "log_to_driver": False},
}


def require_ray() -> None:
    """Find out whether Ray is there, before anything is prepared for it.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    with needing("Flower's simulation needs Ray", "simulation", 'take engine="local"'):
        import ray  # noqa: F401


def run_on_virtual_nodes(server: ServerApp, client: ClientApp, nodes: int) -> None:
    """Run both apps to their end, the client's in Ray's worker processes, on so many nodes.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    """
    require_ray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run_simulation(
            server_app=server, client_app=client, num_supernodes=nodes, backend_config=BACKEND
        )
