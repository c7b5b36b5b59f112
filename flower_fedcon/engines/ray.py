"""Flower's own simulation, on Ray: each client's step runs in a worker process."""

from __future__ import annotations

import os
import pickle
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.engines.patience import Patience
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower.apps import client_app
from flower_fedcon.flower.grid_run import GridRun
from flower_fedcon.flower.policy import Policy
from flower_fedcon.registry import client_class, register_client
from flower_fedcon.runs.history import History
from flower_fedcon.runs.run import Plan
from flower_fedcon.strategies.base import FedConStrategy

if TYPE_CHECKING:
    from flower_fedcon.clients.base import FedConClient
    from flower_fedcon.problems.federated import FederatedProblem

BACKEND: dict[str, Any] = {
    "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},  # by default two processors per client
    "init_args": {"include_dashboard": False, "log_to_driver": False},
}
_HOUR, _FOREVER = 3600.0, 1e12


def simulate(
    strategy: FedConStrategy[Any],
    problem: FederatedProblem,
    plan: Plan,
    timeout: float | None = None,
) -> History:
    """Run a strategy in Flower's simulation; see `flower_fedcon.simulate`."""
    seconds = _HOUR if timeout is None else timeout
    # Clients share the processors: the last one's turn may come after all the others'. Whom a
    # round asks, and how often, is as on the local engine.
    patience = Patience(
        timeout=seconds * problem.num_clients + _HOUR,
        round_deadline=_FOREVER,
        max_retries=GridEngine.max_retries,
        quarantine_after=0,
    )
    own = {"regularizer": strategy.regularizer, "constraint": strategy.constraint}
    oracles = _pickled(own, "the strategy's set or regularizer")
    data = [_pickled(f, f"client {j}'s objective") for j, f in enumerate(problem.objectives)]
    # Flower ships the client app with every message: the data stays in a file, from which each
    # worker reads its clients once.
    with _data_file() as (file, path):
        np.cumsum([8 * (len(data) + 1), *map(len, data)], dtype=np.int64).tofile(file)
        file.writelines(data)
        file.flush()
        del data
        histories: list[History] = []
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            engine = GridEngine(strategy, grid, patience, problem.num_clients, problem)
            histories.append(GridRun(strategy, engine).play(problem.x0, plan).history)

        kept = None if plan.run_dir is None else str(Path(plan.run_dir).resolve() / "clients")
        app = client_app(
            _Loader(path, client_class(strategy.name)),
            oracles=pickle.loads(oracles),  # noqa: S301  (made just above)
            state_dir=kept,
            policy=replace(Policy.open(), max_seconds=seconds),  # the data is the server's own
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            run_simulation(
                server_app=server,
                client_app=app,
                num_supernodes=problem.num_clients,
                backend_config=BACKEND,
            )
    if not histories:
        raise FedConError("Flower's simulation ended without a result: see its log above")
    return histories[0]


class _Loader:
    """Loads the objective of a partition; small, since it travels with every message.

    Where it arrives, an algorithm of the user's own is known.
    """

    def __init__(self, path: str, client: type[FedConClient[Any]]) -> None:
        self._path, self._client = path, client
        register_client(client)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Loader, (self._path, self._client)

    def __call__(self, context: Context) -> Any:
        return _load(self._path, int(context.node_config["partition-id"]))


@lru_cache(maxsize=1024)
def _load(path: str, partition: int) -> Any:
    """Return a partition's objective: the file begins with the places where they begin and end."""
    with open(path, "rb") as file:
        file.seek(8 * partition)
        start, end = np.frombuffer(file.read(16), dtype=np.int64).tolist()
        file.seek(start)
        return pickle.loads(file.read(end - start))  # noqa: S301  (written by the parent)


@contextmanager
def _data_file() -> Iterator[tuple[IO[bytes], str]]:
    """Yield a new file, and a path by which this process' workers can read it.

    It has no name, and is gone with this process, however that ends. Where processes cannot reach
    each other's descriptors it has a name, and is removed in the end.
    """
    with tempfile.TemporaryFile(prefix="fedcon-") as file:
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        if os.access(path, os.R_OK):
            yield file, path
            return
    with tempfile.NamedTemporaryFile(prefix="fedcon-") as named:
        yield named.file, named.name


def _pickled(value: Any, what: str) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f'{what} cannot be pickled ({error}), which engine="ray" needs: define it at the top '
            'level of a module, or use engine="local"'
        ) from None
