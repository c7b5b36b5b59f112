"""FedDyn, client side: a regularised minimisation. See `flower_fedcon.strategies.FedDyn`."""

from __future__ import annotations

from flower_fedcon.clients.families.control_variate import ControlVariate, ControlVariateClient
from flower_fedcon.wire.payloads import Payload


class FedDynClient(ControlVariateClient):
    """The local step of FedDyn; g_i lives on the client."""

    algorithm = "feddyn"
    point = "theta"

    alpha: float

    def step(self, state: ControlVariate, down: Payload) -> tuple[Payload, ControlVariate]:
        """Do steps 2 to 4."""
        alpha, g, start = self.alpha, state.variate, down["theta"]
        theta = self.minimize(start, linear=-g, shift=alpha, center=start)
        return {"theta": theta}, state._replace(variate=g - alpha * (theta - start))
