"""What `fedcon run` and `compare` do: experiments played into folders, with tables and figures."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.experiments.console import console, progress, quiet, results, say

if TYPE_CHECKING:
    from flower_fedcon.experiments.experiment import Experiment
    from flower_fedcon.problems.federated import FederatedProblem
    from flower_fedcon.runs.history import History, Record


Histories: TypeAlias = "dict[str, Sequence[Record]]"


class InterruptedRunError(Exception):
    """Ctrl-C during a run."""


def load(
    file: Path, engine: str | None, rounds: int | None, seed: int | None, settings: list[str] | None
) -> Experiment:
    """Return an experiment file with the command line's changes."""
    from flower_fedcon.experiments.experiment import Experiment

    options = {"rounds": rounds, "seed": seed, "engine": engine}
    overrides = [f"run.{key}={value}" for key, value in options.items() if value is not None]
    return Experiment.load(file, [*(settings or []), *overrides])


class Safety(NamedTuple):
    """What `simulate` takes for runs that may be interrupted."""

    resume: bool
    checkpoint_every: int | None
    allow_changes: tuple[str, ...]


def run_all(experiment: Experiment, folder: Path, safety: Safety, *, compare: bool) -> None:
    """Run an experiment's algorithm, or all of them, and show table and figure."""
    from flower_fedcon.experiments.figures import plot_histories
    from flower_fedcon.runs.directory import CONFIG, write_text

    problem = experiment.problem()
    strategies = experiment.strategies()
    if not compare:
        strategies = dict(list(strategies.items())[:1])
    _find_optimum(experiment, problem)
    histories: dict[str, History] = {}
    for index, label in enumerate(strategies):
        target = folder / _slug(label, strategies) if compare else folder
        if not (safety.resume and (target / CONFIG).exists()):
            _make(target)
            write_text(target / CONFIG, experiment.to_toml(index))
        with _labelled(label if compare else ""):
            histories[label] = _play(experiment, index, label, target, safety)
    if compare and not safety.resume:
        write_text(folder / CONFIG, experiment.to_toml())
    rows = {label: history.rows for label, history in histories.items() if len(history)}
    if rows:
        console().print(results(rows, problem))
        for label, records in rows.items():
            if dropped := records[-1]["dropped"]:
                say(f"{label}: {dropped:g} replies were dropped, see history.csv")
        title = experiment.title or Path(experiment.source).stem
        say(f"figure:    {plot_histories(rows, _figures(folder, compare), title=title)}")
    say(f"directory: {folder}")


def run_seeds(each: dict[int, Experiment], folder: Path, safety: Safety) -> None:
    """Run a comparison for several seeds, in folder/<algorithm>/seed-<seed>."""
    from flower_fedcon.experiments.figures import plot_histories
    from flower_fedcon.experiments.seed_statistics import mean
    from flower_fedcon.runs.directory import CONFIG, write_text

    first = next(iter(each.values()))
    _find_optimum(first, first.problem())
    runs: dict[str, list[Sequence[Record]]] = {label: [] for label in first.labels}
    for index, label in enumerate(first.labels):
        for seed, experiment in each.items():
            target = folder / _slug(label, first.labels) / f"seed-{seed}"
            if not (safety.resume and (target / CONFIG).exists()):
                _make(target)
                write_text(target / CONFIG, experiment.to_toml(index))
            with _labelled(f"{label}, seed {seed}"):
                history = _play(experiment, index, f"{label}, seed {seed}", target, safety,
                                problem=first.problem())  # fmt: skip
                runs[label].append(history.rows)
    if not (folder / CONFIG).exists():
        write_text(folder / CONFIG, first.to_toml())
    means = {label: mean(rows) for label, rows in runs.items() if all(rows)}
    if means:
        console().print(results(means, first.problem(), runs))
        title = first.title or Path(first.source).stem
        figure = plot_histories(means, _figures(folder, True), title=title, seeds=runs)
        say(f"figure:    {figure}")
    say(f"directory: {folder}")


def write(path: Path, text: str) -> None:
    """Write a text file, in one step."""
    from flower_fedcon.runs.directory import write_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _find_optimum(experiment: Experiment, problem: FederatedProblem) -> None:
    if not experiment.reference:
        return
    began = time.perf_counter()
    try:
        optimum = problem.optimum
    except FedConError as error:
        raise type(error)(f"{error}; or do without F - F*: --set problem.reference=false") from None
    seconds = time.perf_counter() - began
    say(f"reference optimum F* = {optimum.value:.8g} ({optimum.method}, {seconds:.1f} s)")


