"""What engines call of a client, and what a method's server side knows of its class.

`flower_fedcon.clients.base.FedConClient` is such a client; an algorithm's file adds its step.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.protocol import Request, RunInfo
from flower_fedcon.wire.payloads import Payload


class ClientSide(Protocol):
    """The client side of an algorithm; its class is found by the algorithm's name."""

    algorithm: ClassVar[str]
    """The name in the registry."""
    fields: ClassVar[tuple[str, ...]]
    """The values of the strategy that the server sends."""
    state_type: ClassVar[type[Any] | None]
    """The state; None for an algorithm whose clients keep none."""
    own_memory: ClassVar[bool]
    """Whether it uploads the difference from a memory that its server also holds."""
    one_at_a_time: ClassVar[str]
    """Why its step cannot serve all clients at once; "" if it can."""

    versions: Versions
    work: dict[str, float]
    remembers: bool

    def __init__(self, objective: Any, **given: Any) -> None: ...

    def configure(self, run: RunInfo) -> None:
        """Adopt a run's settings."""

    def recall(self, versions: Versions) -> None:
        """Adopt its stored states."""

    def serve(
        self,
        request: Request,
        client: int,
        acknowledged: int,
        kept: int,
        down: Payload,
        given: Payload | None,
    ) -> Payload | None:
        """Return the answer to its share of a request; None if its state is lost."""
