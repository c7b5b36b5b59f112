"""FedMiD, client side: K proximal gradient steps. See `flower_fedcon.strategies.FedMiD`."""

from __future__ import annotations

from flower_fedcon.clients.families.local_pass import LocalPass, LocalStepsClient
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers import Correction
from flower_fedcon.wire.payloads import Payload


class FedMiDClient(LocalStepsClient[None]):
    """The local step of FedMiD; it keeps no state."""

    algorithm = "fedmid"
    from_point = True

    client_lr: float
    local_steps: int | None
    regularizer: Regularizer
    server_prox_only: bool
    batch_size: int | None

    def correction(self, state: None, down: Payload) -> Correction:
        """Begin step 2 at w."""
        return Correction(down["w"])

    def prox_step(self, k: int, down: Payload) -> float | None:
        """Lead to v, the prox of where the last step led."""
        return None if k == 0 or self.server_prox_only else self.client_lr

    def upload(self, state: None, down: Payload, done: LocalPass) -> tuple[Payload, None]:
        """Do step 3."""
        v = self.point(done.end, done.steps, down)
        return {"delta": v - done.start, **self.counted(done)}, None
