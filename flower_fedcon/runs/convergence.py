"""Whether a run on tables has ended at the model that it was to find, in words."""

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
from flower_fedcon.tables.preparation import INTERCEPT
from flower_fedcon.validation import Array

_SEPARABLE = ("logistic", "multinomial", "poisson", "negative_binomial", "cox")
"""The losses of schemas of which there may be no best model."""
_LINEAR = ("logistic", "multinomial", "cox")
"""Those whose gradients stay bounded however far out they are asked for."""
_BEYOND = 20.0  # from the start, in units in which the objective is 1 curved: odds of e^40
_NEAR = 0.01  # of these units
_STRAIGHT = 1e-12  # curvature that is rounding
_NAMED = 0.1  # of the largest entry
_log = logging.getLogger("flwr")
_OF_PENALTY = 1e-6
_NEWTON = 1000  # entries of a model, up to which Hessians are quickly exchanged
_FADING = 0.02  # of the curvature at the start: scores beyond 5
_TELLING = 25  # rounds of Newton's method, each of which moves such scores by 1
_ROUNDING = 1024.0  # machine epsilons of a gradient's terms
_NOTHING = 1 / 64  # of that: what a constant outcome leaves at the start
_FAR_OFF = (
    "values of the outcome, or of columns, are so far from 0 that digits are lost: subtract a "
    "constant from them at all clients"
)
_OF_START = 1e-8  # the estimators' default tolerance


@dataclass(frozen=True)
class Convergence:
    """The KKT residual of a run's last model, and what it is measured by.

    Parameters
    ----------
    kkt : float
        NaN where it is not known.
    penalty : float
        The penalty's weight, at most 1e-6 of which the residual is where a run has converged; 0
        without a penalty.
    unit : float
        By how much the penalty counts in the units of the residual: see `runs.certificates`.
    start : float
        The norm of the gradient at the start in those units, but for the intercept's, at most 1e-8
        of which will do as well; 0 where nobody asked for it.
    rounding : float
        How large a residual may be that is rounding. So is that of a model with nothing to fit.
    why : str
        Why the residual is not known.
    remedy : str
        What leads on where it has not converged.
    separated : str
        The columns that separate the outcome, in words, where some do.
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
        """Whether the run has converged; None where that is not known.

        Without a penalty it cannot where the outcome is separated.
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
        """The residual and what it says, in one line.

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
    own = [str(names[row]) if names else str(row) for row in rows if row < len(names) or not names]
    if rows and not own:
        own = [INTERCEPT]
    return first_few(own, what="column") if own else ""


def separated_by(columns: str, remedy: str = "take l1 > 0", *, held: bool = False) -> str:
    """Return what is said of separated outcomes.

    Parameters
    ----------
    columns : str
    remedy : str
    held : bool
        Whether there is a penalty, of so little weight that nothing else holds the model.

    >>> separated_by("column dose")
    'the outcome is separated by column dose: there is no best model: take l1 > 0, or leave it out'
    """
    them = "them" if columns.startswith("columns") else "it"
    if held:
        return f"the outcome is separated by {columns}: nothing but the penalty holds {them}"
    what = f"the outcome is separated by {columns}: there is no best model"
    return f"{what}: {remedy}, or leave {them} out"


def convergence(server: Server, engine: Engine, start: Array, record: Record) -> Convergence:
    """Return how nearly a run's model is optimal after its last record.

    Asks the clients of this process where the record does not say; nodes are asked for nothing that
    the run was not to ask for.
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
        found = Convergence(kkt, weight, remedy=_remedy(server), separated=separated)
        at_start, _ = pooled_gradient(server, engine, start, units=True)
        if at_start is not None:
            gradient, curvatures = at_start
            units = units_of(Zero() if psi is None else psi, curvatures, shape)
            counts = least_weight(units.psi, shape) / weight if weight else 1.0
            columns = len(prepared.names) if prepared is not None else len(gradient)
            if not weight and not separated and prepared is not None and prepared.loss in _LINEAR:
                entries = falling(server, engine, start, gradient, units, columns)
                separated = separating(entries, shape, prepared.names)
            gradient[columns:] = 0.0  # of the intercept
            found = replace(
                found,
                separated=separated,
                unit=counts or 1.0,
                start=units.length(gradient),
                rounding=_ROUNDING * float(np.finfo(gradient.dtype).eps) * units.reach(server.x),
            )
    except FedConError as error:  # it must not end a run that is done
        _log.warning("no certificate: %s", error)
        return replace(unknown, why=str(error))
    if math.isnan(found.kkt):
        return replace(unknown, why="not every client answered")
    growing = "" if found.converged or weight else _separated(server, flat=_FADING)
    if growing and not separated:
        remedy = (
            f"{growing} may separate the outcome, as a category does whose rows all have the same: "
            f"look at the rows, or allow {_TELLING} rounds, which tell"
        )
        return replace(found, remedy=remedy)
    return found


