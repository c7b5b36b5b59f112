"""Whether a run on tables has ended at the model that it was to find, in words."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.server import Server
from flower_fedcon.errors import FedConError
from flower_fedcon.regularizers import Regularizer, WithIntercept, Zero
from flower_fedcon.runs.certificates import certify, pooled_gradient
from flower_fedcon.runs.history import Record
from flower_fedcon.solvers.units import units_of
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr")
_OF_PENALTY = 1e-6
_NEWTON = 1000  # entries of a model, up to which Hessians are quickly exchanged
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
        The norm of the gradient at the start in those units, at most 1e-8 of which will do as well;
        0 where nobody asked for it.
    why : str
        Why the residual is not known.
    remedy : str
        What leads on where it has not converged.
    """

    kkt: float
    penalty: float = 0.0
    unit: float = 1.0
    start: float = 0.0
    why: str = ""
    remedy: str = ""

    @property
    def converged(self) -> bool | None:
        """Whether the run has converged; None where that is not known."""
        if math.isnan(self.kkt):
            return None
        return self.kkt <= max(_OF_PENALTY * self.unit * self.penalty, _OF_START * self.start)

    @property
    def text(self) -> str:
        """The residual and what it says, in one line.

        >>> Convergence(1e-12, penalty=0.02).text
        'KKT residual: 1e-12: converged (5e-11 of the penalty 0.02)'
        """
        if self.converged is None:
            return f"KKT residual: not known: {self.why}"
        if self.penalty:
            share = f"{self.kkt / (self.unit * self.penalty):.2g} of the penalty {self.penalty:.4g}"
            most = f"{_OF_PENALTY:.0e} of it"
        else:
            at_start = self.kkt / self.start if self.start else math.inf
            share = f"{at_start:.2g} of the gradient's norm at the start"
            most = f"{_OF_START:.0e} of it"
        if self.converged:
            return f"KKT residual: {self.kkt:.3g}: converged ({share})"
        return (
            f"KKT residual: {self.kkt:.3g}: NOT CONVERGED ({share}, expected at most {most}): "
            f"the coefficients still move: {self.remedy}"
        )


def convergence(server: Server, engine: Engine, start: Array, record: Record) -> Convergence:
    """Return how nearly a run's model is optimal after its last record.

    Asks the clients of this process where the record does not say; nodes are asked for nothing that
    the run was not to ask for.
    """
    asked = "kkt" in record
    if server.strategy.privacy is not None:
        return Convergence(math.nan, why="noise covers the gradients of a private run")
    if not asked and engine.clients_keep_states:
        return Convergence(
            math.nan, why="certificates = true has the nodes say whether the model is optimal"
        )
    try:
        kkt = record["kkt"] if asked else certify(server, engine)["kkt"]
        psi, shape = server.strategy.regularizer, server.x.shape
        found = Convergence(kkt, weight := _weight(psi, shape), remedy=_remedy(server))
        at_start, _ = pooled_gradient(server, engine, start, units=True)
        if at_start is not None:
            gradient, curvatures = at_start
            units = units_of(Zero() if psi is None else psi, curvatures, shape)
            counts = _weight(units.psi, shape) / weight if weight else 1.0
            found = replace(found, unit=counts or 1.0, start=units.length(gradient))
    except FedConError as error:  # it must not end a run that is done
        _log.warning("no certificate: %s", error)
        return Convergence(math.nan, why=str(error))
    if math.isnan(found.kkt):
        return Convergence(math.nan, why="not every client answered")
    return found


def _remedy(server: Server) -> str:
    """Return what leads on where a run has not converged."""
    if server.strategy.name == "fednewton" or server.x.size > _NEWTON:
        return "allow more rounds"
    return "allow more rounds, or take FedNewton, which needs a few"


def _weight(psi: Regularizer | None, shape: tuple[int, ...]) -> float:
    """Return the least weight of a penalty that is above 0; 0 where there is none."""
    if psi is None:
        return 0.0
    entries = psi.entrywise(shape)
    inner = psi.inner if isinstance(psi, WithIntercept) else psi
    weights = np.asarray(getattr(inner, "weight", 0.0) if entries is None else entries[0])
    above = weights[weights > 0]
    return float(above.min()) if above.size else 0.0
