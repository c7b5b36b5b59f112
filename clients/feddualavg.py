"""FedDualAvg, client side: K dual steps. See `flower_fedcon.strategies.FedDualAvg`."""

from __future__ import annotations

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.wire.payloads import Payload


class FedDualAvgClient(FedConClient[None]):
    """The local step of FedDualAvg; it keeps no state."""

    algorithm = "feddualavg"

    client_lr: float
    local_steps: int
    regularizer: Regularizer
    server_prox_only: bool
    batch_size: int | None

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, with z and w of shape (..., *model)."""
        psi = self.regularizer
        z0, elapsed = down["z"], down["elapsed"]
        if self.server_prox_only:
            start = w = psi.prox(z0, elapsed)
            for _ in range(self.local_steps):
                w = w - self.client_lr * self.gradient(w)
            return {"delta": w - start}, None
        z = z0
        for k in range(self.local_steps):
            w = psi.prox(z, elapsed + self.client_lr * k)
            z = z - self.client_lr * self.gradient(w)
        return {"delta": z - z0}, None
