"""Scaffnew, client side: corrected gradient steps; the server draws their number.

See `flower_fedcon.strategies.Scaffnew`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.core.rng import COIN, stream
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.objectives.private_objective import is_private
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class ScaffnewClientState(NamedTuple):
    """A client's state."""

    h: Array  # control variate h_i, shape (..., *model)
    x_hat: Array  # end point of the last round's steps, shape of h
    y: Array | None = None  # y_i, shape of h; None without it, and before the first step
    at_y: Array | None = None  # grad f_i(y_i), shape of h


class Reduced:
    """A round's gradients of minibatches, without their noise at the optimum.

    Parameters
    ----------
    client : ScaffnewClient
    y, at_y : array
        y_i, and grad f_i there.
    refreshed : set of int
        The steps, from 0, after which y_i is their point.
    """

    def __init__(self, client: ScaffnewClient, y: Array, at_y: Array, refreshed: set[int]) -> None:
        self._client, self._refreshed, self._asked = client, refreshed, 0
        self.y, self.at_y = y, at_y

    def __call__(self, x: Array) -> Array:
        """Return the next gradient."""
        client, k = self._client, self._asked
        estimate = client.gradient(x) - client.again(self.y) + self.at_y
        if k in self._refreshed:
            self.y, self.at_y = x, client.full_gradient(x)
        self._asked += 1
        return estimate


class ScaffnewClient(LocalPassClient[ScaffnewClientState]):
    """The local step of Scaffnew; h_i lives on the client."""

    algorithm = "scaffnew"
    state_type = ScaffnewClientState

    client_lr: float
    communication_probability: float
    batch_size: int | None
    clip: float | None
    refresh_probability: float | None

    def configure(self, run: RunInfo) -> None:
        """Adopt a run's settings; differences of gradients need one minibatch for both."""
        super().configure(run)
        if self.refresh_probability is None:
            return
        why, objective = "", self.objective
        if is_private(self._own_objective):
            why = "differences of its gradients would consist of their noise"
        elif not hasattr(objective, "again") and not hasattr(objective, "batch_gradient"):
            why = "it needs batch_gradient(x, rows) for two gradients of one minibatch"
        if why:
            raise ConfigError(
                f"refresh_probability={self.refresh_probability!r} cannot be used with this "
                f"objective: {why}. Leave it out"
            )

    def initialize(self, down: Payload) -> ScaffnewClientState:
        """Start with h_i = 0; with xhat_i = x_bar, step 2 keeps it."""
        return ScaffnewClientState(h=np.zeros_like(down["x_bar"]), x_hat=down["x_bar"])

    def restore(self, down: Payload, given: Payload) -> ScaffnewClientState:
        """Start again with h_i = 0."""
        return self.initialize(down)

    def on_acknowledged(self, state: ScaffnewClientState, down: Payload) -> ScaffnewClientState:
        """Do step 2."""
        move = (self.communication_probability / self.client_lr) * (down["x_bar"] - state.x_hat)
        return state._replace(h=state.h + move)

    def steps_asked(self, run: RunInfo, down: Payload) -> int:
        """Return K_r, or the step in which the client stops."""
        return int(down["stop"] if "stop" in down else down["steps"])

    def again(self, v: Array) -> Array:
        """Return the last minibatch's gradient at `v`."""
        self.tally_gradients(1)
        objective = self.objective
        if hasattr(objective, "again"):
            return objective.again(v)  # type: ignore[no-any-return]
        return self.batches.again(v)

    def local_pass(self, state: ScaffnewClientState, down: Payload) -> LocalPass:
        """Do step 3 from x_bar, up to where the client stops: -<h_i, x>."""
        count = int(down["stop"]) - 1 if "stop" in down else int(down["steps"])
        x_bar, gamma = down["x_bar"], self.client_lr
        declared = LocalPass(x_bar, linear=-state.h, steps=count, rate=gamma, clip=self.clip)
        if (s := self.refresh_probability) is None:
            return declared
        return declared._replace(gradient=self._reduced(state, x_bar, count, s))

    def _reduced(self, state: ScaffnewClientState, x_bar: Array, count: int, s: float) -> Reduced:
        """Return the gradients of the round's steps."""
        y, at_y = state.y, state.at_y
        if y is None or at_y is None:
            y, at_y = x_bar, self.full_gradient(x_bar)
        run = self._run
        assert run is not None  # noqa: S101  (set before any step)
        # The server's own draws of COIN have the number of clients as their key: all have this one.
        coins = stream(run.seed, COIN, self._round).random(count)
        return Reduced(self, y, at_y, {*np.flatnonzero(coins < s).tolist()})

    def upload(
        self, state: ScaffnewClientState, down: Payload, done: Done
    ) -> tuple[Payload, ScaffnewClientState]:
        """Do step 4, with the gradient as h_i if the client has stopped."""
        declared, h = done.declared, state.h
        if "stop" in down:
            h = declared.clipped(self.gradient(done.end), len(self.model_axes))
        v = done.end - (self.client_lr / self.communication_probability) * h
        after = state._replace(h=h, x_hat=done.end)
        if isinstance(declared.gradient, Reduced):
            after = after._replace(y=declared.gradient.y, at_y=declared.gradient.at_y)
        return {"v": v}, after

    def received(
        self,
        before: ScaffnewClientState,
        after: ScaffnewClientState,
        down: Payload,
        read: Payload,
    ) -> ScaffnewClientState:
        """Do step 2 with the decoded v_i."""
        return after._replace(
            x_hat=read["v"] + (self.client_lr / self.communication_probability) * after.h
        )
