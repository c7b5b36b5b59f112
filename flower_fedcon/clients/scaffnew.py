"""Scaffnew, client side: corrected gradient steps; the server draws their number.

See `flower_fedcon.strategies.Scaffnew`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class ScaffnewClientState(NamedTuple):
    """A client's state."""

    h: Array  # control variate h_i, shape (..., *model)
    x_hat: Array  # end point of the last round's steps, shape of h


class ScaffnewClient(LocalPassClient[ScaffnewClientState]):
    """The local step of Scaffnew; h_i lives on the client."""

    algorithm = "scaffnew"
    state_type = ScaffnewClientState

    client_lr: float
    communication_probability: float
    batch_size: int | None
    clip: float | None

    def initialize(self, down: Payload) -> ScaffnewClientState:
        """Start with h_i = 0; with xhat_i = x_bar, step 2 keeps it."""
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

    def local_pass(self, state: ScaffnewClientState, down: Payload) -> LocalPass:
        """Do step 3 from x_bar: -<h_i, x>."""
        count = int(down["steps"])
        x_bar, gamma = down["x_bar"], self.client_lr
        return LocalPass(x_bar, linear=-state.h, steps=count, rate=gamma, clip=self.clip)

    def upload(
        self, state: ScaffnewClientState, down: Payload, done: Done
    ) -> tuple[Payload, ScaffnewClientState]:
        """Do step 4."""
        v = done.end - (self.client_lr / self.communication_probability) * state.h
        return {"v": v}, state._replace(x_hat=done.end)

    def received(
        self,
        before: ScaffnewClientState,
        after: ScaffnewClientState,
        down: Payload,
        read: Payload,
    ) -> ScaffnewClientState:
        """Do step 2 with the decoded v_i."""
        return after._replace(
            x_hat=read["v"] + (self.client_lr / self.communication_probability) * before.h
        )
