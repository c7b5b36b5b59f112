"""FedExProx, client side: a proximal step. See `flower_fedcon.strategies.FedExProx`."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.solvers import LocalProblem, LocalSolver
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FedExProxClient(LocalPassClient[None]):
    """The local step of FedExProx; it keeps no state."""

    algorithm = "fedexprox"
    in_loops = True
    rounding: ClassVar[float] = 1e-12
    """Relative to |inf f_i|: a smaller M_i - inf f_i has no correct digit, and is sent as 0."""

    step_size: float
    local_solver: LocalSolver
    polyak: bool
    infimum: float | None
    _least: float | None = None  # inf f_i, computed once by each object

    def configure(self, run: RunInfo) -> None:
        """Adopt a run's settings."""
        super().configure(run)
        self._least = self.infimum

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do step 2 from x: ||v - x||^2/(2 gamma)."""
        x = down["x"]
        return LocalPass(x, shift=1 / self.step_size, center=x, solver=self.local_solver)

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """Do step 3."""
        delta = done.change
        if not self.polyak:
            return {"delta": delta}, None
        least = self.least(done.start)
        envelope = float(self.objective.value(done.end))
        envelope += float(np.vdot(delta, delta)) / (2 * self.step_size)
        gap = envelope - least
        return {"delta": delta, "gap": gap if gap > self.rounding * abs(least) else 0.0}, None

    def least(self, x: Array) -> float:
        """Return inf f_i, computed from a fixed start, so that it is always the same.

        `x` has the model's shape.
        """
        if self._least is None:
            solution = self.local_solver.solve(LocalProblem(self.objective, np.zeros_like(x)))
            self.tally_solution(solution)
            self._least = float(self.objective.value(solution.x))
        return self._least
