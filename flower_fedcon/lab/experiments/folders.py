"""The folders of runs and comparisons: their names, and the runs in them."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from itertools import chain, count
from pathlib import Path

from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.console import say
from flower_fedcon.runs.directory import CONFIG, runs_in
from flower_fedcon.runs.toml import read_toml
from flower_fedcon.wire.whole_files import storage, write_text

_LONGEST = 200  # characters of a folder's name: file systems allow 255, and a number may follow


def run_folder(file: Path, run_dir: Path | None, resume: bool) -> Path:
    """Return the folder for an experiment file's runs: the requested one, or a new one.

    Raises
    ------
    ConfigError
        If the requested folder holds a run but `resume` is not set, or does not exist although it
        is.
    """
    if run_dir is not None:
        if resume and not is_there(run_dir):
            raise ConfigError(
                f"there is no folder {run_dir} to resume: correct --run-dir, or start a run "
                f"without --resume"
            )
        if not resume and runs_in(run_dir):
            raise ConfigError(
                f"{run_dir} already holds a run: continue it with --resume, choose another "
                f"--run-dir, or remove it"
            )
        return run_dir
    folder = first = Path("runs") / file.stem
    number = 2
    if resume and not is_there(folder):
        say(f"there is no folder {folder} to resume: starting from round 1")
    while not resume and runs_in(folder):
        folder, number = first.with_name(f"{first.name}-{number}"), number + 1
    return folder


def is_there(folder: Path) -> bool:
    """Return whether the folder exists, so that its runs can be resumed."""
    with storage(f"look into {folder}"):
        return folder.is_dir()


def unused(name: str, used: Container[str], before_number: str) -> str:
    """Return a name, with a number from 2 on if it is in use.

    >>> unused("fedfw", ["fedfw", "fedfw-2"], "-")
    'fedfw-3'
    """
    numbered = (f"{name}{before_number}{number}" for number in count(2))
    return next(new for new in chain([name], numbered) if new not in used)


def labels_of(folder: Path) -> list[str]:
    """Return the labels in the configuration of a run or a comparison; [] without one."""
    try:
        tables = read_toml(folder / CONFIG)
        algorithms = [tables["algorithm"], *tables.get("compare", [])]
        return [str(table.get("label") or table["name"]) for table in algorithms]
    except (ConfigError, KeyError, TypeError, AttributeError):
        return []


def label_slug(label: str, labels: Sequence[str]) -> str:
    """Return the folder name of one of several labels, different for each label.

    >>> [label_slug(label, ["FedFW", "fedfw!"]) for label in ("FedFW", "fedfw!")]
    ['fedfw', 'fedfw-2']
    """
    used: list[str] = []
    for other in labels:
        name = re.sub(r"[^a-z0-9]+", "-", other.lower()).strip("-") or "run"
        slug = unused(name[:_LONGEST].strip("-"), used, "-")
        if other == label:
            return slug
        used.append(slug)
    raise KeyError(label)


def settings_slug(settings: Mapping[str, str]) -> str:
    """Return the folder name of a combination of settings, different for each combination.

    >>> settings_slug({"client_lr": "0.1", "participation": "{sample = 3}"})
    'client_lr=0.1,participation=-sample-=-3-'
    """
    text = ",".join(f"{key}={value}" for key, value in settings.items())
    return re.sub(r"[^A-Za-z0-9.,=+_-]", "-", text)


def write(path: Path, text: str) -> None:
    """Write a text file in one step, and make its parent folders."""
    with storage(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
