"""Runs of experiments into folders, with a table and a figure: `fedcon run` and `compare`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from flower_fedcon.errors import FedConError, MissingExtraError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.figures import plot_histories
from flower_fedcon.lab.experiments.final_table import results
from flower_fedcon.lab.experiments.folders import is_there, label_slug, write
from flower_fedcon.lab.experiments.runner import play
from flower_fedcon.lab.experiments.seed_statistics import mean, same
from flower_fedcon.lab.experiments.tracking import Tracking
from flower_fedcon.runs.console import console, say, table
from flower_fedcon.runs.directory import CONFIG, FIGURE
from flower_fedcon.runs.history import History, Record
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.toml_schema import context
from flower_fedcon.simulation import auto_strategies

_NO = Tracking()


def run_one(experiment: Experiment, plan: Plan, tracking: Tracking = _NO) -> None:
    """Run an experiment's main algorithm in the plan's run directory."""
    if experiment.chosen:
        say(experiment.chosen)
    experiment.strategies()  # raises before the first run
    if experiment.races():  # the log of the run itself is silenced
        auto_strategies(experiment.problem(), experiment.participation(), plan)
    _find_optimum(experiment)
    folder = _folder(plan)
    label = experiment.labels[0]
    history = _play(experiment, 0, label, folder, plan, tracking)
    show(experiment, {label: history.rows}, [folder / FIGURE])
    _tell_race(history)
    if history.report is not None:
        console().print(history.report.text, markup=False, highlight=False, soft_wrap=True)
    say(f"directory: {folder}")


def _tell_race(history: History) -> None:
    """Print who took part in the race of a run, if there was one, and who was chosen."""
    if not history.race:
        return
    rows = table("In the race", "Rounds", "Reached", right_from=1)
    for row in history.race:
        reached = f"{row['score']:.6g}" if math.isfinite(row["score"]) else "diverged"
        rows.add_row(row["label"], str(row["rounds"]), reached if row["rounds"] else "not tried")
    console().print(rows)
    for row in history.race:
        if row["chosen"]:
            others = sum(one["rounds"] for one in history.race if not one["chosen"])
            say(f"chosen:    {row['label']}, in a race in which {others} rounds went to others")


def run_all(experiment: Experiment, plan: Plan, tracking: Tracking = _NO) -> None:
    """Run all algorithms of an experiment, each in a subfolder of the plan's run directory."""
    experiment.strategies()  # raises before the first run
    _find_optimum(experiment)
    folder, labels = _folder(plan), experiment.labels
    histories = {
        label: _play(
            experiment, i, label, folder / label_slug(label, labels), plan, tracking, named=True
        )
        for i, label in enumerate(labels)
    }
    if not plan.resume:
        write(folder / CONFIG, experiment.to_toml())
    rows = {label: history.rows for label, history in histories.items()}
    show(experiment, rows, figures_of(folder))
    say(f"directory: {folder}")


def run_seeds(experiments: Mapping[int, Experiment], plan: Plan, tracking: Tracking = _NO) -> None:
    """Run a comparison for several seeds, in folders ALGORITHM/seed-SEED of the plan's folder.

    Parameters
    ----------
    experiments : dict
        Seed -> the experiment from `Experiment.seeded`.
    plan : Plan
        Its seed is replaced.
    """
    first = next(iter(experiments.values()))
    one_problem = len({id(experiment.problem()) for experiment in experiments.values()}) == 1
    for experiment in [first] if one_problem else experiments.values():
        _find_optimum(experiment)
    folder, labels = _folder(plan), first.labels
    runs: dict[str, list[Sequence[Record]]] = {label: [] for label in labels}
    for i, label in enumerate(labels):
        for seed, experiment in experiments.items():
            target = folder / label_slug(label, labels) / f"seed-{seed}"
            name = f"{label}, seed {seed}"
            seeded = replace(plan, seed=experiment.run_options.seed)
            rows = _play(experiment, i, name, target, seeded, tracking, named=True).rows
            runs[label].append(rows)
    if not (folder / CONFIG).exists():
        write(folder / CONFIG, first.to_toml())
    means = {label: mean(rows) for label, rows in runs.items() if all(rows)}
    show(first, means, figures_of(folder), runs, one_problem=one_problem)
    for label, repeats in runs.items():
        if len(repeats) > 1 and same(repeats):
            say(f"{label}: nothing depends on the seed, so its {len(repeats)} runs count as one")
    say(f"directory: {folder}")


