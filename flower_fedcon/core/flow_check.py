"""Which methods and arguments go with replies to earlier models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flower_fedcon.core.batches import ORDERS
from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.method import Method
from flower_fedcon.errors import ConfigError, ParticipationError
from flower_fedcon.server.schedules import Schedule


def check_flow(strategy: Method[Any]) -> None:
    """Raise unless a method can take its replies as they come.

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
        "window": (getattr(strategy, "window", 1) > 1, "a window counts rounds of cohorts"),
        "amplification": (
            getattr(strategy, "amplification", 1.0) != 1,
            "it is for the change of the model over rounds of cohorts",
        ),
        getattr(strategy, "penalty_name", ""): (
            getattr(strategy, "balances", False),
            "residuals of different models cannot be compared",
        ),
    }
    for name, (wanted, why) in reasons.items():
        if wanted:
            better = f"Give {name} as a number" if name == "client_lr" else f"Leave {name} out"
            raise ParticipationError(
                f"{title} takes no {name}={getattr(strategy, name)!r} with {rule!r}: {why}. "
                f"{better}, or use {instead}"
            )


def check_no_race(strategy: Method[Any], rivals: Sequence[Method[Any]] = ()) -> None:
    """Raise if a method whose rule is `Buffered` is to race, or values of its arguments are.

    Raises
    ------
    ConfigError
    """
    rule = strategy.participation
    of_settings = ", ".join(f'{name}="auto"' for name in strategy.raced())
    raced = 'strategy="auto"' if rivals else of_settings
    if raced and isinstance(rule, Buffered):
        raise ConfigError(
            f"{rule!r} takes no {raced}: a race compares rounds, and these runs have "
            f"none in common. Give the method and its settings, or another participation"
        )
