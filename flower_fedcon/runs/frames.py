"""The histories of runs, as one table of pandas."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import ConfigError, pandas
from flower_fedcon.runs.directory import CONFIG, HISTORY, TUNING
from flower_fedcon.runs.history import History
from flower_fedcon.runs.toml import read_toml, value_at, write_value
from flower_fedcon.wire.whole_files import storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd


def read_runs(*folders: str | Path, settings: Sequence[str] = ()) -> pd.DataFrame:
    """Return the histories of all runs in some folders as one table.

    Parameters
    ----------
    *folders : path
        Folders of runs, of comparisons, or any folders that contain such folders. The runs by which
        a study has tuned its cells are left out: name its folder "tuning" to read them.
    settings : sequence of str (default: ())
        Settings that become columns of these names, such as "problem.alpha", or "client_lr" of the
        algorithm. Numbers stay numbers, tables are texts as in the file, and a cell is empty if a
        run does not state the setting.

    Returns
    -------
    pandas.DataFrame
        A row for each recorded round of each run, in the order of the folders' names. Columns:
        "folder" (of the run, as text), "label" and "algorithm" (texts), "problem" (its name),
        "participation" (as in the file, "full" or "sample = 3"), "engine", "seed" (of the run),
        "problem_seed" (empty if it has none), then the columns of the histories, empty if a run has
        not recorded them.

    Raises
    ------
    ConfigError
        If a folder holds no run, a history cannot be read, or no run has a setting.

    Examples
    --------
    >>> from flower_fedcon import read_runs
    >>> runs = read_runs("runs/study", settings=["client_lr"])  # doctest: +SKIP
    >>> runs.groupby(["label", "round"])["residual"].median()  # doctest: +SKIP
    >>> runs.groupby("participation")["client_lr"].unique()  # doctest: +SKIP
    """
    pd = pandas()

    if isinstance(settings, str):
        raise ConfigError(f"settings must be a list of keys, got {settings!r}: [{settings!r}]")
    frames, stated, is_study = [], set[str](), cache(_is_study)
    for given in map(Path, folders):
        with storage(f"look into {given}"):
            holding = (path.parent for path in given.rglob(HISTORY))
            runs = sorted(path for path in holding if not _has_tuned(path, given, is_study))
        if not runs:
            raise ConfigError(
                f"{given} holds no run: neither it nor its subfolders have a {HISTORY}"
            )
        for folder in runs:
            rows = pd.DataFrame(History.read_rows(folder / HISTORY))
            tables = read_toml(folder / CONFIG)
            found_at = {key: value_at(tables, key) for key in settings}
            values = {key: value for key, value in found_at.items() if value is not None}
            stated |= values.keys()
            about = {"folder": str(folder), **_about(tables, folder), **_plain(values)}
            frames.append(pd.concat([pd.DataFrame([about] * len(rows)), rows], axis=1))
    for key in settings:
        if key not in stated:
            raise ConfigError(f"no run has the setting {key!r}: write client_lr, or problem.alpha")
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _is_study(folder: Path) -> bool:
    return (folder / CONFIG).exists() and "sweep" in read_toml(folder / CONFIG)


def _has_tuned(folder: Path, given: Path, is_study: Callable[[Path], bool]) -> bool:
    """Return whether a run was made to choose settings for a study in a given folder."""
    inside = folder.relative_to(given).parts
    studies = (given.joinpath(*inside[:i]) for i, name in enumerate(inside) if name == TUNING)
    return any(map(is_study, studies))


def _about(tables: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the parts of a run's configuration that distinguish it."""
    algorithm, run, problem = (tables.get(name, {}) for name in ("algorithm", "run", "problem"))
    return {
        "label": algorithm.get("label", algorithm.get("name", folder.name)),
        "algorithm": algorithm.get("name"),
        "problem": problem.get("name"),
        **_plain({"participation": algorithm.get("participation", "full")}),
        "engine": run.get("engine", "local"),
        "seed": run.get("seed"),
        "problem_seed": problem.get("seed"),
    }


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as cells of a table, with tables and lists as text."""
    return {
        key: write_value(value).strip("{}") if isinstance(value, dict | list) else value
        for key, value in settings.items()
    }
