"""What holds the clients of a run, as the run sees it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.evaluation import Record
from flower_fedcon.core.protocol import ClientInfo, Reply, Request, RunInfo
from flower_fedcon.core.round import Round
from flower_fedcon.core.server import Server
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.validation import Array


class Engine(ABC):
    """What holds the clients of a run: this process, worker processes, or nodes.

    A run calls `describe`, then `open`, then `answer`, `observe` and `evaluate` as often as it
    likes.

    Attributes
    ----------
    max_retries : int, optional
        How many more times the clients without a usable reply are asked; None for any number.
    round_deadline : float
        Seconds after its beginning at which a round without enough replies ends the run.
    wall_clock : bool
        Whether a history's seconds are all that pass, and not only those of the rounds.
    """

    max_retries: int | None = 3
    round_deadline: float = math.inf
    wall_clock: ClassVar[bool] = False
    why_no_gradients: str = ""
    """Why no client may be asked for its gradient; "" if each may."""

    @abstractmethod
    def describe(self) -> Sequence[ClientInfo]:
        """Return what each client says about itself, in client order."""

    @abstractmethod
    def open(self, run: RunInfo) -> None:
        """Prepare for a run, with what all its requests have in common."""

    @abstractmethod
    def answer(self, request: Request) -> Iterable[Reply]:
        """Return the replies to a request: of a round, or for a certificate.

        One reply may hold the answers of many clients, in columns; replies may be made one by one,
        each when it is asked for. A client that fails gives a reply with the error; one that is not
        heard from gives none, or one that is `silent`.
        """

    @abstractmethod
    def evaluate(self, x: Array) -> Record:
        """Return the record of a model: "objective" and what else is measured."""

    def advance(self, server: Server, rounds: int) -> int:
        """Do up to so many rounds by itself; return how many, 0 if the next is to be asked for."""
        return 0

    def observe(self, round_: Round) -> None:  # noqa: B027  (most have no use for it)
        """Learn from a complete round who gave a usable reply, and who did not and why."""

    clients_keep_states: ClassVar[bool] = True
    """Whether the clients' states are with them, and not in the run's checkpoint."""

    def counts(self) -> dict[str, float]:
        """Return what else a history counts."""
        return {}

    settings: Mapping[str, Any] = MappingProxyType({})
    """What else the clients are told, which must not change when a run is resumed."""

    def digests(self) -> dict[str, list[str]]:
        """Return digests of what a run works on, which must not change when it is resumed."""
        return {}

    def ledgers(self) -> dict[str, Ledger]:
        """Return what counts the privacy of clients' examples here, by the digest of their data."""
        return {}

    def save(self) -> Sequence[Versions] | None:
        """Return the clients' states for a checkpoint; None where it needs none of them."""
        return None

    def load(self, states: Sequence[Versions]) -> None:
        """Give the clients the states of a checkpoint."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027  (most have started nothing)
        """End everything that was started."""
