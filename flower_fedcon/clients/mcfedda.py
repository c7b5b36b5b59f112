"""MCFedDA, client side: CFedDA's step of the stage. See `flower_fedcon.strategies.MCFedDA`."""

from __future__ import annotations

from flower_fedcon.clients.families.dual_averaging import GradientSumClient
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.wire.payloads import Payload


class MCFedDAClient(GradientSumClient):
    """The local step of MCFedDA; it keeps no state."""

    algorithm = "mcfedda"

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do CFedDA's step 2 with this stage's psi and radius."""
        psi = self.regularizer.scaled(down["multiple"])
        return self.sum_at(down, psi, down.get("radius"))