def _title(experiment: Experiment) -> str:
    return experiment.title or Path(experiment.source).stem


def _folder(plan: Plan) -> Path:
    return Path(plan.run_dir or "")


def figures_of(folder: Path) -> list[Path]:
    """Return the files of a comparison's figure: a bitmap, and vectors for papers."""
    figure = folder / FIGURE
    return [figure, figure.with_suffix(".pdf")]


def _find_optimum(experiment: Experiment) -> None:
    problem = experiment.problem()
    if experiment.run_options.engine == "jax":
        from flower_fedcon.engines.jax import jax_engine

        jax_engine()  # raises without JAX, before the search
    if not experiment.seeks_optimum:
        return
    began = time.perf_counter()
    try:
        optimum = problem.optimum
    except FedConError as error:
        raise type(error)(_without_reference(str(error))) from None
    seconds = time.perf_counter() - began
    say(f"reference optimum F* = {optimum.value:.8g} ({optimum.method}, {seconds:.1f} s)")


def _without_reference(text: str) -> str:
    """Return an error's text with a remedy for runs without F*, once.

    >>> _without_reference("no F*: run without it (reference = false)")
    'no F*: run without it (--set problem.reference=false)'
    """
    said, remedy = "reference = false", "--set problem.reference=false"
    return (
        text.replace(said, remedy) if said in text else (f"{text}; or run without F - F*: {remedy}")
    )


def _play(
    experiment: Experiment,
    index: int,
    label: str,
    folder: Path,
    plan: Plan,
    tracking: Tracking,
    *,
    named: bool = False,
) -> History:
    """Run an algorithm in a separate folder; if `named`, errors begin with the label."""
    resume = plan.resume and is_there(folder)
    plan = replace(plan, run_dir=folder, resume=resume, config=experiment.to_toml(index))
    where = context(label) if named else nullcontext()
    with where, tracking.callbacks(label, _title(experiment), plan) as more:
        plan = replace(plan, callbacks=(*plan.callbacks, *more))
        return play(experiment, index, plan, label=label)


def show(
    experiment: Experiment,
    histories: Mapping[str, Sequence[Record]],
    figures: Sequence[Path],
    seeds: Mapping[str, Sequence[Sequence[Record]]] | None = None,
    *,
    one_problem: bool = True,
    participation: Mapping[str, str] | None = None,
    failed: Mapping[str, str] | None = None,
) -> None:
    """Print the table of runs with records, and draw their figure.

    Parameters
    ----------
    experiment : Experiment
        Has the title, the problem's metrics and optimum, and the levels that end runs.
    histories : dict
        Label -> rows; with several seeds their mean.
    figures : sequence of Path
        The figure's files.
    seeds : dict, optional
        Label -> the rows of each seed.
    one_problem : bool
        Whether all runs have the same problem, and so one optimum.
    participation : dict, optional
        Label -> the participation; by default that of the experiment.
    failed : dict, optional
        Label -> why there is no run; each gets a row.
    """
    rows = {label: records for label, records in histories.items() if records}
    if not rows:
        return
    optimum = None
    if one_problem and any("residual" in row for records in rows.values() for row in records[-1:]):
        optimum = experiment.problem().optimum.value
    rules = experiment.who_takes_part() if participation is None else participation
    console().print(
        results(
            rows,
            metrics=list(experiment.problem().metrics),
            optimum=optimum,
            seeds=seeds,
            until=experiment.run_options.until,
            participation=rules if set(rules.values()) - {"full"} else None,
            failed=failed,
        )
    )
    if seeds is None:
        for label, records in rows.items():
            if dropped := records[-1]["dropped"]:
                say(f"{label}: {dropped:g} replies were dropped, see history.csv")
    measured = {label for label, records in rows.items() if any("objective" in r for r in records)}
    for label in (set(rows) - measured) if measured else ():
        say(f"{label} is private and not in the figure; unsafe = true in [run] records the values")
    if not measured and not all("epsilon" in r for records in rows.values() for r in records):
        say("figure:    none of private runs; unsafe = true in [run] records the values")
        return
    drawn = {label: records for label, records in rows.items() if label in measured or not measured}
    kept = None if seeds is None else {label: seeds[label] for label in drawn}
    try:
        figure = plot_histories(drawn, figures, title=_title(experiment), seeds=kept, say=say)
    except MissingExtraError as error:  # the runs are finished and kept
        say(f"figure:    none, {error}")
    else:
        say(f"figure:    {figure}")
