"""Methods whose clients minimise: a local solver, and no batches."""

from __future__ import annotations

import math
from typing import Self, TypeVar, Unpack

from flower_fedcon.core.protocol import Setup
from flower_fedcon.errors import ConfigError
from flower_fedcon.solvers import SGD, LocalSolver, as_solver
from flower_fedcon.strategies.base import Common, FedConStrategy

State = TypeVar("State")


class MinimizationOptions(Common, total=False):
    """The arguments of `LocalMinimization`."""

    local_solver: str | LocalSolver


class LocalMinimization(FedConStrategy[State]):
    """Each client minimises its objective plus a simple term, as well as its solver can.

    Parameters
    ----------
    local_solver : str or LocalSolver (default: "exact")
        How well a client minimises: see `flower_fedcon.solvers`.
    """

    def __init__(
        self, *, local_solver: str | LocalSolver = "exact", **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.local_solver = as_solver(local_solver)

    def usual_prox(self, name: str) -> float:
        """Return the rule for the step of the clients' proximal points, about 1/sqrt(mu L).

        Of convex objectives any will do; with mu below L/100, or 0, the step is 10/L. Of others,
        whose mu is unknown, only one below 1/L makes their problems convex.

        Parameters
        ----------
        name : str
            The argument, for an error.
        """
        L = self.smoothness_for(name, "from 1/L to 1/sqrt(mu L), or its inverse")
        mu = self.setup.strong_convexity
        if mu is None:
            return self.within_prox(0.3 / L)
        return self.within_prox(1 / math.sqrt(max(mu, 0.01 * L) * L))

    def bind(self, setup: Setup) -> Self:
        """Return a copy for one run."""
        if isinstance(self.local_solver, SGD) and (reason := self.why_no_epochs()):
            raise ConfigError(
                f"{self.title} takes no local_solver={self.local_solver!r}: {reason}. Use another "
                'solver, such as "exact"'
            )
        return super().bind(setup)

    def why_no_epochs(self) -> str:
        """Return why stochastic steps cannot stand for the minimisation; "" where they can."""
        return ""
