"""Quarantine: clients that fail repeatedly are left out for a while."""

from __future__ import annotations

from collections.abc import Iterable

from flower_fedcon.validation import count

_LONGEST = 10  # longest quarantine, in multiples of the first


class Quarantine:
    """Who is left out, and until which round.

    A client that fails in `after` rounds in a row is not asked in the next `rounds` rounds, unless
    a round needs it. If it then fails again, it is left out for twice as long, up to ten times
    `rounds`. One usable reply clears its record.

    Parameters
    ----------
    after : int
        >= 0; 0 for no quarantine.
    rounds : int
        >= 1.

    Examples
    --------
    >>> quarantine = Quarantine(after=2, rounds=3)
    >>> for server_round in (1, 2):
    ...     out = quarantine.observe(server_round, used=[0], failed=[1])
    >>> out
    {1: 6}
    >>> [quarantine.until(1, server_round) for server_round in (2, 3, 5, 6)]
    [6, 6, 6, 0]
    """

    def __init__(self, after: int, rounds: int) -> None:
        self._after = count("quarantine_after", after, minimum=0)
        self._rounds = count("quarantine_rounds", rounds)
        self._failures: dict[int, int] = {}
        self._until: dict[int, int] = {}
        self._length: dict[int, int] = {}

    def until(self, client: int, server_round: int) -> int:
        """Return the round in which a client is asked again; 0 if it may be asked in this one."""
        until = self._until.get(client, 0)
        return until if until > server_round else 0

    def forgive(self, client: int) -> None:
        """Forget a client's failures."""
        for table in (self._failures, self._until, self._length):
            table.pop(client, None)

    def observe(
        self, server_round: int, used: Iterable[int], failed: Iterable[int]
    ) -> dict[int, int]:
        """Note which clients gave a usable reply in a round, and which were asked and did not.

        Returns
        -------
        dict
            The clients that this puts into quarantine, and the round in which each is asked again.
        """
        for client in used:
            if client in self._failures:
                self.forgive(client)
        new = {}
        for client in failed:
            self._failures[client] = self._failures.get(client, 0) + 1
            if not self._after or self._failures[client] < self._after:
                continue
            if not self.until(client, server_round):  # otherwise a round needed it
                length = 2 * self._length.get(client, 0) or self._rounds
                self._length[client] = min(length, _LONGEST * self._rounds)
                new[client] = self._until[client] = server_round + 1 + self._length[client]
        return new
