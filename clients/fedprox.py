"""FedProx, client side: a proximal step. See `flower_fedcon.strategies.FedProx`."""

from __future__ import annotations

from flower_fedcon.clients.families.local_pass import LocalPass, MinimizingClient
from flower_fedcon.solvers import Correction, LocalSolver
from flower_fedcon.wire.payloads import Payload


class FedProxClient(MinimizingClient[None]):
    """The local step of FedProx; it keeps no state."""

    algorithm = "fedprox"

    proximal: float
    local_solver: LocalSolver

    def correction(self, state: None, down: Payload) -> Correction:
        """Begin step 2 at w: (mu/2) ||x - w||^2."""
        return Correction(down["w"], shift=self.proximal, center=down["w"])

    def upload(self, state: None, down: Payload, done: LocalPass) -> tuple[Payload, None]:
        """Do step 3."""
        return {"v": done.end}, None
