"""Which methods and arguments go with replies to earlier models."""

from __future__ import annotations

from typing import Any

from flower_fedcon.core.batches import ORDERS
from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.method import Method
from flower_fedcon.errors import ParticipationError
from flower_fedcon.server.schedules import Schedule


def check_flow(strategy: Method[Any]) -> None:
    """Raise unless a method that is bound to a run can take its replies as they come.

    Raises
    ------
    ParticipationError
        If its rule is `Buffered` and the method, or one of its arguments, needs rounds.
    """
    rule = strategy.participation
    if not isinstance(rule, Buffered):
        return
    title, instead = strategy.title, "another rule of participation, such as Full()"
    if strategy.needs_fresh:
        why = strategy.needs_everyone or strategy.needs_fresh
        raise ParticipationError(
            f"{title} cannot use replies to earlier models ({why}), got {rule!r}: "
            f"use {instead}, or AREA, FedDR, Scaffold, FedNewton (`fedcon list`)"
        )
    reasons = {
        "queries": (strategy.queries, "its clients answer twice in a round"),
        "privacy": (strategy.privacy, "the accountant counts rounds of random cohorts"),
        "min_replies": (strategy.min_replies, "buffer is how many replies a step needs"),
        "aggregation": (strategy.aggregation, "changes of different models have no common centre"),
        "client_lr": (
            isinstance(getattr(strategy, "client_lr", None), Schedule),
            "a schedule counts rounds, and clients do not share their count",
        ),
        "batch_order": (
            strategy.batch_order != ORDERS[0],
            "epochs count a client's rounds one after another",
        ),
        getattr(strategy, "penalty_name", ""): (
            getattr(strategy, "balances", False),
            "residuals of different models cannot be compared",
        ),
    }
    for name, (wanted, why) in reasons.items():
        if wanted:
            raise ParticipationError(
                f"{title} takes no {name}={getattr(strategy, name)!r} with {rule!r}: {why}. Leave "
                f"{name} out, or use {instead}"
            )
