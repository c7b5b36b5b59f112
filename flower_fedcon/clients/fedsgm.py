"""FedSGM, client side: E steps on objective or constraint. See `flower_fedcon.strategies.FedSGM`.

A client keeps state with error feedback only; without it both fields stay None.
"""

from __future__ import annotations

from typing import NamedTuple

from flower_fedcon.clients.families.switching import SwitchingClient
from flower_fedcon.compressors import Compressor, dense
from flower_fedcon.core.rng import COMPRESS
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedSGMClientState(NamedTuple):
    """A client's state."""

    w: Array | None  # w_t of the round of this state, shape (..., *model)
    e: Array | None  # e_j, the accumulated compression error, shape of w; None before any round


class FedSGMClient(SwitchingClient[FedSGMClientState]):
    """The local step of FedSGM."""

    algorithm = "fedsgm"
    state_type = FedSGMClientState

    client_lr: float
    local_steps: int
    uplink_compressor: Compressor
    downlink_compressor: Compressor
    feedback: bool
    batch_size: int | None

    def initialize(self, down: Payload) -> FedSGMClientState:
        """Start without w, which the first message contains, and with e = 0."""
        return FedSGMClientState(w=None, e=None)

    def restore(self, down: Payload, given: Payload) -> FedSGMClientState:
        """Take w from the server, if this form keeps a copy, and e = 0."""
        return FedSGMClientState(w=given.get("w"), e=None)

    def query(self, state: FedSGMClientState, down: Payload) -> tuple[Payload, Payload]:
        """Answer step 1 with g_j(w), or the s_jk(w) and n_jk."""
        w = self.model(state, down)
        return self.answers(w), {"w": w}

    def local_pass(self, state: FedSGMClientState, down: Payload) -> LocalPass:
        """Do step 3 from w, on the mixture of f_j and its constraint or constraints."""
        w, sigma, eta = self.model(state, down), down["sigma"], self.client_lr
        if "active" not in down:
            mixed, rate = lambda v: self.direction(v, sigma), eta
        else:
            share, factors = self.mixture(down)
            if not share:
                return LocalPass(w, rate=eta)
            mixed, rate = lambda v: self.mixed_gradient(v, sigma, factors), eta / share
        return LocalPass(w, steps=self.local_steps, rate=rate, gradient=mixed)

    def upload(
        self, state: FedSGMClientState, down: Payload, done: Done
    ) -> tuple[Payload, FedSGMClientState]:
        """Do step 4: (w - v)/eta; or 4': C omega_j (w - v)/eta."""
        moved, rng = (done.start - done.end) / done.declared.rate, self.rng(COMPRESS)
        if not self.feedback:
            return {"delta": self.uplink_compressor.compress(moved, rng)}, state
        owed = moved if state.e is None else state.e + moved
        delta = self.uplink_compressor.compress(owed, rng)
        return {"delta": delta}, FedSGMClientState(done.start, owed - dense(delta))

    def direction(self, v: Array, sigma: float) -> Array:
        """Return (1 - sigma) grad f_j(v) + sigma grad g_j(v)."""
        if sigma == 0:
            return self.gradient(v)
        g: Array = self.objective.constraint_gradient(v)
        self.tally_gradients(1, full=True)
        return g if sigma == 1 else (1.0 - sigma) * self.gradient(v) + sigma * g

    def model(self, state: FedSGMClientState, down: Payload) -> Array:
        """Return w_t: from the message, or this client's copy plus the increment."""
        w: Array | None = down.get("w", state.w)
        assert w is not None  # noqa: S101  (the server sends w to whoever has no copy)
        if "w" in down or state.e is None:  # a copy without e was just sent by the server
            return w
        named = {key.partition("."): array for key, array in down.items()}
        parts = {part: array for (name, _, part), array in named.items() if name == "increment"}
        return w + dense(self.downlink_compressor.decode(parts, w.shape, w.dtype))
