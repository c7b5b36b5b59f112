"""FedMiD, client side: K proximal gradient steps. See `flower_fedcon.strategies.FedMiD`."""

from __future__ import annotations

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass, Prox, proxes_of
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.wire.payloads import Payload


class FedMiDClient(LocalPassClient[None]):
    """The local step of FedMiD; it keeps no state."""

    algorithm = "fedmid"
    in_loops = True

    client_lr: float
    local_steps: int | None
    regularizer: Regularizer
    server_prox_only: bool
    batch_size: int | None
    clip: float | None

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do step 2 from w: each step starts at v, the prox of the last step's end."""
        w, count, eta = down["w"], self.local_steps or 0, self.client_lr
        prox = None if self.server_prox_only else Prox(self.regularizer, lambda k: eta)
        steps = LocalPass(w, steps=count, rate=eta, clip=self.clip)
        return steps._replace(point=prox, first=w, onward=(0.0, 1.0))

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """Do step 3."""
        v = done.declared.at(done.end, done.steps)
        if done.declared.point is not None:
            self.tally(proxes=proxes_of(self.regularizer))
        return {"delta": v - done.start, **self.counted(done)}, None
