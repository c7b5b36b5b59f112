"""FedSGM, client side: E steps on objective or constraint. See `flower_fedcon.strategies.FedSGM`.

A client keeps state with error feedback only; without it both fields stay None.
"""

from __future__ import annotations

from typing import NamedTuple

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.compressors import Compressor, dense
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.core.rng import COMPRESS
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedSGMClientState(NamedTuple):
    """A client's state."""

    w: Array | None  # w_t of the round that left this state, shape (..., *model)
    e: Array | None  # e_j, what compression has held back, shape of w; None before any round


class FedSGMClient(FedConClient[FedSGMClientState]):
    """The local step of FedSGM."""

    algorithm = "fedsgm"
    state_type = FedSGMClientState

    client_lr: float
    local_steps: int
    uplink_compressor: Compressor
    downlink_compressor: Compressor
    feedback: bool
    batch_size: int | None

    def configure(self, run: RunInfo) -> None:
        """Refuse an objective without constraint."""
        super().configure(run)
        for method in ("constraint_value", "constraint_gradient"):
            if not callable(getattr(self.objective, method, None)):
                raise ConfigError(
                    f"FedSGM needs objectives with a constraint, {self._own_objective!r} has no "
                    f"{method}(x): use NeymanPearson, or define constraint_value and "
                    "constraint_gradient"
                )

    def initialize(self, down: Payload) -> FedSGMClientState:
        """Start with nothing: the first message holds w, and e = 0."""
        return FedSGMClientState(w=None, e=None)

    def restore(self, down: Payload, given: Payload) -> FedSGMClientState:
        """Take w from the server, where this form keeps a copy, and e = 0."""
        return FedSGMClientState(w=given.get("w"), e=None)

    def query(self, state: FedSGMClientState, down: Payload) -> tuple[Payload, Payload]:
        """Answer step 1 with g_j(w)."""
        w = self.model(state, down)
        return {"constraint": float(self.objective.constraint_value(w))}, {"w": w}

    def step(self, state: FedSGMClientState, down: Payload) -> tuple[Payload, FedSGMClientState]:
        """Do steps 3 and 4 or 4', with v of shape (..., *model)."""
        v = w = self.model(state, down)
        for _ in range(self.local_steps):
            v = v - self.client_lr * self.direction(v, down["sigma"])
        moved, rng = (w - v) / self.client_lr, self.rng(COMPRESS)
        if not self.feedback:
            return {"delta": self.uplink_compressor.compress(moved, rng)}, state
        owed = moved if state.e is None else state.e + moved
        delta = self.uplink_compressor.compress(owed, rng)
        return {"delta": delta}, FedSGMClientState(w, owed - dense(delta))

    def direction(self, v: Array, sigma: float) -> Array:
        """Return (1 - sigma) grad f_j(v) + sigma grad g_j(v)."""
        if sigma == 0:
            return self.gradient(v)
        g: Array = self.objective.constraint_gradient(v)
        return g if sigma == 1 else (1.0 - sigma) * self.gradient(v) + sigma * g

    def model(self, state: FedSGMClientState, down: Payload) -> Array:
        """Return w_t: as it came, or this client's copy plus the increment."""
        w: Array | None = down.get("w", state.w)
        assert w is not None  # noqa: S101  (the server sends w to whoever has no copy)
        if "w" in down or state.e is None:  # a copy without e has just come from the server
            return w
        named = {key.partition("."): array for key, array in down.items()}
        parts = {part: array for (name, _, part), array in named.items() if name == "increment"}
        return w + dense(self.downlink_compressor.decode(parts, w.shape, w.dtype))
