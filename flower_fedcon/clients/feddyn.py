"""FedDyn, client side: a regularised minimisation. See `flower_fedcon.strategies.FedDyn`."""

from __future__ import annotations

from flower_fedcon.clients.families.balancing import penalty_of, residuals
from flower_fedcon.clients.families.control_variate import ControlVariate, ControlVariateClient
from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.wire.payloads import Payload


class FedDynClient(ControlVariateClient, LocalPassClient[ControlVariate]):
    """The local step of FedDyn; g_i lives on the client."""

    algorithm = "feddyn"
    in_loops = True
    point = "theta"
    own_memory = True

    alpha: float

    def local_pass(self, state: ControlVariate, down: Payload) -> LocalPass:
        """Do step 2 from theta: -<g_i, x> + (alpha/2) ||x - theta||^2."""
        theta, solver = down["theta"], self.local_solver
        g, alpha = state.variate, penalty_of(down, self.alpha)
        return LocalPass(theta, linear=-g, shift=alpha, center=theta, solver=solver)

    def upload(
        self, state: ControlVariate, down: Payload, done: Done
    ) -> tuple[Payload, ControlVariate]:
        """Do steps 3 and 4."""
        g = state.variate - done.declared.shift * done.change
        told = residuals(self, down, done.change, g)
        return {"theta": done.end, **told}, state._replace(variate=g)

    def received(
        self, before: ControlVariate, after: ControlVariate, down: Payload, read: Payload
    ) -> ControlVariate:
        """Do step 3 with the decoded theta_i."""
        done = Done(self.local_pass(before, down), read["theta"])
        return self.upload(before, down, done)[1]
