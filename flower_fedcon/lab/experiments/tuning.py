"""Grids of settings: `fedcon tune` runs one algorithm with every combination of values.

A grid is given on the command line, or is in the experiment file next to the settings chosen from
it. A value at an end of its grid is not a valid choice, since a better one may lie beyond.
"""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.folders import settings_slug
from flower_fedcon.lab.experiments.run_tables import TuningOptions
from flower_fedcon.lab.experiments.runner import Job, Played, play_jobs
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.runs.history import why_not_recorded
from flower_fedcon.runs.relative import with_relative
from flower_fedcon.runs.toml import write_value
from flower_fedcon.validation import count


class NothingPlayedError(ConfigError):
    """Every run of a grid failed."""


class Score(NamedTuple):
    """The score of a run, by `TuningOptions`.

    Attributes
    ----------
    value : float
        The metric after the last round, or the cost until it reached the level; NaN if it did not,
        or if the run failed.
    missed : float
        The factor by which the final metric missed the level; inf if the run failed.
    """

    value: float
    missed: float = math.inf

    @property
    def arrived(self) -> bool:
        """Whether there is a value."""
        return not math.isnan(self.value)

    @property
    def failed(self) -> bool:
        """Whether the metric is not known."""
        return not self.arrived and self.missed == math.inf

    def __str__(self) -> str:
        return f"{self.value:.4g}" if self.arrived else "not a number" if self.failed else "never"


@dataclass(frozen=True)
class Point:
    """A combination of values, and its result.

    Attributes
    ----------
    settings : dict
        Key -> value as text.
    scores : sequence of Score
        The score of each seed's run.
    error : str
        Why the first failed run failed, or "".
    """

    settings: Mapping[str, str]
    scores: Sequence[Score]
    error: str

    @property
    def arrived(self) -> list[float]:
        """The costs of the runs that reached the level; without a level, all values."""
        return [score.value for score in self.scores if score.arrived]

    def rank(self, options: TuningOptions) -> tuple[int, float]:
        """Return the sort key of combinations: the number of failed runs, then the mean.

        If no run reached the level, the amount by which they missed it counts.
        """
        arrived = self.arrived
        counted = arrived or [score.missed for score in self.scores]
        mean = math.fsum(counted) / len(counted)
        return len(self.scores) - len(arrived), -mean if options.largest and arrived else mean

    def __str__(self) -> str:
        arrived, total = self.arrived, len(self.scores)
        if self.error:
            return "failed"
        if not arrived:
            return "never" if total == 1 else f"never (0 of {total})"
        low, high = min(arrived), max(arrived)
        ends = "" if low == high else f" ({low:.4g} to {high:.4g})"
        some = "" if len(arrived) == total else f", {len(arrived)} of {total}"
        return f"{math.fsum(arrived) / len(arrived):.4g}{ends}{some}"


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
            raise ConfigError(f"--grid {text}: {key.strip()} already has a grid: give one")
        axes[key.strip()] = list(dict.fromkeys(parts))
    if not axes:
        raise ConfigError("no grid: write --grid key=v1,v2,..., such as --grid client_lr=0.1,1")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _split(text: str) -> list[str]:
    return re.split(r""",(?![^\[\]{}]*[\]}])(?=(?:[^"]*"[^"]*")*[^"]*$)""", text)


def file_grid(experiment: Experiment, label: str) -> list[dict[str, str]]:
    """Return all combinations of an algorithm's grid in its file."""
    axes = experiment.grid(label)
    if not axes:
        raise ConfigError(
            f"{experiment.source}: {label} has no grid: write --grid key=v1,v2,..., or "
            "grid = {key = [v1, v2, v3]} in its table"
        )
    texts = {key: [write_value(value) for value in values] for key, values in axes.items()}
    return [dict(zip(texts, values, strict=True)) for values in itertools.product(*texts.values())]


