"""MCFedDA, client side: CFedDA's step of the stage. See `flower_fedcon.strategies.MCFedDA`."""

from __future__ import annotations

from flower_fedcon.clients.families.dual_averaging import DualAveragingClient
from flower_fedcon.wire.payloads import Payload


class MCFedDAClient(DualAveragingClient):
    """The local step of MCFedDA; it keeps no state."""

    algorithm = "mcfedda"

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do CFedDA's steps with this stage's psi and radius."""
        psi = self.regularizer.scaled(down["multiple"])
        return self.gradient_sum(down, psi, down.get("radius")), None
