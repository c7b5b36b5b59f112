"""DRFA, client side: K gradient steps, the point after k of them, and a loss.

See `flower_fedcon.strategies.DRFA`.
"""

from __future__ import annotations

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.wire.payloads import Payload


class DRFAClient(FedConClient[None]):
    """The local step of DRFA; it keeps no state."""

    algorithm = "drfa"
    needs_values = "the value of its objective"

    client_lr: float
    local_steps: int
    batch_size: int | None

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, with w of shape (..., *model)."""
        w, eta, count = down["w"], self.client_lr, self.local_steps
        if "z" not in down:  # it is w
            done = self.play(LocalPass(w, steps=count, rate=eta))
            return {"delta": done.change, "loss": self.loss_at(w)}, None
        k, loss = int(down["k"]), self.loss_at(down["z"])
        seen = self.play(LocalPass(w, steps=k, rate=eta))
        end = self.play(LocalPass(seen.end, steps=count - k, rate=eta)).end
        return {"delta": end - w, "at_k": seen.change, "loss": loss}, None
