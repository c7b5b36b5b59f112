"""Methods that draw the number of local steps of a round: Scaffnew, TAMUNA and LoCoDL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from flower_fedcon.core.rng import COIN
from flower_fedcon.strategies.base import Common, FedConStrategy
from flower_fedcon.validation import chosen, up_to_one

State = TypeVar("State")


class CoinOptions(Common, total=False):
    """The arguments of `RandomRounds`."""

    client_lr: float | str | None
    communication_probability: float | str | None


class RandomRounds(FedConStrategy[State]):
    """K_r ~ Geometric(p) steps in round r, the same number for all clients.

    Parameters
    ----------
    client_lr : float or "auto", optional
        gamma > 0.
    communication_probability : float or "auto", optional
        p in (0, 1].
    """

    def __init__(
        self,
        *,
        client_lr: float | str | None = None,
        communication_probability: float | str | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.client_lr = self.step_length(client_lr)
        p = chosen(up_to_one, "communication_probability", communication_probability)
        self.communication_probability = p

    def rules(self) -> dict[str, Callable[[], Any]]:
        """Return the rules for gamma and p."""
        return {
            "client_lr": self.usual_client_lr,
            "communication_probability": self.usual_probability,
        }

    @abstractmethod
    def usual_client_lr(self) -> float:
        """Return the rule's gamma."""

    @abstractmethod
    def usual_probability(self) -> float:
        """Return the rule's p, of the gamma that is set."""

    def steps_of(self, server_round: int) -> int:
        """Return K_r."""
        return int(self.setup.rng(COIN, server_round).geometric(self.communication_probability))
