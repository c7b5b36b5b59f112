"""FedAvg, client side: K (sub)gradient steps. See `flower_fedcon.strategies.FedAvg`."""

from __future__ import annotations

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.wire.payloads import Payload


class FedAvgClient(FedConClient[None]):
    """The local step of FedAvg; it keeps no state."""

    algorithm = "fedavg"

    client_lr: float
    local_steps: int
    regularizer: Regularizer | None
    batch_size: int | None

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, with v of shape (..., *model)."""
        psi = self.regularizer
        w = down["w"]
        v = w
        for _ in range(self.local_steps):
            g = self.gradient(v)
            v = v - self.client_lr * (g if psi is None else g + psi.subgradient(v))
        return {"delta": v - w}, None
