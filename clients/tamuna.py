"""TAMUNA, client side: corrected gradient steps, of which some entries are sent.

See `flower_fedcon.strategies.TAMUNA`.
"""

from __future__ import annotations

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.compressors.stripes import Stripes
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.wire.payloads import Payload


class TAMUNAClient(FedConClient[None]):
    """The local step of TAMUNA; it keeps no state."""

    algorithm = "tamuna"
    one_at_a_time = "sends other entries from each client"

    client_lr: float
    cohort_size: int
    copies: int
    batch_size: int | None

    def steps_asked(self, run: RunInfo, down: Payload) -> int:
        """Return K_r."""
        return int(down["steps"])

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3."""
        x, h = down["x_bar"], down["h"]
        for _ in range(int(down["steps"])):
            x = x - self.client_lr * (self.gradient(x) - h)
        stripes = Stripes(self.cohort_size, self.copies)
        return {"x": stripes.pick(x, int(down["column"]))}, None
