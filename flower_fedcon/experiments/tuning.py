"""Grids of settings: `fedcon tune` runs one algorithm with every combination of values."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.experiments.experiment import Experiment
from flower_fedcon.experiments.folders import settings_slug
from flower_fedcon.experiments.runner import Job, play_jobs
from flower_fedcon.validation import count


@dataclass(frozen=True)
class Point:
    """A combination of values, and its result.

    Attributes
    ----------
    settings : dict
        Key -> value, as text.
    score : float
        The metric after the last round, inf if the run failed (-inf if the largest is sought).
    error : str
        Why it failed, or "".
    """

    settings: Mapping[str, str]
    score: float
    error: str


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


def tune(
    experiment: Experiment,
    points: Sequence[dict[str, str]],
    folder: Path,
    *,
    metric: str = "residual",
    largest: bool = False,
    workers: int = 2,
    say: Callable[[str], object] = lambda _: None,
) -> tuple[list[Point], Experiment]:
    """Run an experiment's main algorithm with each combination, and return the best experiment.

    Each run has a folder of its own in `folder`; one that holds a finished run is not repeated,
    one that was interrupted goes on.

    Parameters
    ----------
    experiment : Experiment
    points : sequence of dict
        From `grid`.
    folder : Path
    metric : str
        A column of the history; the smallest value after the last round is the best.
    largest : bool
        The largest value is the best instead.
    workers : int
        Processes.
    say : callable
        Called with a line of text after each run.

    Raises
    ------
    ConfigError
        If a setting cannot be used, a folder holds another run, or no run succeeded.
    """
    count("workers", workers)
    base = experiment.to_toml(0)
    jobs = []
    for settings in points:
        tried = _experiment(base, experiment.source, settings)
        tried.strategy()  # raises before the first run
        run_dir = (folder / settings_slug(settings)).resolve()
        jobs.append(Job(str(run_dir), tried.to_toml(0), folder=run_dir))
    found: list[Point | None] = [None] * len(points)
    worst = -math.inf if largest else math.inf
    for done, (i, played) in enumerate(play_jobs(jobs, workers=workers), start=1):
        row = played.rows[-1] if played.rows else {}
        if not played.error and metric not in row:
            raise ConfigError(f"unknown metric {metric!r}: {nearest(metric, row)}")
        score = worst if played.error else float(row[metric])
        score = worst if math.isnan(score) else score
        found[i] = Point(points[i], score, played.error)
        state = played.error or f"{metric} {score:.4g}{', found' if played.found else ''}"
        say(f"{done}/{len(jobs)}: {describe(points[i])}: {state}")
    results = [point for point in found if point is not None]
    usable = [i for i, point in enumerate(results) if math.isfinite(point.score)]
    if not usable:
        raise ConfigError(f"every run failed; the first: {results[0].error}")
    sign = -1 if largest else 1
    best = min(usable, key=lambda i: sign * results[i].score)
    return results, _experiment(base, experiment.source, points[best])


def describe(settings: Mapping[str, str]) -> str:
    """Return a combination as text."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def _experiment(base: str, source: str, settings: Mapping[str, str]) -> Experiment:
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return Experiment(tomllib.loads(base), source, overrides)
