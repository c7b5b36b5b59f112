"""Scaffnew, client side: corrected gradient steps, as many as the server's coin says.

See `flower_fedcon.strategies.Scaffnew`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.clients.families.local_pass import gradient_steps
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class ScaffnewClientState(NamedTuple):
    """A client's state."""

    h: Array  # control variate h_i, shape (..., *model)
    x_hat: Array  # where the last round's steps ended, shape of h


class ScaffnewClient(FedConClient[ScaffnewClientState]):
    """The local step of Scaffnew; h_i lives on the client."""

    algorithm = "scaffnew"
    state_type = ScaffnewClientState

    client_lr: float
    communication_probability: float
    batch_size: int | None

    def initialize(self, down: Payload) -> ScaffnewClientState:
        """Start with h_i = 0; xhat_i = x_bar leaves it there in step 2."""
        return ScaffnewClientState(h=np.zeros_like(down["x_bar"]), x_hat=down["x_bar"])

    def restore(self, down: Payload, given: Payload) -> ScaffnewClientState:
        """Start again with h_i = 0."""
        return self.initialize(down)

    def on_acknowledged(self, state: ScaffnewClientState, down: Payload) -> ScaffnewClientState:
        """Do step 2."""
        move = (self.communication_probability / self.client_lr) * (down["x_bar"] - state.x_hat)
        return state._replace(h=state.h + move)

    def steps_asked(self, run: RunInfo, down: Payload) -> int:
        """Return K_r."""
        return int(down["steps"])

    def step(
        self, state: ScaffnewClientState, down: Payload
    ) -> tuple[Payload, ScaffnewClientState]:
        """Do steps 3 and 4."""
        h = state.h
        x = gradient_steps(self, down["x_bar"], int(down["steps"]), linear=-h)
        v = x - (self.client_lr / self.communication_probability) * h
        return {"v": v}, ScaffnewClientState(h, x_hat=x)

    def received(
        self,
        before: ScaffnewClientState,
        after: ScaffnewClientState,
        down: Payload,
        read: Payload,
    ) -> ScaffnewClientState:
        """Do step 2 with the v_i that the server reads."""
        return after._replace(
            x_hat=read["v"] + (self.client_lr / self.communication_probability) * before.h
        )
