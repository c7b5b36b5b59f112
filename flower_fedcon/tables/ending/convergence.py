"""Whether a run on tables has converged, in words."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.server import Server
from flower_fedcon.errors import FedConError, first_few
from flower_fedcon.regularizers import Regularizer, WithIntercept, Zero
from flower_fedcon.runs.certificates import certify, pooled_gradient
from flower_fedcon.runs.history import Record
from flower_fedcon.solvers.units import Units, units_of
from flower_fedcon.tables.preparation import DISPERSION, INTERCEPT
from flower_fedcon.tables.schema import OWN
from flower_fedcon.validation import Array

_BEYOND = 20.0  # from the start, in units in which the objective is 1 curved: odds of e^40
_NEAR = 0.01  # of these units
_STRAIGHT = 1e-12  # curvatures below this are rounding
_NAMED = 0.1  # of the largest entry
_log = logging.getLogger("flwr")
_OF_PENALTY = 1e-6
_NEWTON = 1000  # entries of a model up to which Hessians are exchanged quickly
_FADING = 0.02  # of the curvature at the start: scores beyond 5
_TELLING = 25  # rounds of Newton's method, each of which moves such scores by 1
_ROUNDING = 1024.0  # in machine epsilons of a gradient's terms
_NOTHING = 1 / 64  # multiple of that: the residual that a constant outcome leaves at the start
_FAR_OFF = (
    "values of the outcome, or of columns, are so far from 0 that digits are lost: subtract a "
    "constant from them at all clients"
)
NO_DISPERSION = (
    "the counts vary no more than Poisson's, so the likelihood has no maximum at an alpha > 0: use "
    'loss = "poisson"'
)
_OF_START = 1e-8  # the estimators' default tolerance


@dataclass(frozen=True)
class Convergence:
    """The KKT residual of a run's last model, and the scales to judge it by.

    Parameters
    ----------
    kkt : float
        NaN if it is not known.
    penalty : float
        The penalty's weight; a run has converged if the residual is at most 1e-6 of it. 0 without a
        penalty.
    unit : float
        The factor of the penalty in the units of the residual; see `runs.certificates`.
    start : float
        The norm of the gradient at the start in those units, without the intercept's entry. A
        residual of at most 1e-8 of it also counts as converged. 0 if it was not asked for.
    rounding : float
        The largest residual that may be rounding, such as that of a model with nothing to fit.
    why : str
        Why the residual is not known.
    remedy : str
        What to do if it has not converged.
    separated : str
        The columns that separate the outcome, in words, if there are any.
    """

    kkt: float
    penalty: float = 0.0
    unit: float = 1.0
    start: float = 0.0
    rounding: float = 0.0
    why: str = ""
    remedy: str = ""
    separated: str = ""

    @property
    def converged(self) -> bool | None:
        """Whether the run has converged; None if that is not known.

        Without a penalty it cannot converge if the outcome is separated.
        """
        if self.separated and not self.penalty:
            return False
        if math.isnan(self.kkt):
            return None
        nothing = self.rounding if self.start <= _NOTHING * self.rounding else 0.0
        least = max(_OF_PENALTY * self.unit * self.penalty, _OF_START * self.start, nothing)
        return self.kkt <= least

    @property
    def text(self) -> str:
        """The residual and what it means, in one line.

        >>> Convergence(1e-12, penalty=0.02).text
        'KKT residual: 1e-12: converged (5e-11 of the penalty 0.02)'
        """
        held = (
            f"; {separated_by(self.separated, held=True)}"
            if self.separated and self.penalty
            else ""
        )
        if self.converged is None:
            return f"KKT residual: not known: {self.why}{held}"
        if self.separated and not self.penalty:
            kkt = "not known" if math.isnan(self.kkt) else f"{self.kkt:.3g}"
            return f"KKT residual: {kkt}: NOT CONVERGED: {separated_by(self.separated)}"
        if self.penalty:
            share = f"{self.kkt / (self.unit * self.penalty):.2g} of the penalty {self.penalty:.4g}"
            most = f"{_OF_PENALTY:.0e} of it"
        else:
            at_start = self.kkt / self.start if self.start else math.inf
            share = f"{at_start:.2g} of the gradient's norm at the start"
            most = f"{_OF_START:.0e} of it"
        if self.converged:
            return f"KKT residual: {self.kkt:.3g}: converged ({share}){held}"
        why = f"the coefficients still move: {self.remedy}"
        if self.kkt <= self.rounding:
            why = f"rounding is the limit: {_FAR_OFF}"
        return (
            f"KKT residual: {self.kkt:.3g}: NOT CONVERGED ({share}, expected at most {most}): "
            f"{why}{held}"
        )


def separating(places: Array, shape: tuple[int, ...], names: Sequence[str] = ()) -> str:
    """Return the columns that the entries of a flattened model belong to; "" for none.

    >>> separating(np.array([0, 1, 2]), (3,), ["a", "b"]), separating(np.array([5]), (3, 2))
    ('columns a, b', 'column 2')
    """
    rows = dict.fromkeys((places // math.prod(shape[1:])).tolist())
    said = [str(names[row]) if names else str(row) for row in rows if row < len(names) or not names]
    if rows and not said:
        said = [INTERCEPT]
    return first_few(said, what="column") if said else ""


def separated_by(columns: str, remedy: str = "take l1 > 0", *, held: bool = False) -> str:
    """Return the text on separated outcomes.

    Parameters
    ----------
    columns : str
    remedy : str
    held : bool
        Whether there is a penalty, so light that nothing else keeps the model finite.

    >>> separated_by("column dose")
    'the outcome is separated by column dose: there is no best model: take l1 > 0, or leave it out'
    """
    if columns == DISPERSION:
        return NO_DISPERSION
    them = "them" if columns.startswith("columns") else "it"
    if held:
        return f"the outcome is separated by {columns}: nothing but the penalty holds {them}"
    what = f"the outcome is separated by {columns}: there is no best model"
    return f"{what}: {remedy}, or leave {them} out"


def convergence(server: Server, engine: Engine, start: Array, record: Record) -> Convergence:
    """Return how close to optimal a run's model is after its last record.

    If the record does not say, clients in this process are asked. Nodes are asked only for what the
    run's settings include.
    """
    asked, psi, shape = "kkt" in record, server.strategy.regularizer, server.x.shape
    if server.strategy.privacy is not None:
        return Convergence(math.nan, why="noise covers the gradients of a private run")
    weight, separated = least_weight(psi, shape), _separated(server)
    prepared = server.setup.preparation
    unknown = Convergence(math.nan, weight, separated=separated)
    if not asked and engine.clients_keep_states:
        return replace(
            unknown, why="certificates = true has the nodes say whether the model is optimal"
        )
    try:
        kkt = record["kkt"] if asked else certify(server, engine)["kkt"]
        reached = Convergence(kkt, weight, remedy=_remedy(server), separated=separated)
        at_start, _ = pooled_gradient(server, engine, start, units=True)
        if at_start is not None:
            gradient, curvatures = at_start
            units = units_of(Zero() if psi is None else psi, curvatures, shape)
            counts = least_weight(units.psi, shape) / weight if weight else 1.0
            columns = len(prepared.names) if prepared is not None else len(gradient)
            told = weight or separated
            if not told and prepared is not None and prepared.family.bounded_slopes:
                entries = falling(server, engine, start, gradient, units, columns)
                separated = separating(entries, shape, prepared.names)
            gradient[columns:] = 0.0  # without the intercept
            reach = units.reach(server.x)
            shared = prepared is not None and prepared.site_effects != OWN
            if prepared is not None and prepared.family.scale_free(intercept=shared):
                reach += units.reach_of_one(columns)
            reached = replace(
                reached,
                separated=separated,
                unit=counts or 1.0,
                start=units.length(gradient),
                rounding=_ROUNDING * float(np.finfo(gradient.dtype).eps) * reach,
            )
    except FedConError as error:  # it must not end a finished run
        _log.warning("no certificate: %s", error)
        return replace(unknown, why=str(error))
    if math.isnan(reached.kkt):
        return replace(unknown, why="not every client answered")
    growing = "" if reached.converged or weight else _separated(server, flat=_FADING)
    if growing and not separated:
        remedy = (
            f"{growing} may separate the outcome, as a category does whose rows all have the same: "
            f"look at the rows, or allow {_TELLING} rounds, which tell"
        )
        return replace(reached, remedy=remedy)
    return reached


def falling(
    server: Server, engine: Engine, start: Array, gradient: Array, units: Units, columns: int
) -> Array:
    """Return the flattened model's entries along which the mean objective decreases without end.

    Two of the clients' gradients on the line from the start through the model decide this. One
    nearby shows the curvature along the line; the other is taken further out than any finite
    solution lies. If the slope there is below 0, columns separate the outcome, or nearly so. The
    method need not have come close to a solution, as long as the direction is right.

    Parameters
    ----------
    server : Server
    engine : Engine
    start : array
        A model.
    gradient : array
        The gradient at this model.
    units : Units
    columns : int
        The number of the model's rows before its intercept.

    Returns
    -------
    array of int
        The largest entries of the move are tried alone, then all entries; empty if the objective
        decreases along neither.
    """
    move = (server.x - start) / units.sizes
    sizes = np.abs(move[:columns])

    def slope(at: float, way: Array) -> float:
        there, _ = pooled_gradient(server, engine, start + at * units.sizes * way)
        return math.nan if there is None else float(np.vdot(units.sizes * there[0], way))

    for least in (_NAMED, 0.0):
        kept = np.ones(move.shape, dtype=bool)
        kept[:columns] = sizes >= max(least * sizes.max(initial=0.0), np.finfo(float).tiny)
        if not kept[:columns].any():
            break
        way = np.where(kept, move, 0.0)
        way /= float(np.linalg.norm(way))
        first = float(np.vdot(units.sizes * gradient, way))
        curved = (slope(_NEAR, way) - first) / _NEAR if first < 0 else 0.0
        # Entries that cancel move the scores less than their length suggests.
        if curved > _STRAIGHT and slope(_BEYOND / math.sqrt(curved), way) < 0:
            entries: Array = np.flatnonzero(kept)
            return entries
    return np.empty(0, dtype=np.int64)


def _separated(server: Server, **more: float) -> str:
    """Return which columns separate the outcome, in words; "" if the method cannot tell."""
    prepared = server.setup.preparation
    if prepared is None or not prepared.family.separable:
        return ""
    entries = server.strategy.runaway(server.state, **more)
    if prepared.family.dispersed and set(entries.tolist()) == {server.x.size - 1}:
        return DISPERSION
    return separating(entries, server.x.shape, prepared.names)


def _remedy(server: Server) -> str:
    """Return what to do if a run has not converged."""
    if server.strategy.name == "fednewton" or server.x.size > _NEWTON:
        return "allow more rounds"
    return "allow more rounds, or take FedNewton, which needs a few"


def least_weight(psi: Regularizer | None, shape: tuple[int, ...]) -> float:
    """Return the smallest weight above 0 in a penalty; 0 if there is none."""
    if psi is None:
        return 0.0
    entries = psi.entrywise(shape)
    inner = psi.inner if isinstance(psi, WithIntercept) else psi
    weights = np.asarray(getattr(inner, "weight", 0.0) if entries is None else entries[0])
    above = weights[weights > 0]
    return float(above.min()) if above.size else 0.0
