"""An app's folder: its modules, and its run on nodes in this process and in Flower's simulation."""

from __future__ import annotations

import importlib
import sys
import tomllib
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from fake_grid import FakeGrid
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flower_fedcon.errors import FedConError
from flower_fedcon.flower.virtual_nodes import run_on_virtual_nodes

CLIENTS = 3


def written(folder: Path, texts: dict[str, str]) -> Path:
    """Write an app into a new folder."""
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


@contextmanager
def modules(folder: Path):
    """Yield an app's client and server modules, which lie in its folder or in its package.

    Others may have left modules of the same names: Flower, when it makes a bundle, imports an app's
    package.
    """
    (file,) = [*folder.glob("client_app.py"), *folder.glob("*/client_app.py")]
    package = "" if file.parent == folder else file.parent.name
    heads = {package} if package else {each.stem for each in folder.glob("*.py")}
    sys.path.insert(0, str(folder))
    try:
        _forget(heads)
        prefix = f"{package}." if package else ""
        yield tuple(
            importlib.import_module(f"{prefix}{name}") for name in ("client_app", "server_app")
        )
    finally:
        sys.path.remove(str(folder))
        _forget(heads)


def _forget(heads: set[str]) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] in heads:
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


@contextmanager
def results():
    """Yield a list to which the results of strategies are added as they end."""
    from flower_fedcon.flower.strategy import FlowerStrategy

    found, start = [], FlowerStrategy.start

    def noted(self, *arguments, **options):
        found.append(start(self, *arguments, **options))
        return found[-1]

    FlowerStrategy.start = noted
    try:
        yield found
    finally:
        FlowerStrategy.start = start


def played(folder: Path, nodes=(), clients=CLIENTS, **asked):
    """Run an app's server on nodes in this process; return its strategy's result."""
    told = run_config(folder) | asked
    with modules(folder) as (client, server), results() as found:
        grid = AppGrid(client.app, told, clients)
        for context, own in zip(grid.nodes.values(), nodes, strict=False):
            context.node_config.update(own)
        server.app(grid, Context(1, 1, {}, RecordDict(), told))
    return found[0]


@cache
def _client(folder: Path):
    with modules(folder) as (client, _):
        return client.app


class InTurn(ClientApp):
    """Is the client app of one folder after the other: a file says whose turn it is."""

    def __init__(self, turn: Path) -> None:
        super().__init__()
        self.turn = turn

    def __call__(self, message, context):
        return _client(Path(self.turn.read_text()))(message, context)


def simulated(folders: dict[str, Path], turn: Path, nodes: int, **asked):
    """Run apps in one of Flower's simulations; return their strategies' results, or errors."""
    ends, server = {}, ServerApp()

    @server.main()
    def main(grid, context):
        for name, folder in folders.items():
            turn.write_text(str(folder))
            told = run_config(folder) | asked
            try:
                with modules(folder) as (_, own), results() as found:
                    own.app(grid, Context(context.run_id, 0, {}, RecordDict(), told))
                ends[name] = found[0]
            except FedConError as error:
                ends[name] = error

    run_on_virtual_nodes(server, InTurn(turn), nodes)
    return ends
