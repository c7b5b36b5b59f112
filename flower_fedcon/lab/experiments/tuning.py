"""Grids of settings: `fedcon tune` runs one algorithm with every combination of values.

A grid is given on the command line, or stands in the experiment file beside what was chosen from
it. A value at an end of its grid is no choice: a better one may lie beyond.
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.folders import settings_slug
from flower_fedcon.lab.experiments.run_tables import TuningOptions
from flower_fedcon.lab.experiments.runner import Job, Played, play_jobs
from flower_fedcon.runs.history import why_not_recorded
from flower_fedcon.runs.toml import write_value
from flower_fedcon.validation import count


@dataclass(frozen=True)
class Point:
    """A combination of values, and its result.

    Attributes
    ----------
    settings : dict
        Key -> value, as text.
    scores : sequence of float
        As `TuningOptions` says, of each seed's run; inf if it failed (-inf if the largest is
        sought).
    error : str
        Why the first that failed did, or "".
    """

    settings: Mapping[str, str]
    scores: Sequence[float]
    error: str

    @property
    def score(self) -> float:
        """The mean over the seeds."""
        return math.fsum(self.scores) / len(self.scores)

    def __str__(self) -> str:
        if self.error:
            return "failed"
        low, high = min(self.scores), max(self.scores)
        ends = "" if low == high else f" ({low:.4g} to {high:.4g})"
        return f"{self.score:.4g}{ends}"


def grid(texts: Sequence[str]) -> list[dict[str, str]]:
    """Return all combinations of "key=v1,v2,..." texts.

    A comma inside brackets, braces or quotes does not separate values.

    >>> grid(["client_lr=0.1,1", "local_steps=5"])
    [{'client_lr': '0.1', 'local_steps': '5'}, {'client_lr': '1', 'local_steps': '5'}]
    """
    axes: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        parts = [part.strip() for part in _split(values)]
        if not equals or not key.strip() or not all(parts):
            raise ConfigError(f"--grid {text}: write key=v1,v2,..., such as client_lr=0.1,1")
        if key.strip() in axes:
            raise ConfigError(f"--grid {text}: {key.strip()} has a grid already")
        axes[key.strip()] = list(dict.fromkeys(parts))
    if not axes:
        raise ConfigError("no grid: write --grid key=v1,v2,..., such as --grid client_lr=0.1,1")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _split(text: str) -> list[str]:
    return re.split(r""",(?![^\[\]{}]*[\]}])(?=(?:[^"]*"[^"]*")*[^"]*$)""", text)


def file_grid(experiment: Experiment, label: str) -> list[dict[str, str]]:
    """Return all combinations of the grid that an algorithm has in its file."""
    axes = experiment.grid(label)
    if not axes:
        raise ConfigError(
            f"{experiment.source}: {label} has no grid: write --grid key=v1,v2,..., or "
            "grid = {key = [v1, v2, v3]} in its table"
        )
    texts = {key: [write_value(value) for value in values] for key, values in axes.items()}
    return [dict(zip(texts, values, strict=True)) for values in itertools.product(*texts.values())]


def check_interior(experiment: Experiment, label: str) -> None:
    """Raise unless each setting of an algorithm that has a grid lies inside it, not at an end.

    Raises
    ------
    ConfigError
        If the grid has not the setting, or has it as its smallest or largest value.
    """
    settings = experiment.settings(label)
    for key, values in experiment.grid(label).items():
        if settings[key] not in values[1:-1]:
            where = "an end" if settings[key] in values else "outside"
            raise ConfigError(
                f"{experiment.source}: {label}: {key} = {settings[key]!r} is {where} of its grid "
                f"{values}: a better value may lie beyond; widen the grid and tune again"
            )


def faults(
    experiment: Experiment, label: str, found: Sequence[Point], options: TuningOptions
) -> list[str]:
    """Return what is wrong with the settings that an algorithm has in its file, or nothing.

    Parameters
    ----------
    experiment : Experiment
    label : str
    found : sequence of Point
        The runs of its grid.
    options : TuningOptions
    """
    wrong = []
    try:
        check_interior(experiment, label)
    except ConfigError as error:
        wrong.append(str(error))
    chosen = {key: write_value(experiment.settings(label)[key]) for key in found[0].settings}
    winners = best(found, options)
    if chosen not in [point.settings for point in winners]:
        wrong.append(
            f"{experiment.source}: {label}: {describe(chosen)} is not the best of the grid: "
            f"{describe(winners[0].settings)} is"
        )
    return wrong


def tune(
    experiment: Experiment,
    points: Sequence[dict[str, str]],
    folder: Path,
    *,
    options: TuningOptions,
    seeds: Sequence[int] | None = None,
    workers: int = 2,
    say: Callable[[str], object] = lambda _: None,
) -> tuple[list[Point], Experiment]:
    """Run an experiment's main algorithm with each combination, and return the best experiment.

    Each run has a folder of its own in `folder`; one that holds a finished run is not repeated,
    one that was interrupted goes on. Two algorithms need two folders.

    Parameters
    ----------
    experiment : Experiment
    points : sequence of dict
        From `grid` or `file_grid`.
    folder : Path
    options : TuningOptions
        What is best; its rounds are not looked at.
    seeds : sequence of int, optional
        Run each combination with each of these; its score is the mean. By default the
        experiment's own seed.
    workers : int
        Processes.
    say : callable
        Called with a line of text after each run.

    Returns
    -------
    list of Point
        In the order of `points`.
    Experiment
        With the best settings.

    Raises
    ------
    ConfigError
        If a setting cannot be used, a folder holds another run, or no run succeeded.
    """
    count("workers", workers)
    base = experiment.to_toml(0)
    jobs, owners = [], []
    for i, settings in enumerate(points):
        tried = _experiment(base, experiment.source, settings)
        tried.strategy()  # raises before the first run
        run_dir = (folder / settings_slug(settings)).resolve()
        until = None if options.level is None else (options.metric, options.level)
        for seed in [None] if seeds is None else seeds:
            own = run_dir if seed is None else run_dir / f"seed-{seed}"
            seeded = tried if seed is None else tried.seeded(seed)
            jobs.append(Job(str(own), seeded.to_toml(0), folder=own, until=until))
            owners.append((i, "" if seed is None else f", seed {seed}"))
    scores: list[list[float]] = [[] for _ in points]
    errors = [""] * len(points)
    for done, (number, played) in enumerate(play_jobs(jobs, workers=workers), start=1):
        i, seed_text = owners[number]
        score = _score(played, options)
        scores[i].append(score)
        errors[i] = errors[i] or played.error
        state = played.error or f"{options.title} {score:.4g}{', found' if played.found else ''}"
        say(f"{done}/{len(jobs)}: {describe(points[i])}{seed_text}: {state}")
    results = [Point(*parts) for parts in zip(points, scores, errors, strict=True)]
    if not any(math.isfinite(point.score) for point in results):
        why = results[0].error or f"no {options.title}"
        raise ConfigError(f"every run failed; the first: {why}")
    chosen = best(results, options)[0]
    return results, _experiment(base, experiment.source, chosen.settings)


def best(points: Sequence[Point], options: TuningOptions) -> list[Point]:
    """Return the points with the best score: one, or several that are as good."""
    scores = [point.score for point in points if math.isfinite(point.score)]
    score = max(scores) if options.largest else min(scores)
    return [point for point in points if point.score == score]


def _score(played: Played, options: TuningOptions) -> float:
    """Return a run's value of the metric, or what it spends until it comes to the level.

    A run that does not reach the level is worse than all that do: in rounds, by how far it is off.
    In another column, where it may have spent less than a run that reaches it, it counts as failed.
    """
    worst = -math.inf if options.largest else math.inf
    if played.error:
        return worst
    rows = played.rows
    for name in (options.metric, options.of):
        if name not in rows[-1]:
            hint = why_not_recorded(name, rows[-1])
            raise ConfigError(f"unknown metric {name!r}: {hint}")
    score = float(rows[-1][options.metric])
    if options.level is not None:
        level = options.level
        reached = (row[options.of] for row in rows if row[options.metric] <= level)
        missed = rows[-1]["round"] + score / level if options.of == "round" else worst
        score = next(reached, missed)
    return worst if math.isnan(score) else score


def describe(settings: Mapping[str, str]) -> str:
    """Return a combination as text."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def _experiment(base: str, source: str, settings: Mapping[str, str]) -> Experiment:
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return Experiment(tomllib.loads(base), source, overrides)
