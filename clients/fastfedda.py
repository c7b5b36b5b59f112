"""FastFedDA, client side: K dual averaging steps. See `flower_fedcon.strategies.FastFedDA`."""

from __future__ import annotations

from flower_fedcon.clients.families.dual_averaging import DualAveragingClient
from flower_fedcon.wire.payloads import Payload


class FastFedDAClient(DualAveragingClient):
    """The local step of FastFedDA; it keeps no state."""

    algorithm = "fastfedda"

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, with v and z of shape (..., *model)."""
        v, z = down["w"], down["z"]
        for k in range(1, self.local_steps + 1):
            z = z - self.gradient(v) + (0.5 * self.strong_convexity) * v
            if k < self.local_steps:
                v = self.minimizer(self.regularizer, z, down["steps"] + k)
        return {"z": z}, None
