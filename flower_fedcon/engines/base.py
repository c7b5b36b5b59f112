"""The common part of the engines in this process, which have the whole problem."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.evaluation import Record
from flower_fedcon.core.infos import ClientInfos
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import ClientInfo, RunInfo
from flower_fedcon.errors import AlgorithmError, ConfigError, FedConError
from flower_fedcon.objectives import ManyClients
from flower_fedcon.objectives.foreign import why_no_batches
from flower_fedcon.objectives.many import representatives
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.problems.mismatch import value_for
from flower_fedcon.validation import Array
from flower_fedcon.wire.ledgers import ledgers_of
from flower_fedcon.wire.own_code import with_place

if TYPE_CHECKING:
    from flower_fedcon.problems.federated import FederatedProblem

_log = logging.getLogger("flwr")


class InProcess(Engine):
    """An engine that has the whole problem.

    Parameters
    ----------
    problem : FederatedProblem
    """

    clients_keep_states = False
    _logged = False

    def __init__(self, problem: FederatedProblem) -> None:
        self._problem = problem

    def describe(self) -> Sequence[ClientInfo]:
        """Return the objectives' descriptions."""
        problem = self._problem
        if isinstance(problem.objectives, ManyClients):
            return ClientInfos(problem.objectives, problem.names)
        pairs = zip(problem.objectives, problem.names, strict=True)
        return [ClientInfo.of(objective, name) for objective, name in pairs]

    def check_batches(self, run: RunInfo) -> None:
        """Refuse batches for objectives without them, as their clients would.

        Raises
        ------
        ConfigError
        """
        size = run.rows_each
        if size is None:
            return
        standing = representatives(self._problem.objectives)
        reasons = (why_no_batches(objective, size) for objective in standing)
        if (reason := next(filter(None, reasons), None)) is not None:
            raise ConfigError(reason)

    def digests(self) -> dict[str, list[str]]:
        """Return digests of the clients' objectives, and of D and psi."""
        return self._problem.digests()

    def ledgers(self) -> dict[str, Ledger]:
        """Return the ledgers of private examples."""
        objectives = self._problem.objectives
        return {} if isinstance(objectives, ManyClients) else ledgers_of(objectives)

    def evaluate(self, x: Array) -> Record:
        """Return the problem's record of a model."""
        return self._problem.evaluate(x)

    def value_at(self, x: Array, strategy: Method[Any]) -> float:
        """Return F at a model that the problem allows, for a strategy that minimises F."""
        return value_for(strategy, self._problem, x)

    def _told(self, client: int, error: Exception) -> str:
        """Return an error's text as a node sends it; log the first unexpected error in full."""
        if isinstance(error, AlgorithmError):
            raise error
        if isinstance(error, FedConError):
            return str(error)
        if not self._logged:
            _log.warning("client %d failed (reported once)", client, exc_info=error)
            self._logged = True
        return with_place(error)
