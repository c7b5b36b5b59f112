"""Scaffold, client side: K corrected gradient steps. See `flower_fedcon.strategies.Scaffold`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.objectives.local_pass import Done, LocalPass
from flower_fedcon.server.windows import WindowMeans
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class ScaffoldClientState(NamedTuple):
    """A client's state."""

    c: Array  # control variate c_i, shape (..., *model)
    resets: float  # the last collective reset that c has taken part in
    mean: Array | None = None  # m_i, shape of c; None without windows, like the next two
    seen: Array | None = None  # n_i, with one entry along each axis of the model
    window: Array | None = None  # the number of the window of m_i and n_i, shape of seen


class ScaffoldClient(LocalPassClient[ScaffoldClientState]):
    """The local step of Scaffold; c_i lives on the client."""

    algorithm = "scaffold"
    state_type = ScaffoldClientState
    in_loops = keeps_gradient = True
    own_memory = True

    client_lr: float | None
    local_steps: int | None
    option: str
    mirror: bool
    batch_size: int | None
    clip: float | None

    def initialize(self, down: Payload) -> ScaffoldClientState:
        """Start with c_i = 0."""
        state = ScaffoldClientState(np.zeros_like(down["x"]), down.get("resets", 0))
        if "window" not in down:
            return state
        return _with(state, WindowMeans.of(state.c, self.model_axes, down["window"]))

    def restore(self, down: Payload, given: Payload) -> ScaffoldClientState:
        """Take c_i, m_i and n_i from the server's mirror; without one all start at 0."""
        return self.initialize(down)._replace(**given)

    def on_acknowledged(self, state: ScaffoldClientState, down: Payload) -> ScaffoldClientState:
        """Take part in a collective reset, and in the end of a window."""
        if state.resets != down.get("resets", 0):
            return self.initialize(down)
        held = _held(state)
        return state if held is None else _with(state, held.at(down["window"]))

    def local_pass(self, state: ScaffoldClientState, down: Payload) -> LocalPass:
        """Do step 2 from x: <c - c_i, y>."""
        return LocalPass(
            down["x"],
            linear=down["c"],
            less=state.c,
            steps=self.local_steps or 0,
            rate=self.client_lr,
            clip=self.clip,
            variate_rate=None if "window" in down else self.variate_rate,
        )

    def upload(
        self, state: ScaffoldClientState, down: Payload, done: Done
    ) -> tuple[Payload, ScaffoldClientState]:
        """Do steps 3 and 4."""
        delta, length, held = done.change, self._length, _held(state)
        if self.variate_rate is not None and held is None:
            return {"delta": delta}, state._replace(c=done.variates)
        if length is None:
            dc = done.gradient - state.c
        elif self.option == "I":
            g = self.gradient(done.start)
            dc = done.declared.clipped(g, len(self.model_axes)) - state.c
        else:
            dc = delta * (-1.0 / length) - down["c"]
        if held is None:
            return {"delta": delta, "dc": dc}, state._replace(c=state.c + dc)
        change = held.change(dc)
        after = _with(state, held.after(change))
        derived = self.variate_rate is not None
        return {"delta": delta} if derived else {"delta": delta, "dc": change}, after

    @property
    def variate_rate(self) -> float | None:
        """In option "II" with a mirror, the whole of step 3: -1/(K eta_l)."""
        length = self._length
        return -1.0 / length if length and self.option == "II" and self.mirror else None

    @property
    def _length(self) -> float | None:
        """K eta_l; None for a user's own loop, whose steps differ."""
        steps, rate = self.local_steps, self.client_lr
        return None if steps is None or rate is None else steps * rate

    def received(
        self, before: ScaffoldClientState, after: ScaffoldClientState, down: Payload, read: Payload
    ) -> ScaffoldClientState:
        """Do step 3 with the values that the server reads."""
        held = _held(before)
        if held is not None:
            change = read.get("dc")
            if change is None:
                change = held.change(read["delta"] * self.variate_rate - down["c"])
            return _with(before, held.after(change))
        if "dc" in read:
            return after._replace(c=before.c + read["dc"])
        done = Done(self.local_pass(before, down), change=read["delta"])
        return after._replace(c=done.variates)


def _held(state: ScaffoldClientState) -> WindowMeans | None:
    """Return what a client keeps in a window; None without windows."""
    if state.mean is None or state.seen is None or state.window is None:
        return None
    return WindowMeans(state.c, state.mean, state.seen, state.window)


def _with(state: ScaffoldClientState, held: WindowMeans) -> ScaffoldClientState:
    """Return a client's state with this."""
    return state._replace(**held._asdict())
