"""FedMLS, client side: sliding subgradient steps. See `flower_fedcon.strategies.FedMLS`."""

from __future__ import annotations

import math
from typing import NamedTuple

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedMLSClientState(NamedTuple):
    """A client's state."""

    w: Array  # w_i, shape of the model
    z: Array  # z_i, the end of the last local steps, shape of the model


class FedMLSClient(FedConClient[FedMLSClientState]):
    """The local step of FedMLS; w_i and z_i live on the client."""

    algorithm = "fedmls"
    state_type = FedMLSClientState

    step_size: float
    step_growth: float
    batch_size: int | None

    def initialize(self, down: Payload) -> FedMLSClientState:
        """Start at y, which is x0 in the first round."""
        return FedMLSClientState(w=down["y"], z=down["y"])

    def restore(self, down: Payload, given: Payload) -> FedMLSClientState:
        """Start again at y."""
        return self.initialize(down)

    def step(self, state: FedMLSClientState, down: Payload) -> tuple[Payload, FedMLSClientState]:
        """Do steps 2 and 3."""
        t, (w, z) = down["t"], state
        a, following = 2 / (t + 1), 2 / (t + 2)
        pulled = z - (t / 4) * ((1 - a) * w + a * z - down["y"])
        eta, count = self.step_size / (4 * self.num_clients), math.ceil(self.step_growth * t)
        u, total = z, 0.0 * z
        for k in range(1, count + 1):
            u = u - (2 / (k + 2)) * (eta * self.gradient(u) + u - pulled)
            total = total + (k + 1) * u
        w = (1 - a) * w + (2 * a / (count * (count + 3))) * total
        return {"y": (1 - following) * w + following * u}, FedMLSClientState(w, u)
