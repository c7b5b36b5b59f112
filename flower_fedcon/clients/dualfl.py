"""DualFL, client side: a local minimisation. See `flower_fedcon.strategies.DualFL`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.families.dual import DualClient
from flower_fedcon.solvers.extrapolation import catch_up, extrapolate, move
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class DualFLClientState(NamedTuple):
    """A client's state.

    In the paper's form, c_j and zeta_j of the next round follow from this state and the new theta,
    which the server computes from this round. So `step` computes them at its beginning, when the
    reply is known to have been used.
    """

    z: Array  # z_j, shape (..., *model)
    c: Array | None  # c_j of the paper's form, shape of z; None for 0, and in the block form
    e: Array | None  # e_j of the accelerated form, shape of z
    x: Array  # the last minimiser, shape of z


class DualFLClient(DualClient[DualFLClientState]):
    """The local step of DualFL; z_j, and c_j or e_j, live on the client."""

    algorithm = "dualfl"
    state_type = DualFLClientState
    own_numbers = frozenset({"drift", "left"})

    form: str
    ratio: float

    def initialize(self, down: Payload) -> DualFLClientState:
        """Start at z = x0, c = e = 0."""
        z = down["origin"]
        e = np.zeros_like(z) if self.form == "accelerated" else None
        return DualFLClientState(z, c=None, e=e, x=down["theta"])

    def restore(self, down: Payload, given: Payload) -> DualFLClientState:
        """Take z, and c or e, from the server's mirror, or start again."""
        if not given:
            return self.initialize(down)
        return DualFLClientState(given["z"], given.get("c"), given.get("e"), x=down["theta"])

    def on_acknowledged(self, state: DualFLClientState, down: Payload) -> DualFLClientState:
        """Take part in a collective reset."""
        return self.initialize(down) if "origin" in down else state

    def step(self, state: DualFLClientState, down: Payload) -> tuple[Payload, DualFLClientState]:
        """Do steps 2 and 3."""
        if self.form == "accelerated":
            return self._accelerated(state, down)
        r, beta = self.ratio, down.get("beta", 0.0)
        zeta, c = extrapolate(state.z, state.c, down["theta"], r, beta)
        x, theta_j = self.minimizer(state.x, zeta, r, self.nu, down.get("tolerance"))
        kept = c if "beta" in down else None
        return {"theta": theta_j}, DualFLClientState(r * theta_j - zeta, kept, None, x)

    def _accelerated(
        self, state: DualFLClientState, down: Payload
    ) -> tuple[Payload, DualFLClientState]:
        """Do steps 2 and 3 of the accelerated form."""
        theta, r, a = down["theta"], down["r"], down["a"]
        assert state.e is not None  # noqa: S101  (this form's)
        z, e = catch_up(state.z, state.e, down.get("drift", 0.0), down.get("left", 1.0))
        m, tolerance = z - down["chi"] * e, down.get("tolerance")
        # The plain minimiser starts at theta, the gap's matching point at the last x.
        start = theta if tolerance is None else state.x
        x, theta_j = self.minimizer(start, r * theta - m, r, r * self.nu, tolerance)
        delta = m + r * (theta_j - theta) - (z + a * e)
        z, e = move(z, e, delta, a, down["b"], down["k"])
        return {"delta": delta}, DualFLClientState(z, None, e, x)
