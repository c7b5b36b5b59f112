"""Scaffold, client side: K corrected gradient steps. See `flower_fedcon.strategies.Scaffold`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class ScaffoldClientState(NamedTuple):
    """A client's state."""

    c: Array  # control variate c_i, shape (..., *model)
    resets: float  # the last collective reset that c has followed


class ScaffoldClient(FedConClient[ScaffoldClientState]):
    """The local step of Scaffold; c_i lives on the client."""

    algorithm = "scaffold"
    state_type = ScaffoldClientState

    client_lr: float
    local_steps: int
    option: str
    mirror: bool
    batch_size: int | None

    def initialize(self, down: Payload) -> ScaffoldClientState:
        """Start with c_i = 0."""
        return ScaffoldClientState(np.zeros_like(down["x"]), down.get("resets", 0))

    def restore(self, down: Payload, given: Payload) -> ScaffoldClientState:
        """Take c_i from the server's mirror; without one everybody is at 0."""
        return self.initialize(down)._replace(**given)

    def on_acknowledged(self, state: ScaffoldClientState, down: Payload) -> ScaffoldClientState:
        """Follow a collective reset."""
        return state if state.resets == down.get("resets", 0) else self.initialize(down)

    def step(
        self, state: ScaffoldClientState, down: Payload
    ) -> tuple[Payload, ScaffoldClientState]:
        """Do steps 2 to 4."""
        x, c = down["x"], down["c"]
        y, drift = x, c - state.c
        for _ in range(self.local_steps):
            y = y - self.client_lr * (self.gradient(y) + drift)
        delta = y - x
        if self.option == "I":
            dc = self.gradient(x) - state.c
        else:
            dc = -(c + delta / (self.local_steps * self.client_lr))
        after = state._replace(c=state.c + dc)
        if self.option == "II" and self.mirror:
            return {"delta": delta}, after
        return {"delta": delta, "dc": dc}, after
