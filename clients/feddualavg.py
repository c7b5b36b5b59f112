"""FedDualAvg, client side: K dual steps. See `flower_fedcon.strategies.FedDualAvg`."""

from __future__ import annotations

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.wire.payloads import Payload


class FedDualAvgClient(FedConClient[None]):
    """The local step of FedDualAvg; it keeps no state."""

    algorithm = "feddualavg"

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, with z and w of shape (..., *model)."""
        s, psi = self.settings, self.settings.regularizer
        z0, elapsed = down["z"], down["elapsed"]
        if s.server_prox_only:
            start = w = psi.prox(z0, elapsed)
            for _ in range(s.local_steps):
                w = w - s.client_lr * self.gradient(w)
            return {"delta": w - start}, None
        z = z0
        for k in range(s.local_steps):
            w = psi.prox(z, elapsed + s.client_lr * k)
            z = z - s.client_lr * self.gradient(w)
        return {"delta": z - z0}, None
