"""Whether a strategy solves the problem that it is given, and what it takes from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.layout import Layout
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.regularizers import Indicator, Regularizer
from flower_fedcon.sets import ConstraintSet
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import parameters

ON_MISMATCH = "error", "warn"


def oracles(kind: type[FedConStrategy[Any]], problem: FederatedProblem) -> dict[str, Any]:
    """Return the arguments by which an algorithm takes the problem's set or regularizer.

    A set stands for its indicator where the algorithm has a `regularizer`; none are returned if
    the algorithm has no use for what the problem has.

    >>> from flower_fedcon.problems import digits
    >>> from flower_fedcon.strategies import FedAvg, FedDualAvg
    >>> [oracles(kind, digits(l1_radius=9.0)) for kind in (FedAvg, FedDualAvg)]
    [{}, {'regularizer': L1Ball(radius=9.0)}]
    """
    known = parameters(kind)
    if problem.constraint is not None:
        if "constraint" in known:
            return {"constraint": problem.constraint}
        if "regularizer" in known and kind.takes_sets:
            return {"regularizer": problem.constraint}
    elif problem.regularizer is not None and "regularizer" in known:
        return {"regularizer": problem.regularizer}
    return {}


def why_mismatched(strategy: FedConStrategy[Any], problem: FederatedProblem) -> str | None:
    """Return why a strategy solves another problem than this one; None if it does not.

    The two are compared by what they add to the objectives: a set or a regularizer (equal
    parameters, a set being its indicator), and the objectives' own functional constraint.

    >>> from flower_fedcon.problems import digits
    >>> from flower_fedcon.sets import L1Ball
    >>> from flower_fedcon.strategies import FedFW
    >>> print(why_mismatched(FedFW(L1Ball(1.0), penalty=1.0), digits(l1_radius=0.1)))
    FedFW uses L1Ball(radius=1.0), the problem has L1Ball(radius=0.1): give FedFW constraint=\
L1Ball(radius=0.1) (problem.constraint), or say on_mismatch="warn" if this is meant
    """
    title, kind = strategy.title, type(strategy)
    each = problem.constraints == "each"
    if strategy.own_constraints and problem.has_functional_constraint and not each:
        return _told(
            f"{title} keeps each objective's own constraint, the problem asks for their mean",
            'give FederatedProblem constraints="each", or take FedSGM',
        )
    if each and problem.has_functional_constraint and not strategy.own_constraints:
        return _told(
            f"{title} does not keep each objective's own constraint (constraint_value)",
            "take FedProxAL, which does",
        )
    if not each and problem.has_functional_constraint and not strategy.functional_constraint:
        return _told(
            f"{title} does not keep the functional constraint g(x) <= 0 of the problem's "
            "objectives (constraint_value)",
            "take FedSGM, which does",
        )
    if strategy.constraint == problem.constraint and strategy.regularizer == problem.regularizer:
        return None
    used = _added(strategy.constraint, strategy.regularizer, problem.layout)
    wanted = _added(problem.constraint, problem.regularizer, problem.layout)
    if used == wanted:
        return None
    facts = f"{title} uses {_names(used)}, the problem has {_names(wanted)}"
    if given := oracles(kind, problem):
        ((name, value),) = given.items()
        source = "constraint" if isinstance(value, ConstraintSet) else "regularizer"
        return _told(facts, f"give {title} {name}={value!r} (problem.{source})")
    if wanted:
        needed = "constraints" if isinstance(wanted[0], Indicator) else "regularizers"
        return _told(facts, f"take an algorithm that works with such {needed} (`fedcon list`)")
    return _told(facts, f"give the problem {_names(used)} too")


def _told(facts: str, remedy: str) -> str:
    return f'{facts}: {remedy}, or say on_mismatch="warn" if this is meant'


def _added(
    constraint: ConstraintSet | None, regularizer: Regularizer | None, layout: Layout
) -> list[Regularizer]:
    """Return what is added to the objectives: indicators, and regularizers that are not 0."""
    found: list[Regularizer] = [] if constraint is None else [Indicator(constraint)]
    if regularizer is not None and not is_zero(regularizer, layout):
        found.append(regularizer)
    return found


def is_zero(psi: Regularizer, layout: Layout) -> bool:
    """Return whether a regularizer is 0, as L1(0.0) is: its prox leaves a point alone."""
    if isinstance(psi, Indicator):
        return False
    point = np.random.default_rng(0).standard_normal(layout.shape)
    step = min(1.0, 0.5 / psi.weak_convexity) if psi.weak_convexity else 1.0
    return np.array_equal(psi.prox(point, step), point)


def _names(added: list[Regularizer]) -> str:
    return " and ".join(
        repr(psi.constraint if isinstance(psi, Indicator) else psi) for psi in added
    ) or "neither a constraint nor a regularizer"  # fmt: skip
