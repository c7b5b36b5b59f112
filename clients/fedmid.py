"""FedMiD, client side: K proximal gradient steps. See `flower_fedcon.strategies.FedMiD`."""

from __future__ import annotations

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.wire.payloads import Payload


class FedMiDClient(FedConClient[None]):
    """The local step of FedMiD; it keeps no state."""

    algorithm = "fedmid"

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, with v of shape (..., *model)."""
        s = self.settings
        w = down["w"]
        v = w
        for _ in range(s.local_steps):
            v = v - s.client_lr * self.gradient(v)
            if not s.server_prox_only:
                v = s.regularizer.prox(v, s.client_lr)
        return {"delta": v - w}, None
