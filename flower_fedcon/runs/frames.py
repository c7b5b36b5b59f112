"""What runs have recorded, as one table of pandas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.directory import CONFIG, HISTORY, TUNING
from flower_fedcon.runs.history import History
from flower_fedcon.runs.toml import read_toml, write_value
from flower_fedcon.wire.whole_files import storage

if TYPE_CHECKING:
    import pandas as pd


def read_runs(*folders: str | Path) -> pd.DataFrame:
    """Return the histories of all runs in some folders as one table.

    Parameters
    ----------
    *folders : path
        Of runs, comparisons, or anything that holds such folders. The runs by which a study has
        tuned its cells are not among its runs: name its folder "tuning" to read them.

    Returns
    -------
    pandas.DataFrame
        A row for each recorded round of each run, in the order of the folders' names. Columns:
        "folder" (of the run, as text), "label" and "algorithm" (texts), "problem" (its name),
        "participation" (as in the file, "full" or "sample = 3"), "engine", "seed" (of the run),
        "problem_seed" (empty where it has none), then those of the histories, empty where a run
        has not recorded them.

    Raises
    ------
    ConfigError
        If a folder holds no run, or a history cannot be read.

    Examples
    --------
    >>> from flower_fedcon import read_runs
    >>> runs = read_runs("runs/study")  # doctest: +SKIP
    >>> runs.groupby(["label", "round"])["residual"].median()  # doctest: +SKIP
    """
    import pandas as pd

    frames = []
    for given in map(Path, folders):
        with storage(f"look into {given}"):
            holding = (path.parent for path in given.rglob(HISTORY))
            found = sorted(path for path in holding if not _has_tuned(path, given))
        if not found:
            raise ConfigError(f"{given} holds no run: there is no {HISTORY} in it, nor below")
        for folder in found:
            rows = pd.DataFrame(History.read_rows(folder / HISTORY))
            about = {"folder": str(folder), **_about(folder)}
            frames.append(pd.concat([pd.DataFrame([about] * len(rows)), rows], axis=1))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _has_tuned(folder: Path, given: Path) -> bool:
    """Return whether a run chose settings for a study that lies in a given folder."""
    inside = folder.relative_to(given).parts
    studies = (given.joinpath(*inside[:i]) for i, name in enumerate(inside) if name == TUNING)
    return any((at / CONFIG).exists() and "sweep" in read_toml(at / CONFIG) for at in studies)


def _about(folder: Path) -> dict[str, Any]:
    """Return what tells a run from others, by its configuration."""
    tables = read_toml(folder / CONFIG)
    algorithm, run, problem = (tables.get(name, {}) for name in ("algorithm", "run", "problem"))
    rule = algorithm.get("participation", "full")
    return {
        "label": algorithm.get("label", algorithm.get("name", folder.name)),
        "algorithm": algorithm.get("name"),
        "problem": problem.get("name"),
        "participation": write_value(rule).strip("{}") if isinstance(rule, dict) else rule,
        "engine": run.get("engine", "local"),
        "seed": run.get("seed"),
        "problem_seed": problem.get("seed"),
    }
