"""What clients have agreed on before round 1, as the core sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flower_fedcon.validation import Array


class Attachment(Protocol):
    """The result of an agreement, on the server; its arrays travel with every request."""

    @property
    def uplink_bytes(self) -> int:
        """What clients sent in the exchanges that led to it."""

    @property
    def downlink_bytes(self) -> int:
        """What clients were sent in them."""

    @property
    def weights(self) -> Sequence[float]:
        """Each client's weight, if clients are weighted by their examples."""

    @property
    def payload(self) -> Mapping[str, Any]:
        """What nodes need of it."""

    @property
    def nbytes(self) -> int:
        """The bytes of `payload`."""

    @property
    def start(self) -> Array | None:
        """Where a run starts unless it is told otherwise."""

    def entries(self, shape: tuple[int, ...]) -> Sequence[str]:
        """Return a name for each entry of a model."""

    def check_method(self, strategy: Any) -> None:
        """Raise if a strategy contradicts the agreement."""

    def told_of_share(self, name: str, percent: float) -> str:
        """Return what a run's log says if one client has more than half of the weight."""

    def asked_at_the_end(self, inference: str) -> str:
        """Return the argument, as written, by which the server asks for sums at the end."""
