"""FedDualAvg, client side: K dual steps. See `flower_fedcon.strategies.FedDualAvg`."""

from __future__ import annotations

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass, Prox, proxes_of
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers.bregman import Distance, primal_point
from flower_fedcon.solvers.distances import as_distance
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedDualAvgClient(LocalPassClient[None]):
    """The local step of FedDualAvg; it keeps no state."""

    algorithm = "feddualavg"
    in_loops = True

    client_lr: float
    local_steps: int | None
    regularizer: Regularizer
    server_prox_only: bool
    distance: str | Distance
    batch_size: int | None
    clip: float | None

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do step 2 from z, at the points w of the steps so far; or with plain steps from w."""
        z, elapsed, eta = down["z"], down["elapsed"], self.client_lr
        psi, h, count = self.regularizer, as_distance(self.distance), self.local_steps or 0
        axes = len(self.model_axes)
        if self.server_prox_only:
            w = psi.prox(z, elapsed)
            self.tally(proxes=proxes_of(psi))
            return LocalPass(w, steps=count, rate=eta, clip=self.clip, onward=(0.0, 1.0))

        def bregman(z: Array, k: int) -> Array:
            return primal_point(psi, z, elapsed + eta * k, h, axes)

        prox = Prox(psi, lambda k: elapsed + eta * k) if h is None else bregman
        return LocalPass(z, steps=count, rate=eta, clip=self.clip, point=prox)

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """Do step 3."""
        return {"delta": done.change, **self.counted(done)}, None
