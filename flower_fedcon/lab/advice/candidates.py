"""Which methods fit a problem, by their classes and cards, and with which settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.card import Card, first_sentence
from flower_fedcon.core.method import Method
from flower_fedcon.core.participation import Participation
from flower_fedcon.core.protocol import Setup
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.lab.advice.facts import Facts, setup_of
from flower_fedcon.lab.advice.studies import Measured, Study
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.fitting import LARGE, has_hessians, why_inexact, why_unfit
from flower_fedcon.problems.mismatch import kept_constraints, oracles, why_mismatched
from flower_fedcon.registry import algorithms, own_algorithms
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import parameters

Kind: TypeAlias = type[Method[Any]]
_STEPS = 5  # local steps, as in most of the studies

# A first value for an argument, from the known facts; a class's default has precedence.
_STARTS: dict[str, Callable[[Facts], float | None]] = {
    "local_steps": lambda _: _STEPS,
    "client_lr": lambda f: None if not f.smoothness else 1 / (2 * f.smoothness * _STEPS),
    "step_size": lambda f: None if not f.smoothness else 1 / f.smoothness,
    "proximal": lambda f: None if not f.smoothness else (
        math.sqrt(f.strong_convexity * f.smoothness) if f.strong_convexity else f.smoothness / 10),
    "primal_lr": lambda f: None if not (f.smoothness and f.strong_convexity) else (
        1 / math.sqrt(f.strong_convexity * f.smoothness)),
    "strong_convexity": lambda f: f.strong_convexity or None,
    "smoothness": lambda f: f.smoothness,
    "damping": lambda f: None if not f.smoothness else 5 * f.smoothness * _STEPS,
    "tolerance": lambda _: 0.05,
}  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A method that fits the problem.

    Attributes
    ----------
    kind : type
    settings : dict
        First values of its arguments, without the set or regularizer and without participation.
    strategy : FedConStrategy
        The strategy with these settings.
    why : list of str
        Reasons for and against it.
    exact : bool
        Whether it converges to the optimum, by its card.
    burden : float
        The number of entries in an upload, relative to the model.
    measured : Measured, optional
        Its result in the nearest study.
    """

    kind: Kind
    settings: dict[str, Any]
    strategy: FedConStrategy[Any]
    why: list[str]
    exact: bool
    burden: float
    measured: Measured | None

    def rank(self, *, by_bytes: bool) -> tuple[float, ...]:
        """Return the sort key of candidates: the smallest is the first to try."""
        measured = self.measured
        cost = (measured.megabytes if by_bytes else measured.rounds) if measured else None
        place = 0 if cost is not None else 2 if measured else 1  # a miss of the level is last
        return (not self.exact, self.burden > LARGE, place, cost or 0.0)


def candidates(
    problem: FederatedProblem,
    participation: Participation,
    facts: Facts,
    study: Study | None,
    *,
    by_bytes: bool = False,
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the methods that fit, best first, and why each of the others does not.

    A method fits if its card's problem is this one, if it uses the problem's set or regularizer,
    and if it accepts the cohorts and the clients' constants when a run is set up.
    """
    setup, penalty = setup_of(problem, participation), _penalty(problem)
    fitting, others = [], {}
    for kind in (*algorithms().values(), *own_algorithms().values()):
        try:
            card = kind.card()
        except FedConError:  # your own algorithm need not have a card
            card = None
        reason = (
            ""
            if card is None
            else why_unfit(
                card,
                kind,
                strongly_convex=None if facts.strong_convexity is None else facts.strongly_convex,
                convex=facts.convex,
                each=facts.term == "each",
                sampled=facts.sampled,
                functional=problem.has_functional_constraint,
                twice=has_hessians(problem),
            )
        )
        if not reason:
            try:
                settings, strategy = _made(kind, problem, participation, facts, setup, penalty)
            except FedConError as error:
                reason = str(error)
            else:
                reason = why_mismatched(strategy, problem) or ""
        if reason:
            words = reason.partition(": take ")[0].removeprefix(kind.title)
            others[kind.__name__] = words.lstrip(": ")
            continue
        measured = None if study is None else study.best(kind.__name__)
        burden = strategy.most_entries(problem.layout) / problem.layout.size
        exact = not why_inexact(kind, sampled=facts.sampled)
        why = list(_why(card, kind, facts, burden)) if card else ["an algorithm of your own"]
        fitting.append(Candidate(kind, settings, strategy, why, exact, burden, measured))
    fitting.sort(key=lambda each: each.rank(by_bytes=by_bytes))
    return fitting, others


def _made(
    kind: Kind,
    problem: FederatedProblem,
    participation: Participation,
    facts: Facts,
    setup: Setup,
    penalty: float | None,
) -> tuple[dict[str, Any], FedConStrategy[Any]]:
    """Return settings with which a method accepts the problem, and its strategy.

    The required settings are tried alone first, then with all optional ones that have a first
    value.
    """
    takes = parameters(kind)
    starts: dict[str, Any] = {name: start(facts) for name, start in _STARTS.items()}
    starts["penalty"] = penalty and penalty / getattr(kind, "weaker", 1.0)
    if not facts.convex:
        starts["schedule"] = "nonconvex"
    offered = {name: value for name, value in starts.items() if name in takes and value is not None}
    required = {name: v for name, v in offered.items()
                if takes[name].default is takes[name].empty or name == "schedule"}  # fmt: skip
    required |= kept_constraints(kind, problem)
    open_ = {n: v for n, v in offered.items() if n in required or takes[n].default is None}
    open_ |= kept_constraints(kind, problem)
    given = {**oracles(kind, problem), "participation": participation}
    for name, parameter in takes.items():
        if parameter.default is parameter.empty and name not in {*required, *given}:
            raise ConfigError(f"needs {name}, which the problem does not have")
    assert issubclass(kind, FedConStrategy)  # noqa: S101  (the registry takes no other)
    try:
        strategy = kind(**required, **given)
        strategy.bind(setup)
    except FedConError:
        strategy = kind(**open_, **given)
        strategy.bind(setup)
        return open_, strategy
    return required, strategy


def _penalty(problem: FederatedProblem) -> float | None:
    """Return the rule of FedFW's card: max_i ||grad f_i(x0)|| / (N diameter)."""
    if problem.constraint is None:
        return None
    steepest = max(float(np.linalg.norm(c.gradient(problem.start))) for c in problem.clients)
    try:
        diameter = float(problem.constraint.diameter_for(problem.layout.shape))
    except FedConError:
        return None
    return steepest / (problem.num_clients * diameter) or None


def _why(card: Card, kind: Kind, facts: Facts, burden: float) -> Iterator[str]:
    yield card.summary
    if facts.sampled and not kind.needs_everyone:
        yield f"sampled cohorts: {first_sentence(card.participation)}"
    yield f"state: {first_sentence(card.state)}"
    yield f"wire: {first_sentence(card.wire)}"
    if burden > LARGE:
        yield f"but an upload has {burden:.0f} times the entries of the model"
    if card.stated != "as in its paper":
        yield f"stated: {card.stated}"
