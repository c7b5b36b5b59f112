"""MIFA, client side: K gradient steps and a memory. See `flower_fedcon.strategies.MIFA`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class MIFAClientState(NamedTuple):
    """A client's state."""

    g: Array  # G_i, its last change of the model divided by eta, shape of the model
    resets: float  # the last collective reset that g has taken part in


class MIFAClient(LocalPassClient[MIFAClientState]):
    """The local step of MIFA; G_i lives on the client."""

    algorithm = "mifa"
    state_type = MIFAClientState
    in_loops = True
    own_memory = True

    client_lr: float | None
    local_steps: int | None
    batch_size: int | None
    clip: float | None

    def initialize(self, down: Payload) -> MIFAClientState:
        """Start with G_i = 0."""
        return MIFAClientState(np.zeros_like(down["w"]), down.get("resets", 0))

    def restore(self, down: Payload, given: Payload) -> MIFAClientState:
        """Take G_i from the server's mirror; without one all start at 0."""
        return self.initialize(down)._replace(**given)

    def on_acknowledged(self, state: MIFAClientState, down: Payload) -> MIFAClientState:
        """Take part in a collective reset."""
        return state if state.resets == down.get("resets", 0) else self.initialize(down)

    def local_pass(self, state: MIFAClientState, down: Payload) -> LocalPass:
        """Do step 2 from w."""
        steps, rate = self.local_steps or 0, self.client_lr
        return LocalPass(down["w"], steps=steps, rate=rate, clip=self.clip)

    def upload(
        self, state: MIFAClientState, down: Payload, done: Done
    ) -> tuple[Payload, MIFAClientState]:
        """Do step 3; a loop whose eta nobody knows counts its changes as they are."""
        update = done.change if self.client_lr is None else done.change / self.client_lr
        delta = update - state.g
        # Not the update itself: this equals the server's copy to the bit, so rounding stays out.
        return {"delta": delta}, state._replace(g=state.g + delta)

    def received(
        self, before: MIFAClientState, after: MIFAClientState, down: Payload, read: Payload
    ) -> MIFAClientState:
        """Move G_i by the value that the server reads."""
        return after._replace(g=before.g + read["delta"])
