"""A run's folder: configuration, history, model, environment and figure."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.runs.history import History, HistoryFile, Record

if TYPE_CHECKING:
    from flower_fedcon.core.server import Server

CONFIG, HISTORY, MODEL = "config.toml", "history.csv", "model.npz"
ENVIRONMENT, FIGURE = "environment.json", "figure.png"


class RunDirectory:
    """The folder of one run; `create` refuses one that holds a run already.

    `history.csv` grows by a row for each recorded round, `model.npz` is written at the end (also
    after an error), each in one step.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._history = HistoryFile(path / HISTORY)

    @classmethod
    def reopen(cls, path: Path, count: int) -> tuple[RunDirectory, list[Record]]:
        """Return the folder of a run to resume, and the `count` rows before its checkpoint."""
        file = path / HISTORY
        rows = History.read_rows(file)[:count] if file.exists() else []
        if len(rows) < count:
            raise FedConError(
                f"cannot resume: {file} holds {len(rows)} rows, its checkpoint was written after "
                f"{count}. Put the file back, or start again in another run directory"
            )
        directory = cls(path)
        for row in rows:
            directory.write(row)
        return directory, rows

    @classmethod
    def create(
        cls, path: str | Path, server: Server, num_rounds: int, *, anew: bool = False
    ) -> RunDirectory:
        """Make the folder and write what is known before round 1.

        With `anew`, an existing history that has no checkpoint is overwritten.
        """
        folder = Path(path)
        if (folder / HISTORY).exists() and not anew:
            raise ConfigError(
                f"{folder} holds a run already: resume it, choose another run directory, or remove "
                "this one"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the run directory {folder}: {error}") from None
        if not (folder / CONFIG).exists():
            write_text(folder / CONFIG, describe_run(server, num_rounds))
        write_text(folder / ENVIRONMENT, json.dumps(environment(), indent=2) + "\n")
        return cls(folder)

    def write(self, record: Record) -> None:
        """Append a row to the history."""
        self._history.write(record)

    def sync(self) -> None:
        """Flush the history to disk."""
        self._history.sync()

    def close(self, history: History) -> None:
        """Write the model."""
        self._history.__exit__()
        arrays: dict[str, Any] = {}
        for name, model in {"x": history.x, **history.outputs}.items():
            if isinstance(model, list):  # a network's layers: x0, x1, ...
                arrays |= {f"{name}{i}": layer for i, layer in enumerate(model)}
            else:
                arrays[name] = model
        with atomic(self.path / MODEL) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)


class atomic:  # noqa: N801  (used as a statement: with atomic(path) as temporary)
    """Write a file under a temporary name and move it into place when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        os.close(handle)
        self._temporary = Path(name)
        return self._temporary

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._temporary.chmod(0o644)
            self._temporary.replace(self.path)
        else:
            self._temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def describe_run(server: Server, num_rounds: int) -> str:
    """Return the run's configuration, for a run that no experiment file describes."""
    strategy = server.strategy
    lines = ["[run]", f"rounds = {num_rounds}", f"seed = {server.setup.seed}"]
    lines += [f"clients = {server.setup.num_clients}"]
    lines += ["", "[algorithm]", f"name = {json.dumps(type(strategy).__name__)}"]
    lines += [
        f"{name} = {_toml(value)}"
        for name, value in strategy.arguments().items()
        if value is not None
    ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    plain = isinstance(value, bool | int | float | str)
    return json.dumps(value if plain else repr(value))


def environment() -> dict[str, Any]:
    """Return what a reader needs to judge a run's numbers and timings."""
    packages = ("flower-fedcon", "flwr", "ray", "numpy", "scipy", "scikit-learn", "numba")
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": versions,
    }
