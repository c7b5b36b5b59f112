"""Methods whose clients minimise: a local solver, and no batches."""

from __future__ import annotations

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
