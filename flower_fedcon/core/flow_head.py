"""The first line of a log of events: whose events they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flower_fedcon.core.server import Server

_SAME = ("algorithm", "seed", "rule", "clients")


def head_of(server: Server) -> dict[str, Any]:
    """Return the first line of a run's log.

    "clients" are their names, "async_bias" is the method's.
    """
    strategy, setup = server.strategy, server.setup
    return {
        "algorithm": strategy.name,
        "seed": setup.seed,
        "rule": repr(strategy.participation),
        "clients": [*setup.names],
        "async_bias": strategy.async_bias,
    }


def differing(head: Mapping[str, Any], server: Server) -> str:
    """Return in what a log's run differs from this one, in words; "" if in nothing.

    Clients may have other names, as when a log of nodes is repeated in simulation.

    Raises
    ------
    KeyError, TypeError
        If it is not the first line of a log.
    """
    own = head_of(server)
    pairs = {name: (head[name], own[name]) for name in _SAME}
    pairs["clients"] = len(head["clients"]), len(own["clients"])
    apart = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return ", ".join(f"{name} {theirs}, not {ours}" for name, (theirs, ours) in apart.items())
