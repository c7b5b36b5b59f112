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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_fedcon import __version__
from flower_fedcon.errors import GO_ON, ConfigError
from flower_fedcon.objectives.set_aside import is_ours
from flower_fedcon.registry import client_class, plugins
from flower_fedcon.runs.history import History, HistoryFile, Record
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.toml import module_of, section, tabled
from flower_fedcon.validation import Array
from flower_fedcon.wire.own_code import own_code
from flower_fedcon.wire.whole_files import FolderLock, atomic, in_use, storage, write_text

if TYPE_CHECKING:
    from flower_fedcon.core.method import Method
    from flower_fedcon.core.protocol import Setup
    from flower_fedcon.core.server import Server

CONFIG, HISTORY, MODEL = "config.toml", "history.csv", "model.npz"
ENVIRONMENT, FIGURE = "environment.json", "figure.png"
TUNING = "tuning"
"""The subfolder of a study with the runs by which it has tuned its cells."""
_GLANCE = 0.05  # seconds of retries, since a check with `in_use` holds the lock for a moment


def check_free(folder: Path, *, locked: bool = False) -> None:
    """Raise if a folder has the history of a run, which a new one would overwrite.

    Unless this process has `locked` it, a folder that another one uses is left to the lock, which
    says so: such a run is neither to be continued nor to be removed.
    """
    with storage(f"look into {folder}"):
        has_run = (folder / HISTORY).exists()
    if has_run and (locked or not in_use(folder)):
        raise ConfigError(
            f"{folder} already holds a run: continue it with {GO_ON}, choose another run "
            f"directory, or remove this one"
        )


class RunDirectory:
    """The folder of one run, locked until `close`.

    `history.csv` grows by a row for each recorded round. `model.npz` is written at the end, also
    after an error. Each write is one step.

    Parameters
    ----------
    path : path

    Raises
    ------
    StorageError
        If another process runs in it.
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
        self,
        server: Server,
        plan: Plan,
        algorithm: Mapping[str, Any],
        problem: Mapping[str, Any] | None = None,
        inputs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Make the folder and write the files that are known before round 1.

        Parameters
        ----------
        server : Server
        plan : Plan
            With `resume`, a history without a checkpoint is overwritten. Without `config`, the run
            is described by its arguments.
        algorithm : dict
            Its table in an experiment file, with its name.
        problem : dict, optional
            The problem's table in an experiment file.
        inputs : dict
            Digests of what no file states in words, by name: data, traces, code.
        """
        folder, config, anew = self.path, plan.config, plan.resume
        if self._lock is None:
            with storage(f"make the run directory {folder}"):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(folder, wait=_GLANCE)
            anew = False  # the present content belongs to another process
        if not anew:
            check_free(folder, locked=True)
        if config is not None or not (folder / CONFIG).exists():
            write_text(
                folder / CONFIG, config or describe_run(server.setup, plan, algorithm, problem)
            )
        made_by = {
            **environment(),
            "own code": own_code_of(server.strategy),
            "inputs": {**inputs},
            "configuration": hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest(),
        }
        write_text(folder / ENVIRONMENT, json.dumps(made_by, indent=2) + "\n")
        self._history = HistoryFile(folder / HISTORY)

    def reopen(self, count: int) -> list[Record]:
        """Return the `count` rows before the checkpoint, and cut those that follow."""
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
        """Unlock the folder."""
        if self._history is not None:
            self._history.close()
        if self._lock is not None:
            self._lock.release()


def stated_algorithm(strategy: Method[Any]) -> dict[str, Any]:
    """Return a method's table for an experiment file: its name and arguments."""
    kind = type(strategy)
    name = kind.__name__ if is_ours(kind) else f"{module_of(kind)}:{kind.__qualname__}"
    return {"name": name, **strategy.arguments()}


def describe_run(
    setup: Setup, plan: Plan, algorithm: Mapping[str, Any], problem: Mapping[str, Any] | None
) -> str:
    """Return the configuration of a run that was not made from an experiment file.

    It is an experiment file if everything in the run can be imported by name. Otherwise a comment
    for each missing part says how to state it.
    """
    if problem is None:
        lines = [
            "[problem]",
            f"# {setup.num_clients} clients, made in Python or by nodes. To read this file:",
            '# name = "module:function", a function that returns the problem; it stands here by',
            "# itself where that function is decorated with flower_fedcon.problems.stated.",
        ]
    else:
        lines = _stated("[problem]", problem)
    run = {"rounds": plan.num_rounds, "seed": setup.seed, "evaluate_every": plan.evaluate_every}
    if plan.certificates:
        run["certificates"] = True
    lines += section("[run]", run)
    lines += ["", *_stated("[algorithm]", algorithm)]
    return "\n".join(lines) + "\n"


def _stated(header: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return a table's lines; a value that no file can state becomes a comment that says why."""
    table, comments = {}, []
    for name, value in arguments.items():
        if value is not None:
            try:
                table[name] = tabled(value)
            except ConfigError as error:
                comments.append(f"# {name}: {' '.join(str(error).split())}")
    return [*section(header, table)[1:], *comments]


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
    """Return digests of the code of an algorithm's two classes, if the user wrote them."""
    pair = type(strategy), client_class(strategy.name)
    digests = {f"{kind.__module__}:{kind.__qualname__}": own_code(kind) for kind in pair}
    return {name: code for name, code in digests.items() if code}


def _revision() -> str:
    """Return the commit of the working directory, "-dirty" if files were changed since; or ""."""
    try:
        return _revision_of(os.getcwd())
    except (OSError, subprocess.SubprocessError):
        return ""


@cache
def _revision_of(folder: str) -> str:
    """Return a folder's commit, cached: a study makes thousands of runs, and git is slow."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    told = subprocess.run(  # noqa: S603  (nothing in it comes from outside)
        command, cwd=folder, capture_output=True, text=True, timeout=10, check=False
    )
    return told.stdout.strip() if told.returncode == 0 else ""


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a run uses."""
    releases = {"python": sys.version.split()[0], "flower-fedcon": __version__}
    for package in (
        "flwr", "ray", "numpy", "scipy", "scikit-learn", "numba", "torch", "jax",
    ):  # fmt: skip
        try:
            releases[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            releases[package] = "not installed"
    return releases


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories of a folder: itself, or those in a comparison."""
    with storage(f"look into {folder}"):
        if (folder / HISTORY).exists():
            return [folder]
        histories = [*folder.glob(f"*/{HISTORY}"), *folder.glob(f"*/seed-*/{HISTORY}")]
    return sorted(path.parent for path in histories)
