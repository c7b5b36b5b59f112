"""The events of a run's exchanges: who was asked, and what became of the reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flower_fedcon.core.gate import Admitted
from flower_fedcon.core.protocol import Request


class Audit:
    """The interface of an audit log; this one keeps nothing, `runs.audit_log` writes a file."""

    def follow(self, server: Any) -> None:
        """Follow the rounds of another server from now on."""

    def asked(self, request: Request) -> None:
        """Note which clients a request goes to."""

    @property
    def listeners(self) -> Sequence[Callable[[Admitted], None]]:
        """What notes the replies that passed the gate."""
        return ()

    def dropped(self, client: int, reason: str) -> None:
        """Note a reply that was dropped."""

    def silent(self, clients: list[int], reason: str) -> None:
        """Note clients that have not answered, and the reason if it is known."""

    def lost(self, client: int) -> None:
        """Note a client whose state is gone."""

    def applied(self, clients: list[int]) -> None:
        """Note that a round has been applied, with the uploads of these clients."""

    def sync(self) -> None:
        """Make sure that the notes are on the disk."""

    def ended(self, error: str = "") -> None:
        """Note that the run has ended, and by which error."""
