"""FedDyn, client side: a regularised minimisation. See `flower_fedcon.strategies.FedDyn`."""

from __future__ import annotations

from flower_fedcon.clients.families.control_variate import ControlVariate, ControlVariateClient
from flower_fedcon.clients.families.local_pass import LocalPass, MinimizingClient
from flower_fedcon.solvers import Correction
from flower_fedcon.wire.payloads import Payload


class FedDynClient(ControlVariateClient, MinimizingClient[ControlVariate]):
    """The local step of FedDyn; g_i lives on the client."""

    algorithm = "feddyn"
    point = "theta"
    own_memory = True

    alpha: float

    def correction(self, state: ControlVariate, down: Payload) -> Correction:
        """Begin step 2 at theta: -<g_i, x> + (alpha/2) ||x - theta||^2."""
        theta = down["theta"]
        return Correction(theta, linear=-state.variate, shift=self.alpha, center=theta)

    def upload(
        self, state: ControlVariate, down: Payload, done: LocalPass
    ) -> tuple[Payload, ControlVariate]:
        """Do steps 3 and 4."""
        g = state.variate - self.alpha * done.change
        return {"theta": done.end}, state._replace(variate=g)

    def received(
        self, before: ControlVariate, after: ControlVariate, down: Payload, read: Payload
    ) -> ControlVariate:
        """Do step 3 with the theta_i that the server reads."""
        return self.upload(before, down, LocalPass(down["theta"], read["theta"]))[1]
