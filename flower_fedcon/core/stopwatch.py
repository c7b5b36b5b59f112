"""The simulated time of one round: of its exchanges, by the bytes of each client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flower_fedcon.core.clock import Timekeeper
from flower_fedcon.core.gate import Admitted, column_bytes
from flower_fedcon.wire.payloads import Payload, payload_bytes


class Untimed:
    """The interface of a stopwatch; this one measures nothing, for runs without a clock."""

    def sent(
        self, clients: Sequence[int], common: int, apart: Sequence[Mapping[int, Payload]]
    ) -> None:
        """Note so many bytes to all these clients, and further payloads to single ones."""

    @property
    def listeners(self) -> Sequence[Callable[[Admitted], None]]:
        """What notes the replies that passed the gate."""
        return ()

    def end_exchange(self, clients: list[int], *, work: bool) -> None:
        """End an exchange, which lasts as long as its slowest client."""

    def end_round(self) -> None:
        """Count the time of the exchanges as a round's."""


class Stopwatch(Untimed):
    """Measures a round by a simulated clock.

    Parameters
    ----------
    clock : Timekeeper
    number : int
        The round.
    """

    def __init__(self, clock: Timekeeper, number: int) -> None:
        self._clock, self._number = clock, number
        self._sent, self._got = Counter[int](), Counter[int]()
        self._passed, self._sizes = 0.0, (0, 0)

    def sent(
        self, clients: Sequence[int], common: int, apart: Sequence[Mapping[int, Payload]]
    ) -> None:
        """Add up the bytes by client."""
        for parts in apart:
            self._sent.update({c: payload_bytes(part) for c, part in parts.items()})
        self._sent.update(dict.fromkeys(clients, common))

    @property
    def listeners(self) -> Sequence[Callable[[Admitted], None]]:
        """What notes the replies that passed the gate."""
        return (self._took,)

    def _took(self, admitted: Admitted) -> None:
        """Add up the bytes by client, and pass on the number of gradients."""
        clients, columns = admitted.clients, admitted.payload
        for column in columns.values():
            self._got.update(_each_bytes(column, clients))
        if self._clock.counts_gradients:
            work = admitted.work or [{}] * len(clients)
            self._clock.took(clients, [one.get("gradients", 0) for one in work])

    def end_exchange(self, clients: list[int], *, work: bool) -> None:
        """Add the time of the slowest client."""
        if not clients:  # in a private round, the sum is noise alone
            return
        down, up = ([sizes[c] for c in clients] for sizes in (self._sent, self._got))
        times = self._clock.times(self._number, clients, down, up, work=work)
        now = self._clock.seconds + self._passed
        self._passed += float(self._clock.with_pauses(now, clients, times).max())
        self._sizes = self._sizes[0] + max(down), self._sizes[1] + max(up)
        self._sent.clear()
        self._got.clear()

    def end_round(self) -> None:
        """Add the round to the clock."""
        self._clock.passed(self._passed, self._sizes)


def _each_bytes(column: Any, clients: list[int]) -> dict[int, int]:
    """Return what each client has sent for a column."""
    if isinstance(column, list) and not isinstance(column[0], np.ndarray | float | int):
        return {c: column_bytes([value]) for c, value in zip(clients, column, strict=True)}
    return dict.fromkeys(clients, column_bytes(column) // len(clients))
