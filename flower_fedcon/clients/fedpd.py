"""FedPD, client side: a primal and a dual step. See `flower_fedcon.strategies.FedPD`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.families.balancing import penalty_of, residuals
from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.solvers import LocalSolver
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedPDClientState(NamedTuple):
    """A client's state."""

    x: Array  # x_i, the start of the next local solve, shape of the model
    dual: Array  # lambda_i, shape of the model
    x_0: Array  # x_0i, this client's view of the global model, shape of the model


class FedPDClient(LocalPassClient[FedPDClientState]):
    """The local step of FedPD; x_i, lambda_i and x_0i live on the client."""

    algorithm = "fedpd"
    state_type = FedPDClientState

    step_size: float
    local_solver: LocalSolver

    def initialize(self, down: Payload) -> FedPDClientState:
        """Start at x_0, with lambda_i = 0."""
        x_0 = down["x_0"]
        return FedPDClientState(x=x_0, dual=np.zeros_like(x_0), x_0=x_0)

    def restore(self, down: Payload, given: Payload) -> FedPDClientState:
        """Start again at x_0, with lambda_i = 0."""
        return self.initialize({**down, **given})

    def local_pass(self, state: FedPDClientState, down: Payload) -> LocalPass:
        """Do step 2: <lambda_i, x> + ||x - x_0i||^2/(2 eta), from the last x_i."""
        x, dual, solver = state.x, state.dual, self.local_solver
        x_0, shift = down.get("x_0", state.x_0), penalty_of(down, 1 / self.step_size)
        return LocalPass(x, linear=dual, shift=shift, center=x_0, solver=solver)

    def upload(
        self, state: FedPDClientState, down: Payload, done: Done
    ) -> tuple[Payload, FedPDClientState]:
        """Do steps 3 to 5."""
        eta, x, x_0 = self.step_size, done.end, done.declared.center
        if "penalty" in down:
            eta = 1 / down["penalty"]
        dual = state.dual + (x - x_0) / eta
        u = x + eta * dual
        if down["skip"]:
            return {}, FedPDClientState(x, dual, x_0=u)
        told = residuals(self, down, x - x_0, dual)
        return {"u": u, **told}, FedPDClientState(x, dual, x_0)
