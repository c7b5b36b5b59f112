"""Constants that a strategy's rules need before round 1, estimated from clients' gradients."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import SCALES, Setup
from flower_fedcon.core.scales import FAR, ONE, SEVERAL, UNIT, Scales, not_believed
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, DivergedError, RoundError, UnknownScaleError
from flower_fedcon.runs.final_sums import asked, is_refusal
from flower_fedcon.runs.relative import ROUNDING
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr.strategies")
_TRIES = 3
_GROWTH, _FACTOR = 10.0, 4.0
_SINGLE = 1e-5  # rounding in single precision
_SHORT = 8  # rounds of a run in which a method may still be about to begin


def with_scales(
    strategy: Method[Any], setup: Setup, x0: Array, engine: Engine, *, several: bool = False
) -> Setup:
    """Return the setup with all constants that the strategy's rules need.

    If clients do not state a constant, each tells the length of its gradient at the start and, if L
    is unknown, its own estimate of L (`flower_fedcon.core.scales.estimate`). No client's state
    changes. L is made for several local steps if the strategy takes them, or if `several` says so.

    A number that is more than a thousand times the median of the others (of at least two) is not
    believed: the largest of the rest stands for it, and the log names the client. So no client
    alone decides the length of all steps.

    Raises
    ------
    UnknownScaleError
        If a rule needs a constant and clients may not be asked.
    RoundError
        If a client does not answer; the error says which setting to give, and whose policy refuses.
    """
    try:
        strategy.bind(setup)
    except UnknownScaleError as error:
        lacking = str(error)
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
    n, steps = setup.num_clients, 0
    trial = replace(setup, scales=Scales([], UNIT))
    try:
        strategy.bind(trial)
    except UnknownScaleError:
        trial = replace(setup, scales=Scales([UNIT] * n, UNIT))
        several |= (getattr(strategy.bind(trial), "local_steps", None) or 1) > 1
        steps = SEVERAL if several else ONE
    server = Server(
        strategy, trial, x0, max_retries=engine.max_retries, round_deadline=engine.round_deadline,
        draws=False,
    )  # fmt: skip
    engine.open(server.info)
    numbers = ["steepness", "smoothness"] if steps else ["steepness"]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(numbers, ())
    answers, faults = asked(server, engine, SCALES, shapes, steps=float(steps))
    faults |= {c: f"it tells {answer}" for c, answer in answers.items() if min(answer.values()) < 0}
    if faults:
        raise RoundError(
            f"{lacking}, where the strategy is made (such as server_app.py), since before round 1 "
            f"its scales were not told by {'; '.join(server.in_words(faults))}{_or_allow(faults)}"
        )
    told = {name: [float(answers[client][name]) for client in range(n)] for name in numbers}
    for name, each in told.items():
        out = not_believed(each)
        most = max(number for place, number in enumerate(each) if place not in {*out})
        for client in out:
            _log.warning(
                "%s tells a %s of %.3g, more than %.0f times the median of the others: it is not "
                "believed, and %.3g stands for it",
                server.client_name(client), name, each[client], FAR, most,
            )  # fmt: skip
            each[client] = most
    scales = Scales(told.get("smoothness", []), max(told["steepness"]))
    if steps:
        _log.info(
            "%s: the clients do not state their smoothness. L is about %.3g, by their gradients "
            "near the start; if the objective grows, steps are shortened",
            strategy.title,
            max(scales.smoothnesses),
        )
    return replace(setup, scales=scales)


def _or_allow(faults: Mapping[int, str]) -> str:
    """Return how nodes that refuse would answer; "" if none refuses."""
    if not any(is_refusal(fault) for fault in faults.values()):
        return ""
    return (
        f'. Or let each node tell them: list "{SCALES}" in its policy.phases (--node-config, or '
        f"client_app(policy=Policy(phases=...)))"
    )


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
        self._first, self._most = first, most_of(first, fall)

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
        setup = server.setup
        source = "a race chose its steps"
        if setup.estimated:
            source = f"its steps follow from an estimate of the smoothness, {setup.smoothness:.3g}"
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


def most_of(first: float, fall: float) -> float:
    """Return what no run exceeds that does not diverge: the start and ten times its expected fall.

    >>> most_of(2.0, 0.5)
    7.0
    """
    return first + _GROWTH * fall


def grown_losses(records: Mapping[int, Mapping[str, Any]]) -> str:
    """Return a warning if a loss that train loops measure ends far above its first value.

    A loss is a metric with "loss" in its name. It is taken to be above 0, so that it can fall by
    its first value at most.

    >>> grown_losses({1: {"train_loss": 195.0}, 2: {"train_loss": 1.6e22}})[:60]
    'train_loss is 195 in round 1 and 1.6e+22 in round 2: the run'
    >>> grown_losses({1: {"loss": 1.0}, 2: {"loss": 2.0}})
    ''
    """
    for name in dict.fromkeys(n for _, record in sorted(records.items()) for n in record):
        own = [n for n in sorted(records) if isinstance(records[n].get(name), int | float)]
        if "loss" not in name.lower() or not own:
            continue
        first, last = (float(records[n][name]) for n in (own[0], own[-1]))
        if not last <= most_of(first, abs(first)) and not math.isnan(first):
            return (
                f"{name} is {first:.6g} in round {own[0]} and {last:.6g} in round {own[-1]}: the "
                f"run diverges. Take smaller steps; if one client's values stand out, check its "
                f"data and train function, or use aggregation=CoordinateMedian()"
            )
    return ""


def ended_above(server: Server, engine: Engine, x0: Array, last: Mapping[str, float]) -> str:
    """Return a warning if a run whose clients state L ends above F(x0); "" otherwise.

    Not in its first rounds, as for `Guard`; nor where F(x0) says nothing (`Engine.value_at`).
    """
    L, strategy = server.setup.smoothness, server.strategy
    if server.round < _SHORT or L is None or "objective" not in last:
        return ""
    first, end = engine.value_at(x0, strategy), last["objective"]
    rounding = _SINGLE if x0.dtype == np.float32 else ROUNDING
    if not end - first > rounding * max(abs(first), abs(end)) or math.isinf(first):
        return ""
    return (
        f"the objective ends at {end:.6g}, above F(x0) = {first:.6g}, and the clients state L = "
        f"{L:.3g}. If the start is no solution, the steps are too long: give shorter ones, take "
        f"local_steps=1, or check that no objective states too small a smoothness"
    )


def sharper(setup: Setup) -> Setup:
    """Return a setup with an L four times as large."""
    assert setup.scales is not None  # noqa: S101  (the caller's case)
    return replace(setup, scales=setup.scales.sharper(_FACTOR))
