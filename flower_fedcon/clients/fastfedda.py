"""FastFedDA, client side: K dual averaging steps. See `flower_fedcon.strategies.FastFedDA`."""

from __future__ import annotations

from flower_fedcon.clients.families.dual_averaging import DualAveragingClient
from flower_fedcon.objectives.local_pass import Done, LocalPass, proxes_of
from flower_fedcon.solvers.dual_model import step_weight
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class FastFedDAClient(DualAveragingClient):
    """The local step of FastFedDA; it keeps no state."""

    algorithm = "fastfedda"
    in_loops = True

    weight_power: float
    weight_shift: float
    average: bool

    def local_pass(self, state: None, down: Payload) -> LocalPass:
        """Do step 2 from z and its minimiser w, with steps of weight 1."""
        A, mu = down["steps"], self.strong_convexity
        point = self.minimizers(self.regularizer, lambda k: A + k)
        z, w, count = down["z"], down["w"], self.local_steps or 0
        return LocalPass(z, steps=count, rate=1.0, point=point, first=w, onward=(1.0, 0.5 * mu))

    def upload(self, state: None, down: Payload, done: Done) -> tuple[Payload, None]:
        """Do step 3."""
        return {"z": done.end, **self.counted(done)}, None

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, if steps have weights or points are averaged."""
        if not self.weight_power and not self.average:
            return super().step(state, down)
        v, z, A, t = down["w"], down["z"], down["steps"], down["t"]
        points: Array = 0.0 * v
        for k in range(1, (self.local_steps or 0) + 1):
            if k > 1:
                v = self.minimizer(self.regularizer, z, A)
                self.tally(proxes=proxes_of(self.regularizer))
            alpha = step_weight(t + k, self.weight_power, self.weight_shift)
            A = A + alpha
            z = z - alpha * self.gradient(v) + (0.5 * alpha * self.strong_convexity) * v
            points = points + alpha * v
        return {"z": z, "points": points} if self.average else {"z": z}, None
