"""DRFA, client side: K gradient steps, the point after k of them, and a loss.

See `flower_fedcon.strategies.DRFA`.
"""

from __future__ import annotations

import numpy as np

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.clients.families.switching import answered, sums_of
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.objectives.local_pass import LocalPass
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class DRFAClient(FedConClient[None]):
    """The local step of DRFA; it keeps no state."""

    algorithm = "drfa"
    needs_values = "the value of its objective"

    client_lr: float
    local_steps: int
    groups: int | None
    batch_size: int | None

    def configure(self, run: RunInfo) -> None:
        """Refuse an objective without a loss for each group."""
        super().configure(run)
        if self.groups is not None:
            self._sums = sums_of(self, "DRFA", "groups", self.groups)

    def query(self, state: None, down: Payload) -> tuple[Payload, Payload]:
        """Answer with the s_jk(z) and n_jk."""
        return answered(self._sums, down["z" if "z" in down else "w"]), down

    def step(self, state: None, down: Payload) -> tuple[Payload, None]:
        """Do steps 2 and 3, with w of shape (..., *model)."""
        if self.groups is not None:
            return self._step_of_groups(down), None
        w, eta, count = down["w"], self.client_lr, self.local_steps
        if "z" not in down:  # it is w
            done = self.play(LocalPass(w, steps=count, rate=eta))
            return {"delta": done.change, "loss": self.loss_at(w)}, None
        k, loss = int(down["k"]), self.loss_at(down["z"])
        seen = self.play(LocalPass(w, steps=k, rate=eta))
        end = self.play(LocalPass(seen.end, steps=count - k, rate=eta)).end
        return {"delta": end - w, "at_k": seen.change, "loss": loss}, None

    def _step_of_groups(self, down: Payload) -> Payload:
        """Do step 2 on the groups' weighted losses, and upload C omega_j (v_j - w)."""
        w, count, factors = down["w"], self.local_steps, np.zeros(len(self._sums.counts))
        factors[down["active"]] = down["weights"]
        share = float(factors @ self._sums.counts)

        def gradient(v: Array) -> Array:
            self.tally_gradients(1, full=True)
            return self._sums.gradient(v, factors)

        def end(start: Array, steps: int) -> Array:
            if not share:  # it has no rows of these groups
                return start
            rate = self.client_lr / share
            return self.play(LocalPass(start, steps=steps, rate=rate, gradient=gradient)).end

        k = int(down.get("k", count))
        seen = end(w, k)
        if "z" not in down:
            return {"delta": share * (seen - w)}
        return {"delta": share * (end(seen, count - k) - w), "at_k": share * (seen - w)}
