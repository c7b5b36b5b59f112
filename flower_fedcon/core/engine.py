"""The interface of an engine, which holds the clients of a run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.evaluation import Record
from flower_fedcon.core.flow import Flow, Step
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import ClientInfo, Reply, Request, RunInfo
from flower_fedcon.core.round import Round
from flower_fedcon.core.server import Server
from flower_fedcon.core.simulated_flow import simulated_flow
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.validation import Array


class Engine(ABC):
    """An engine holds the clients of a run: in this process, in workers, or on nodes.

    A run calls `describe`, then `open`, then `answer`, `observe` and `evaluate` any number of
    times.

    Attributes
    ----------
    max_retries : int, optional
        How often clients without a usable reply are asked again; None for no limit.
    round_deadline : float
        Seconds after its beginning at which a round without enough replies ends the run.
    wall_clock : bool
        Whether a history's seconds count all the time that passes, or only that of the rounds.
    """

    max_retries: int | None = 3
    round_deadline: float = math.inf
    wall_clock: ClassVar[bool] = False
    remote: bool = False
    """Whether the clients are programs on nodes, of which none may end a run."""
    why_no_gradients: str = ""
    """Why clients may not be asked for gradients; "" if they may."""

    @abstractmethod
    def describe(self) -> Sequence[ClientInfo]:
        """Return what each client says about itself, in client order."""

    @abstractmethod
    def open(self, run: RunInfo) -> None:
        """Prepare for a run, given what all its requests have in common."""

    @abstractmethod
    def answer(self, request: Request) -> Iterable[Reply]:
        """Return the replies to a request: of a round, or for a certificate.

        One reply may hold the answers of many clients, in columns. Replies may be made one by one,
        each when the iterator reaches it. A client that fails gives a reply with the error; a
        client that is not heard from gives no reply, or a `silent` one.
        """

    @abstractmethod
    def evaluate(self, x: Array) -> Record:
        """Return the record of a model: "objective" and further measures."""

    def value_at(self, x: Array, strategy: Method[Any]) -> float:
        """Return F at a model, for a bound strategy that minimises F.

        NaN if the problem does not allow this model, if the strategy minimises something else, and
        where clients would have to be asked for it.
        """
        return math.nan

    def advance(self, server: Server, rounds: int) -> int:
        """Do up to so many rounds by itself and return their number; 0 if it needs a request."""
        return 0

    def flow(self, server: Server) -> Flow:
        """Return what plays the steps of a run that does not wait for its clients.

        Raises
        ------
        ConfigError
            If this engine cannot play them.
        """
        return simulated_flow(server, self.answer, together=self.answers_waves_together)

    def observe(self, round_: Round | Step) -> None:  # noqa: B027  (most have no use for it)
        """Learn which clients gave a usable reply in a complete round; why the others did not."""

    answers_waves_together: ClassVar[bool] = False
    """Whether one request may have clients of several waves (`Request.rounds`)."""

    clients_keep_states: ClassVar[bool] = True
    """Whether the clients keep their states themselves, outside the run's checkpoint."""

    def counts(self) -> dict[str, float]:
        """Return further counts for the history."""
        return {}

    settings: Mapping[str, Any] = MappingProxyType({})
    """Further settings of the clients, which must not change when a run is resumed."""

    def digests(self) -> dict[str, list[str]]:
        """Return digests of a run's data, which must be the same when it is resumed."""
        return {}

    def ledgers(self) -> dict[str, Ledger]:
        """Return the privacy ledgers of clients' examples here, by the digest of their data."""
        return {}

    def save(self) -> Sequence[Versions] | None:
        """Return the clients' states for a checkpoint; None if it needs none."""
        return None

    def load(self, states: Sequence[Versions]) -> None:
        """Give the clients the states of a checkpoint."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027  (most have started nothing)
        """End everything that was started."""
