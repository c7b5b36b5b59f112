"""Whether a strategy solves the given problem, and the arguments that it takes from it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_fedcon.core.method import Method
from flower_fedcon.layout import Layout
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import Indicator, Regularizer
from flower_fedcon.sets import ConstraintSet
from flower_fedcon.validation import Array, parameters
from flower_fedcon.wire.digests import digest

ON_MISMATCH = "error", "warn"


def oracles(kind: type[Method[Any]], problem: FederatedProblem) -> dict[str, Any]:
    """Return the arguments that give an algorithm the problem's set or regularizer.

    If the algorithm has a `regularizer`, a set is given as that. The result is empty if the
    algorithm cannot use the problem's set or regularizer.

    >>> from flower_fedcon.problems import digits
    >>> from flower_fedcon.strategies import FedAvg, FedDualAvg
    >>> [oracles(kind, digits(l1_radius=9.0)) for kind in (FedAvg, FedDualAvg)]
    [{}, {'regularizer': L1Ball(radius=9.0)}]
    """
    arguments = parameters(kind)
    if problem.constraint is not None:
        if "constraint" in arguments:
            return {"constraint": problem.constraint}
        if "regularizer" in arguments and kind.takes_sets:
            return {"regularizer": problem.constraint}
    elif problem.regularizer is not None and "regularizer" in arguments:
        return {"regularizer": problem.regularizer}
    return {}


def kept_constraints(kind: type[Method[Any]], problem: FederatedProblem) -> dict[str, Any]:
    """Return the arguments with which an algorithm handles the problem's functional constraints.

    The result is empty if the defaults match the problem, or the algorithm has no such arguments.

    >>> from flower_fedcon.problems import fair_digits
    >>> from flower_fedcon.strategies import FedSGM
    >>> kept_constraints(FedSGM, fair_digits())
    {'constraints': 'groups', 'groups': 10}
    """
    asked, accepted = problem.constraints, parameters(kind)
    if not problem.has_functional_constraint or not {"constraints", "groups"} <= accepted.keys():
        return {}
    arguments: dict[str, Any] = {} if asked == kind.constraints else {"constraints": asked}
    return arguments | ({"groups": problem.groups} if asked == "groups" else {})


def why_mismatched(strategy: Method[Any], problem: FederatedProblem) -> str | None:
    """Return why a strategy solves a different problem; None if it solves this one.

    The comparison is of the parts added to the objectives: a set or a regularizer (by parameters,
    with a set as its indicator), and the objectives' own functional constraints.

    >>> from flower_fedcon.problems import digits
    >>> from flower_fedcon.sets import L1Ball
    >>> from flower_fedcon.strategies import FedFW
    >>> print(why_mismatched(FedFW(L1Ball(1.0), penalty=1.0), digits(l1_radius=0.1)))
    FedFW uses L1Ball(radius=1.0), the problem has L1Ball(radius=0.1): give FedFW constraint=\
L1Ball(radius=0.1) (problem.constraint), or say on_mismatch="warn" if this is meant
    """
    title, kind = strategy.title, type(strategy)
    if problem.has_functional_constraint and strategy.constraints != problem.constraints:
        asked = _CONSTRAINTS[problem.constraints]
        if not strategy.constraints:
            facts = f"{title} ignores {asked}"
        else:
            kept = _CONSTRAINTS[strategy.constraints].replace("the problem's", "all")
            facts = f"{title} handles {kept}, the problem has {asked}"
        return _told(facts, _constraints_remedy(strategy, problem))
    if strategy.constraint == problem.constraint and strategy.regularizer == problem.regularizer:
        return None
    used = _added(strategy.constraint, strategy.regularizer, problem.layout)
    wanted = _added(problem.constraint, problem.regularizer, problem.layout)
    if used == wanted or digest(used) == digest(wanted):  # two equal ones of the user's own
        return None
    facts = f"{title} uses {_names(used)}, the problem has {_names(wanted)}"
    if given := oracles(kind, problem):
        ((name, value),) = given.items()
        source = "constraint" if isinstance(value, ConstraintSet) else "regularizer"
        return _told(facts, f"give {kind.__name__} {name}={value!r} (problem.{source})")
    if wanted:
        needed = "constraints" if isinstance(wanted[0], Indicator) else "regularizers"
        return _told(facts, f"take an algorithm that works with such {needed} (`fedcon list`)")
    return _told(facts, f"give the problem {_names(used)} too")


def value_for(strategy: Method[Any], problem: FederatedProblem, x: Array) -> float:
    """Return F(x) for a bound strategy that minimises F; NaN for others, and for x outside D."""
    if not strategy.minimises_mean() or why_mismatched(strategy, problem) is not None:
        return math.nan
    return problem.value_within(x)


_CONSTRAINTS = {
    "mean": "the functional constraint g(x) <= 0 of the problem's objectives (constraint_value)",
    "each": "each client's own constraint (constraint_value)",
    "groups": "the constraints of groups (constraint_sums)",
}


def _constraints_remedy(strategy: Method[Any], problem: FederatedProblem) -> str:
    """Return a remedy for a problem's functional constraints."""
    if "constraints" in parameters(type(strategy)):
        given = {"constraints": problem.constraints} | kept_constraints(type(strategy), problem)
        values = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"give {strategy.title} {values}"
    if strategy.constraints:
        return f'take FedSGM, or give FederatedProblem constraints="{strategy.constraints}"'
    fits = {"mean": "FedSGM", "each": "FedProxAL or FedSGM", "groups": "FedSGM"}
    return f"take {fits[problem.constraints]}, which can"


def _told(facts: str, remedy: str) -> str:
    return f'{facts}: {remedy}, or say on_mismatch="warn" if this is meant'


def _added(
    constraint: ConstraintSet | None, regularizer: Regularizer | None, layout: Layout
) -> list[Regularizer]:
    """Return the parts added to the objectives: indicators, and regularizers other than 0."""
    added: list[Regularizer] = [] if constraint is None else [Indicator(constraint)]
    if regularizer is not None and not is_zero(regularizer, layout):
        added.append(regularizer)
    return added


def is_zero(psi: Regularizer, layout: Layout) -> bool:
    """Return whether a regularizer is 0, like L1(0.0): its prox does not move a point."""
    if isinstance(psi, Indicator):
        return False
    point = np.random.default_rng(0).standard_normal(layout.shape)
    step = min(1.0, 0.5 / psi.weak_convexity) if psi.weak_convexity else 1.0
    return np.array_equal(psi.prox(point, step), point)


def _names(added: list[Regularizer]) -> str:
    return " and ".join(
        repr(psi.constraint if isinstance(psi, Indicator) else psi) for psi in added
    ) or "neither a constraint nor a regularizer"  # fmt: skip
