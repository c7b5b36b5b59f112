"""A client with compressed uploads; see `flower_fedcon.core.compressing`."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np

from flower_fedcon.core.acknowledgements import stepped
from flower_fedcon.core.compressing import SETTING, Form, Remembering
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.core.rng import COMPRESS
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class Compressible(Protocol):
    """A client, as compression sees it: the hooks of its method, which it wraps."""

    state_type: ClassVar[type[Any] | None]
    own_memory: ClassVar[bool]

    def step(self, state: Any, down: Payload) -> tuple[Payload, Any]:
        """Return the upload and the state to keep if the upload is used."""

    def initialize(self, down: Payload) -> Any:
        """Return the state of a client that receives its first broadcast."""

    def restore(self, down: Payload, given: Payload) -> Any:
        """Return the state of a client that the server lets re-enter with `given`."""

    def on_acknowledged(self, state: Any, down: Payload) -> Any:
        """Return the state once the reply that produced it is known to be used."""

    def received(self, before: Any, after: Any, down: Payload, read: Payload) -> Any:
        """Return the state after a step whose upload is compressed."""

    def rng(self, purpose: int) -> np.random.Generator:
        """Return the client's random stream of the round."""


class CompressingClient:
    """A client's method with compressed uploads: it wraps the hooks of the method.

    Parameters
    ----------
    client : Compressible
    run : RunInfo
        A run with the setting "compression".

    Attributes
    ----------
    remembers : bool
        Whether the client keeps anything between rounds: the method's state, or a memory.
    """

    def __init__(self, client: Compressible, run: RunInfo) -> None:
        self._client, self._about = client, run.about
        self.form = Form.of(run.settings[SETTING], run.layout.size, client.own_memory)
        self._keeps = type(client).state_type is not None
        self.remembers = self._keeps or self.form.feedback

    def initialize(self, down: Payload) -> Any:
        """Return the state of a client that receives its first broadcast."""
        state = self._client.initialize(down) if self._keeps else None
        return Remembering(state, {}) if self.form.feedback else state

    def restore(self, down: Payload, given: Payload) -> Any:
        """Return the state of a client that re-enters: its memory starts again from 0."""
        state = self._client.restore(down, given) if self._keeps else None
        return Remembering(state, {}) if self.form.feedback else state

    def on_acknowledged(self, state: Any, down: Payload) -> Any:
        """Return the state once the reply that produced it is known to be used."""
        if not self.form.feedback:
            return self._client.on_acknowledged(state, down)
        if not self._keeps:
            return state
        return state._replace(state=self._client.on_acknowledged(state.state, down))

    def step(self, state: Any, down: Payload) -> tuple[Payload, Any]:
        """Return the compressed upload, and the state to keep if it is used."""
        client, feedback = self._client, self.form.feedback
        before, memory = state if feedback else (state, {})
        payload, after = stepped(client, before, down)
        kept: dict[str, Array] = {}
        upload, read = dict(payload), dict(payload)
        rng = client.rng(COMPRESS)
        for name, value in payload.items():
            if not isinstance(value, np.ndarray):
                continue
            center = down[self._about[name]] if name in self._about else None
            held = memory.get(name, 0.0)
            owed = value - held if center is None else value - center - held
            upload[name] = self.form.compressor.compress(owed, rng)
            kept[name] = self.form.moved(held, upload[name])
            read[name] = kept[name] if center is None else center + kept[name]
        if self._keeps:
            after = client.received(before, after, down, read)
        return upload, Remembering(after, kept) if feedback else after
