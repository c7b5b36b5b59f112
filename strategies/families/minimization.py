"""Methods whose clients minimise: a local solver, and no batches."""

from __future__ import annotations

from typing import TypeVar, Unpack

from flower_fedcon.solvers import LocalSolver, as_solver
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
