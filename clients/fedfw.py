"""FedFW, client side: one Frank-Wolfe step. See `flower_fedcon.strategies.FedFW`."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from flower_fedcon.checks import Array
from flower_fedcon.clients.base import FedConClient
from flower_fedcon.sets import Atom
from flower_fedcon.wire import Payload

State = TypeVar("State")


class FedFWClientState(NamedTuple):
    """A client's state."""

    x: Array  # x_i, shape (..., *model)
    d: Array | None  # d_i, averaged stochastic gradient over N, shape of x


class FrankWolfeClient(FedConClient[State]):
    """What FedFW and FedFWPlus share."""

    def scaled_gradient(self, x: Array, d: Array | None, down: Payload) -> Array:
        """Return (1/N) grad f_i(x), or its running average d_i for stochastic gradients."""
        g: Array = self.gradient(x) / self.num_clients
        if self.settings.gradient == "full" or d is None:  # no d yet: as if rho = 1
            return g
        rho: float = down["averaging"]
        return (1.0 - rho) * d + rho * g

    def atom(self, g: Array, step_size: float) -> Atom:
        """Return lmo(g), no more exact than the step deserves where the oracle is iterative.

        An error of delta in the oracle costs the step eta delta, so that delta may fall with eta.
        """
        constraint = self.settings.constraint
        if getattr(constraint, "iterative", False):
            return constraint.lmo(g, tolerance=0.01 * step_size)  # type: ignore[no-any-return]
        return constraint.lmo(g)  # type: ignore[no-any-return]

    def kept(self, g: Array) -> Array | None:
        """Return what to keep of `scaled_gradient` for the next round."""
        return g if self.settings.gradient == "stochastic" else None


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
        d = self.scaled_gradient(x, state.d, down)
        step_size = down["step_size"]
        g = x - down["x_bar"]
        g *= down["penalty"]  # in place, here and below: half the memory traffic
        g += d
        atom = self.atom(g, step_size)
        return {"atom": atom}, FedFWClientState(atom.mix(x, step_size), self.kept(d))
