"""An algorithm of one's own, as another package has it: FedAvg with server momentum, no card."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.strategies.families.local_steps import LocalSteps


class OwnState(NamedTuple):
    """The server's state."""

    w: Any  # global model
    m: Any  # momentum


class Own(LocalSteps[OwnState]):
    """FedAvg with momentum one half on the server."""

    name = "own_momentum"
    uplink = ("delta",)

    def initialize(self, x0):
        return OwnState(x0, np.zeros_like(x0))

    def broadcast(self, state):
        return {"w": state.w}

    def aggregate(self, state, uploads):
        m = 0.5 * state.m + uploads.mean("delta")
        return OwnState(state.w + self.server_lr * m, m)

    def model(self, state):
        return state.w


class OwnClient(FedConClient[None]):
    """K gradient steps."""

    algorithm = "own_momentum"

    client_lr: float
    local_steps: int
    batch_size: int | None

    def step(self, state, down):
        v = w = down["w"]
        for _ in range(self.local_steps):
            v = v - self.client_lr * self.gradient(v)
        return {"delta": v - w}, None


PAIR = Own, OwnClient
