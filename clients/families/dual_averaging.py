"""K dual averaging steps: FastFedDA, CFedDA, MCFedDA."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.clients.families.local_pass import LocalStepsClient
from flower_fedcon.objectives.client_axis import Steps
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers import Correction
from flower_fedcon.solvers.dual_averaging import model_curvature, model_minimizer
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class DualAveragingClient(FedConClient[None]):
    """Clients that keep no state, and minimise the server's model after each gradient."""

    strong_convexity: float
    damping: float
    local_steps: int | None
    regularizer: Regularizer
    batch_size: int | None

    def minimizer(self, psi: Any, z: Array, steps: float, **ball: Any) -> Array:
        """Return P(z, A), the minimiser after A steps."""
        mu, gamma = self.strong_convexity, self.damping
        return model_minimizer(psi, z, steps, damping=gamma, strong_convexity=mu, **ball)

    def gradient_sum(self, down: Payload, psi: Any, radius: float | None) -> Payload:
        """Return g_i after K steps of CFedDA, with v and g of shape (..., *model)."""
        v, g, anchor = down["w"], np.zeros_like(down["w"]), down.get("anchor")
        steps = self.local_steps or 0
        for k in range(1, steps + 1):
            g = g + self.gradient(v)
            if k < steps:
                z = down["z"] - g
                v = self.minimizer(psi, z, down["steps"], anchor=anchor, radius=radius)
        return {"g": g}


class DualAveragingSteps(DualAveragingClient, LocalStepsClient[None]):
    """A client whose pass is such steps, from z and its minimiser w, all of weight 1."""

    def point(self, z: Array, k: int, down: Payload) -> Array:
        """Return v."""
        return self.minimizer(self.regularizer, z, down["steps"] + k) if k else down["w"]

    def move(self, z: Array, w: Array, g: Array) -> Array:
        """Add a gradient together with its own point."""
        moved = z - g
        moved += (0.5 * self.strong_convexity) * w
        return moved

    def steps_ahead(self, added: Correction, count: int, down: Payload) -> Steps | None:
        """Return them as numbers: prox(z / c, A / c) is soft(z, A l1) / (c + A l2)."""
        weights, mu, gamma = self.prox_weights(), self.strong_convexity, self.damping
        if weights is None:
            return None
        steps = [down["steps"] + k for k in range(count)]
        points = [(A * weights[0], model_curvature(A, gamma, mu) + A * weights[1]) for A in steps]
        return Steps(added.start, 1.0, points, (1.0, 0.5 * mu), first=down["w"])
