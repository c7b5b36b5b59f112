"""5GCS, client side: a dual step. See `flower_fedcon.strategies.FiveGCS`."""

from __future__ import annotations

from flower_fedcon.clients.families.control_variate import ControlVariate, ControlVariateClient
from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.wire.payloads import Payload


class FiveGCSClient(ControlVariateClient, LocalPassClient[ControlVariate]):
    """The local step of 5GCS; u_m lives on the client."""

    algorithm = "fivegcs"
    point = "xhat"
    own_memory = True

    mu: float
    tau: float

    def local_pass(self, state: ControlVariate, down: Payload) -> LocalPass:
        """Do step 2."""
        n, mu, xhat = self.num_clients, self.mu, down["xhat"]
        linear, shift = -(n * state.variate + mu * xhat), n * self.tau - mu
        return LocalPass(xhat, linear, shift, center=xhat, solver=self.local_solver)

    def upload(
        self, state: ControlVariate, down: Payload, done: Done
    ) -> tuple[Payload, ControlVariate]:
        """Do step 3."""
        y, u = done.end, state.variate
        delta = (self.full_gradient(y) - self.mu * y) / self.num_clients - u
        # Not grad F_m(y): this equals the server's copy to the bit.
        return {"delta": delta}, state._replace(variate=u + delta)

    def received(
        self, before: ControlVariate, after: ControlVariate, down: Payload, read: Payload
    ) -> ControlVariate:
        """Update u_m with the value that the server reads."""
        return after._replace(variate=before.variate + read["delta"])
