"""FastFedDA, client side: K dual averaging steps. See `flower_fedcon.strategies.FastFedDA`."""

from __future__ import annotations

from typing import Any

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.regularizers.constrained import constrained_prox
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


def minimizer(
    method: Any, psi: Any, z: Array, steps: float, anchor: Array | None = None, radius: Any = None
) -> Array:
    """Return P(z, A), the minimiser of the model after A = `steps` steps, on client and server.

    With an anchor, within ||w - anchor||_psi <= radius. `method` knows gamma (damping) and mu
    (strong_convexity).
    """
    curvature = method.damping + 0.5 * method.strong_convexity * steps
    center, step = z / curvature, steps / curvature
    if anchor is None:
        return psi.prox(center, step)  # type: ignore[no-any-return]
    return constrained_prox(psi, center, step, anchor, radius)


class FastFedDAClient(FedConClient[None]):
    """The local step of FastFedDA; it keeps no state."""

    algorithm = "fastfedda"

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, with v and z of shape (..., *model)."""
        s = self.settings
        v, z = down["w"], down["z"]
        for k in range(1, s.local_steps + 1):
            z = z - self.gradient(v) + (0.5 * s.strong_convexity) * v
            if k < s.local_steps:
                v = minimizer(s, s.regularizer, z, down["steps"] + k)
        return {"z": z}, None
