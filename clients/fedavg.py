"""FedAvg, client side: K (sub)gradient steps. See `flower_fedcon.strategies.FedAvg`."""

from __future__ import annotations

from flower_fedcon.clients.families.local_pass import LocalPass, LocalStepsClient
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers import Correction
from flower_fedcon.wire.payloads import Payload


class FedAvgClient(LocalStepsClient[None]):
    """The local step of FedAvg; it keeps no state."""

    algorithm = "fedavg"

    client_lr: float | None
    local_steps: int | None
    regularizer: Regularizer | None
    batch_size: int | None

    def correction(self, state: None, down: Payload) -> Correction:
        """Begin step 2 at w: each gradient gets a subgradient of psi."""
        return Correction(down["w"], subgradient=self.regularizer)

    def upload(self, state: None, down: Payload, done: LocalPass) -> tuple[Payload, None]:
        """Do step 3."""
        return {"delta": done.change}, None
