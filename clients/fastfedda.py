"""FastFedDA, client side: K dual averaging steps. See `flower_fedcon.strategies.FastFedDA`."""

from __future__ import annotations

from flower_fedcon.clients.families.dual_averaging import DualAveragingClient
from flower_fedcon.clients.families.local_pass import LocalPass, LocalStepsClient
from flower_fedcon.solvers import Correction
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FastFedDAClient(DualAveragingClient, LocalStepsClient[None]):
    """The local step of FastFedDA; it keeps no state."""

    algorithm = "fastfedda"

    def correction(self, state: None, down: Payload) -> Correction:
        """Begin step 2 at z."""
        return Correction(down["z"])

    def point(self, z: Array, k: int, down: Payload) -> Array:
        """Return v."""
        return self.minimizer(self.regularizer, z, down["steps"] + k) if k else down["w"]

    def move(self, z: Array, w: Array, g: Array) -> Array:
        """Add a gradient together with its own point."""
        return z - g + (0.5 * self.strong_convexity) * w

    def upload(self, state: None, down: Payload, done: LocalPass) -> tuple[Payload, None]:
        """Do step 3."""
        return {"z": done.end, **self.counted(done)}, None
