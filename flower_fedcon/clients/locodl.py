"""LoCoDL, client side: corrected gradient steps with a compressed end point.

See `flower_fedcon.strategies.LoCoDL`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.compressors import Compressor, dense
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.core.rng import COMPRESS
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class LoCoDLClientState(NamedTuple):
    """A client's state."""

    x: Array  # x_i, shape of the model
    u: Array  # control variate u_i, shape of x
    y: Array  # copy of y, shape of x
    v: Array  # copy of v, shape of x
    d: Array | None  # d_i of the last round, shape of x; None if the server has sent this state


class LoCoDLClient(LocalPassClient[LoCoDLClientState]):
    """The local step of LoCoDL; x_i and u_i live on the client."""

    algorithm = "locodl"
    state_type = LoCoDLClientState
    one_at_a_time = "compresses each client's upload by its own random draws"

    uplink_compressor: Compressor
    client_lr: float
    pull: float
    relaxation: float
    dual_lr: float
    batch_size: int | None

    def restore(self, down: Payload, given: Payload) -> LoCoDLClientState:
        """Start at y, with the server's copies; at first contact u_i = v = 0."""
        y, zero = given["y"], np.zeros_like(given["y"])
        return LoCoDLClientState(x=y, u=given.get("u", zero), y=y, v=given.get("v", zero), d=None)

    def on_acknowledged(self, state: LoCoDLClientState, down: Payload) -> LoCoDLClientState:
        """Do step 2."""
        x, u, y, v, d = state
        if d is None:
            return state
        d_bar, rho, w = down["d_bar"], self.relaxation, self.dual_lr
        return LoCoDLClientState(
            x=(1 - rho) * x + rho * (y + d_bar),
            u=u + w * (d_bar - d),
            y=y + rho * d_bar,
            v=v + w * d_bar,
            d=None,
        )

    def steps_asked(self, run: RunInfo, down: Payload) -> int:
        """Return K_r."""
        return int(down["steps"])

    def local_pass(self, state: LoCoDLClientState, down: Payload) -> LocalPass:
        """Do step 3 from x_i, on f_i - g - <u_i, x>."""
        count, eta = int(down["steps"]), self.client_lr
        return LocalPass(state.x, linear=-state.u, shift=-self.pull, steps=count, rate=eta)

    def upload(
        self, state: LoCoDLClientState, down: Payload, done: Done
    ) -> tuple[Payload, LoCoDLClientState]:
        """Do step 3 from y, on g - <v, y>; then step 4."""
        x, pull, v = done.end, self.pull, state.v
        y = done.declared._replace(start=state.y, linear=-v, shift=pull).play(np.zeros_like)
        d = self.uplink_compressor.compress(x - y, self.rng(COMPRESS))
        return {"d": d}, state._replace(x=x, y=y, d=dense(d))
