"""The content of a run's folder; parts that cannot be read are named."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flower_fedcon.core.wings import wings
from flower_fedcon.errors import ConfigError, FedConError, StorageError, number_of
from flower_fedcon.lab.experiments.histories import labelled
from flower_fedcon.lab.experiments.run_tables import RunOptions
from flower_fedcon.lab.experiments.seed_statistics import highest, lowest, mean
from flower_fedcon.lab.report.exchanges import Exchanges, read_exchanges
from flower_fedcon.lab.report.upload_shares import Shares, read_shares
from flower_fedcon.runs.directory import CONFIG, ENVIRONMENT, HISTORY
from flower_fedcon.runs.history import History, Record
from flower_fedcon.runs.limits import Forecast
from flower_fedcon.runs.toml import read_toml, write_value
from flower_fedcon.wire.whole_files import in_use, read_bytes

Part = TypeVar("Part")
FINISHED = "finished"
_Rows = list[dict[str, str]]
_Coefficients = tuple[dict[str, float], dict[str, tuple[float, float, float]], str, _Rows]
_OWN = {"own": ", an intercept for each site", "random": ", random intercepts"}


@dataclass
class RunContents:
    """One run's folder.

    Attributes
    ----------
    label : str
    folder : Path
    rows : list of Record
    settings : dict
        From its config.toml: "table.key" -> the value in TOML.
    versions : dict
        From its environment.json: Python, the platform, and packages.
    coefficients : dict
        Column -> its coefficient in the column's own unit.
    intervals : dict
        In a run with standard errors: column -> the estimate and the ends of its 95 % interval.
        These are odds, rate or hazard ratios if the model has them, then without the intercept.
    ratio : str
        The kind of these, such as "odds ratio"; "" for coefficients.
    estimates : list of dict
        In a run with standard errors: the lines of its coefficients.csv.
    model : str
        From its model.json: the outcome, and the kind of model.
    described : list of dict
        From its descriptives.csv: a line for each column, category and client.
    at_risk : list of dict
        From its at_risk.csv: a line for each arm and time.
    survival : list of dict
        From its curves.csv: a line for each arm and time.
    quality : dict
        From its quality.json: the model's quality on held-out rows.
    heterogeneity : list of dict
        From its heterogeneity.csv: a line for each column.
    report : str
        Its report.txt: the results in words.
    exchanges : Exchanges, optional
        From its audit log.
    shares : Shares, optional
        From its log of events, if it has no rounds.
    missing : list of str
        A sentence for each part that does not exist or cannot be read.
    running : bool
        Whether a process works on it.
    options : RunOptions, optional
        From its config.toml.
    """

    label: str
    folder: Path
    rows: list[Record] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    coefficients: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    ratio: str = ""
    estimates: _Rows = field(default_factory=list)
    model: str = ""
    described: _Rows = field(default_factory=list)
    survival: _Rows = field(default_factory=list)
    at_risk: _Rows = field(default_factory=list)
    quality: dict[str, Any] = field(default_factory=dict)
    heterogeneity: _Rows = field(default_factory=list)
    report: str = ""
    exchanges: Exchanges | None = None
    shares: Shares | None = None
    missing: list[str] = field(default_factory=list)
    running: bool = False
    options: RunOptions | None = None

    @property
    def status(self) -> str:
        """The progress of the run, in words."""
        done = int(self.rows[-1]["round"]) if self.rows else 0
        if self.running:
            return "running"
        if self.exchanges is not None and self.exchanges.error:
            return f"ended after round {done}: {self.exchanges.error}"
        if self.options is None:
            return number_of(done, "round")
        if done >= self.options.rounds:
            return FINISHED
        ended = self.rows and Forecast(self.options.rounds, self.options.stops())(self.rows[-1])
        if ended and ended.reached:
            return f"{FINISHED} at {done} of {self.options.rounds}: {ended.what}"
        return f"stopped at {done} of {self.options.rounds}"

    @property
    def finished(self) -> bool:
        """Whether the run has finished."""
        return self.status.startswith(FINISHED)


@dataclass
class Curves:
    """The curves of one label: a run, or the mean of several with different seeds."""

    label: str
    runs: list[RunContents]
    rows: Sequence[Record]
    low: Sequence[Record] = ()
    high: Sequence[Record] = ()


def read_folders(folders: Sequence[Path], cells: int = 100_000) -> list[Curves]:
    """Return the runs of some folders, in the order of the figures.

    Parameters
    ----------
    folders : sequence of Path
        Folders of runs or comparisons.
    cells : int (default: 100,000)
        The largest total number of cells in the maps of clients by rounds.

    Raises
    ------
    ConfigError
        If a folder holds no run.
    """
    members = labelled(folders)
    each = max(2000, cells // sum(map(len, members.values())))
    curves = []
    for label, paths in members.items():
        many = len(paths) > 1
        runs = [
            read_run(path, f"{label}, {path.name}" if many else label, cells=each) for path in paths
        ]
        tables = [run.rows for run in runs if run.rows]
        if len(tables) > 1:
            curves.append(Curves(label, runs, mean(tables), lowest(tables), highest(tables)))
        else:
            curves.append(Curves(label, runs, tables[0] if tables else []))
    return _by_model(curves)


def _by_model(curves: list[Curves]) -> list[Curves]:
    """Label models of tables by outcome and model, and by method if only that differs."""
    names = [each.runs[0].model for each in curves]
    for each, name in zip(curves, names, strict=True):
        if not name:
            continue
        label = name if names.count(name) == 1 else f"{name} ({each.label})"
        for run in each.runs:
            run.label = label + run.label.removeprefix(each.label)
        each.label = label
    return curves


def read_run(folder: Path, label: str, *, cells: int = 100_000) -> RunContents:
    """Return the content of one run's folder; see `RunContents`."""
    run = RunContents(label, folder, running=in_use(folder))

    def part(read: Callable[[Path], Part], name: str, without: Part, hint: str = "") -> Part:
        try:
            return read(folder / name)
        except FileNotFoundError:
            if hint:
                run.missing.append(f"{name} is not there: {hint}")
        except FedConError as error:
            run.missing.append(str(error))
        return without

    run.rows = part(History.read_rows, HISTORY, [])
    if not run.rows and not run.missing:
        run.missing.append(f"{folder / HISTORY} has no round yet")
    run.options = run_options(folder)
    run.settings = part(_settings, CONFIG, {}, "its settings are not known")
    run.versions = part(_versions, ENVIRONMENT, {}, "its versions are not known")
    if "tables" in wings():
        _read_tables(run, part)
    try:
        run.exchanges = read_exchanges(folder, cells)
    except StorageError as error:
        run.missing.append(str(error))
    try:
        run.shares = read_shares(folder)
    except StorageError as error:
        run.missing.append(str(error))
    for log, name in ((run.exchanges, "audit log"), (run.shares, "log of events")):
        if log is not None and log.unreadable:
            run.missing.append(f"{log.unreadable} lines of the {name} cannot be read")
    return run