def _play(
    experiment: Experiment,
    index: int,
    label: str,
    folder: Path,
    safety: Safety,
    problem: FederatedProblem | None = None,
) -> History:
    from flower_fedcon.runs.directory import HISTORY
    from flower_fedcon.runs.history import History
    from flower_fedcon.simulation import simulate

    options = experiment.run_options
    if options.engine == "stacked":  # beside the log, which is kept quiet below
        from flower_fedcon.engines.stacked import why_not_stackable

        reason = why_not_stackable(experiment.strategy(index), problem or experiment.problem())
        if reason is not None:
            say(f"{label}: {reason}; running on the local engine")
    try:
        with progress(label, options.rounds) as show, quiet(options.engine != "ray"):
            return simulate(
                experiment.strategy(index),
                problem or experiment.problem(),
                options.rounds,
                engine=options.engine,
                workers=options.workers,
                seed=options.seed,
                evaluate_every=options.evaluate_every,
                run_dir=folder,
                callbacks=(show,),
                **safety._asdict(),
            )
    except KeyboardInterrupt:
        rows = History.read_rows(folder / HISTORY) if (folder / HISTORY).exists() else []
        done = int(rows[-1]["round"]) if rows else 0
        raise InterruptedRunError(
            f"interrupted: {label} is recorded up to round {done} of {options.rounds} in {folder}; "
            f"go on with --resume --run-dir {folder}"
        ) from None


# --- folders -------------------------------------------------------------------------------------


def folder_for(file: Path, run_dir: Path | None, resume: bool) -> Path:
    """Return the run directory: the one asked for, or a new one."""
    if run_dir is not None:
        if not resume and _holds_run(run_dir):
            raise ConfigError(
                f"{run_dir} holds a run already: choose another --run-dir, or remove it"
            )
        return run_dir
    folder = first = Path("runs") / file.stem
    number = 2
    while not resume and _holds_run(folder):
        folder, number = first.with_name(f"{first.name}-{number}"), number + 1
    return folder


def _holds_run(folder: Path) -> bool:
    from flower_fedcon.runs.directory import HISTORY

    return (folder / HISTORY).exists() or bool(parts(folder))


def parts(folder: Path) -> list[Path]:
    """Return the runs of a comparison."""
    from flower_fedcon.runs.directory import HISTORY

    found = [*folder.glob(f"*/{HISTORY}"), *folder.glob(f"*/seed-*/{HISTORY}")]
    return sorted(path.parent for path in found)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot make the run directory {folder}: {reason}") from None


def _slug(label: str, labels: Sequence[str] | dict[str, Any]) -> str:
    """Return the folder name of a label, different from those of the others."""
    used: list[str] = []
    for other in labels:
        slug = base = re.sub(r"[^a-z0-9]+", "-", other.lower()).strip("-") or "run"
        number = 2
        while slug in used:
            slug, number = f"{base}-{number}", number + 1
        if other == label:
            return slug
        used.append(slug)
    raise KeyError(label)


def _figures(folder: Path, compare: bool) -> list[Path]:
    """Return the figure's files; a comparison's is also drawn in vectors, for papers."""
    from flower_fedcon.runs.directory import FIGURE

    figure = folder / FIGURE
    return [figure, figure.with_suffix(".pdf")] if compare else [figure]


def histories_of(folders: Sequence[Path]) -> tuple[Histories, dict[str, list[Sequence[Record]]]]:
    """Return what the folders of runs and comparisons hold, by labels that differ.

    Returns
    -------
    histories : dict
        Label -> rows; of a comparison over seeds the mean.
    seeds : dict
        Label -> the rows of each seed, where there are several.

    Raises
    ------
    ConfigError
        If a folder holds no run, or a history cannot be read.
    """
    from flower_fedcon.experiments.seed_statistics import mean
    from flower_fedcon.runs.directory import HISTORY

    histories: Histories = {}
    seeds: dict[str, list[Sequence[Record]]] = {}
    for given in folders:
        found = [given] if (given / HISTORY).exists() else parts(given)
        if not found:
            raise ConfigError(f"{given} holds no run: there is no {HISTORY} in it")
        # In the order, and so the colours, of the comparison's own figure.
        places = {label: place for place, label in enumerate(_labels_of(given))}
        found.sort(key=lambda folder: places.get(label_of(folder), len(places)))
        groups: dict[Path, list[Path]] = {}
        for folder in found:
            of_a_seed = folder != given and folder.name.startswith("seed-")
            groups.setdefault(folder.parent if of_a_seed else folder, []).append(folder)
        for group, members in groups.items():
            label = base = label_of(members[0])
            if label in histories:
                label = base = f"{base} ({group})"
            number = 2
            while label in histories:
                label, number = f"{base} {number}", number + 1
            runs: list[Sequence[Record]] = [rows_of(folder / HISTORY) for folder in members]
            histories[label] = mean(runs) if len(runs) > 1 else runs[0]
            if len(runs) > 1:
                seeds[label] = runs
    return histories, seeds


def label_of(folder: Path) -> str:
    """Return what a run directory's configuration calls its algorithm."""
    return (_labels_of(folder) or [folder.name])[0]


def _labels_of(folder: Path) -> list[str]:
    """Return the labels in the configuration of a run or a comparison, [] if there is none."""
    import tomllib

    from flower_fedcon.runs.directory import CONFIG

    try:
        tables = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
        algorithms = [tables["algorithm"], *tables.get("compare", [])]
        return [str(table.get("label") or table["name"]) for table in algorithms]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def rows_of(path: Path) -> list[Record]:
    """Return a history's rows, or say that they cannot be read."""
    from flower_fedcon.runs.history import History

    try:
        return History.read_rows(path)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


@contextmanager
def _labelled(label: str) -> Iterator[None]:
    from flower_fedcon.experiments.schema import context

    if not label:
        yield
        return
    with context(label):
        yield
