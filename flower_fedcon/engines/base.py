"""What the engines of this process have in common: the whole problem is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.evaluation import Record
from flower_fedcon.core.infos import ClientInfos
from flower_fedcon.core.protocol import ClientInfo
from flower_fedcon.objectives import ManyClients
from flower_fedcon.validation import Array

if TYPE_CHECKING:
    from flower_fedcon.problems.federated import FederatedProblem


class InProcess(Engine):
    """An engine that has the whole problem at hand.

    Parameters
    ----------
    problem : FederatedProblem
    """

    clients_keep_states = False

    def __init__(self, problem: FederatedProblem) -> None:
        self._problem = problem

    def describe(self) -> Sequence[ClientInfo]:
        """Return what the objectives say about themselves."""
        problem = self._problem
        if isinstance(problem.objectives, ManyClients):
            return ClientInfos(problem.objectives, problem.names)
        pairs = zip(problem.objectives, problem.names, strict=True)
        return [ClientInfo.of(objective, name) for objective, name in pairs]

    def digests(self) -> dict[str, list[str]]:
        """Return those of the clients' objectives, and of D and psi."""
        return self._problem.digests()

    def evaluate(self, x: Array) -> Record:
        """Return the problem's record of a model."""
        return self._problem.evaluate(x)
