"""Studies: an experiment file's algorithms at all combinations of some settings, over seeds.

[sweep]
participation = [{fraction = 0.1}, {fraction = 0.3}, "full"]
local_steps = [1, 5]              # any key that `--set` takes, of the algorithms that take it
"problem.seed" = [0, 1]           # seeds make one row together: mean and range
"run.seed" = [0, 1, 2, 3, 4]      # "both.seed" in place of the two varies them together
tune = true                       # choose from each algorithm's grid in each cell first; a
                                  # swept key is no longer in it
names.participation = ["a tenth", "a third", "all"]   # optional: in tables and figures
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments import tuning
from flower_fedcon.lab.experiments.comparison import figures_of, show
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.folders import label_slug, write
from flower_fedcon.lab.experiments.histories import CELLS, FAILED, setting_text
from flower_fedcon.lab.experiments.run_tables import BOTH, names_of_values
from flower_fedcon.lab.experiments.runner import Job, play_jobs, say_short_traces
from flower_fedcon.lab.experiments.seed_statistics import mean
from flower_fedcon.problems.mismatch import why_mismatched
from flower_fedcon.runs.console import brief, clock, say
from flower_fedcon.runs.directory import CONFIG, TUNING
from flower_fedcon.runs.history import Record
from flower_fedcon.runs.toml import write_value


class CellRun(NamedTuple):
    """One run of a study.

    Attributes
    ----------
    label : str
        The label of the cell: the algorithm's, with the settings of the sweep.
    seed : str
        The run's seeds within its cell; "" if there is only one run.
    experiment : Experiment
        The experiment with this algorithm only.
    """

    label: str
    seed: str
    experiment: Experiment


def runs_of(experiment: Experiment) -> list[CellRun]:
    """Return the runs of a study, grouped by problem.

    A setting that an algorithm does not take makes no further runs of it. A setting that it takes
    defines the cell, and is removed from its grid.
    """
    rest, called = ("tune", "names"), names_of_values(experiment.sweep)
    lists = {key: values for key, values in experiment.sweep.items() if key not in rest}
    # The problem's seed first: runs on one problem are consecutive, and find its optimum once.
    order = sorted(lists, key=lambda key: (not key.startswith(_OF_PROBLEM), not _is_seed(key)))
    runs: dict[tuple[str, str], CellRun] = {}
    for values in itertools.product(*(lists[key] for key in order)):
        chosen = dict(zip(order, values, strict=True))
        changes = [f"{key}={write_value(value)}" for key, value in chosen.items()]
        tried = experiment.changed(changes)
        for label in tried.labels:
            settings = {k: v for k, v in chosen.items() if tried.concerns(label, k)}
            texts = [
                called.get((key, write_value(value))) or setting_text(key, value)
                for key, value in settings.items()
                if not _is_seed(key)
            ]
            seed = "-".join(str(value) for key, value in settings.items() if _is_seed(key))
            name = ", ".join([label, *texts])
            changes = [f"algorithm.label={write_value(name)}", *_fixed(label, settings, tried)]
            alone = tried.only(label).changed(changes)
            runs.setdefault((name, seed), CellRun(name, seed, alone))
    return list(runs.values())


def run_study(experiment: Experiment, folder: Path, *, workers: int = 2) -> bool:
    """Do a study's runs over processes, each in its own folder; show the results.

    Finished runs in the folder are not repeated, and interrupted ones continue.

    Returns
    -------
    bool
        Whether every run finished.

    Raises
    ------
    ConfigError
        If a run cannot be made, the folder holds other runs, or there is nothing to tune.
    """
    if experiment.sweep.get("tune") and not any(map(experiment.grid, experiment.labels)):
        raise ConfigError(
            f"{experiment.source}: [sweep] has tune = true, but no algorithm has a grid to choose "
            "from: write grid = {key = [v1, v2, v3]} in its table, or leave out tune"
        )
    runs = runs_of(experiment)
    for run in runs:
        run.experiment.strategy()  # raises before the first run
    _say_mismatches(runs)
    if experiment.run_options.engine == "stacked":
        _say_unstacked(runs)
    say_short_traces(
        (label, alone.participation(), alone.run_options.rounds) for label, _, alone in runs
    )
    write(folder / CONFIG, experiment.to_toml())  # first, since it identifies the runs
    labels = list(dict.fromkeys(run.label for run in runs))
    write(folder / CELLS, json.dumps(labels, indent=1))
    failed: list[tuple[str, str, str]] = []  # label, name of the run, reason
    if experiment.sweep.get("tune"):
        runs, failed = _tuned(runs, labels, experiment, folder, workers)
    jobs = []
    for run in runs:
        home = home_of(run, labels, folder)
        jobs.append(Job(str(home), run.experiment.to_toml(0), folder=home.resolve()))
    rows: dict[str, list[Sequence[Record]]] = {label: [] for label in labels}
    began, fresh = time.monotonic(), 0
    for done, (number, played) in enumerate(play_jobs(jobs, workers=workers), start=1):
        run = runs[number]
        name = f"{run.label}, seed {run.seed}" if run.seed else run.label
        if played.error:
            failed.append((run.label, name, played.error))
        else:
            rows[run.label].append(played.rows)
        state = "failed" if played.error else brief(played.rows[-1])
        fresh += not played.found  # runs found finished say nothing about the others' time
        left = (time.monotonic() - began) / max(1, fresh) * (len(jobs) - done)
        after = f", {clock(left)} left" if fresh and done < len(jobs) else ""
        say(f"{done}/{len(jobs)}: {name}: {state}{', found' if played.found else ''}{after}")
    cells = {label: why for label, _, why in reversed(failed) if not rows[label]}
    write(folder / FAILED, json.dumps(cells, indent=1))
    whole = {label: repeats for label, repeats in rows.items() if repeats and all(repeats)}
    who = {run.label: next(iter(run.experiment.who_takes_part().values())) for run in runs}
    one_problem = len({write_value(run.experiment.problem_arguments) for run in runs}) == 1
    show(
        runs[0].experiment,
        {label: mean(repeats) for label, repeats in whole.items()},
        figures_of(folder),
        whole,
        one_problem=one_problem,
        participation={} if _in_labels(experiment) else who,
        failed=cells,
    )
    for _, name, why in failed:
        say(f"{name}: failed: {why}")
    say(f"directory: {folder}")
    return not failed


def home_of(run: CellRun, labels: Sequence[str], folder: Path) -> Path:
    """Return the folder of one of a study's runs, whose cells have these labels."""
    home = folder / label_slug(run.label, labels)
    return home / f"seed-{run.seed}" if run.seed else home


