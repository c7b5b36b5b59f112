"""Methods that declare their local pass as a record, and compute the upload from its end.

This package carries out the pass. If a class allows it, the user's own training loop
(`flower_fedcon.training`) may do so, with corrections and points from the same record.
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
    """A client that declares its local pass, and the upload from the pass's end."""

    in_loops: ClassVar[bool] = False
    """Whether a user's own training loop may carry out the pass."""
    keeps_gradient: ClassVar[bool] = False
    """Whether a user's own loop must record the mean of its gradients."""
    _varied: Done | None = None  # the last pass, if control variates move by a rate
    _schedule: Schedule | None = None  # of client_lr, if it changes from round to round
    _own_rate: OwnRate | None = None  # of client_lr, if it adapts from step to step

    @abstractmethod
    def local_pass(self, state: State, down: Payload) -> LocalPass:
        """Return the pass."""

    @abstractmethod
    def upload(self, state: State, down: Payload, done: Done) -> tuple[Payload, State]:
        """Return the upload and the state to keep, after the pass."""

    def configure(self, run: RunInfo) -> None:
        """Adopt a run's settings; clients' own steps need gradients without noise."""
        super().configure(run)
        if self._own_rate is None:
            return
        objective, why = self._own_objective, ""
        if is_private(objective) or noise_of(objective):
            why = "differences of its gradients would consist of their noise"
        elif self._batch_size is not None and not hasattr(self.objective, "batch_gradient"):
            why = "it needs batch_gradient(x, rows) for two gradients of one minibatch"
        if why:
            raise ConfigError(
                f"client_lr={self._own_rate!r} cannot be used with this objective: {why}. Give a "
                f"number"
            )

    def begin_round(self, server_round: int, client: int = 0) -> None:
        """Begin a round, with the step length of the schedule."""
        super().begin_round(server_round, client)
        if self._schedule is not None:
            self.client_lr = self._schedule.at(server_round)

    def step(self, state: State, down: Payload) -> tuple[Payload, State]:
        """Carry out the pass."""
        declared = self.local_pass(state, down)
        if self._own_rate is not None:
            declared = declared._replace(own_rate=self._own_rate)
        done = self.play(declared)
        self._varied = None if done.declared.variate_rate is None else done
        return self.upload(state, down, done)

    def is_followed(self, sent: Payload, after: State) -> bool:
        """Return whether the state is control variates that the pass determines by their rate."""
        done, kept = self._varied, cast("tuple[Any, ...]", after)
        if done is None or any(value is not done.change for value in sent.values()):
            return False
        arrays = [value for value in kept if isinstance(value, np.ndarray)]
        return all(array is done.variates for array in arrays)

    def counted(self, done: Done) -> Payload:
        """Return the number of steps, for a server that does not know it.

        If steps differ in length, they are counted in units of the first.
        """
        if done.length is not None:
            return {"steps": told(done.length / self.client_lr)}
        return {"steps": float(done.steps)} if self.local_steps is None else {}

    def _take(self, settings: Mapping[str, Any]) -> None:
        """Take the settings; for a schedule the first step, until a round begins."""
        rate = settings.get("client_lr")
        self._schedule = rate if isinstance(rate, Schedule) else None
        if self._schedule is not None:
            settings = {**settings, "client_lr": self._schedule.at(1)}
        self._own_rate = rate if isinstance(rate, OwnRate) else None
        if self._own_rate is not None:
            settings = {**settings, "client_lr": self._own_rate.initial}
        super()._take(settings)
