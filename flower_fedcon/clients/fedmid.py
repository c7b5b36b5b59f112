"""FedMiD, client side: K proximal gradient steps. See `flower_fedcon.strategies.FedMiD`."""

from __future__ import annotations

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass, Prox, proxes_of
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers.bregman import Distance, dual_point, primal_point, unprojected
from flower_fedcon.solvers.distances import as_distance
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedMiDClient(LocalPassClient[None]):
    """The local step of FedMiD; it keeps no state."""

    algorithm = "fedmid"
    in_loops = True

    client_lr: float
    local_steps: int | None
    regularizer: Regularizer
    server_prox_only: bool
    distance: str | Distance
    batch_size: int | None
    clip: float | None

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do step 2 from w: each step starts at v, the prox of the last step's end."""
        w, count, eta = down["w"], self.local_steps or 0, self.client_lr
        if (h := as_distance(self.distance)) is not None:
            return self._mirrored(h, w, count)
        prox = None if self.server_prox_only else Prox(self.regularizer, lambda k: eta)
        steps = LocalPass(w, steps=count, rate=eta, clip=self.clip)
        return steps._replace(point=prox, first=w, onward=(0.0, 1.0))

    def _mirrored(self, h: Distance, w: Array, count: int) -> LocalPass:
        """Do step 2 in the duals: each step starts at grad h(v), or at the last step's end."""
        eta, psi, axes = self.client_lr, self.regularizer, len(self.model_axes)
        dual = dual_point(w, h, axes)
        steps = LocalPass(dual, steps=count, rate=eta, clip=self.clip, first=w)
        if self.server_prox_only:
            return steps._replace(point=lambda z, k: unprojected(z, h, axes))
        return steps._replace(
            point=lambda z, k: primal_point(psi, z, eta, h, axes),
            onward=(0.0, 1.0),
            dual=lambda v: dual_point(v, h, axes),
        )

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """Do step 3."""
        if self.server_prox_only and as_distance(self.distance) is not None:
            return {"delta": done.change, **self.counted(done)}, None
        v = done.declared.at(done.end, done.steps)
        if done.declared.dual is not None:
            v = done.declared.dual(v)
        if done.declared.point is not None:
            self.tally(proxes=proxes_of(self.regularizer))
        return {"delta": v - done.start, **self.counted(done)}, None
