"""Methods whose clients minimise: a local solver, and no batches."""

from __future__ import annotations

import math
from typing import Any, Self, TypeVar, Unpack

from flower_fedcon.core.protocol import Setup
from flower_fedcon.errors import ConfigError
from flower_fedcon.solvers import SGD, LocalSolver, as_solver
from flower_fedcon.strategies.base import Common, FedConStrategy
from flower_fedcon.strategies.families.ladders import between, condition

State = TypeVar("State")


class MinimisationOptions(Common, total=False):
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

    def usual_prox(self, name: str, about: str = "from 1/L to 1/sqrt(mu L)") -> float:
        """Return the rule for the step of the clients' proximal points, about 1/sqrt(mu L).

        Of convex objectives any will do; with mu below L/100, or 0, the step is 10/L. Of others,
        whose mu is unknown, only one below 1/L makes their problems convex.

        Parameters
        ----------
        name : str
            The argument, for an error.
        about : str
            What the rule makes of it, for an error.
        """
        L = self.smoothness_for(name, about)
        mu = self.setup.strong_convexity
        if mu is None:
            return self.within_prox(0.3 / L)
        return self.within_prox(1 / math.sqrt(max(mu, 0.01 * L) * L))

    def ladder(self, name: str, value: Any) -> list[Any]:
        """Return what a race tries for an argument.

        For a step of proximal points from 4.5/L, which is best where clients bend in directions of
        their own, to kappa^(2/3)/L, where they bend alike: the second more than 1/sqrt(mu L), since
        the flattest directions are the last to count.
        """
        kappa, L = condition(self.setup), self.setup.smoothness
        if name != "step_size" or kappa is None or not L:
            return super().ladder(name, value)
        return between(value, *(self.within_prox(c / L) for c in (4.5, kappa ** (2 / 3))))

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
