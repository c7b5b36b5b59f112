"""FedProxAL, client side: a step of ADMM on the client's augmented Lagrangian.

See `flower_fedcon.strategies.FedProxAL`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.objectives.augmented import AugmentedLagrangian
from flower_fedcon.solvers import LocalSolver
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedProxALClientState(NamedTuple):
    """A client's state."""

    u: Array  # local model u_j, shape of the model
    dual: Array  # lambda_j, shape of u
    anchor: Array  # w_k, shape of u
    stage: float  # k; -1 before the first step of a stage


class FedProxALClient(FedConClient[FedProxALClientState]):
    """The local step of FedProxAL; u_j and lambda_j live on the client."""

    algorithm = "fedproxal"
    state_type = FedProxALClientState
    constraints: ClassVar[str] = "each"
    one_at_a_time = "minimises with a multiplier of each client's own"

    penalty: float
    coupling: float
    pull: float
    local_solver: LocalSolver

    def initialize(self, down: Payload) -> FedProxALClientState:
        """Begin a stage at w."""
        w = down["w"]
        return FedProxALClientState(u=w, dual=np.zeros_like(w), anchor=w, stage=-1)

    def restore(self, down: Payload, given: Payload) -> FedProxALClientState:
        """Begin this stage again, with the server's anchor."""
        return self.initialize(down)._replace(anchor=given["anchor"])

    def on_acknowledged(self, state: FedProxALClientState, down: Payload) -> FedProxALClientState:
        """Follow the server to the next stage."""
        return state if state.stage in (-1, down["stage"]) else self.initialize(down)

    def step(
        self, state: FedProxALClientState, down: Payload
    ) -> tuple[Payload, FedProxALClientState]:
        """Do steps 2 and 3."""
        (u, dual, anchor, stage), w, rho = state, down["w"], self.coupling
        scale = 1 / self.num_clients
        p = AugmentedLagrangian(
            self.objective, scale, down["multiplier"], self.penalty, self.pull, anchor
        )
        slope = p.gradient(w)
        self.tally_gradients(1, full=True)
        if stage == -1:
            residual, u, dual = -1.0, w, -slope
        else:
            residual = float(np.abs(slope + dual - rho * (w - u)).max())
            u = self.minimize(u, objective=p, linear=dual, shift=rho, center=w)
            dual = dual + rho * (u - w)
        up = {"z": u + dual / rho, "residual": residual, "constraint": p.constraint(w)}
        return up, FedProxALClientState(u, dual, anchor, down["stage"])