def _in_labels(experiment: Experiment) -> bool:
    """Return whether labels contain the participation."""
    return any(key.rpartition(".")[2] == "participation" for key in experiment.sweep)


def _say_mismatches(runs: Sequence[CellRun]) -> None:
    """Log once, not in each run, which algorithms run although they solve another problem."""
    cells: dict[str, CellRun] = {}
    for run in runs:
        cells.setdefault(run.label, run)
    said = set()
    for run in cells.values():
        kind = type(run.experiment.strategy())
        if kind in said or run.experiment.on_mismatch() != "warn":
            continue
        mismatch = why_mismatched(run.experiment.strategy(), run.experiment.problem())
        if mismatch is not None:
            said.add(kind)
            say(mismatch.partition(": ")[0])


def _say_unstacked(runs: Sequence[CellRun]) -> None:
    """Log once, not in each run, why runs for the stacked engine are not stacked."""
    from flower_fedcon.engines.stacked import why_not_stackable

    reasons: dict[str, str] = {}
    for run in runs:
        reason = why_not_stackable(run.experiment.strategy(), run.experiment.problem())
        if reason is not None:
            reasons.setdefault(reason, run.label)
    for reason, label in reasons.items():
        say(f"{label}: {reason}; such runs use the local engine")


_OF_PROBLEM = ("problem.", BOTH)
"""The prefixes of keys that change the problem."""


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == "seed"


def _tuned(
    runs: Sequence[CellRun],
    labels: Sequence[str],
    experiment: Experiment,
    folder: Path,
    workers: int,
) -> tuple[list[CellRun], list[tuple[str, str, str]]]:
    """Return the runs with the best settings in each cell's grid, chosen with its first seed.

    A cell whose grid has no usable value has no runs, but a reason: (label, label, reason).
    """
    options, best, tuned = experiment.tuning, dict[str, list[str] | None](), list[CellRun]()
    failed: list[tuple[str, str, str]] = []
    number = len({run.label for run in runs if run.experiment.grid(run.label)})
    for run in runs:
        alone = run.experiment
        if not alone.grid(run.label):
            tuned.append(run)
            continue
        if run.label not in best:
            say(f"{run.label}: tuning, cell {len(best) + 1} of {number}")
            rounds = [f"run.rounds={options.rounds}"] if options.rounds is not None else []
            try:
                points, _ = tuning.tune(
                    alone.changed(rounds),
                    tuning.file_grid(alone, run.label),
                    folder / TUNING / label_slug(run.label, labels),
                    options=options,
                    workers=workers,
                    say=say,
                )
            except tuning.NothingPlayedError as error:
                best[run.label] = None
                failed.append((run.label, run.label, str(error)))
                continue
            first = tuning.best(points, options)[0]
            taken = [f"algorithm.{k}={v}" for k, v in first.settings.items()]
            say(_choice(alone.changed(taken), run.label, first))
            best[run.label] = taken
        changes = best[run.label]
        if changes is not None:
            tuned.append(run._replace(experiment=alone.changed(changes)))
    if not tuned:
        raise ConfigError(f"{failed[0][1]}: failed: {failed[0][2]}")
    return tuned, failed


def _choice(tuned: Experiment, label: str, chosen: tuning.Point) -> str:
    """Print the chosen values of a cell's grid, with warnings about them."""
    settings = tuned.settings(label)
    ends = [k for k, values in tuned.grid(label).items() if settings[k] not in values[1:-1]]
    doubts = [] if chosen.arrived else ["the nearest, since no value of its grid reached the level"]
    doubts += [f"{', '.join(ends)} at an end of its grid"] if ends else []
    return "; ".join([f"{label}: takes {tuning.describe(chosen.settings)}", *doubts])


def _fixed(label: str, own: Mapping[str, Any], tried: Experiment) -> list[str]:
    """Return overrides that remove the settings of a cell from its algorithm's grid."""
    grid, elsewhere = tried.grid(label), (*_OF_PROBLEM, "run.", "clock.")
    keys = {key.rpartition(".")[2] for key in own if not key.startswith(elsewhere)}
    free = {key: values for key, values in grid.items() if key not in keys}
    return [f"algorithm.grid={write_value(free)}"] if free != grid else []
