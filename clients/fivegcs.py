"""5GCS, client side: a dual step. See `flower_fedcon.strategies.FiveGCS`."""

from __future__ import annotations

from flower_fedcon.clients.families.control_variate import ControlVariate, ControlVariateClient
from flower_fedcon.wire.payloads import Payload


class FiveGCSClient(ControlVariateClient):
    """The local step of 5GCS; u_m lives on the client."""

    algorithm = "fivegcs"
    point = "xhat"
    own_memory = True

    mu: float
    tau: float

    def step(self, state: ControlVariate, down: Payload) -> tuple[Payload, ControlVariate]:
        """Do steps 2 and 3."""
        n, mu, tau = self.num_clients, self.mu, self.tau
        u, xhat = state.variate, down["xhat"]
        y = self.minimize(xhat, linear=-(n * u + mu * xhat), shift=n * tau - mu, center=xhat)
        delta = (self.gradient(y) - mu * y) / n - u
        # Not grad F_m(y): this is, bit for bit, the server's copy.
        return {"delta": delta}, state._replace(variate=u + delta)

    def received(
        self, before: ControlVariate, after: ControlVariate, down: Payload, read: Payload
    ) -> ControlVariate:
        """Let u_m follow what the server reads."""
        return after._replace(variate=before.variate + read["delta"])
