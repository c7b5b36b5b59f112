"""AREA, client side: K gradient steps and a memory. See `flower_fedcon.strategies.AREA`."""

from __future__ import annotations

from typing import NamedTuple

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class AREAClientState(NamedTuple):
    """A client's state."""

    y: Array  # y_i, the last model that it made, shape of the model
    resets: float  # the last collective reset that y has taken part in


class AREAClient(LocalPassClient[AREAClientState]):
    """The local step of AREA; y_i lives on the client."""

    algorithm = "area"
    state_type = AREAClientState
    in_loops = True
    own_memory = True

    client_lr: float | None
    local_steps: int | None
    batch_size: int | None
    clip: float | None

    def initialize(self, down: Payload) -> AREAClientState:
        """Start at x0, the broadcast of step 1, or at the model of the last reset."""
        start = down["start"] if "start" in down else down["x"]
        return AREAClientState(start, down.get("resets", 0))

    def restore(self, down: Payload, given: Payload) -> AREAClientState:
        """Take y_i from the server's mirror, or x0 if this client enters late."""
        return self.initialize(down)._replace(**given)

    def on_acknowledged(self, state: AREAClientState, down: Payload) -> AREAClientState:
        """Take part in a collective reset."""
        return state if state.resets == down.get("resets", 0) else self.initialize(down)

    def local_pass(self, state: AREAClientState, down: Payload) -> LocalPass:
        """Do step 2 from x."""
        steps, rate = self.local_steps or 0, self.client_lr
        return LocalPass(down["x"], steps=steps, rate=rate, clip=self.clip)

    def upload(
        self, state: AREAClientState, down: Payload, done: Done
    ) -> tuple[Payload, AREAClientState]:
        """Do step 3."""
        delta = done.end - state.y
        # Not the end itself: this equals the server's copy to the bit, so rounding stays out.
        return {"delta": delta}, state._replace(y=state.y + delta)

    def received(
        self, before: AREAClientState, after: AREAClientState, down: Payload, read: Payload
    ) -> AREAClientState:
        """Move y_i by the value that the server reads."""
        return after._replace(y=before.y + read["delta"])
