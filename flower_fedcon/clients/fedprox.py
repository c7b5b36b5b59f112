"""FedProx, client side: a proximal step. See `flower_fedcon.strategies.FedProx`."""

from __future__ import annotations

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.solvers import LocalSolver
from flower_fedcon.wire.payloads import Payload


class FedProxClient(LocalPassClient[None]):
    """The local step of FedProx; it keeps no state."""

    algorithm = "fedprox"
    in_loops = True

    proximal: float
    local_solver: LocalSolver

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do step 2 from w: (mu/2) ||x - w||^2."""
        w = down["w"]
        return LocalPass(w, shift=self.proximal, center=w, solver=self.local_solver)

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """Do step 3."""
        return {"v": done.end}, None