def falling(
    server: Server, engine: Engine, start: Array, gradient: Array, units: Units, columns: int
) -> Array:
    """Return the entries along which the clients' mean objective still falls far out, flattened.

    Two gradients of theirs tell it, on the way from the start to the model: one nearby how far that
    is curved, and one as far out as no outcome's model leads. Where the slope is below 0 there,
    columns separate the outcome, or all but. It does not matter how near a method has come, as
    long as that way is right.

    Parameters
    ----------
    server : Server
    engine : Engine
    start : array
        A model.
    gradient : array
        There.
    units : Units
    columns : int
        What follows so many rows of the model is its intercept.

    Returns
    -------
    array of int
        First the largest entries of the move alone are tried, then all; empty where neither falls.
    """
    move = (server.x - start) / units.sizes
    own = np.abs(move[:columns])

    def slope(at: float, way: Array) -> float:
        there, _ = pooled_gradient(server, engine, start + at * units.sizes * way)
        return math.nan if there is None else float(np.vdot(units.sizes * there[0], way))

    for least in (_NAMED, 0.0):
        kept = np.ones(move.shape, dtype=bool)
        kept[:columns] = own >= max(least * own.max(initial=0.0), np.finfo(float).tiny)
        if not kept[:columns].any():
            break
        way = np.where(kept, move, 0.0)
        way /= float(np.linalg.norm(way))
        first = float(np.vdot(units.sizes * gradient, way))
        curved = (slope(_NEAR, way) - first) / _NEAR if first < 0 else 0.0
        # Entries that cancel lead less far than they are long.
        if curved > _STRAIGHT and slope(_BEYOND / math.sqrt(curved), way) < 0:
            found: Array = np.flatnonzero(kept)
            return found
    return np.empty(0, dtype=np.int64)


def _separated(server: Server, **more: float) -> str:
    """Return which columns separate the outcome, in words; "" where the method cannot say."""
    prepared = server.setup.preparation
    if prepared is None or prepared.loss not in _SEPARABLE:
        return ""
    return separating(server.strategy.runaway(server.state, **more), server.x.shape, prepared.names)


def _remedy(server: Server) -> str:
    """Return what leads on where a run has not converged."""
    if server.strategy.name == "fednewton" or server.x.size > _NEWTON:
        return "allow more rounds"
    return "allow more rounds, or take FedNewton, which needs a few"


def least_weight(psi: Regularizer | None, shape: tuple[int, ...]) -> float:
    """Return the least weight of a penalty that is above 0; 0 where there is none."""
    if psi is None:
        return 0.0
    entries = psi.entrywise(shape)
    inner = psi.inner if isinstance(psi, WithIntercept) else psi
    weights = np.asarray(getattr(inner, "weight", 0.0) if entries is None else entries[0])
    above = weights[weights > 0]
    return float(above.min()) if above.size else 0.0
