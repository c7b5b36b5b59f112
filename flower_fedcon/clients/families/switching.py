"""A client's part in a step on a weighted sum of objective and constraints."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.bounds import ConstraintSums
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")
_METHODS = {
    "mean": ("constraint_value", "constraint_gradient"),
    "groups": ("constraint_sums", "constraint_counts", "constraint_sums_gradient"),
}


class SwitchingClient(LocalPassClient[State]):
    """A client's part with a constraint on the mean, on each client, or on groups."""

    constraints: str
    groups: int | None

    def configure(self, run: RunInfo) -> None:
        """Refuse an objective without a constraint, or with the wrong number of them."""
        super().configure(run)
        for method in _METHODS.get(self.constraints, ()):
            if not hasattr(self.objective, method):
                remedy = "use NeymanPearson, or define constraint_value and constraint_gradient"
                if self.constraints == "groups":
                    remedy = "use GroupLossBounds"
                raise ConfigError(
                    f"FedSGM needs objectives with a constraint, and {self._own_objective!r} has "
                    f"no {method}(x): {remedy}"
                )
        if self.constraints == "mean":
            return
        self._sums = ConstraintSums(self.objective, self.constraints)
        if len(self._sums.counts) != (self.groups or 1):
            raise ConfigError(
                f"this client has {len(self._sums.counts)} groups, the server's FedSGM has "
                f"groups={self.groups}: give server and clients the same number"
            )

    def answers(self, w: Array) -> Payload:
        """Return the values of constraints at w that the server asks for."""
        if self.constraints == "mean":
            return {"constraint": float(self.objective.constraint_value(w))}
        sums = {f"sum_{k}": float(value) for k, value in enumerate(self._sums.sums(w))}
        return sums | {f"count_{k}": float(n) for k, n in enumerate(self._sums.counts)}

    def mixture(self, down: Payload) -> tuple[float, Array]:
        """Return C omega_j, and the factors of this client's sums, shape (m,)."""
        active, weights = down["active"], down["weights"]
        factors = np.zeros(len(self._sums.counts))
        if self.constraints == "groups":
            factors[active] = weights
        elif self._index in active:
            factors[:] = weights[active == self._index]
        return float(1.0 - down["sigma"] + factors @ self._sums.counts), factors

    def mixed_gradient(self, v: Array, sigma: float, own: Array) -> Array:
        """Return (1 - sigma) grad f_j(v) + sum_k own_k grad s_jk(v)."""
        if not own.any():
            return (1.0 - sigma) * self.gradient(v)
        g = self._sums.gradient(v, own)
        self.tally_gradients(1, full=True)
        return g if sigma == 1 else (1.0 - sigma) * self.gradient(v) + g
