"""A client's part in a step on a weighted sum of objective and constraints."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from flower_fedcon.clients.base import FedConClient
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


def sums_of(
    client: FedConClient[Any], title: str, constraints: str, groups: int | None
) -> ConstraintSums:
    """Return a client's part of several constraints.

    Raises
    ------
    ConfigError
        If its objective has no such constraint, or not one for each group.
    """
    for method in _METHODS.get(constraints, ()):
        if not hasattr(client.objective, method):
            remedy = "use NeymanPearson, or define constraint_value and constraint_gradient"
            if constraints == "groups":
                remedy = "use GroupLossBounds"
            raise ConfigError(
                f"{title} needs objectives with a constraint, and {client._own_objective!r} has "
                f"no {method}(x): {remedy}"
            )
    sums = ConstraintSums(client.objective, constraints)
    if constraints != "mean" and len(sums.counts) != (groups or 1):
        raise ConfigError(
            f"this client has {len(sums.counts)} groups, the server's {title} has "
            f"groups={groups}: give server and clients the same number"
        )
    return sums


def answered(sums: ConstraintSums, x: Array) -> Payload:
    """Return the sums at x, and the numbers of rows, in the form of a query's answer."""
    told: Payload = {f"sum_{k}": float(value) for k, value in enumerate(sums.sums(x))}
    return told | {f"count_{k}": float(n) for k, n in enumerate(sums.counts)}


class SwitchingClient(LocalPassClient[State]):
    """A client's part with a constraint on the mean, on each client, or on groups."""

    constraints: str
    groups: int | None

    def configure(self, run: RunInfo) -> None:
        """Refuse an objective without a constraint, or with the wrong number of them."""
        super().configure(run)
        self._sums = sums_of(self, "FedSGM", self.constraints, self.groups)

    def answers(self, w: Array) -> Payload:
        """Return the values of constraints at w that the server asks for."""
        if self.constraints == "mean":
            return {"constraint": float(self.objective.constraint_value(w))}
        return answered(self._sums, w)

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