def run_options(folder: Path) -> RunOptions | None:
    """Return rounds and limits from a run's configuration; None if it cannot be read."""
    try:
        return RunOptions(**read_toml(folder / CONFIG)["run"])
    except (FedConError, KeyError, TypeError):
        return None


def _settings(path: Path) -> dict[str, str]:
    if not path.exists():
        raise FileNotFoundError
    settings: dict[str, str] = {}
    for name, table in read_toml(path).items():
        if isinstance(table, Mapping):
            settings |= {f"{name}.{key}": write_value(value) for key, value in table.items()}
        else:
            settings[name] = write_value(table)
    return settings


def _versions(path: Path) -> dict[str, str]:
    try:
        stated: Any = json.loads(read_bytes(path, follow=True))
        packages = stated.pop("packages")
        return {str(key): str(value) for key, value in {**stated, **packages}.items()}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{path} is damaged: its versions are not known") from None


def _quality(path: Path) -> dict[str, Any]:
    kinds = ("sites", "pooled", "roc", "calibration_curve", "absent")
    try:
        stated: Any = json.loads(read_bytes(path, follow=True))
        good = all(isinstance(stated[kind], dict) for kind in kinds)
    except (ValueError, KeyError, TypeError, RecursionError):
        good = False
    if not good:
        raise ConfigError(f"{path} is damaged: the model's quality is not known")
    return dict(stated)


