"""FedProx, client side: one proximal step. See `flower_fedcon.strategies.FedProx`."""

from __future__ import annotations

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.solvers import LocalSolver
from flower_fedcon.wire.payloads import Payload


class FedProxClient(FedConClient[None]):
    """The local step of FedProx; it keeps no state."""

    algorithm = "fedprox"

    proximal: float
    local_solver: LocalSolver

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3."""
        w = down["w"]
        return {"v": self.minimize(w, shift=self.proximal, center=w)}, None
