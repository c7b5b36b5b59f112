"""Methods whose clients keep a control variate: FedDyn, 5GCS, Scaffold and CompositeFL."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol, TypeVar, Unpack

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.strategies.families.local_steps import LocalSteps
from flower_fedcon.strategies.families.minimization import LocalMinimization, MinimisationOptions
from flower_fedcon.strategies.families.mirrored import HasMirror, Mirrored
from flower_fedcon.validation import Array


class HasVariates(Protocol):
    """A state that holds the clients' control variates, or counts collective resets."""

    @property
    def mirror(self) -> Mirror | None:
        """The clients' control variates, by the name "variate"."""

    @property
    def resets(self) -> int:
        """The number of collective resets."""


State = TypeVar("State", bound=HasVariates)
Held = TypeVar("Held", bound=HasMirror)


class VariateOptions(MinimisationOptions, total=False):
    """The arguments of `ControlVariates`."""

    mirror: bool


class ControlVariates(LocalMinimization[State], Mirrored[State]):
    """Each client minimises, and keeps one control variate, from 0: FedDyn and 5GCS.

    Parameters
    ----------
    mirror : bool (default: True)
        Keep the clients' control variates on the server, for clients that lose their state.
    """

    def __init__(self, *, mirror: bool = True, **common: Unpack[MinimisationOptions]) -> None:
        super().__init__(**common)
        self.mirror = bool(mirror)

    @abstractmethod
    def reset(self, state: State) -> State:
        """Return the state after one more collective reset, with the same model."""

    def variates(self, x0: Array) -> Mirror | None:
        """Return the control variates of all clients before round 1."""
        return self.mirrored(self.mirror, variate=np.zeros_like(x0))


class CorrectedSteps(LocalSteps[Held], Mirrored[Held]):
    """Each client's steps are corrected by its control variate: Scaffold and CompositeFL."""

    usual_steps = 5

    def safe_share(self) -> float:
        """Return the largest safe step times L: a quarter, divided by K and the server's step."""
        return float(1 / (4 * self.local_steps * max(1.0, self.server_lr)))

    def ladder(self, name: str, value: Any) -> list[Any]:
        """Return the values that a race tries for an argument."""
        return self.safe_ladder(value) if name == "client_lr" else super().ladder(name, value)
