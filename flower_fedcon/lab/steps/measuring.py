"""Rounds for each value of the grid, the rule, the race and papers' constants, in files."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flower_fedcon.core.participation import Full, Participation, Sample
from flower_fedcon.core.protocol import Setup
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.errors import ConfigError, ParticipationError, RoundError
from flower_fedcon.lab.experiments.folders import write
from flower_fedcon.lab.experiments.runner import in_processes
from flower_fedcon.lab.steps.cells import Job, StepStudy
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.registry import strategy_class
from flower_fedcon.regularizers import Zero
from flower_fedcon.runs.console import quiet
from flower_fedcon.runs.history import Record
from flower_fedcon.simulation import simulate
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import AUTO, parameters

PAPERS: dict[str, Callable[[float, Any], float]] = {
    "Scaffold.client_lr": lambda L, bound: 1 / (81 * L * bound.local_steps),
    "FedPD.step_size": lambda L, _: (math.sqrt(5) - 1) / (4 * L),
    "FiveGCS.primal_lr": lambda _, bound: float(bound.primal_lr),
}
"""The steps of the papers' theorems for these problems, if there are any."""
_FEW = 3  # clients in a round up to which the local engine is faster
_WORSE, _HOPELESS = 3, 1e6
_PATIENCE, _LEAST = 4, 60  # limit of rounds: a multiple of the best grid value's, and at least


def measure(job: Job, study: StepStudy) -> list[dict[str, Any]]:
    """Return the rounds that each method needs with each number of clients in a round.

    The rounds are lists by level, with None for a level that was not reached; "grown" says whether
    the objective ended above F(x0) or was not finite.
    """
    problem, rows = job.problem(), []
    for method in job.family.methods:
        for cohort in study.cohorts:
            rule = Full() if cohort >= problem.num_clients else Sample(count=cohort)
            who = {"method": method, "cohort": cohort, "condition": job.condition,
                   "family": job.family.label, "seed": job.seed}  # fmt: skip
            cell = _Cell(problem, method, rule, cohort, job.seed, study)
            with suppress(ParticipationError):  # the method does not take such cohorts
                rows.append(who | cell.measured())
    return rows


