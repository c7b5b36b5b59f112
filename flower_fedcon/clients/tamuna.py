"""TAMUNA, client side: corrected gradient steps; some entries of their end are sent.

See `flower_fedcon.strategies.TAMUNA`.
"""

from __future__ import annotations

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.compressors.stripes import Stripes
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.wire.payloads import Payload


class TAMUNAClient(LocalPassClient[None]):
    """The local step of TAMUNA; it keeps no state."""

    algorithm = "tamuna"
    one_at_a_time = "sends different entries from each client"

    client_lr: float
    cohort_size: int
    copies: int
    batch_size: int | None
    clip: float | None

    def steps_asked(self, run: RunInfo, down: Payload) -> int:
        """Return K_r."""
        return int(down["steps"])

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do step 2 from x_bar: -<h_i, x>."""
        count = int(down["steps"])
        x_bar, h, gamma = down["x_bar"], down["h"], self.client_lr
        return LocalPass(x_bar, linear=-h, steps=count, rate=gamma, clip=self.clip)

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """Do step 3."""
        stripes = Stripes(self.cohort_size, self.copies)
        return {"x": stripes.pick(done.end, int(down["column"]))}, None
