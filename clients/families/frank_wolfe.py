"""One Frank-Wolfe step: FedFW and FedFWPlus."""

from __future__ import annotations

from typing import TypeVar

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.sets import Atom, ConstraintSet
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")


class FrankWolfeClient(FedConClient[State]):
    """The gradient of the surrogate, and the oracle."""

    constraint: ConstraintSet
    stochastic: bool
    batch_size: int | None

    def surrogate_gradient(
        self, x: Array, d: Array | None, down: Payload
    ) -> tuple[Array, Array | None]:
        """Return (1/N) grad f_i(x_i) + lambda_t (x_i - x_bar), and d_i to keep."""
        if not self.stochastic:
            return self.pulled_gradient(x, down["x_bar"], down["penalty"]), None
        g = x - down["x_bar"]
        g *= down["penalty"]
        return g, self.add_own_gradient(x, d, down, g)

    def add_own_gradient(
        self, x: Array, d: Array | None, down: Payload, out: Array
    ) -> Array | None:
        """Add (1/N) grad f_i(x_i), or its running average, to `out` in place.

        Returns
        -------
        array or None
            The average d_i, to keep for the next round; None with full gradients.
        """
        if not self.stochastic:
            self.add_gradient(x, out)
            return None
        own: Array = self.gradient(x) / self.num_clients
        if d is not None:  # no d yet: as if rho = 1
            rho: float = down["averaging"]
            own = (1.0 - rho) * d + rho * own
        out += own
        return own

    def atom(self, g: Array, step_size: float) -> Atom:
        """Return lmo(g), no more exact than the step deserves where the oracle is iterative.

        An error of delta in the oracle costs the step eta delta, so that delta may fall with eta.
        """
        if self.constraint.iterative:
            return self.constraint.lmo(g, tolerance=0.01 * step_size)  # type: ignore[call-arg]
        return self.constraint.lmo(g)
