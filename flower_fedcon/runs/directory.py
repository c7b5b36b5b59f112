"""A run's folder: configuration, history, model, environment and figure."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.registry import client_class, plugins
from flower_fedcon.runs.history import History, HistoryFile, Record
from flower_fedcon.runs.toml import section, tabled
from flower_fedcon.validation import Array
from flower_fedcon.wire.own_code import own_code
from flower_fedcon.wire.whole_files import FolderLock, atomic, storage, write_text

if TYPE_CHECKING:
    from flower_fedcon.core.server import Server

CONFIG, HISTORY, MODEL = "config.toml", "history.csv", "model.npz"
ENVIRONMENT, FIGURE = "environment.json", "figure.png"
_GLANCE = 0.05  # seconds, so that one who looks whether a run goes on (`in_use`) refuses none


class RunDirectory:
    """The folder of one run, locked from here to `close`.

    `history.csv` grows by a row for each recorded round, `model.npz` is written at the end (also
    after an error), each in one step.

    Parameters
    ----------
    path : path

    Raises
    ------
    StorageError
        If another process has a run in it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._history: HistoryFile | None = None
        with storage(f"look into {path}"):
            there = self.path.is_dir()
        self._lock = FolderLock(self.path, wait=_GLANCE) if there else None

    @property
    def exists(self) -> bool:
        """Whether the folder was there before this run."""
        return self._lock is not None

    def create(
        self, server: Server, num_rounds: int, config: str | None, *, anew: bool = False
    ) -> None:
        """Make the folder and write what is known before round 1.

        Parameters
        ----------
        server : Server
        num_rounds : int
        config : str, optional
            The experiment file that describes the run; by default its arguments do.
        anew : bool (default: False)
            Whether a history that has no checkpoint is overwritten.
        """
        folder = self.path
        if self._lock is None:
            with storage(f"make the run directory {folder}"):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(folder, wait=_GLANCE)
            anew = False  # what is there now is another process's
        if (folder / HISTORY).exists() and not anew:
            raise ConfigError(
                f"{folder} holds a run already: go on with resume=True (--resume), choose another "
                "run directory, or remove this one"
            )
        if config is not None or not (folder / CONFIG).exists():
            write_text(folder / CONFIG, config or describe_run(server, num_rounds))
        made_by = {
            **environment(),
            "own code": own_code_of(server.strategy),
            "configuration": hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest(),
        }
        write_text(folder / ENVIRONMENT, json.dumps(made_by, indent=2) + "\n")
        self._history = HistoryFile(folder / HISTORY)

    def reopen(self, count: int) -> list[Record]:
        """Return the `count` rows before the checkpoint, and cut what follows them."""
        self._history = HistoryFile(self.path / HISTORY, keep=count)
        return self._history.rows

    def write(self, record: Record) -> None:
        """Append a row to the history."""
        self._open_history.write(record)

    def sync(self) -> None:
        """Flush the history to disk."""
        self._open_history.sync()

    @property
    def _open_history(self) -> HistoryFile:
        assert self._history is not None  # noqa: S101  (made by `create` or `reopen`)
        return self._history

    def save_model(
        self,
        history: History,
        names: Sequence[str] | None = None,
        beside: Mapping[str, Array] | None = None,
    ) -> None:
        """Write the model: a network's layers by their names, or x0, x1, ..., and its buffers."""
        arrays = {name if names else f"buffer{name}": a for name, a in (beside or {}).items()}
        for name, model in {**history.outputs, "x": history.x}.items():
            if not isinstance(model, list):
                arrays[name] = model
            elif names is None:
                arrays |= {f"{name}{i}": layer for i, layer in enumerate(model)}
            else:
                prefix = "" if name == "x" else f"{name}."
                arrays |= {f"{prefix}{n}": a for n, a in zip(names, model, strict=True)}
        with atomic(self.path / MODEL) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def close(self) -> None:
        """Leave the folder to others."""
        if self._history is not None:
            self._history.close()
        if self._lock is not None:
            self._lock.release()


def describe_run(server: Server, num_rounds: int) -> str:
    """Return the configuration of a run that no experiment file describes.

    It is an experiment file once ``[problem]`` names a function that makes the problem.
    """
    strategy, setup = server.strategy, server.setup
    lines = [
        "[problem]",
        f"# {setup.num_clients} clients, made in Python or by nodes. To read this",
    ]
    lines += ['# file: name = "module:function", a function that returns the problem.']
    lines += section("[run]", {"rounds": num_rounds, "seed": setup.seed})
    stated: dict[str, Any] = {"name": type(strategy).__name__}
    own = []
    for name, value in strategy.arguments().items():
        if value is not None:
            try:
                stated[name] = tabled(value)
            except ConfigError:
                own.append(f"# {name}: {' '.join(repr(value).split())}, an object of your own")
    return "\n".join([*lines, *section("[algorithm]", stated), *own]) + "\n"


def environment() -> dict[str, Any]:
    """Return what a reader needs to judge a run's numbers and timings."""
    python, *others = versions()
    return {
        "python": versions()[python],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": {package: versions()[package] for package in others},
        "plugins": plugins(),
        "git": _revision(),
    }


def own_code_of(strategy: Any) -> dict[str, str]:
    """Return digests of the code of an algorithm's two classes, if they are the user's own."""
    pair = type(strategy), client_class(strategy.name)
    found = {f"{kind.__module__}:{kind.__qualname__}": own_code(kind) for kind in pair}
    return {name: code for name, code in found.items() if code}


def _revision() -> str:
    """Return the commit of the working directory, "-dirty" if files were changed since; or ""."""
    try:
        return _revision_of(os.getcwd())
    except (OSError, subprocess.SubprocessError):
        return ""


@cache
def _revision_of(folder: str) -> str:
    """Return it of a folder, once: a study makes thousands of runs, and git looks at every file."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    told = subprocess.run(  # noqa: S603  (nothing in it comes from outside)
        command, cwd=folder, capture_output=True, text=True, timeout=10, check=False
    )
    return told.stdout.strip() if told.returncode == 0 else ""


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of what a run uses."""
    found = {"python": sys.version.split()[0]}
    for package in (
        "flower-fedcon", "flwr", "ray", "numpy", "scipy", "scikit-learn", "numba", "torch", "jax",
    ):  # fmt: skip
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
