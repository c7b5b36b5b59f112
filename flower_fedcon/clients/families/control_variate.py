"""One control variate for each client, from 0: FedDyn and 5GCS."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.solvers import LocalSolver
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class ControlVariate(NamedTuple):
    """A client's state."""

    variate: Array  # g_i in FedDyn, u_m in FiveGCS, shape of the model
    resets: float  # the last collective reset that it has taken part in


class ControlVariateClient(FedConClient[ControlVariate]):
    """A client whose state is its control variate."""

    state_type = ControlVariate
    point: ClassVar[str]
    """The model's name in the broadcast."""

    local_solver: LocalSolver

    def initialize(self, down: Payload) -> ControlVariate:
        """Start at 0."""
        return ControlVariate(np.zeros_like(down[self.point]), down.get("resets", 0))

    def restore(self, down: Payload, given: Payload) -> ControlVariate:
        """Take the control variate from the server's mirror, or 0 after a collective reset."""
        return ControlVariate(given["variate"], 0) if given else self.initialize(down)

    def on_acknowledged(self, state: ControlVariate, down: Payload) -> ControlVariate:
        """Take part in a collective reset."""
        return state if state.resets == down.get("resets", 0) else self.initialize(down)
