"""AveragedFW, client side: K Frank-Wolfe steps. See `flower_fedcon.strategies.AveragedFW`."""

from __future__ import annotations

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.sets import ConstraintSet
from flower_fedcon.wire.payloads import Payload


class AveragedFWClient(FedConClient[None]):
    """The local step of AveragedFW; it keeps no state."""

    algorithm = "averagedfw"

    constraint: ConstraintSet
    local_steps: int
    batch_size: int | None

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, with x of shape (..., *model)."""
        x = down["x_bar"]
        for k in range(1, self.local_steps + 1):
            g, eta = self.gradient(x), 2 / (down["steps"] + k + 1)
            self.tally(lmos=1)
            x = self.constraint.lmo(g).mix(np.broadcast_to(x, g.shape), eta)
        return {"delta": x - down["x_bar"]}, None
