"""The audit of a file: the mechanisms, lower bounds of epsilon, and the stated values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.canaries.lower_bounds import by_counts, by_fit, ratio_at_least
from flower_fedcon.lab.canaries.plays import Played, Tick, play_clients, play_rows
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives.private_objective import PrivateObjective, private_within
from flower_fedcon.privacy import ExampleDP, GaussianDP
from flower_fedcon.privacy.accountant import FULL, spent_epsilon
from flower_fedcon.privacy.noise import repeatable
from flower_fedcon.runs.toml import read_toml
from flower_fedcon.simulation import simulate
from flower_fedcon.validation import Array

_ROUNDS = 100  # rounds by default, at most


@dataclass(frozen=True)
class Finding:
    """The result of an audit of a number of releases, and the stated epsilon.

    Attributes
    ----------
    label : str
        The label of the algorithm, or of the node.
    unit : str
        Who is protected, "client" or "row".
    releases : int
        The number of noisy sums: rounds, or gradients.
    delta, stated : float
    by_counts, by_fit : float
        Lower bounds of epsilon; see `canaries.lower_bounds`.
    silent : int
        The number of entries of releases without noise.
    """

    label: str
    unit: str
    releases: int
    delta: float
    stated: float
    by_counts: float
    by_fit: float
    silent: int

    @property
    def least(self) -> float:
        """The largest lower bound of epsilon."""
        return math.inf if self.silent else max(self.by_counts, self.by_fit)

    @property
    def holds(self) -> bool:
        """Whether no lower bound exceeds the stated epsilon."""
        return self.least <= self.stated


@dataclass(frozen=True)
class Game:
    """A mechanism to run: its label, the largest number of releases, and a function."""

    label: str
    releases: int
    play: Callable[[int, Tick], Played]


def games_of(file: Path, overrides: list[str], rounds: int | None, rows: int) -> list[Game]:
    """Return the mechanisms in a file: its private algorithms, or its nodes' private rows.

    Parameters
    ----------
    file : path
        An experiment file, or a node's configuration with a table [privacy].
    overrides : list of str
        See `Experiment.load`.
    rounds : int, optional
        Rounds, by default the file's but at most 100; for a node gradients, by default 1.
    rows : int
        The number of rows of a node.

    Raises
    ------
    ConfigError
        If nothing in it is private.
    """
    tables = read_toml(file)
    if "privacy" in tables and "problem" not in tables:
        return [_of_node(file, tables["privacy"], rounds or 1, rows)]
    experiment = Experiment.load(file, overrides)
    planned = experiment.run_options.rounds
    most = min(planned, _ROUNDS) if rounds is None else rounds
    problem, games = experiment.problem(), []
    private = [inner for inner in map(private_within, problem.objectives) if inner is not None]
    for label, strategy in experiment.strategies().items():
        if isinstance(strategy.privacy, GaussianDP):
            play = partial(play_clients, strategy, problem, max(planned, most), most)
            games.append(Game(label, most, play))
        if private:
            games.append(_of_rows(label, strategy, problem, private, most))
    if not games:
        raise ConfigError(
            f'{file} has nothing private: give an algorithm privacy = {{type = "GaussianDP", ...}}'
            ", a problem of PrivateObjectives, or a node's file with a table [privacy]"
        )
    return games


def _of_node(file: Path, said: Any, gradients: int, rows: int) -> Game:
    """Return the game of a node's configuration."""
    if not isinstance(said, Mapping):
        raise ConfigError(f"{file}: [privacy] must be a table, got {said!r}")
    rule = ExampleDP.of({f"privacy.{key}": value for key, value in said.items()})
    if rule is None:
        raise ConfigError(f"{file}: [privacy] is empty: give clip, noise-multiplier, target-delta")
    rate = min(1.0, (rule.batch_size or rows) / rows)
    play = partial(play_rows, rule, rows, 1000, {rate: gradients})
    return Game(file.stem, gradients, play)


