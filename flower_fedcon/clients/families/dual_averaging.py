"""K dual averaging steps: FastFedDA, CFedDA, MCFedDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass, Prox
from flower_fedcon.regularizers import Regularizer
from flower_fedcon.solvers.dual_model import model_curvature, model_minimizer
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class DualAveragingClient(LocalPassClient[None]):
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

    def minimizers(self, psi: Any, steps: Callable[[int], float]) -> Prox:
        """Return these minimisers as the points of a pass, after steps(k) steps."""
        mu, gamma = self.strong_convexity, self.damping
        return Prox(psi, steps, lambda k: model_curvature(steps(k), gamma, mu))


class GradientSumClient(DualAveragingClient):
    """A client that sums gradients, at the model's points after A steps."""

    def sum_at(self, down: Payload, psi: Any, radius: float | None) -> LocalPass:
        """Return the pass: g := g + grad f_i(v), from g = 0 and v = w."""
        z, w, anchor = down["z"], down["w"], down.get("anchor")

        def point(g: Array, k: int) -> Array:
            return self.minimizer(psi, z - g, down["steps"], anchor=anchor, radius=radius)

        count = self.local_steps or 0
        return LocalPass(np.zeros_like(w), steps=count, rate=-1.0, point=point, first=w)

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """Do step 3."""
        return {"g": done.end}, None
