"""The folders of runs and comparisons: what they are called, and which runs they hold."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from itertools import chain, count
from pathlib import Path

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.console import say
from flower_fedcon.runs.directory import CONFIG, HISTORY
from flower_fedcon.runs.toml import read_toml
from flower_fedcon.wire.whole_files import storage, write_text

_LONGEST = 200  # letters of a folder's name: file systems take 255, and a number may follow


def run_folder(file: Path, run_dir: Path | None, resume: bool) -> Path:
    """Return the folder for an experiment file's runs: the one asked for, or a new one.

    Raises
    ------
    ConfigError
        If the one asked for holds a run that is not resumed, or is to be resumed and is not there.
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
    """Return whether there is a folder, whose runs can be resumed."""
    with storage(f"look into {folder}"):
        return folder.is_dir()


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories of a folder: itself, or those of its comparison."""
    with storage(f"look into {folder}"):
        if (folder / HISTORY).exists():
            return [folder]
        found = [*folder.glob(f"*/{HISTORY}"), *folder.glob(f"*/seed-*/{HISTORY}")]
    return sorted(path.parent for path in found)


def unused(name: str, used: Container[str], before_number: str) -> str:
    """Return the name, with the first number from 2 on that makes it a new one if it is used.

    >>> unused("fedfw", ["fedfw", "fedfw-2"], "-")
    'fedfw-3'
    """
    numbered = (f"{name}{before_number}{number}" for number in count(2))
    return next(new for new in chain([name], numbered) if new not in used)


def labels_of(folder: Path) -> list[str]:
    """Return the labels in the configuration of a run or a comparison, [] if there is none."""
    try:
        tables = read_toml(folder / CONFIG)
        algorithms = [tables["algorithm"], *tables.get("compare", [])]
        return [str(table.get("label") or table["name"]) for table in algorithms]
    except (ConfigError, KeyError, TypeError, AttributeError):
        return []


def label_slug(label: str, labels: Sequence[str]) -> str:
    """Return the folder name of one of several labels, different from those of the others.

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
    """Return the folder name of a combination of settings, which tells different ones apart.

    >>> settings_slug({"client_lr": "0.1", "participation": "{sample = 3}"})
    'client_lr=0.1,participation=-sample-=-3-'
    """
    text = ",".join(f"{key}={value}" for key, value in settings.items())
    return re.sub(r"[^A-Za-z0-9.,=+_-]", "-", text)


def write(path: Path, text: str) -> None:
    """Write a text file in one step, and make the folders above it."""
    with storage(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