class _Cell:
    """One method on one problem with one number of clients in a round."""

    def __init__(
        self,
        problem: FederatedProblem,
        method: str,
        rule: Participation,
        cohort: int,
        seed: int,
        study: StepStudy,
    ) -> None:
        self._problem, self._study, self._seed, self._method = problem, study, seed, method
        name, _, self._argument = method.partition(".")
        kind: Any = strategy_class(name)
        psi = problem.regularizer or Zero()
        needs = {"regularizer": psi} if "regularizer" in parameters(kind) else {}
        self._strategy: FedConStrategy[Any] = kind(**needs, participation=rule)
        self._engine = "local" if cohort <= _FEW else "stacked"
        self._gap = problem.objective(problem.start) - problem.optimum.value

    def measured(self) -> dict[str, Any]:
        """Return the rounds for all ways to choose the step."""
        study, problem = self._study, self._problem
        infos = LocalEngine(problem).describe()
        setup = Setup.of(
            infos, study.rounds, problem.layout, self._strategy.participation, self._seed
        )
        bound = self._strategy.bind(setup)
        value = bound.rule_value(self._argument)
        grid = self._grid(value)
        best = [
            min(filter(None, column), default=None) for column in zip(*grid.values(), strict=True)
        ]
        reached = [rounds for rounds in best if rounds is not None]
        limit = max(_LEAST, _PATIENCE * max(reached)) if reached else study.rounds // _PATIENCE
        outcome: dict[str, Any] = {"grid": grid, "best": best}
        ways = {"rule": value, "race": AUTO}
        if self._method in PAPERS:
            ways["paper"] = PAPERS[self._method](setup.smoothness or 1.0, bound)
        for way, chosen in ways.items():
            outcome[way], last = self._rounds(chosen, limit)
            outcome[f"{way}_grown"] = not last <= 1
        return outcome

    def _grid(self, value: float) -> dict[str, list[int | None]]:
        """Return the rounds for each value of the grid, by its power of 2.

        The search goes up and down from the rule's value, until three values in a row are not
        better. Each value has at most as many rounds as the best one took to the last level.
        """
        study, grid = self._study, dict[str, list[int | None]]()
        least, nearest = [math.inf] * len(study.levels), math.inf
        for sign in (1, -1):
            worse = 0
            for step in range(study.powers + 1):
                limit = study.rounds if least[-1] == math.inf else int(least[-1])
                if worse == _WORSE or (not step and grid):
                    continue
                try:
                    rounds, share = self._rounds(value * 2.0 ** (sign * step), limit, _HOPELESS)
                except ConfigError:  # outside the method's range
                    break
                grid[str(sign * step)] = rounds
                numbers = [math.inf if each is None else each for each in rounds]
                far = nearest if any(map(math.isfinite, least)) else share
                better = far < nearest or any(map(operator.lt, numbers, least))
                worse = 0 if better else worse + 1
                least, nearest = [*map(min, numbers, least)], min(nearest, share)
        return grid

    def _rounds(
        self, value: Any, limit: int, most: float = math.inf
    ) -> tuple[list[int | None], float]:
        """Return the rounds to reach each level, and the remaining share of the gap.

        A share above `most` ends the run.
        """
        levels = self._study.levels
        reached: list[int | None] = [None] * len(levels)
        share = 1.0

        def look(row: Record) -> bool:
            nonlocal share
            share = (row["objective"] - self._problem.optimum.value) / self._gap
            for i, level in enumerate(levels):
                if share <= level and reached[i] is None:
                    reached[i] = int(row["round"])
            return reached[-1] is not None or share > most

        strategy = self._strategy.with_arguments({self._argument: value})
        try:
            with quiet(active=True):
                simulate(strategy, self._problem, limit, seed=self._seed, engine=self._engine,
                         callbacks=[look])  # fmt: skip
        except RoundError:  # it diverges
            return reached, math.inf
        return reached, share


def run_steps(
    study: StepStudy, folder: Path, *, workers: int, say: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Run a study over processes, with a file for each problem; finished files are kept.

    Returns
    -------
    list of dict
        A row for each method, number of clients in a round, and problem.

    Raises
    ------
    ConfigError
        If the folder holds runs of a different study.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = list(study.jobs())
    rows: dict[int, list[dict[str, Any]]] = {}
    for i, job in enumerate(jobs):
        path = folder / f"{job.name}.json"
        if path.exists():
            rows[i] = _read(path, job, study)
    left = [(i, job) for i, job in enumerate(jobs) if i not in rows]
    if rows:
        say(f"{len(rows)} of {len(jobs)} problems found in {folder}")
    tasks = [(job, study, folder / f"{job.name}.json") for _, job in left]
    for done, (number, cells) in enumerate(in_processes(_play, tasks, workers=workers), start=1):
        i, job = left[number]
        rows[i] = cells
        say(f"{done}/{len(left)}: {job.family.label}, L/mu {job.condition:g}, seed {job.seed}")
    return [row for i in sorted(rows) for row in rows[i]]


def _play(job: Job, study: StepStudy, path: Path) -> list[dict[str, Any]]:
    rows = measure(job, study)
    write(path, json.dumps({"of": _stated(job, study), "rows": rows}) + "\n")
    return rows


def _stated(job: Job, study: StepStudy) -> dict[str, Any]:
    """Return the settings that a job's rows depend on."""
    whole = asdict(study)
    kept = ("levels", "rounds", "powers", "cohorts")
    return {**{key: whole[key] for key in kept}, "family": list(job.family)}


def _read(path: Path, job: Job, study: StepStudy) -> list[dict[str, Any]]:
    content: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content["of"] != json.loads(json.dumps(_stated(job, study))):
        raise ConfigError(f"{path} holds runs of another study: choose another --run-dir")
    rows: list[dict[str, Any]] = content["rows"]
    return rows
