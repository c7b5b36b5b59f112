"""FedMiD, client side: K proximal gradient steps. See `flower_fedcon.strategies.FedMiD`."""

from __future__ import annotations

from flower_fedcon.clients.families.local_pass import LocalPass, LocalStepsClient
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers import Correction
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedMiDClient(LocalStepsClient[None]):
    """The local step of FedMiD; it keeps no state."""

    algorithm = "fedmid"

    client_lr: float
    local_steps: int | None
    regularizer: Regularizer
    server_prox_only: bool
    batch_size: int | None

    def correction(self, state: None, down: Payload) -> Correction:
        """Begin step 2 at w."""
        return Correction(down["w"])

    def point(self, z: Array, k: int, down: Payload) -> Array:
        """Return v, the prox of where the last step led."""
        return z if k == 0 or self.server_prox_only else self.regularizer.prox(z, self.client_lr)

    def move(self, z: Array, w: Array, g: Array) -> Array:
        """Step from v."""
        return w - self.client_lr * g

    def upload(self, state: None, down: Payload, done: LocalPass) -> tuple[Payload, None]:
        """Do step 3."""
        v = self.point(done.end, done.steps, down)
        return {"delta": v - done.start, **self.counted(done)}, None
