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
    """Each client minimises its objective plus a simple term, to its solver's accuracy.

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
        """Return the rule for the step of the clients' proximal steps, about 1/sqrt(mu L).

        For convex objectives any step converges; if mu is below L/100, or 0, the step is 10/L. For
        other objectives, whose mu is unknown, only a step below 1/L makes the local problems
        convex.

        Parameters
        ----------
        name : str
            The argument, for an error.
        about : str
            The rule's value as text, for an error.
        """
        L = self.smoothness_for(name, about)
        mu = self.setup.strong_convexity
        if mu is None:
            return self.within_prox(0.3 / L)
        return self.within_prox(1 / math.sqrt(max(mu, 0.01 * L) * L))

    def ladder(self, name: str, value: Any) -> list[Any]:
        """Return the values that a race tries for an argument.

        For a proximal step they go from 4.5/L, the best if clients are steep in different
        directions, to kappa^(2/3)/L, the best if they are steep in the same ones. The second
        exceeds 1/sqrt(mu L), since the flattest directions converge last.
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
        """Return why stochastic steps cannot replace the minimisation; "" if they can."""
        return ""
