"""The histories in folders of runs, read for figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

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

METHOD = "method"
"""A key like that of a setting: the algorithm's label in the experiment file."""

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


class Place(NamedTuple):
    """Where a label stands by some settings of its runs.

    Attributes
    ----------
    texts : tuple of str
        A text for each key.
    rest : str
        The label without these texts.
    """

    texts: tuple[str, ...]
    rest: str


def places_of(folders: Sequence[Path], keys: Sequence[str]) -> dict[str, Place]:
    """Return where the labels stand by some settings of their runs.

    Parameters
    ----------
    folders : sequence of Path
        Of runs, comparisons or studies.
    keys : sequence of str
        Keys of ``[algorithm]``, "participation", or keys of other tables, such as "problem.seed";
        "method" is the label in the experiment file, without the settings of a study.

    Raises
    ------
    ConfigError
        If no run has a setting.
    """
    settings, called = set(), dict[tuple[str, str], str]()
    for folder in folders:
        if (path := folder / CONFIG).is_file():
            called |= names_of_values(check_sweep(read_toml(path).get("sweep", {})))
    places, unknown = {}, set(keys)
    for label, members in labelled(folders).items():
        tables, texts, rest = read_toml(members[0] / CONFIG), [], f", {label}, "
        for key in keys:
            if key == METHOD:
                texts.append(_method(label, members[0]))
            else:
                settings |= tables.get(key.rpartition(".")[0] or "algorithm", {}).keys()
                value = value_at(tables, key)
                value = "full" if value is None and key == "participation" else value
                text = "other" if value is None else setting_text(key, value)
                named = None if value is None else called.get((key, write_value(value)))
                texts.append(named or text)
            unknown -= {key} if texts[-1] != "other" else set()
            rest = rest.replace(f", {texts[-1]}, ", ", ", 1)
        places[label] = Place(tuple(texts), rest.strip(", "))
    for key in keys:
        if key in unknown:
            raise ConfigError(
                f"no run has the setting {key!r}: {nearest(key.rpartition('.')[2], settings)}"
            )
    return places


def panels_of(folders: Sequence[Path], key: str) -> dict[str, tuple[str, str]]:
    """Return the panel of each label, by a setting of its run, and its name without that.

    See `places_of`.
    """
    places = places_of(folders, [key])
    return {label: (place.texts[0], place.rest or label) for label, place in places.items()}


def _method(label: str, folder: Path) -> str:
    """Return a label without the settings of the study that a run belongs to."""
    for above in (folder, *folder.parents):
        if (above / CELLS).is_file():
            fits = [own for own in labels_of(above) if f"{label}, ".startswith(f"{own}, ")]
            return max(fits, key=len, default=label)
    return label


def seeds_of(folders: Sequence[Path]) -> list[str]:
    """Return the seeds of runs that share a label: of the run, and of the problem if it has one."""
    seeds = []
    for folder in folders:
        tables = read_toml(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        of_run, of_problem = (tables.get(table, {}).get("seed") for table in ("run", "problem"))
        said = [] if of_run is None else [str(of_run)]
        said += [] if of_problem is None else [f"problem {of_problem}"]
        seeds.append(", ".join(said) or folder.name)
    return seeds


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
