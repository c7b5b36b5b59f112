"""FedFWPlus, client side: a dual and a Frank-Wolfe step.

See `flower_fedcon.strategies.FedFWPlus`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.families.frank_wolfe import FrankWolfeClient
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedFWPlusClientState(NamedTuple):
    """A client's state."""

    x: Array  # x_i, shape (..., *model)
    y: Array  # y_i, multiplier of x_i = x_bar, shape of x
    d: Array | None  # d_i, averaged stochastic gradient over N, shape of x
    resets: float  # the last collective reset that y has taken part in


class FedFWPlusClient(FrankWolfeClient[FedFWPlusClientState]):
    """The local step of FedFWPlus; x_i and y_i live on the client."""

    algorithm = "fedfwplus"
    state_type = FedFWPlusClientState

    penalty: float

    def initialize(self, down: Payload) -> FedFWPlusClientState:
        """Start at x0 with y = 0."""
        x = down["x_bar"]
        return FedFWPlusClientState(x, np.zeros_like(x), None, down.get("resets", 0))

    def restore(self, down: Payload, given: Payload) -> FedFWPlusClientState:
        """Take x_i and y_i from the server's mirror, or x_bar and 0 without one."""
        start = self.initialize(down)
        return start._replace(x=given["x"], y=given["y"]) if given else start

    def on_acknowledged(self, state: FedFWPlusClientState, down: Payload) -> FedFWPlusClientState:
        """Take part in a collective reset."""
        return state if state.resets == down.get("resets", 0) else self.initialize(down)

    def step(
        self, state: FedFWPlusClientState, down: Payload
    ) -> tuple[Payload, FedFWPlusClientState]:
        """Do steps 2 to 4."""
        x, step_size = state.x, down["step_size"]
        away = x - down["x_bar"]
        y, g = state.y + self.penalty * away, down["penalty"] * away
        g, d = self.with_own_gradient(x, state.d, down, g)
        g = g + (y - down["y_bar"] if "y_bar" in down else y)
        atom = self.atom(g, step_size)
        return {"atom": atom}, FedFWPlusClientState(atom.mix(x, step_size), y, d, state.resets)