def _of_rows(
    label: str, strategy: Any, problem: Any, private: list[PrivateObjective], rounds: int
) -> Game:
    """Return the game of the node that spends most in so many rounds of a method."""
    for objective in private:
        objective.ledger.gradients.clear()
        objective.ledger.distance = 0.0
    simulate(strategy, problem, rounds, evaluate_every=0)
    worst = max(private, key=lambda objective: objective.ledger.epsilon)
    spent, size = dict(worst.ledger.spent), math.prod(worst.shape)
    play = partial(play_rows, worst.privacy, worst.num_examples, size, spent)
    return Game(label, sum(spent.values()), play)


def audit(
    games: list[Game], runs: int, confidence: float, seed: int | None, tick: Tick
) -> list[Finding]:
    """Return findings after the first and after the last release of each game.

    All bounds together hold with the confidence: each gets an equal part of 1 - confidence.

    Parameters
    ----------
    games : list of Game
    runs : int
        The number of runs with a canary, and of those without.
    confidence : float
    seed : int, optional
        By default noise comes from the operating system, as in a run.
    tick : callable
        Called after each release.
    """
    with nullcontext() if seed is None else repeatable(seed):
        played = {game.label + str(i): game.play(runs, tick) for i, game in enumerate(games)}
    alpha = (1 - confidence) / (2 * sum(len(one.stated) for one in played.values()))
    return [
        _found(game.label, one, releases, alpha)
        for game, one in zip(games, played.values(), strict=True)
        for releases in sorted(one.stated)
    ]


def _found(label: str, played: Played, releases: int, alpha: float) -> Finding:
    """Return the finding of the first releases."""
    kinds, delta, stated = played.kinds[:releases], played.delta, played.stated[releases]
    absent, present, there = (
        each[:releases] for each in (played.absent, played.present, played.there)
    )
    everyone = all(kind.sampling.kind == FULL for kind in kinds)
    scores = [_run_scores(played, world, releases, everyone) for world in (absent, present)]
    if everyone:
        half = scores[0].size // 2 if played.correlated else 0  # weights come from the first half
        ratio = ratio_at_least(scores[0][half:], scores[1][half:], alpha)
        fit = ratio if ratio in (0.0, math.inf) else _of_ratio(ratio, played, delta)
    else:
        fit = by_fit(kinds, absent, present, there, delta, alpha)
    counts = by_counts(scores[0], scores[1], delta, alpha)
    return Finding(label, played.unit, releases, delta, stated, counts, fit, played.silent)


def _of_ratio(ratio: float, played: Played, delta: float) -> float:
    """Return epsilon of a normal number whose mean moves by so many standard deviations."""
    return spent_epsilon({played.kinds[0]._replace(noise_multiplier=1 / ratio): 1}, delta)


def _run_scores(played: Played, world: Array, releases: int, everyone: bool) -> Array:
    """Return one score for each run from those of its releases; larger suggests a canary."""
    if everyone and played.correlated:  # the best linear score, by the noise in the first half
        runs = world.shape[1]
        noise = played.absent[:releases, : runs // 2]
        spread = np.cov(noise).reshape(releases, releases)
        spread = spread + 1e-9 * np.trace(spread) / releases * np.eye(releases)
        there = played.there[:releases, 0].astype(float)
        weights = np.linalg.solve(spread, there)
        scores: Array = weights @ world / (weights @ there)
        return scores
    if everyone:
        mean: Array = world.mean(axis=0)
        return mean
    total = np.zeros(world.shape[1])
    for kind, score in zip(played.kinds, world, strict=False):
        square = kind.ratio**2 * (score - 0.5)
        if kind.sampling.kind == FULL:
            total += square
            continue
        rate = kind.sampling.rate
        total += np.logaddexp(math.log1p(-rate), math.log(rate) + square)
    return total


def findings_json(findings: list[Finding], **settings: Any) -> str:
    """Return findings as JSON, with the settings of the audit."""
    each = [
        {key: value if value != math.inf else "inf" for key, value in asdict(one).items()}
        | {"holds": one.holds}
        for one in findings
    ]
    return json.dumps({**settings, "findings": each}, indent=2) + "\n"
