"""How an algorithm states what the contract test holds it to; see `cases/`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from harness import OpenRun

from flower_fedcon import Bernoulli, Buffered, FederatedProblem, Full, Sample
from flower_fedcon.core.participation import Participation
from flower_fedcon.registry import algorithms, strategy_class

FirstRounds = Callable[[], tuple[Any, FederatedProblem, list[float]]]
"""Returns a strategy, a problem with one unknown, and the model after each first round."""


@dataclass(frozen=True)
class Case:
    """One figure of an algorithm's card: after `rounds` the error lies in [low, high].

    `measure` is "distance" (to the optimum of the independent solver) or "residual" (F - F*). A
    long one is played `at_night`; others of the method are not.
    """

    id: str
    problem: Callable[[], FederatedProblem]
    settings: dict[str, Any]
    rounds: int
    low: float
    high: float
    measure: str = "distance"
    at_night: bool = False

    def error(self, x: Any) -> float:
        problem = self.problem()
        if self.measure == "residual":
            return problem.objective(x) - problem.optimum.value
        return float(np.linalg.norm(x - problem.optimum.x))


def about(value: float, tolerance: float = 0.05) -> dict[str, float]:
    """Bounds around a floor: an implementation without the bias is another algorithm."""
    return {"low": value * (1 - tolerance), "high": value * (1 + tolerance)}


TWO = Sample(count=2)


@dataclass(frozen=True)
class Loop:
    """A run in which clients come first in late rounds, and a loop of NumPy from the card alone.

    Attributes
    ----------
    id : str
    problem : callable
    settings : dict
        The strategy's arguments, and keywords of `play`; without the participation.
    play : callable
        Plays cohorts, one list of clients for each round, on the problem; returns the last model.
    rule : Participation
    """

    id: str
    problem: Callable[[], FederatedProblem]
    settings: dict[str, Any]
    play: Callable[..., Any]
    rule: Participation = TWO


@dataclass(frozen=True)
class Contract:
    """What one algorithm is held to.

    Attributes
    ----------
    cases : list of Case
        Everyone present; the first one also serves the tests of messages and faults.
    sampled : list of Case
        With some left out; their settings hold the participation. Empty if that is refused.
    first_rounds : list of callables
        Rounds worked out by hand.
    loops : list of Loop
        What its card says of late clients; empty only if neither clients nor the server keep
        anything of a client between rounds, or if everyone takes part.
    small : dict
        Settings that suit small, well-conditioned problems (Q = (1 + j) I).
    oracle : "constraint", "regularizer" or None
        What the small problems have beside the objectives.
    lost : "exact", "heals" or None
        After a client has lost its state the run is as if nothing had happened (mirror); it ends
        in the first case's bounds all the same; or the algorithm's own tests say.
    refuses : list of Participation
        Cohort rules that must end in a `ParticipationError` which says what to use.
    invariant : callable, optional
        Asserts on an `OpenRun` after each round.
    wrap : callable
        Gives a plain objective what this algorithm needs beside value and gradient.
    """

    cases: list[Case]
    sampled: list[Case]
    first_rounds: list[FirstRounds]
    small: dict[str, Any]
    oracle: str | None = None
    loops: list[Loop] = field(default_factory=list)
    lost: str | None = None
    refuses: list[Participation] = field(default_factory=list)
    invariant: Callable[[OpenRun], None] | None = field(default=None)
    wrap: Callable[[Any], Any] = lambda objective: objective


class ContractError(Exception):
    """A registered algorithm does not say what it is held to."""


def contract(name: str) -> Contract:
    """Return an algorithm's contract, from its file in `cases/`."""
    module = f"cases.{name}"
    try:
        found = getattr(import_module(module), "CONTRACT", None)
    except ModuleNotFoundError as error:
        if error.name != module:  # the file is there: what it imports is not
            raise
        lack = "there is no such file"
    else:
        if type(found).__name__ == "Contract":  # by name: after an error this module loads again
            if found.lost not in (None, "exact", "heals"):
                raise ContractError(f'{name}: lost is "exact", "heals" or None, got {found.lost!r}')
            return found
        lack = f"its CONTRACT is {found!r}" if found is not None else "it defines no CONTRACT"
    raise ContractError(
        f"{name} is registered, and tests/algorithms/cases/{name}.py does not say what it is held "
        f"to ({lack}): write CONTRACT = Contract(cases=[...], sampled=[...], first_rounds=[...], "
        "small={...}) in it, the figures that the method reaches and its first rounds worked out "
        "by hand; tests/algorithms/cases/fedavg.py shows how, tests/support/contract.py what each "
        "field means"
    )


CONTRACTS = {name: contract(name) for name in algorithms()}
FIRST = {name: contract.cases[0] for name, contract in CONTRACTS.items()}


def build(name: str, problem: FederatedProblem, **settings: Any) -> Any:
    """Return a strategy with the problem's own set or regularizer, where it takes one."""
    kind = strategy_class(name)
    oracle = problem.constraint or problem.regularizer
    for argument in ("constraint", "regularizer"):
        parameter = inspect.signature(kind).parameters.get(argument)
        if parameter is not None and (oracle is not None or parameter.default is parameter.empty):
            settings.setdefault(argument, oracle)
    return kind(**settings)


def strategy(name: str, case: Case, **more: Any) -> Any:
    """Return the strategy of a case."""
    return build(name, case.problem(), **{**case.settings, **more})


def rules(name: str) -> list[Participation]:
    """Return cohort rules that an algorithm takes."""
    refused = {repr(rule) for rule in CONTRACTS[name].refuses}
    return [r for r in (Full(), Sample(fraction=0.5), Bernoulli(0.5)) if repr(r) not in refused]


def late_rules(name: str) -> list[Participation]:
    """Return rules by which an algorithm takes replies to earlier models; none if it does not."""
    rules = [Buffered(), Buffered(buffer=2, concurrency=4, max_staleness=3)]
    return [] if strategy_class(name).needs_fresh else rules


EACH = pytest.mark.parametrize("name", algorithms())
EACH_RULE = pytest.mark.parametrize(
    ("name", "participation"),
    [
        pytest.param(name, rule, id=f"{name}-{rule}")
        for name in algorithms()
        for rule in rules(name) + late_rules(name)
    ],
)
