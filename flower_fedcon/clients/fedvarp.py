"""FedVARP, client side: K gradient steps. See `flower_fedcon.strategies.FedVARP`."""

from __future__ import annotations

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.wire.payloads import Payload


class FedVARPClient(LocalPassClient[None]):
    """The local step of FedVARP; it keeps no state."""

    algorithm = "fedvarp"
    in_loops = True

    client_lr: float | None
    local_steps: int | None
    batch_size: int | None
    clip: float | None

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do step 2 from w."""
        steps, rate = self.local_steps or 0, self.client_lr
        return LocalPass(down["w"], steps=steps, rate=rate, clip=self.clip)

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """Do step 3."""
        return {"delta": done.change}, None
