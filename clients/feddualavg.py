"""FedDualAvg, client side: K dual steps. See `flower_fedcon.strategies.FedDualAvg`."""

from __future__ import annotations

from flower_fedcon.clients.families.local_pass import LocalPass, LocalStepsClient
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers import Correction
from flower_fedcon.solvers.bregman import primal_point
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedDualAvgClient(LocalStepsClient[None]):
    """The local step of FedDualAvg; it keeps no state."""

    algorithm = "feddualavg"

    client_lr: float
    local_steps: int | None
    regularizer: Regularizer
    server_prox_only: bool
    simplex_radius: float | None
    batch_size: int | None

    def correction(self, state: None, down: Payload) -> Correction:
        """Begin step 2 at z, or with plain steps at its prox."""
        z, elapsed = down["z"], down["elapsed"]
        return Correction(self.regularizer.prox(z, elapsed) if self.server_prox_only else z)

    def prox_step(self, k: int, down: Payload) -> float | None:
        """Lead to w, by the step so far."""
        return None if self.server_prox_only else down["elapsed"] + self.client_lr * k

    def prox(self, z: Array, step: float) -> Array:
        """Return w; with a radius by the entropy on that simplex."""
        return primal_point(self.regularizer, z, step, self.simplex_radius)

    def prox_weights(self) -> tuple[float, float] | None:
        """Return those of psi, unless the prox is the entropy's."""
        return super().prox_weights() if self.simplex_radius is None else None

    def upload(self, state: None, down: Payload, done: LocalPass) -> tuple[Payload, None]:
        """Do step 3."""
        return {"delta": done.change, **self.counted(done)}, None
