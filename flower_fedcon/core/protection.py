"""What a run reveals of single uploads: without privacy, all of it, at no cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import Reply
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.wire.payloads import Payload


class Protection:
    """The protection of a run's uploads; this one hides nothing, `core.private.Private` does.

    A run asks it everything that depends on privacy, and need not know whether there is any.

    Parameters
    ----------
    strategy : Method
        Bound to the run's setup.
    """

    hides: ClassVar[bool] = False
    """Whether what single clients say, such as the costs of their steps, must not show."""

    def __init__(self, strategy: Method[Any]) -> None:
        self._strategy = strategy

    # --- what it costs ---------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """What has been spent."""
        return 0.0

    @property
    def exhausted(self) -> bool:
        """Whether one more round would exceed the budget."""
        return False

    def account(self, more: int = 0) -> dict[str, Any]:
        """Return what epsilon is computed from after so many more rounds."""
        return {}

    @property
    def remembers(self) -> bool:
        """Whether a round depends on the noise of earlier ones, which a checkpoint then holds."""
        return False

    def begin(self) -> None:
        """Account for a round before any client is asked."""

    def again(self) -> None:
        """Account for a round that is repeated as a whole."""

    def keep_rounds(self, heard: Callable[[], int], write: Callable[[int], None]) -> None:
        """Count the rounds that a file knows of, and write down each further one in advance.

        Parameters
        ----------
        heard : callable
            Returns the number in the file.
        write : callable
            Called with the new number before it applies.
        """

    def record(self) -> dict[str, float]:
        """Return what a history records."""
        return {}

    def snapshot(self) -> dict[str, Any]:
        """Return what it adds to a checkpoint."""
        return {}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""

    # --- a round ---------------------------------------------------------------------------------

    def cohort(self) -> list[int] | None:
        """Return a round's cohort; None if the run's seed draws it."""
        return None

    def kept(self, cohort: list[int], server_round: int) -> list[int]:
        """Return the clients of a cohort that may be asked."""
        return cohort

    def instructed(self, broadcast: Payload) -> Payload:
        """Return a broadcast with what clients must know."""
        return broadcast

    def instead(self, reply: Reply, names: Sequence[str], down: Payload) -> Payload | None:
        """Return the columns that a reply with numbers that are not finite counts as.

        None if it is refused.
        """
        return None

    def uploads(
        self, replies: Sequence[Reply], names: Sequence[str], down: Payload, server_round: int
    ) -> Uploads:
        """Return a round's uploads as the server sees them.

        Parameters
        ----------
        replies : sequence of Reply
            Those that passed the gate.
        names : sequence of str
            What clients upload.
        down : dict
            The broadcast.
        server_round : int
        """
        strategy = self._strategy
        setup, examples = strategy.setup, None
        if setup.weighting == "examples" and setup.own_loops:
            counts = {c: reply.num_examples for reply in replies for c in reply.clients}
            examples = [counts.get(j, c.num_examples) for j, c in enumerate(setup.clients)]
        aggregation, inclusion = strategy.aggregation, strategy.inclusion
        return Uploads(replies, setup.num_clients, aggregation, examples, inclusion=inclusion)
