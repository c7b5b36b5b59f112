"""FedFW, client side: one Frank-Wolfe step. See `flower_fedcon.strategies.FedFW`."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from flower_fedcon.clients.base import FedConClient
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.sets import Atom
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")


class FedFWClientState(NamedTuple):
    """A client's state."""

    x: Array  # x_i, shape (..., *model)
    d: Array | None  # d_i, averaged stochastic gradient over N, shape of x


class FrankWolfeClient(FedConClient[State]):
    """What FedFW and FedFWPlus share."""

    def configure(self, run: RunInfo) -> None:
        """Take over a run's settings, and see once what the objective and the set can do."""
        super().configure(run)
        self._count = float(self.num_clients)
        self._averages = self.settings.gradient == "stochastic"
        self._in_place = not self._averages and hasattr(self.objective, "add_gradient")
        self._at_once = self._in_place and hasattr(self.objective, "pulled_gradient")
        constraint = self.settings.constraint
        self._lmo, self._iterative = constraint.lmo, bool(getattr(constraint, "iterative", False))

    def add_own_gradient(self, g: Array, x: Array, d: Array | None, down: Payload) -> Array | None:
        """Add (1/N) grad f_i(x_i), or its running average, to g in place.

        Returns
        -------
        array or None
            The average d_i, to keep for the next round; None with full gradients.
        """
        if self._in_place:  # no array of its own: it may be 0 nearly everywhere
            self.objective.add_gradient(x, g, 1.0 / self._count)
            return None
        own: Array = self.gradient(x) / self._count
        if not self._averages:
            g += own
            return None
        if d is not None:  # no d yet: as if rho = 1
            rho: float = down["averaging"]
            own = (1.0 - rho) * d + rho * own
        g += own
        return own

    def surrogate_gradient(
        self, x: Array, d: Array | None, down: Payload
    ) -> tuple[Array, Array | None]:
        """Return (1/N) grad f_i(x_i) + lambda_t (x_i - x_bar), and d_i to keep."""
        if self._at_once:
            pull = down["penalty"]
            return self.objective.pulled_gradient(x, 1.0 / self._count, down["x_bar"], pull), None
        g = x - down["x_bar"]
        g *= down["penalty"]  # in place, here and above: half the memory traffic
        return g, self.add_own_gradient(g, x, d, down)

    def atom(self, g: Array, step_size: float) -> Atom:
        """Return lmo(g), no more exact than the step deserves where the oracle is iterative.

        An error of delta in the oracle costs the step eta delta, so that delta may fall with eta.
        """
        if self._iterative:
            return self._lmo(g, tolerance=0.01 * step_size)  # type: ignore[no-any-return]
        return self._lmo(g)  # type: ignore[no-any-return]


class FedFWClient(FrankWolfeClient[FedFWClientState]):
    """The local step of FedFW; x_i lives on the client."""

    algorithm = "fedfw"
    state_type = FedFWClientState

    def initialize(self, down: Payload) -> FedFWClientState:
        """Start at x0."""
        return FedFWClientState(x=down["x_bar"], d=None)

    def restore(self, down: Payload, given: Payload) -> FedFWClientState:
        """Take x_i from the server's mirror, or x_bar where it has none."""
        return FedFWClientState(x=given["x"] if given else down["x_bar"], d=None)

    def step(self, state: FedFWClientState, down: Payload) -> tuple[Payload, FedFWClientState]:
        """Do steps 2 to 4."""
        x = state.x
        step_size = down["step_size"]
        g, d = self.surrogate_gradient(x, state.d, down)
        atom = self.atom(g, step_size)
        return {"atom": atom}, FedFWClientState(atom.mix(x, step_size), d)
