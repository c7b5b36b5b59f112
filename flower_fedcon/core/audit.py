"""What a run tells of its exchanges: who was asked, and what became of the answer."""

from __future__ import annotations

from typing import Any

from flower_fedcon.core.protocol import Reply, Request


class Audit:
    """Hears of every exchange; this one keeps nothing, `runs.audit_log` writes it down."""

    def follow(self, server: Any) -> None:
        """Hear of another server's rounds from now on."""

    def asked(self, request: Request) -> None:
        """Note whom a request goes to."""

    def used(self, reply: Reply) -> None:
        """Note a reply that passed the gate."""

    def dropped(self, client: int, reason: str) -> None:
        """Note a reply that did not."""

    def silent(self, clients: list[int], reason: str) -> None:
        """Note clients that are not heard from, and why, where that is known."""

    def lost(self, client: int) -> None:
        """Note a client whose state is gone."""

    def applied(self, clients: list[int]) -> None:
        """Note that a round has been applied, with the uploads of these clients."""

    def sync(self) -> None:
        """Make sure that what was noted stays."""

    def ended(self, error: str = "") -> None:
        """Note that the run has ended, and by which error."""
