"""Methods whose clients minimise, and keep one control variate: FedDyn and 5GCS."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol, TypeVar, Unpack

import numpy as np

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.strategies.families.minimization import LocalMinimization, MinimisationOptions
from flower_fedcon.strategies.families.mirrored import Mirrored
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


class VariateOptions(MinimisationOptions, total=False):
    """The arguments of `ControlVariates`."""

    mirror: bool


class ControlVariates(LocalMinimization[State], Mirrored[State]):
    """Each client keeps one control variate, from 0.

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
