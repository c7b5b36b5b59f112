"""CFedDA, client side: K dual averaging steps in a ball. See `flower_fedcon.strategies.CFedDA`."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.clients.fastfedda import minimizer
from flower_fedcon.wire.payloads import Payload


class CFedDAClient(FedConClient[None]):
    """The local step of CFedDA; it keeps no state."""

    algorithm = "cfedda"

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3."""
        return self.averaged(down, self.settings.regularizer, self.settings.radius), None

    def averaged(self, down: Payload, psi: Any, radius: float | None) -> Payload:
        """Return g_i after K steps, with v and g of shape (..., *model)."""
        s = self.settings
        v, g = down["w"], np.zeros_like(down["w"])
        for k in range(1, s.local_steps + 1):
            g = g + self.gradient(v)
            if k < s.local_steps:
                v = minimizer(s, psi, down["z"] - g, down["steps"], down.get("anchor"), radius)
        return {"g": g}
