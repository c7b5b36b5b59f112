"""Which runs the compiled engine accepts, as far as this is known before tracing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.estimated import Estimated
from flower_fedcon.objectives.client_axis import Stackable
from flower_fedcon.objectives.cohorts import alike, unscaled
from flower_fedcon.objectives.many import representatives
from flower_fedcon.objectives.noisy import noise_of
from flower_fedcon.registry import client_class
from flower_fedcon.server.own_rates import OwnRate
from flower_fedcon.server.schedules import Schedule
from flower_fedcon.solvers.exact import Exact
from flower_fedcon.solvers.local_units import units_apart
from flower_fedcon.solvers.stochastic import SGD

if TYPE_CHECKING:
    from flower_fedcon.problems.federated import FederatedProblem
    from flower_fedcon.strategies.base import FedConStrategy

KINDS = 16
"""Kinds of objectives, each of which is traced separately."""


_forked = False  # forked from a process with JAX's threads, which a fork does not copy


def _after_fork() -> None:
    global _forked
    _forked = f"{__package__}.program" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def why_not_traceable(strategy: FedConStrategy[Any], problem: FederatedProblem) -> str | None:
    """Return why a stackable run's rounds cannot be compiled; None if they may be.

    Reasons that only show when a round is traced are logged with the first block.
    """
    if _forked:
        return "this process was forked from one that uses JAX, whose threads it lacks"
    title = strategy.title
    solver = getattr(strategy, "local_solver", None)
    if isinstance(solver, SGD) and isinstance(solver.lr, Schedule):
        return f"{title} has a local solver whose steps follow a schedule"
    if isinstance(getattr(strategy, "client_lr", None), OwnRate):
        return f"{title} lets each client find its own steps"
    if getattr(strategy, "balances", False):
        return f"{title} balances its penalty"
    other = _of_others((strategy, client_class(strategy.name)))
    if other is not None:
        return f"{other} is from another package, whose code may behave differently when traced"
    if isinstance(strategy.participation, Buffered):
        return "replies to earlier models come one by one, in an order that the clock decides"
    if isinstance(strategy.participation, Estimated):
        return "each round's weights are estimated from the replies of the rounds before"
    if strategy.participation.size(len(problem.objectives)) is None:
        return f"cohorts of {strategy.participation!r} differ in size from round to round"
    if strategy.privacy is not None:
        return f"{title} with privacy adds noise to each sum"
    standing = representatives(problem.objectives)
    if any(map(noise_of, standing)):
        return "objectives are Noisy, and their noise comes from each client's own stream"
    for other in standing:
        core, _ = unscaled(other)
        if isinstance(core, Stackable) and core.why_not_traced is not None:
            return f"an objective {core.why_not_traced}"
    if type(solver) is Exact and any(
        units_apart(other, 0.0, problem.layout.shape) is not None for other in standing
    ):
        return (
            "an objective's columns are in very different units, for which exact solves go one "
            "by one"
        )
    kinds = len(alike(standing, pad=strategy.rows_each is None))
    if kinds > 1 and not strategy.participation.is_full(len(standing)):
        return (
            "the clients' objectives differ in type or shape, and each round samples other clients"
        )
    if kinds > KINDS:
        return f"the clients' objectives are of {kinds} types and shapes, more than {KINDS}"
    return None


def _of_others(value: Any) -> str | None:
    """Return the name of a type, in a value or its parts, from outside this package."""
    kind = value if isinstance(value, type) else type(value)
    root = kind.__module__.partition(".")[0]
    if root not in ("builtins", "numpy", __name__.partition(".")[0]):
        return kind.__name__
    parts: Iterable[Any] = ()
    if isinstance(value, list | tuple):
        parts = value
    elif root not in ("builtins", "numpy") and kind is not value:
        parts = getattr(value, "__dict__", {}).values()
    return next(filter(None, map(_of_others, parts)), None)
