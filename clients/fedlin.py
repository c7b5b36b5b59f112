"""FedLin, client side: a gradient, or H corrected gradient steps.

See `flower_fedcon.strategies.FedLin`.
"""

from __future__ import annotations

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.wire.payloads import Payload


class FedLinClient(FedConClient[None]):
    """The local step of FedLin; it keeps no state."""

    algorithm = "fedlin"

    client_lr: float
    local_steps: int
    batch_size: int | None

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do step 1, or step 2 if the mean gradient has come, with y of shape (..., *model)."""
        x, g = down["x"], down.get("g")
        own = self.gradient(x)
        if g is None:
            return {"gradient": own}, None
        y = x - self.client_lr * g  # the first step: both gradients are the same
        for _ in range(self.local_steps - 1):
            y = y - self.client_lr * (self.gradient(y) - own + g)
        return {"delta": y - x}, None
