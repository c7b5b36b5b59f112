"""FedAvg, client side: K (sub)gradient steps. See `flower_fedcon.strategies.FedAvg`."""

from __future__ import annotations

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.wire.payloads import Payload


class FedAvgClient(LocalPassClient[None]):
    """The local step of FedAvg; it keeps no state."""

    algorithm = "fedavg"
    in_loops = True

    client_lr: float | None
    local_steps: int | None
    regularizer: Regularizer | None
    batch_size: int | None
    clip: float | None

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do step 2 from w, with a subgradient of psi added to each gradient."""
        w, count = down["w"], self.local_steps or 0
        psi, rate = self.regularizer, self.client_lr
        return LocalPass(w, steps=count, rate=rate, subgradient=psi, clip=self.clip)

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """Do step 3."""
        return {"delta": done.change}, None
