"""FRECON, client side: compressed differences of gradients. See `flower_fedcon.strategies.FRECON`.

COFIG's clients upload only the first of the two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.compressors import Compressor, Identity, dense
from flower_fedcon.core.rng import COMPRESS
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FRECONClientState(NamedTuple):
    """A client's state."""

    h: Array  # h_i, the sum of what it has sent of its gradient, shape of the model
    resets: float  # the last collective reset that h has taken part in


class FRECONClient(FedConClient[FRECONClientState]):
    """The local step of FRECON; h_i lives on the client."""

    algorithm = "frecon"
    state_type = FRECONClientState

    variant: str
    uplink_compressor: Compressor
    alpha: float

    def initialize(self, down: Payload) -> FRECONClientState:
        """Start with h_i = 0."""
        return FRECONClientState(np.zeros_like(down["x"]), down.get("resets", 0))

    def restore(self, down: Payload, given: Payload) -> FRECONClientState:
        """Take h_i from the server's mirror; without one all start at 0."""
        return self.initialize(down)._replace(**given)

    def on_acknowledged(self, state: FRECONClientState, down: Payload) -> FRECONClientState:
        """Take part in a collective reset."""
        return state if state.resets == down.get("resets", 0) else self.initialize(down)

    def step(self, state: FRECONClientState, down: Payload) -> tuple[Payload, FRECONClientState]:
        """Do steps 2 and 3, with the server's x_{k-1}: this client may have been absent."""
        gradient = self.gradient(down["x"])
        sent: Payload = {"u": gradient - state.h}
        if self.variant == "frecon":
            sent["q"] = gradient - self.gradient(down["before"])
        read = sent["u"]
        if not isinstance(self.uplink_compressor, Identity):
            rng = self.rng(COMPRESS)
            sent = {name: self.uplink_compressor.compress(v, rng) for name, v in sent.items()}
            read = dense(sent["u"])
        return sent, state._replace(h=state.h + self.alpha * read)
