"""S-DANE, client side: a gradient, or a corrected minimisation.

See `flower_fedcon.strategies.SDANE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flower_fedcon.arrays import length
from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.solvers import LocalSolver
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class SDANEClient(LocalPassClient[None]):
    """The local step of S-DANE; it keeps no state."""

    algorithm = "sdane"

    proximal: float
    stopping: str
    local_solver: LocalSolver

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do step 1, or step 2 if the broadcast has the mean gradient."""
        if "g" not in down:
            return {"gradient": self.full_gradient(down["y"])}, None
        return super().step(state, down)

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do the minimisation of step 2, from y."""
        y, lam, early = down["y"], self.proximal, self.stopping == "relative"
        return LocalPass(
            y,
            linear=down["g"] - self.full_gradient(y),
            shift=lam,
            center=y,
            solver=self.local_solver,
            stop=Relative(y, lam / 2, len(self.model_axes)) if early else None,
        )

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """End step 2."""
        return {"delta": done.end - down["y"], "end_gradient": self.full_gradient(done.end)}, None


@dataclass(frozen=True)
class Relative:
    """A test that a gradient's norm is at most `most` times the distance from the centre.

    Attributes
    ----------
    center : array, shape of the model
    most : float
    axes : int
        Number of axes of the model.
    """

    center: Array
    most: float
    axes: int

    def __call__(self, x: Array, gradient: Array) -> Any:
        """Return the answer for one client, or an array of all clients' answers."""
        return length(gradient, self.axes) <= self.most * length(x - self.center, self.axes)

    def only(self, places: Array) -> Relative:
        """Return the test for some of many clients, which share the centre."""
        return self
