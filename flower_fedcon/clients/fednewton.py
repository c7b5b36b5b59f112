"""FedNewton, client side: the second-order model. See `flower_fedcon.strategies.FedNewton`."""

from __future__ import annotations

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.noisy import NoisySteps
from flower_fedcon.solvers.quadratic_models import taylor
from flower_fedcon.wire.payloads import Payload


class FedNewtonClient(FedConClient[None]):
    """The local step of FedNewton; it keeps no state."""

    algorithm = "fednewton"
    one_at_a_time = "asks each client for its second derivatives"
    needs_values = "values and second derivatives"

    def configure(self, run: RunInfo) -> None:
        """Adopt a run's settings; refuse noise, since a second-order model would fit it."""
        super().configure(run)
        if isinstance(self.objective, NoisySteps):
            raise ConfigError(
                "FedNewton needs exact gradients and second derivatives, which Noisy objectives do "
                "not give: use a method of gradient steps, such as CompositeFL, or a problem "
                "without noise"
            )

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3."""
        x, f = down["x"], self.objective
        if not hasattr(f, "hessian"):
            raise ConfigError(
                "FedNewton needs objectives with hessian(x), the matrix of second derivatives, "
                "and this one has none: define it, or use a first-order method such as CompositeFL"
            )
        self.tally_gradients(1, full=True)
        self.tally(hessian_products=x.size)  # a Hessian counts one product with each unit vector
        value, gradient = f.value(x), f.gradient(x)
        # A `hessian` made positive at each client is not that of the sum, on which Newton's
        # quadratic convergence rests.
        second = getattr(f, "indefinite_hessian", f.hessian)
        return {"m": taylor(x, value, gradient, second(x))}, None
