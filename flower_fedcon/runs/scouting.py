"""Constants that a strategy's rules need before round 1, estimated from clients' gradients."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.rng import SCALES, stream
from flower_fedcon.core.scales import UNIT, Scales, estimate
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, DivergedError, RoundError, UnknownScaleError
from flower_fedcon.runs.certificates import answers_to
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr.strategies")
_TRIES = 3
_GROWTH, _FACTOR = 10.0, 4.0
_SHORT = 8  # rounds of a run in which a method may still be about to begin


def with_scales(
    strategy: Method[Any], setup: Setup, x0: Array, engine: Engine, *, several: bool = False
) -> Setup:
    """Return the setup with all constants that the strategy's rules need.

    If clients do not state a constant, everyone is asked for gradients at the start and, if L is
    unknown, at more points (`flower_fedcon.core.scales.estimate`): one exchange, or a dozen. No
    client's state changes. L is then made for several local steps if the strategy takes them, or
    if `several` says so.

    Raises
    ------
    UnknownScaleError
        If a rule needs a constant and gradients may not be asked for.
    RoundError
        If a client does not answer.
    """
    try:
        strategy.bind(setup)
    except UnknownScaleError as error:
        if strategy.privacy is not None:
            raise UnknownScaleError(
                f"{error}. (It is not estimated here, since with privacy=... no noise would "
                f"protect the gradients needed)"
            ) from None
        if engine.ledgers():
            raise UnknownScaleError(
                f"{error}. (It is not estimated here: gradients of private examples are noisy, and "
                "each would be spent)"
            ) from None
        if setup.any_own_loop:
            raise
    else:
        return setup
    if reason := engine.why_no_gradients:
        raise ConfigError(f"{strategy.title} lacks a constant of the clients' objectives: {reason}")
    n, unknown = setup.num_clients, False
    trial = replace(setup, scales=Scales([], UNIT))
    try:
        strategy.bind(trial)
    except UnknownScaleError:
        unknown = True
        trial = replace(setup, scales=Scales([UNIT] * n, UNIT))
        several |= (getattr(strategy.bind(trial), "local_steps", None) or 1) > 1
    server = Server(
        strategy, trial, x0, max_retries=engine.max_retries, round_deadline=engine.round_deadline
    )
    engine.open(server.info)
    rng, at_start = stream(setup.seed, SCALES, 0), True

    def gradients(points: Sequence[Array]) -> list[Array]:
        """Return each client's gradient at its point, NaN if it is not finite; x0 is the first."""
        nonlocal at_start
        request = server.certificate_request(points[0])
        if any(point is not points[0] for point in points):
            request.personal = {c: {"x": point} for c, point in enumerate(points)}
        found: dict[int, Any] = {}
        for _ in range(_TRIES):
            outside: set[int] | None = None if at_start else set()
            found |= answers_to(request, server, engine, outside)
            for client in outside or ():  # the point left its objective's domain, or overflows it
                found[client] = {"gradient": np.full_like(x0, math.nan)}
            if len(found) == n:
                at_start = False
                return [found[c]["gradient"] for c in range(n)]
        missing = [name for c, name in enumerate(setup.names) if c not in found]
        where, names = "at" if at_start else "near", ", ".join(missing)
        raise RoundError(
            f"no gradient {where} the start from {names}, which {strategy.title} needs for its "
            f"default settings: give the settings, or wait for these clients"
        )

    scales = estimate(gradients, x0, n, rng, smoothness=unknown, alone=several)
    if not np.isfinite([scales.steepest, *scales.smoothnesses]).all():
        raise ConfigError(
            f"the clients' gradients at the start are not finite, and {strategy.title} needs them "
            f"for its default settings: give the settings, or another start"
        )
    if unknown:
        _log.info(
            "%s: the clients do not state their smoothness. L is about %.3g, by their gradients "
            "near the start; if the objective grows, steps are shortened",
            strategy.title,
            max(scales.smoothnesses),
        )
    return replace(setup, scales=scales)


class Guard:
    """Detects growth of the objective in a run whose L is an estimate, and raises L.

    Growth means that the objective exceeds that of the start by more than ten times its expected
    decrease, or that numbers are no longer finite. The run then starts again from x0, in its next
    round, with an L four times as large.

    Parameters
    ----------
    engine : Engine
        An open engine.
    first : float
        The objective at x0.
    fall : float
        The expected decrease of the objective from x0: the square of the longest gradient there
        over L, or its decrease in a race.
    """

    def __init__(self, engine: Engine, first: float, fall: float) -> None:
        self.fall, self._engine = fall, engine
        self._first, self._most = first, first + _GROWTH * fall

    @classmethod
    def of_estimates(cls, setup: Setup, x0: Array, engine: Engine) -> Guard | None:
        """Return the guard of a run whose L is an estimate; None for others."""
        scales = setup.scales
        if scales is None or not scales.smoothnesses:
            return None
        fall = scales.steepest**2 / (max(scales.smoothnesses) or UNIT)
        return cls(engine, engine.evaluate(x0).get("objective", math.nan), fall)

    def doubt(self, server: Server, last: Mapping[str, float]) -> str:
        """Return a warning if the last record's objective is no lower than at x0; "" otherwise."""
        if server.round < _SHORT or not last.get("objective", -math.inf) >= self._first:
            return ""
        found = server.setup
        source = "a race chose its steps"
        if found.estimated:
            source = f"its steps follow from an estimate of the smoothness, {found.smoothness:.3g}"
        return (
            f"the objective ends at {last['objective']:.6g}, no lower than at the start "
            f"({self._first:.6g}), and {source}. If the start is no solution, the steps are too "
            f"long or too short: give others, take local_steps=1, or let the objectives state "
            f"their smoothness"
        )

    @staticmethod
    def is_due(server_round: int) -> bool:
        """Return whether to check although no objective is recorded: at powers of two."""
        return server_round > 0 and not server_round & (server_round - 1)

    @staticmethod
    def until_due(server_round: int) -> int:
        """Return the number of rounds until the next check, at least 1."""
        return (1 << server_round.bit_length()) - server_round

    def check(self, server: Server, objective: float | None = None) -> None:
        """Raise if the objective has grown.

        Raises
        ------
        DivergedError
        """
        if objective is None:
            objective = self._engine.evaluate(server.x).get("objective", 0.0)
        if not objective <= self._most < math.inf and not math.isnan(self._most):
            raise DivergedError(
                f"round {server.round}: the objective has grown to {objective:.4g}: the run "
                f"diverges. Use smaller steps"
            )


def sharper(setup: Setup) -> Setup:
    """Return a setup with an L four times as large."""
    assert setup.scales is not None  # noqa: S101  (the caller's case)
    return replace(setup, scales=setup.scales.sharper(_FACTOR))
