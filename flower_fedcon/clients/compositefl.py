"""CompositeFL, client side: K corrected steps in the dual, each with its prox.

See `flower_fedcon.strategies.CompositeFL`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass, Prox, proxes_of
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class CompositeFLClientState(NamedTuple):
    """A client's state."""

    c: Array  # control variate c_i, shape (..., *model)
    p: Array  # the last round's model P, shape of c
    delta: Array  # the last round's upload, shape of c
    resets: float  # the last collective reset that c has taken part in


class CompositeFLClient(LocalPassClient[CompositeFLClientState]):
    """The local step of CompositeFL; c_i lives on the client, or under sampling on the server."""

    algorithm = "compositefl"
    state_type = CompositeFLClientState
    in_loops = True

    regularizer: Regularizer
    client_lr: float
    local_steps: int
    server_lr: float
    batch_size: int | None
    clip: float | None

    def initialize(self, down: Payload) -> CompositeFLClientState:
        """Start with the server's c_i, or 0; with P = x_bar and delta_i = 0, step 2 keeps it."""
        x_bar = down["x_bar"]
        zero = np.zeros_like(x_bar)
        return CompositeFLClientState(down.get("c", zero), x_bar, zero, down.get("resets", 0))

    def restore(self, down: Payload, given: Payload) -> CompositeFLClientState:
        """Take c_i from the server's mirror; without one all start at 0."""
        return self.initialize({**down, **given})

    def on_acknowledged(
        self, state: CompositeFLClientState, down: Payload
    ) -> CompositeFLClientState:
        """Do step 2, unless the server has done it or all start again."""
        if "c" in down or state.resets != down.get("resets", 0):
            return self.initialize(down)
        delta_bar = (down["x_bar"] - state.p) / self.server_lr
        return state._replace(
            c=state.c + (state.delta - delta_bar) / (self.client_lr * self.local_steps)
        )

    def local_pass(self, state: CompositeFLClientState, down: Payload) -> LocalPass:
        """Do step 3 from P: <c_i, z>, at z, the prox of zh."""
        psi, count, eta = self.regularizer, self.local_steps, self.client_lr
        p = psi.prox(down["x_bar"], self.server_lr * eta * count)
        self.tally(proxes=proxes_of(psi))
        point = Prox(psi, lambda k: k * eta)
        steps = LocalPass(p, linear=state.c, steps=count, rate=eta, clip=self.clip)
        return steps._replace(point=point, first=p)

    def upload(
        self, state: CompositeFLClientState, down: Payload, done: Done
    ) -> tuple[Payload, CompositeFLClientState]:
        """Do step 4."""
        delta = done.change
        return {"delta": delta}, state._replace(p=done.start, delta=delta)

    def received(
        self,
        before: CompositeFLClientState,
        after: CompositeFLClientState,
        down: Payload,
        read: Payload,
    ) -> CompositeFLClientState:
        """Do step 2 with the decoded delta_i."""
        return after._replace(delta=read["delta"])
