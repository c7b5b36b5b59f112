"""FedDR, client side: a Douglas-Rachford step. See `flower_fedcon.strategies.FedDR`."""

from __future__ import annotations

from typing import NamedTuple

from flower_fedcon.clients.families.balancing import penalty_of, residuals
from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.solvers import LocalSolver
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedDRClientState(NamedTuple):
    """A client's state."""

    y: Array  # y_i, shape of the model
    x: Array  # x_i = prox_i(y_i); before the first step y_i, which is then xbar: step 2 keeps it
    xhat: Array  # xhat_i, as the server knows it, shape of the model
    penalty: float = 0.0  # 1/eta of y, if it is balanced; 0 if y is x


class FedDRClient(LocalPassClient[FedDRClientState]):
    """The local step of FedDR; y_i, x_i and xhat_i live on the client."""

    algorithm = "feddr"
    state_type = FedDRClientState
    own_memory = True

    step_size: float
    relaxation: float
    local_solver: LocalSolver

    def initialize(self, down: Payload) -> FedDRClientState:
        """Start from xbar, which is x0 in round 1."""
        xbar = down["xbar"]
        return FedDRClientState(y=xbar, x=xbar, xhat=xbar)

    def restore(self, down: Payload, given: Payload) -> FedDRClientState:
        """Start from xbar, late or again, with the server's xhat_i."""
        return self.initialize(down)._replace(xhat=given["xhat"])

    def local_pass(self, state: FedDRClientState, down: Payload) -> LocalPass:
        """Do steps 2 and 3: ||x - y||^2/(2 eta), from the last x_i."""
        y, shift = state.y, penalty_of(down, 1 / self.step_size)
        if state.penalty not in (0, shift):
            y = state.x + (state.penalty / shift) * (y - state.x)
        y = y + self.relaxation * (down["xbar"] - state.x)
        return LocalPass(state.x, shift=shift, center=y, solver=self.local_solver)

    def upload(
        self, state: FedDRClientState, down: Payload, done: Done
    ) -> tuple[Payload, FedDRClientState]:
        """Do step 4."""
        x, y = done.end, done.declared.center
        delta = 2 * x - y - state.xhat
        # Not 2 x - y: this equals the server's copy to the bit, so rounding does not accumulate.
        shift = done.declared.shift
        told = residuals(self, down, x - down["xbar"], shift * (y - x))
        after = FedDRClientState(y, x, state.xhat + delta, shift if told else 0.0)
        return {"delta": delta, **told}, after

    def received(
        self, before: FedDRClientState, after: FedDRClientState, down: Payload, read: Payload
    ) -> FedDRClientState:
        """Update xhat_i with the value that the server reads."""
        return after._replace(xhat=before.xhat + read["delta"])
