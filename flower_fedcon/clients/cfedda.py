"""CFedDA, client side: K dual averaging steps in a ball. See `flower_fedcon.strategies.CFedDA`."""

from __future__ import annotations

from flower_fedcon.clients.families.dual_averaging import GradientSumClient
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.wire.payloads import Payload


class CFedDAClient(GradientSumClient):
    """The local step of CFedDA; it keeps no state."""

    algorithm = "cfedda"

    radius: float | None

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do step 2."""
        return self.sum_at(down, self.regularizer, self.radius)
