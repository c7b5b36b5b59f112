"""The exchanges after a Cox run with one baseline hazard for all sites: its fit.

Such a likelihood is not a sum of the sites' functions, so rounds cannot maximise it. They find the
model in which each site is a stratum. From there the server takes Newton steps, each with two
exchanges of sums over the rows at risk (`flower_fedcon.tables.statistics.risk_sums`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, FedConError, RoundError
from flower_fedcon.objectives.common_baseline import CommonBaseline, Sums, shapes_of
from flower_fedcon.objectives.curvatures import in_units
from flower_fedcon.problems.proximal_newton import newton
from flower_fedcon.regularizers import Zero
from flower_fedcon.runs.final_sums import asked, total_sums
from flower_fedcon.solvers.quadratic_models import QuadraticModel
from flower_fedcon.solvers.runaway import runaway
from flower_fedcon.solvers.units import units_of
from flower_fedcon.tables.ending.convergence import Convergence, least_weight, separating
from flower_fedcon.tables.ending.final_intercepts import OfTables
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.statistics.risk_sums import (
    QUESTIONS,
    TIMES,
    agreed_times,
    union_of,
)
from flower_fedcon.tables.wing import RISK_SETS
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

_TOL = 1e-10  # of the gradient at 0
_MOST = 50  # Newton steps
_ROUNDING = 1024.0  # in machine epsilons of a gradient's terms
_WHAT = "stratified = false"


@dataclass(frozen=True)
class CommonFit:
    """The fit with one baseline hazard.

    Attributes
    ----------
    x : array
    likelihood : CommonBaseline
        As a function of the model of prepared columns.
    reached : Convergence
    strata : list of str
        The strata's names; one "" without strata.
    """

    x: Array
    likelihood: CommonBaseline
    reached: Convergence
    strata: list[str]


def has_common_baseline(prepared: Preparation | None) -> bool:
    """Return whether a run ends with one baseline hazard for all sites."""
    stated = None if prepared is None else prepared.stated
    return stated is not None and not stated.stratified


def check_common(strategy: Any, setup: OfTables, *, debiased: bool) -> None:
    """Refuse, before round 1, runs that cannot end with one baseline hazard.

    Raises
    ------
    ConfigError
    """
    if strategy.privacy is not None:
        raise ConfigError(
            f"{_WHAT} beside privacy: no noise covers the sums over rows at risk that it is found "
            f"by: take stratified = true"
        )
    psi = strategy.regularizer
    entrywise = psi is None or psi.entrywise(setup.layout.shape) is not None
    if strategy.constraint is not None or not entrywise or debiased:
        raise ConfigError(
            f"{_WHAT} takes l1 and l2 of single columns, without a constraint, another penalty or "
            f'inference = "debiased": leave them out, or take stratified = true'
        )


def final_baseline(server: Server, engine: Engine) -> CommonFit | str:
    """Return the fit with one baseline hazard for all sites; or why there is none.

    This is not part of a round: no state changes.
    """
    try:
        return _fit(server, engine)
    except FedConError as error:  # it must not end a finished run
        return (
            f"no common baseline hazard: {error}. The coefficients are those of the rounds, in "
            f"which each site is a stratum"
        )


def _fit(server: Server, engine: Engine) -> CommonFit:
    prepared = server.setup.preparation
    assert prepared is not None  # noqa: S101  (the caller's case)
    assert prepared.stated is not None  # noqa: S101
    down, shape = _agreed(server, engine, prepared.stated.baseline_times), server.x.shape
    shared, names = agreed_times(down)

    def told(question: str, x: Array, **more: Any) -> Sums:
        functions = len(more.get("factors", more.get("hazards", ())))
        shapes = shapes_of(question, len(shared.times), shape[0], functions)
        place = float(QUESTIONS.index(question))
        return total_sums(server, engine, RISK_SETS, shapes, x, question=place, **down, **more)

    ties, none = prepared.stated.ties, np.zeros(shape)
    f = CommonBaseline(told, shared, none, ties)
    if not f.event_weights.any():
        raise ConfigError("no event is at a time at which sites sum")
    psi = server.strategy.regularizer
    first, start = f.hessian(none), f.gradient(none)
    units = units_of(Zero() if psi is None else psi, np.diag(first), shape)
    weights = units.psi.entrywise(shape)
    assert weights is not None  # noqa: S101  (`check_common`)
    x = np.asarray(server.x, dtype=np.float64)
    at_zero = f.value(none)
    x = x if f.value(x) <= at_zero else none
    size = units.length(start)
    smooth = in_units(f, units.sizes)
    z, away = newton(smooth, weights, x / units.sizes, _TOL * size, _MOST)
    x = z * units.sizes
    H = f.hessian(x)
    model = QuadraticModel(H, H @ x - f.gradient(x), 0.0)
    weight = least_weight(psi, shape)
    reached = Convergence(
        away,
        weight,
        unit=least_weight(units.psi, shape) / weight if weight else 1.0,
        start=size,
        rounding=_ROUNDING * float(np.finfo(np.float64).eps) * (units.reach(x) + 1.0),
        remedy="the exchanges of sums over rows at risk have not converged",
        separated=separating(runaway(first, model, x), shape, prepared.names),
    )
    return CommonFit(x, f, reached, names)


def _agreed(server: Server, engine: Engine, grid: tuple[float, ...]) -> Payload:
    """Return the times at which all sites sum."""
    points = np.array(grid) if grid else None
    more: dict[str, Any] = {} if points is None else {"grid": points}
    shapes: Any = {"strata": (None,), "counts": (None,), "times": (None,)}
    ask = partial(asked, server, engine, RISK_SETS, shapes)
    answers, faults = ask(question=float(QUESTIONS.index(TIMES)), **more)
    if faults:
        why = "; ".join(server.in_words(faults))
        raise RoundError(f"sums over rows at risk need every client's answer: {why}")
    return union_of([answers[client] for client in sorted(answers)], points)
