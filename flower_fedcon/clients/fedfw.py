"""FedFW, client side: one Frank-Wolfe step. See `flower_fedcon.strategies.FedFW`."""

from __future__ import annotations

from typing import NamedTuple

from flower_fedcon.clients.families.frank_wolfe import FrankWolfeClient
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedFWClientState(NamedTuple):
    """A client's state."""

    x: Array  # x_i, shape (..., *model)
    d: Array | None  # d_i, averaged stochastic gradient over N, shape of x


class FedFWClient(FrankWolfeClient[FedFWClientState]):
    """The local step of FedFW; x_i lives on the client."""

    algorithm = "fedfw"
    state_type = FedFWClientState

    def initialize(self, down: Payload) -> FedFWClientState:
        """Start at x0."""
        return FedFWClientState(x=down["x_bar"], d=None)

    def restore(self, down: Payload, given: Payload) -> FedFWClientState:
        """Take x_i from the server's mirror, or x_bar without one."""
        return FedFWClientState(x=given["x"] if given else down["x_bar"], d=None)

    def step(self, state: FedFWClientState, down: Payload) -> tuple[Payload, FedFWClientState]:
        """Do steps 2 to 4."""
        atom, x, d = self.frank_wolfe_step(state.x, state.d, down)
        return {"atom": atom}, FedFWClientState(x, d)
