"""One Frank-Wolfe step: FedFW and FedFWPlus."""

from __future__ import annotations

from typing import TypeVar

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.objectives.client_axis import StepTaker, VertexStep
from flower_fedcon.sets import Atom, ConstraintSet, CoordinateAtom
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")


class FrankWolfeClient(FedConClient[State]):
    """The gradient of the surrogate, the oracle, and the step; if possible in one call."""

    constraint: ConstraintSet
    stochastic: bool
    batch_size: int | None

    def configure(self, run: RunInfo) -> None:
        """Adopt a run's settings; check once whether a step can be one call."""
        super().configure(run)
        kind, base = type(self), FrankWolfeClient
        at_once = isinstance(self.objective, StepTaker) and not self.stochastic
        at_once &= (kind.atom, kind.pulled_gradient) == (base.atom, base.pulled_gradient)
        at_once &= kind.gradient is FedConClient.gradient
        self._magnitude = self.constraint.coordinate_magnitude if at_once else None
        self._adds = getattr(self.objective, "add_gradient", None) is not None
        self._pulls = self._adds and hasattr(self.objective, "pulled_gradient")
        self._share = 1.0 / run.num_clients

    def pulled_gradient(self, x: Array, center: Array, pull: float) -> Array:
        """Return (1/N) grad f_i(x) + pull (x - center), over all rows, in the fewest passes."""
        if self._pulls:
            return self.objective.pulled_gradient(x, self._share, center, pull)  # type: ignore[no-any-return]
        return self.with_gradient(x, pull * (x - center))

    def with_gradient(self, x: Array, g: Array) -> Array:
        """Return g plus (1/N) grad f_i(x), over all rows; may change g, if that is faster."""
        if self._adds:  # without a new array: the gradient may be 0 nearly everywhere
            self.objective.add_gradient(x, g, self._share)
            return g
        return g + self.objective.gradient(x) / self.num_clients  # type: ignore[no-any-return]

    def frank_wolfe_step(
        self, x: Array, d: Array | None, down: Payload
    ) -> tuple[Atom, Array, Array | None]:
        """Return s = lmo(g), the step (1 - eta) x + eta s, and d_i to keep.

        g = (1/N) grad f_i(x) + lambda_t (x - x_bar), with d_i for the first term if stochastic.
        """
        center, pull, step_size = down["x_bar"], down["penalty"], down["step_size"]
        if self._magnitude is not None:
            step = VertexStep(x, self._share, center, pull, step_size, self._magnitude)
            if (taken := self.objective.vertex_step(step)) is not None:
                self.tally_gradients(1, full=True)
                self.tally(lmos=1)
                codes, moved = taken
                return CoordinateAtom(codes, self._magnitude, x.shape, x.dtype), moved, None
        if self.stochastic:
            g, d = self.with_own_gradient(x, d, down, pull * (x - center))
        else:
            g = self.pulled_gradient(x, center, pull)
            self.tally_gradients(1, full=True)
        atom = self.atom(g, step_size)
        return atom, atom.mix(x, step_size), d

    def with_own_gradient(
        self, x: Array, d: Array | None, down: Payload, g: Array
    ) -> tuple[Array, Array | None]:
        """Return g plus (1/N) grad f_i(x_i), or plus its running average; g may change.

        Returns
        -------
        g : array
        d : array or None
            The average d_i, to keep for the next round; None with full gradients.
        """
        if not self.stochastic:
            self.tally_gradients(1, full=True)
            return self.with_gradient(x, g), None
        term: Array = self.gradient(x) / self.num_clients
        if d is not None:  # no d yet: the same as rho = 1
            rho: float = down["averaging"]
            term = (1.0 - rho) * d + rho * term
        return g + term, term

    def atom(self, g: Array, step_size: float) -> Atom:
        """Return lmo(g); an iterative oracle is only as accurate as the step needs.

        An error of delta in the oracle costs the step eta delta; here delta is proportional to eta.
        """
        self.tally(lmos=1)
        if self.constraint.iterative:
            return self.constraint.lmo(g, tolerance=0.01 * step_size)  # type: ignore[call-arg]
        return self.constraint.lmo(g)
