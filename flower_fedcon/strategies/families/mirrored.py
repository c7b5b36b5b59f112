"""Methods whose server may hold a copy of each client's state."""

from __future__ import annotations

from typing import Protocol, TypeVar

from flower_fedcon.core.mirror import Mirror
from flower_fedcon.errors import StateLostError
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


class HasMirror(Protocol):
    """A state with or without the clients' states."""

    @property
    def mirror(self) -> Mirror | None:
        """The server's copy of the clients' states, if it keeps one."""


State = TypeVar("State", bound=HasMirror)


class Mirrored(FedConStrategy[State]):
    """A lost client state comes back from the mirror; without a mirror, all clients start again.

    Each method defines the collective restart in `reset`.
    """

    mirror: bool

    def why_single(self) -> str:
        """Return why the server needs each upload in this run; "" if their sum is enough."""
        if self.release.single or not self.mirror:
            return self.release.single
        return "its mirror needs each client's own upload: give mirror=False"

    def mirrored(self, wanted: bool, **start: Array) -> Mirror | None:
        """Return the mirror of clients that all start from these arrays, if `mirror` is set."""
        return Mirror.of(self.setup.num_clients, **start) if wanted else None

    def reset(self, state: State) -> State:
        """Return the state after a collective reset: every client starts again.

        Raises
        ------
        StateLostError
            If the method has no collective reset.
        """
        raise StateLostError(f"{self.title} cannot re-admit a client that has lost its state")

    def reset_number(self, state: State) -> Payload:
        """Return the number of collective resets for the broadcast; empty with a mirror."""
        return {"resets": state.resets} if state.mirror is None else {}  # type: ignore[attr-defined]

    def readmit(self, state: State, client: int) -> tuple[State, Payload]:
        """Return the client's state from the mirror; without a mirror, reset all clients."""
        if state.mirror is None:
            return self.reset(state), {}
        return state, state.mirror.row(client)
