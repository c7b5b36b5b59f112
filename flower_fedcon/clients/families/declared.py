"""Methods that declare their local pass as a record, and turn its end into an upload.

This package plays the pass. Where a class says so, a user's own training loop
(`flower_fedcon.training`) may play it, with corrections and points from the same record.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from flower_fedcon.arrays import told
from flower_fedcon.clients.base import FedConClient
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.objectives.noisy import noise_of
from flower_fedcon.objectives.private_objective import is_private
from flower_fedcon.server.own_rates import OwnRate
from flower_fedcon.server.schedules import Schedule
from flower_fedcon.wire.payloads import Payload

State = TypeVar("State")


class LocalPassClient(FedConClient[State]):
    """A client that declares its local pass, and how its end becomes an upload."""

    in_loops: ClassVar[bool] = False
    """Whether a user's own training loop may play the pass."""
    keeps_gradient: ClassVar[bool] = False
    """Whether a user's own loop must record the mean of its gradients."""
    _varied: Done | None = None  # the last pass, if control variates move by a rate
    _schedule: Schedule | None = None  # of client_lr, where that changes from round to round
    _own_rate: OwnRate | None = None  # of client_lr, where that goes on from step to step

    @abstractmethod
    def local_pass(self, state: State, down: Payload) -> LocalPass:
        """Return the pass."""

    @abstractmethod
    def upload(self, state: State, down: Payload, done: Done) -> tuple[Payload, State]:
        """Return the upload and the state to keep, after the pass."""

    def configure(self, run: RunInfo) -> None:
        """Take over a run's settings; own steps need gradients without noise."""
        super().configure(run)
        if self._own_rate is None:
            return
        own, why = self._own_objective, ""
        if is_private(own) or noise_of(own):
            why = "differences of its gradients would consist of their noise"
        elif self._batch_size is not None and not hasattr(self.objective, "batch_gradient"):
            why = "it needs batch_gradient(x, rows) for two gradients of one minibatch"
        if why:
            raise ConfigError(
                f"client_lr={self._own_rate!r} cannot be used with this objective: {why}. Give a "
                f"number"
            )

    def begin_round(self, server_round: int, client: int = 0) -> None:
        """Go to a round, and to the length that its steps have by a schedule."""
        super().begin_round(server_round, client)
        if self._schedule is not None:
            self.client_lr = self._schedule.at(server_round)

    def step(self, state: State, down: Payload) -> tuple[Payload, State]:
        """Play the pass."""
        declared = self.local_pass(state, down)
        if self._own_rate is not None:
            declared = declared._replace(own_rate=self._own_rate)
        done = self.play(declared)
        self._varied = None if done.declared.variate_rate is None else done
        return self.upload(state, down, done)

    def is_followed(self, sent: Payload, after: State) -> bool:
        """Return whether the state is control variates that follow from the pass by their rate."""
        done, kept = self._varied, cast("tuple[Any, ...]", after)
        if done is None or any(value is not done.change for value in sent.values()):
            return False
        arrays = [value for value in kept if isinstance(value, np.ndarray)]
        return all(array is done.variates for array in arrays)

    def counted(self, done: Done) -> Payload:
        """Return the number of steps, for a server that does not know it.

        Where steps differ in length they are counted in units of the first.
        """
        if done.length is not None:
            return {"steps": told(done.length / self.client_lr)}
        return {"steps": float(done.steps)} if self.local_steps is None else {}

    def _take(self, settings: Mapping[str, Any]) -> None:
        """Take the settings; of a schedule the first step, until a round says which."""
        rate = settings.get("client_lr")
        self._schedule = rate if isinstance(rate, Schedule) else None
        if self._schedule is not None:
            settings = {**settings, "client_lr": self._schedule.at(1)}
        self._own_rate = rate if isinstance(rate, OwnRate) else None
        if self._own_rate is not None:
            settings = {**settings, "client_lr": self._own_rate.initial}
        super()._take(settings)
