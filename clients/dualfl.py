"""DualFL, client side: a local minimisation. See `flower_fedcon.strategies.DualFL`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers import LocalSolver
from flower_fedcon.solvers.extrapolation import extrapolate
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class DualFLClientState(NamedTuple):
    """A client's state.

    c_j and zeta_j of the coming round follow from it and the new theta, which the server makes of
    the round: `step` therefore finds them at its beginning, when the reply is known to be used.
    """

    v: Array  # v_j, shape (..., *model)
    c: Array | None  # c_j, shape of v; None is 0, and under sampling
    x: Array  # the last minimiser, where the next solve starts, shape of v


class DualFLClient(FedConClient[DualFLClientState]):
    """The local step of DualFL; v_j and c_j live on the client."""

    algorithm = "dualfl"
    state_type = DualFLClientState

    nu: float
    ratio: float
    regularization: float
    regularizer: Regularizer | None
    local_solver: LocalSolver

    def initialize(self, down: Payload) -> DualFLClientState:
        """Start at v = -x0, c = 0."""
        return DualFLClientState(v=-down["origin"], c=None, x=down["theta"])

    def restore(self, down: Payload, given: Payload) -> DualFLClientState:
        """Take v and c from the server's mirror, or start again."""
        if not given:
            return self.initialize(down)
        return DualFLClientState(v=given["v"], c=given.get("c"), x=down["theta"])

    def on_acknowledged(self, state: DualFLClientState, down: Payload) -> DualFLClientState:
        """Follow a collective reset."""
        return self.initialize(down) if "origin" in down else state

    def step(self, state: DualFLClientState, down: Payload) -> tuple[Payload, DualFLClientState]:
        """Do steps 2 and 3."""
        r, beta = self.ratio, down.get("beta", 0.0)
        zeta, c = extrapolate(state.v, state.c, down["theta"], r, beta)
        x, theta_j = self._solve(state.x, zeta, down.get("tolerance"))
        kept = c if "beta" in down else None
        return {"theta": theta_j}, DualFLClientState(v=zeta - r * theta_j, c=kept, x=x)

    def _solve(self, start: Array, zeta: Array, tolerance: float | None) -> tuple[Array, Array]:
        """Return the minimiser of the local energy, and what to upload for it."""
        nu, linear = self.nu, -self.nu * zeta
        shift = (self.ratio - 1) * nu + self.regularization

        def certified(x: Array, gradient: Array) -> bool:
            terms = _norm(linear) + _norm(gradient - linear)
            rounding = 50 * float(np.finfo(x.dtype).eps) * terms
            return _norm(gradient) <= max(math.sqrt(2 * nu * (tolerance or 0.0)), rounding)

        stop = None if tolerance is None else certified
        x = self.minimize(
            start, linear=linear, shift=shift, regularizer=self.regularizer, stop=stop
        )
        if tolerance is None:
            return x, x
        return x, x - (self.gradient(x) + shift * x + linear) / nu


def _norm(x: Array) -> float:
    return float(np.linalg.norm(x.reshape(-1)))