def check_interior(experiment: Experiment, label: str) -> None:
    """Raise if an algorithm's setting is outside its grid, or at an end of it.

    Raises
    ------
    ConfigError
        If the grid does not contain the setting, or has it as its smallest or largest value.
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
    """Return faults of an algorithm's settings in its file; empty if there are none.

    Parameters
    ----------
    experiment : Experiment
    label : str
    found : sequence of Point
        The results of its grid.
    options : TuningOptions
    """
    wrong = []
    try:
        check_interior(experiment, label)
    except ConfigError as error:
        wrong.append(str(error))
    chosen = {key: write_value(experiment.settings(label)[key]) for key in found[0].settings}
    winners = best(found, options)
    if not winners[0].arrived:
        wrong.append(f"{experiment.source}: {label}: no value of the grid reached the level")
    elif chosen not in [point.settings for point in winners]:
        wrong.append(
            f"{experiment.source}: {label}: {describe(chosen)} is not the best of the grid: "
            f"{describe(winners[0].settings)} is"
        )
    return wrong


def refuse_private(problem: FederatedProblem, what: str) -> None:
    """Raise if a choice among runs would reveal private examples, and spend privacy in each run.

    Raises
    ------
    ConfigError
    """
    if problem.private_examples:
        raise ConfigError(
            f"{what} compares objectives, which no noise protects, and private examples would "
            f"spend for every run: choose settings on public data"
        )


def tune(
    experiment: Experiment,
    points: Sequence[dict[str, str]],
    folder: Path,
    *,
    options: TuningOptions,
    seeds: Sequence[int] | None = None,
    workers: int = 2,
    say: Callable[[str], object] = lambda _: None,
) -> tuple[list[Point], Experiment | None]:
    """Run an experiment's main algorithm with each combination, and return the best experiment.

    Each run has its own folder in `folder`. A finished run is not repeated, and an interrupted one
    continues. Two algorithms need two folders.

    Parameters
    ----------
    experiment : Experiment
    points : sequence of dict
        From `grid` or `file_grid`.
    folder : Path
    options : TuningOptions
        The criterion; its rounds are not used.
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
    Experiment, optional
        The experiment with the best settings; None if no run reached the level.

    Raises
    ------
    ConfigError
        If a setting cannot be used, or a folder holds another run.
    NothingPlayedError
        If every run failed.
    """
    count("workers", workers)
    refuse_private(experiment.problem(), "fedcon tune")
    base = experiment.to_toml(0)
    jobs, owners = [], []
    for i, settings in enumerate(points):
        tried = _experiment(base, experiment.source, settings)
        tried.strategy()  # raises before the first run
        run_dir = (folder / settings_slug(settings)).resolve()
        until = None if options.level is None else (options.metric, options.level)
        for seed in [None] if seeds is None else seeds:
            home = run_dir if seed is None else run_dir / f"seed-{seed}"
            seeded = tried if seed is None else tried.seeded(seed)
            jobs.append(Job(str(home), seeded.to_toml(0), folder=home, until=until))
            owners.append((i, "" if seed is None else f", seed {seed}"))
    scores: list[list[Score]] = [[] for _ in points]
    errors = [""] * len(points)
    for done, (number, played) in enumerate(play_jobs(jobs, workers=workers), start=1):
        i, seed_text = owners[number]
        score = _score(played, options)
        scores[i].append(score)
        errors[i] = errors[i] or played.error
        state = played.error or f"{options.title} {score}{', found' if played.found else ''}"
        say(f"{done}/{len(jobs)}: {describe(points[i])}{seed_text}: {state}")
    results = [Point(*parts) for parts in zip(points, scores, errors, strict=True)]
    if all(score.failed for each in scores for score in each):
        why = results[0].error or f"{options.metric} is not a number"
        raise NothingPlayedError(f"every run failed; the first: {why}")
    chosen = best(results, options)[0]
    winner = _experiment(base, experiment.source, chosen.settings) if chosen.arrived else None
    return results, winner


def best(points: Sequence[Point], options: TuningOptions) -> list[Point]:
    """Return the points with the best rank; several if they are equally good."""
    rank = min(point.rank(options) for point in points)
    return [point for point in points if point.rank(options) == rank]


def _score(played: Played, options: TuningOptions) -> Score:
    """Return a run's value of the metric, or its cost until it reaches the level."""
    if played.error:
        return Score(math.nan)
    rows = with_relative(played.rows)
    for name in (options.metric, options.of):
        if name not in rows[-1]:
            hint = why_not_recorded(name, rows[-1])
            raise ConfigError(f"unknown metric {name!r}: {hint}")
    end, level = float(rows[-1][options.metric]), options.level
    if level is None or math.isnan(end):
        return Score(end)
    spent = (float(row[options.of]) for row in rows if row.get(options.metric, math.inf) <= level)
    return Score(next(spent, math.nan), end / level)


def describe(settings: Mapping[str, str]) -> str:
    """Return a combination as text."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def _experiment(base: str, source: str, settings: Mapping[str, str]) -> Experiment:
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return Experiment(tomllib.loads(base), source, overrides)
