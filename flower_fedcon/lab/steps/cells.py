"""The cells of the study of steps: problems in random units, and methods on them.

A file describes them:

    title = "..."
    levels = [1e-3, 1e-6]               # shares of F(x0) - F* that are left
    rounds = 1500                       # at most, of each value of the grid
    powers = 8                          # the grid: the rule's value times 2^-8, ..., 2^8
    cohorts = [1, 10, 20]               # clients in a round
    conditions = [10.0, 1e3, 1e5]       # L/mu of the clients' objectives
    seeds = [0, 1, 2]                   # of the problem, its units, cohorts

    [[family]]
    label = "one eigenbasis"
    problem = {name = "quadratics", clients = 20, columns = 24}
    methods = ["Scaffold.client_lr", "FedDyn.proximal"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LogisticRegression, Quadratic
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.papers.l1_logistic import l1_logistic
from flower_fedcon.problems.papers.quadratics import quadratics
from flower_fedcon.problems.reference import Reference
from flower_fedcon.regularizers import L1
from flower_fedcon.runs.toml import read_toml
from flower_fedcon.runs.toml_schema import check_keys, check_type, context
from flower_fedcon.validation import choice

_TYPES: dict[str, Any] = {
    "title": str, "levels": list, "rounds": int, "powers": int, "cohorts": list,
    "conditions": list, "seeds": list, "family": list,
}  # fmt: skip
_FAMILY: dict[str, Any] = {"label": str, "problem": dict, "methods": list}
_UNITS = 3.0  # powers of 10, up and down, for the random units of x and of f


class Family(NamedTuple):
    """A kind of problem, and the methods that are run on it.

    Attributes
    ----------
    label : str
    problem : dict
        The builder's name and arguments, without the condition and the seed.
    methods : list of str
        Methods with the argument that is chosen: "FedDyn.proximal".
    """

    label: str
    problem: dict[str, Any]
    methods: list[str]


@dataclass(frozen=True)
class StepStudy:
    """A checked file; see the module.

    Raises
    ------
    ConfigError
        If an entry is missing, unknown or of the wrong type.
    """

    title: str
    levels: list[float]
    rounds: int
    powers: int
    cohorts: list[int]
    conditions: list[float]
    seeds: list[int]
    families: list[Family]

    @classmethod
    def load(cls, path: Path) -> StepStudy:
        """Read a file."""
        tables = read_toml(path)
        with context(str(path)):
            check_keys(tables, _TYPES)
            _check(tables, _TYPES)
            families = []
            for i, table in enumerate(tables.pop("family"), start=1):
                with context(f"[[family]] {i}"):
                    check_keys(table, _FAMILY)
                    _check(table, _FAMILY)
                    choice("problem.name", table["problem"].get("name"), tuple(_BUILDERS))
                    families.append(Family(**table))
            return cls(families=families, **tables)

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs, one for each problem; the first seed of all comes before the second."""
        for seed in self.seeds:
            for condition in self.conditions:
                for family in self.families:
                    yield Job(family, condition, seed)


class Job(NamedTuple):
    """The runs on one problem.

    Attributes
    ----------
    family : Family
    condition : float
    seed : int
    """

    family: Family
    condition: float
    seed: int

    @property
    def name(self) -> str:
        """The name of its file."""
        label = "".join(c if c.isalnum() else "-" for c in self.family.label)
        return f"{label}-{self.condition:g}-{self.seed}"

    def problem(self) -> FederatedProblem:
        """Return the problem in units drawn with its seed."""
        given = dict(self.family.problem)
        made = _BUILDERS[given.pop("name")](given, self.condition, self.seed)
        rng = np.random.default_rng((self.seed, 46))
        length, height = 10.0 ** rng.uniform(-_UNITS, _UNITS, 2)
        return in_units(made, length, height)


def in_units(problem: FederatedProblem, length: float, height: float) -> FederatedProblem:
    """Return height F(length x) for quadratics, F(length x) for logistic regression.

    >>> problem = in_units(quadratics(clients=3, columns=4), 2.0, 10.0)
    >>> least = problem.optimum.value / quadratics(clients=3, columns=4).optimum.value
    >>> round(problem.objectives[0].smoothness, 6), round(least, 6)
    (4000.0, 10.0)
    """
    objectives: list[Any] = []
    for f in problem.objectives:
        if isinstance(f, Quadratic):
            objectives.append(Quadratic(height * length**2 * f.Q, height * length * f.b))
        else:
            assert isinstance(f, LogisticRegression)  # noqa: S101  (what the builders make)
            height = 1.0
            objectives.append(LogisticRegression(length * f.A, f.targets, length**2 * f.l2))
    psi, best = problem.regularizer, problem.optimum
    return FederatedProblem(
        objectives,
        regularizer=L1(height * length * psi.weight) if isinstance(psi, L1) else None,
        optimum=Reference(best.x / length, height * best.value, best.residual, best.method),
    )


def _quadratics(given: Mapping[str, Any], condition: float, seed: int) -> FederatedProblem:
    return quadratics(**given, condition=condition, seed=seed)


def _logistic(given: Mapping[str, Any], condition: float, seed: int) -> FederatedProblem:
    """Return the problem with an l2 that gives the condition."""
    plain = l1_logistic(**given, l2=0.0, seed=seed)
    steepest = max(f.smoothness for f in plain.objectives)
    made = l1_logistic(**given, l2=steepest / (condition - 1), seed=seed)
    return made if given.get("l1", 1.0) else FederatedProblem(made.objectives)


_BUILDERS: dict[str, Callable[[Mapping[str, Any], float, int], FederatedProblem]] = {
    "quadratics": _quadratics,
    "l1_logistic": _logistic,
}


def _check(table: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    for name, hint in types.items():
        if name not in table:
            raise ConfigError(f"{name} is missing")
        check_type(name, table[name], hint)
