"""APDAInexact, client side: a primal and a dual step.

See `flower_fedcon.strategies.APDAInexact`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.solvers import LocalSolver
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class APDAInexactClientState(NamedTuple):
    """A client's state."""

    x: Array  # primal x_i, shape (..., *model)
    y: Array  # dual y_i, shape of x
    y_bar: Array  # extrapolated dual, shape of x
    u: Array  # last upload, shape of x


class APDAInexactClient(LocalPassClient[APDAInexactClientState]):
    """The local step of APDAInexact; x_i and y_i live on the client."""

    algorithm = "apdainexact"
    state_type = APDAInexactClientState

    primal_lr: float
    dual_lr: float
    dual_damping: float
    theta: float
    local_solver: LocalSolver

    def initialize(self, down: Payload) -> APDAInexactClientState:
        """Start at m with y_i = 0, which u_i = m keeps at 0 in step 2."""
        m = down["m"]
        return APDAInexactClientState(x=m, y=np.zeros_like(m), y_bar=np.zeros_like(m), u=m)

    def restore(self, down: Payload, given: Payload) -> APDAInexactClientState:
        """Start again from m."""
        return self.initialize(down)

    def on_acknowledged(
        self, state: APDAInexactClientState, down: Payload
    ) -> APDAInexactClientState:
        """Do step 2."""
        y = self.dual_lr * (state.u - down["m"])
        return state._replace(y=y, y_bar=y + self.theta * (y - state.y))

    def local_pass(self, state: APDAInexactClientState, down: Payload) -> LocalPass:
        """Do step 3, from the last x_i."""
        x, eta, solver = state.x, self.primal_lr, self.local_solver
        return LocalPass(x, shift=1 / eta, center=x - eta * state.y_bar, solver=solver)

    def upload(
        self, state: APDAInexactClientState, down: Payload, done: Done
    ) -> tuple[Payload, APDAInexactClientState]:
        """Do steps 4 and 5."""
        (x, y, y_bar, _), x_hat = state, done.end
        g = self.full_gradient(x_hat)
        u = x_hat - self.dual_damping * (y + g) + y / self.dual_lr
        return {"u": u}, state._replace(x=x - self.primal_lr * (g + y_bar), u=u)
