"""CFedDA, client side: K dual averaging steps in a ball. See `flower_fedcon.strategies.CFedDA`."""

from __future__ import annotations

from flower_fedcon.clients.families.dual_averaging import DualAveragingClient
from flower_fedcon.wire.payloads import Payload


class CFedDAClient(DualAveragingClient):
    """The local step of CFedDA; it keeps no state."""

    algorithm = "cfedda"

    radius: float | None

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3."""
        return self.gradient_sum(down, self.regularizer, self.radius), None
