"""The records of a run, and the part of them that callbacks see."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.evaluation import check_metric_names
from flower_fedcon.core.gate import COUNTS
from flower_fedcon.core.method import Method
from flower_fedcon.core.protection import Protection
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, DivergedError
from flower_fedcon.runs.certificates import certify
from flower_fedcon.runs.history import EarlyStopping, Record
from flower_fedcon.runs.observing import is_unsafe, observed
from flower_fedcon.runs.plan import Plan

_log = logging.getLogger("flwr")


class Recorder:
    """Makes the rows of a run's history.

    Parameters
    ----------
    plan : Plan
    strategy : Method
    engine : Engine

    Attributes
    ----------
    covered : bool
        Whether values that no noise covers are left out of the rows.
    seconds : float
        The time of the run's rounds so far.

    Raises
    ------
    ConfigError
        If a private run would end by a condition on its data.
    """

    def __init__(self, plan: Plan, strategy: Method[Any], engine: Engine) -> None:
        self._plan, self._engine = plan, engine
        self._noisy = strategy.privacy is not None and strategy.privacy.noise_multiplier > 0
        self._noisy |= bool(engine.ledgers())  # private examples, of which this process knows all
        self.covered = self._noisy and not plan.unsafe
        self._asks = not self.covered or any(map(is_unsafe, plan.callbacks))
        self.seconds = 0.0
        if self.covered:
            _check_stops(plan.callbacks)

    def evaluated(self, server: Server) -> Record:
        """Return clients' evaluations of the model; empty if no client may be asked."""
        return self._engine.evaluate(server.x) if self._asks else {}

    def of(
        self, server: Server, raw: Record, server_round: int, *, first: bool = False
    ) -> tuple[Record, dict[bool, Record]]:
        """Return the record of an evaluated model, and what callbacks see of it.

        Callbacks see values that no noise covers only if they are unsafe. At the `first` record the
        log says which values epsilon does not cover.

        Raises
        ------
        DivergedError
            If the objective is not finite.
        ConfigError
            If a metric has the name of a column.
        """
        plan = self._plan
        more: Record = {}
        if plan.evaluate is not None:
            more = plan.evaluate(server_round, np.array(server.x))  # a copy for the callback
            check_metric_names(more)
        if self._engine.remote:
            raw = _without_reported(raw, server)
        whole = _record(server, raw | more, self.seconds) | self._engine.counts()
        if plan.certificates:
            whole |= certify(server, self._engine)
        hidden = raw.keys() - more.keys() if self.covered else ()
        record = {name: value for name, value in whole.items() if name not in hidden}
        seen = {True: whole, False: record}
        measured = observed(plan.callbacks, server, self._engine, seen, self.covered)
        whole |= measured
        record |= measured
        if self._noisy and first:
            _say_raw(server.private, raw if not self.covered else None)
        return record, seen

    def costs(self, server: Server) -> Record:
        """Return the columns of the costs of a run's rounds."""
        return _costs(server, self.seconds)


def _say_raw(private: Protection, raw: Record | None) -> None:
    """Log which columns epsilon does not cover, or that they are not recorded."""
    if not math.isfinite(private.epsilon):
        return
    if raw:
        _log.warning(
            "epsilon bounds what the models reveal. No noise protects the columns %s and the audit "
            "log: do not publish them, or leave unsafe out",
            ", ".join(raw),
        )
    elif raw is None:
        _log.info(
            "epsilon bounds what the models reveal. Values that no noise protects (objective, "
            "residual, clients' metrics) are not recorded; unsafe=True records them, and epsilon "
            "does not count them"
        )


def _check_stops(callbacks: Sequence[Any]) -> None:
    """Raise if a private run would end by a condition on its data.

    Raises
    ------
    ConfigError
    """
    for callback in callbacks:
        raw = isinstance(callback, EarlyStopping) and callback.column not in ("epsilon", "clip")
        if raw and not callback.unsafe:
            raise ConfigError(
                f"early stopping watches {callback.column!r}, which no noise protects, so the "
                f"number of rounds would reveal something of it. In a private run give "
                f"rounds or a budget of epsilon, or EarlyStopping(..., unsafe=True), which epsilon "
                f"does not count"
            )


def _without_reported(raw: Record, server: Server) -> Record:
    """Return what nodes have measured, without names under which the method reports."""
    for name in raw.keys() & server.strategy.report(server.state).keys():
        _log.warning(
            "the clients' metric %s is left out: %s reports a column of this name",
            name,
            server.strategy.title,
        )
        raw = {other: value for other, value in raw.items() if other != name}
    return raw


def _record(server: Server, evaluation: Record, seconds: float) -> Record:
    objective = evaluation.get("objective", 0.0)
    if not math.isfinite(objective):
        raise DivergedError(
            f"round {server.round}: the objective is {objective}: the run diverges. Use smaller "
            f"steps, or drop uploads that are too long (norm_bound)"
        )
    report = server.strategy.report(server.state)
    for name in evaluation.keys() & report.keys():
        raise ConfigError(
            f"a metric cannot be called {name!r}, which {server.strategy.title} reports: choose "
            "another name"
        )
    measured = evaluation | report
    return {
        "round": server.round,
        **measured,
        **server.spent(),
        **_costs(server, seconds, measured),
    }


def _costs(server: Server, seconds: float, measured: Collection[str] = ()) -> Record:
    """Return the costs of the rounds so far, without those `measured` already has."""
    counts = server.counts
    return {
        "round": server.round,
        "uplink_bytes": server.uplink_bytes,
        "downlink_bytes": server.downlink_bytes,
        "seconds": seconds,
        **server.simulated(),
        **server.columns,
        "cohort": len(server.cohort),
        "replies": server.replies,
        "dropped": counts["dropped"],
        "retries": counts["retries"],
        "lost": counts["lost"],
        **{f"local_{n}": value for n, value in sorted(server.work.items()) if n not in COUNTS},
        **{n: server.work[n] for n in COUNTS if n in server.work and n not in measured},
    }
