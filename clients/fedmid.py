"""FedMiD, client side: K proximal gradient steps. See `flower_fedcon.strategies.FedMiD`."""

from __future__ import annotations

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.wire.payloads import Payload


class FedMiDClient(FedConClient[None]):
    """The local step of FedMiD; it keeps no state."""

    algorithm = "fedmid"

    client_lr: float
    local_steps: int
    regularizer: Regularizer
    server_prox_only: bool
    batch_size: int | None

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, with v of shape (..., *model)."""
        w = down["w"]
        v = w
        for _ in range(self.local_steps):
            v = v - self.client_lr * self.gradient(v)
            if not self.server_prox_only:
                v = self.regularizer.prox(v, self.client_lr)
        return {"delta": v - w}, None