def _read_tables(run: RunContents, part: Callable[..., Any]) -> None:
    """Read what a run on tables has left in its folder."""
    from flower_fedcon.tables.ending import table_report as names
    from flower_fedcon.tables.ending.final_heterogeneity import HETEROGENEITY
    from flower_fedcon.tables.fitted import NAME as MODEL

    nothing: _Coefficients = ({}, {}, "", [])
    fields = part(_coefficients, names.COEFFICIENTS, nothing)
    run.coefficients, run.intervals, run.ratio, run.estimates = fields
    run.model, schema = part(_model, MODEL, ("", None))
    columns, what = ("time", "survival", "lower", "upper"), "its survival curves are"
    run.survival = part(partial(_table, numbers=columns, what=what), names.CURVES, [])
    numbers, what = ("time", "at_risk"), "its numbers at risk are"
    run.at_risk = part(partial(_table, numbers=numbers, what=what), names.AT_RISK, [])
    columns, what = ("values", "mean", "std_dev", "share"), "its columns by site are"
    run.described = part(partial(_table, numbers=columns, what=what), names.DESCRIPTIVES, [])
    run.quality = part(_quality, names.QUALITY, {})
    run.heterogeneity = part(_heterogeneity, HETEROGENEITY, [])
    run.report = part(_report, names.NAME, "")
    if schema is not None:
        _say_labels(run, schema)


def _say_labels(run: RunContents, schema: Any) -> None:
    """Call columns, categories and arms as the schema's labels do."""
    said = schema.in_words
    run.coefficients = {said(name): value for name, value in run.coefficients.items()}
    run.intervals = {said(name): ends for name, ends in run.intervals.items()}
    for row in (*run.estimates, *run.heterogeneity):
        row["column"] = said(row["column"])
    for row in run.described:
        if row.get("category"):
            row["category"] = schema.called(row["column"], row["category"])
        row["column"] = schema.called(row["column"])
    for row in (*run.survival, *run.at_risk) if schema.curve_by else ():
        row["arm"] = schema.group(schema.curve_by, row["arm"])


def _model(path: Path) -> tuple[str, Any]:
    """Return a title, and the schema."""
    from flower_fedcon.tables.families import family_of
    from flower_fedcon.tables.schema import Schema

    try:
        stated: Any = json.loads(read_bytes(path, follow=True))
        name = f"{stated['schema']['target']}: {family_of(stated['loss']).title}"
        return name + _OWN.get(stated.get("site_effects", ""), ""), Schema.load(stated["schema"])
    except (ConfigError, ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{path} is damaged: outcome and model are not known") from None


def _table(path: Path, numbers: Sequence[str], what: str) -> _Rows:
    """Return the lines of a table, in which some columns have numbers or empty cells."""
    try:
        text = read_bytes(path, follow=True).decode()
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
        for row in rows:
            for name in numbers:
                float(row[name] or 0)
        return rows
    except (ValueError, KeyError, TypeError, csv.Error):
        raise ConfigError(f"{path} is damaged: {what} not known") from None


def _report(path: Path) -> str:
    return read_bytes(path, follow=True).decode(errors="replace")


def _heterogeneity(path: Path) -> _Rows:
    try:
        text = read_bytes(path, follow=True).decode()
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
        for row in rows:
            for name, cell in row.items():
                if name != "column" and cell:
                    float(cell)
        return rows
    except (ValueError, TypeError, csv.Error):
        raise ConfigError(f"{path} is damaged: the sites' own estimates cannot be read") from None


def _middle(row: Mapping[str, str], ratio: str) -> float:
    """Return the centre of an interval."""
    if "debiased" not in row:
        return float(row[ratio or "per_unit"])
    value = float(row["debiased"])
    return math.exp(min(value, 700.0)) if ratio else value


def _coefficients(path: Path) -> _Coefficients:
    try:
        text = read_bytes(path, follow=True).decode()
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
        values = {row["column"]: float(row["per_unit"]) for row in rows}
        header = list(rows[0]) if rows else []
        ratio = next((name[:-6] for name in header if name.endswith("_lower")), "")
        lower, upper = (f"{ratio}_{end}" if ratio else end for end in ("lower", "upper"))
        ends = [row for row in rows if row.get(lower) and row.get(upper)]
        intervals = {
            row["column"]: (
                _middle(row, ratio), float(row[lower]), float(row[upper])
            )
            for row in ends
        }  # fmt: skip
        return values, intervals, ratio.replace("_", " "), rows if intervals else []
    except (ValueError, KeyError, TypeError, csv.Error):
        raise ConfigError(f"{path} is damaged: its coefficients are not known") from None
