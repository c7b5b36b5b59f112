"""FedLin, client side: a gradient, or H corrected gradient steps.

See `flower_fedcon.strategies.FedLin`.
"""

from __future__ import annotations

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedLinClient(LocalPassClient[None]):
    """The local step of FedLin; it keeps no state."""

    algorithm = "fedlin"

    client_lr: float
    local_steps: int
    batch_size: int | None
    clip: float | None

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do step 1, or step 2 if the broadcast has the mean gradient."""
        if "g" not in down:
            return {"gradient": self._gradient_at(down["x"])}, None
        return super().step(state, down)

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Take the steps of step 2: <g - grad f_i(x), y>, after a first step along g alone."""
        x, g, eta = down["x"], down["g"], self.client_lr
        drift, steps = g - self._gradient_at(x), self.local_steps - 1
        return LocalPass(x - eta * g, linear=drift, steps=steps, rate=eta, clip=self.clip)

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """End step 2."""
        return {"delta": done.end - down["x"]}, None

    def _gradient_at(self, x: Array) -> Array:
        """Return the gradient at the broadcast model, in the form that the steps use."""
        return LocalPass(x, clip=self.clip).clipped(self.gradient(x), len(self.model_axes))  # type: ignore[no-any-return]
