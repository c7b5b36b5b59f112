"""The histories in folders of runs, read for figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.lab.experiments.folders import labels_of, unused
from flower_fedcon.lab.experiments.run_tables import check_sweep, names_of_values
from flower_fedcon.lab.experiments.seed_statistics import mean
from flower_fedcon.runs.directory import CONFIG, HISTORY, runs_in
from flower_fedcon.runs.history import History, Record
from flower_fedcon.runs.relative import with_relative
from flower_fedcon.runs.toml import read_toml, value_at, write_value

Histories: TypeAlias = dict[str, Sequence[Record]]
Seeds: TypeAlias = dict[str, list[Sequence[Record]]]


CELLS = "cells.json"
"""A study's file with the labels of its cells, in order."""

FAILED = "failed.json"
"""A study's file with the reasons of cells without a finished run, by label."""


def failed_in(folders: Sequence[Path]) -> dict[str, str]:
    """Return why cells of studies have no finished run, by label."""
    reasons: dict[str, str] = {}
    for folder in folders:
        if (path := folder / FAILED).is_file():
            try:
                reasons |= json.loads(path.read_text("utf-8"))
            except (OSError, ValueError, TypeError) as error:
                raise ConfigError(f"cannot read {path}: {error}") from None
    return reasons


def histories_of(folders: Sequence[Path]) -> tuple[Histories, Seeds]:
    """Return the histories in folders of runs and comparisons, by unique labels.

    Returns
    -------
    histories : dict
        Label -> rows; in a comparison over seeds their mean.
    seeds : dict
        Label -> the rows of each seed, if there are several.

    Raises
    ------
    ConfigError
        If a folder holds no run, or a history cannot be read.
    """
    histories: Histories = {}
    seeds: Seeds = {}
    for label, members in labelled(folders).items():
        runs: list[Sequence[Record]] = [_rows(folder / HISTORY) for folder in members]
        histories[label] = mean(runs) if len(runs) > 1 else runs[0]
        if len(runs) > 1:
            seeds[label] = runs
    return histories, seeds


def panels_of(folders: Sequence[Path], key: str) -> dict[str, tuple[str, str]]:
    """Return the panel of each label, by a setting of its run, and its name without that.

    Parameters
    ----------
    folders : sequence of Path
        Of runs, comparisons or studies.
    key : str
        A key of ``[algorithm]``, "participation", or a key of another table, such as
        "problem.seed".

    Raises
    ------
    ConfigError
        If no run has the setting.
    """
    table, _, name = key.rpartition(".")
    panels, settings = {}, set()
    called: dict[tuple[str, str], str] = {}
    for folder in folders:
        if (path := folder / CONFIG).is_file():
            called |= names_of_values(check_sweep(read_toml(path).get("sweep", {})))
    for label, members in labelled(folders).items():
        tables = read_toml(members[0] / CONFIG)
        settings |= tables.get(table or "algorithm", {}).keys()
        value = value_at(tables, key)
        value = "full" if value is None and key == "participation" else value
        text = "other" if value is None else setting_text(key, value)
        text = called.get((key, write_value(value)), text) if value is not None else text
        rest = f", {label}, ".replace(f", {text}, ", ", ").strip(", ")
        panels[label] = (text, rest or label)
    if all(panel == "other" for panel, _ in panels.values()):
        raise ConfigError(f"no run has the setting {key!r}: {nearest(name, settings)}")
    return panels


def setting_text(key: str, value: object) -> str:
    """Return a setting in the form for labels and panels.

    >>> setting_text("participation", {"fraction": 0.1}), setting_text("problem.alpha", 0.5)
    ('fraction 0.1', 'alpha 0.5')
    >>> setting_text("participation", {"type": "Deadline", "seconds": 2, "among": {"sample": 3}})
    'Deadline seconds 2 among sample 3'
    """
    name = key.rpartition(".")[2]
    if isinstance(value, dict):
        return " ".join(
            str(v) if k == "type" else f"{k} {setting_text('participation', v)}"
            for k, v in value.items()
        )
    return str(value) if name == "participation" else f"{name} {value}"


def labelled(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the run directories of some folders, by unique labels.

    Runs of a comparison that differ only in their seed share a label.

    Raises
    ------
    ConfigError
        If a folder holds no run.
    """
    by_label: dict[str, list[Path]] = {}
    for given in folders:
        for group, members in _groups(given).items():
            label = _label(members[0])
            if label in by_label:
                label = unused(f"{label} ({group})", by_label, " ")
            by_label[label] = members
    return by_label


def _groups(given: Path) -> dict[Path, list[Path]]:
    """Return the runs of a folder, grouped if they differ only in their seed."""
    folders = runs_in(given)
    if not folders:
        raise ConfigError(f"{given} holds no run: it has no {HISTORY} in it")
    # In the order, and so with the colours, of the comparison's table and figure.
    places = {label: place for place, label in enumerate(_order(given))}
    folders.sort(key=lambda folder: places.get(_label(folder), len(places)))
    groups: dict[Path, list[Path]] = {}
    for folder in folders:
        of_a_seed = folder != given and folder.name.startswith("seed-")
        groups.setdefault(folder.parent if of_a_seed else folder, []).append(folder)
    return groups


def _order(given: Path) -> list[str]:
    """Return the labels of a study's cells, or of a comparison, in their order."""
    try:
        return [str(label) for label in json.loads((given / CELLS).read_text("utf-8"))]
    except (OSError, ValueError, TypeError):
        return labels_of(given)


def _label(folder: Path) -> str:
    """Return the label of the algorithm in a run directory's configuration."""
    return (labels_of(folder) or [folder.name])[0]


def _rows(path: Path) -> list[Record]:
    """Return a history's rows; raise if they cannot be read."""
    try:
        return with_relative(History.read_rows(path))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
