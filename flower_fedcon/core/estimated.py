"""Weights for how often clients take part, estimated as a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.participation import Full, Only, Participation
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, count


@dataclass(frozen=True)
class Estimated(Participation):
    """Another rule's cohorts, with weights for how often clients take part that are estimated.

    For rules that do not know it, and for clients that often fail to answer: FedAU. The server
    notes each client's gaps, the numbers of rounds from one upload that was used to the next. Their
    mean is its estimate of 1/p_i: means weight the client's upload by that over N, and by 1/N
    before its first gap. The gap that an upload ends counts from the next round on.

    Parameters
    ----------
    among : Participation (default: Full())
        The rule that draws clients. What it knows of the p_i is not used.
    cutoff : int (default: 100000)
        After this many rounds without an upload a gap counts as ended, and another begins. No
        weight is then larger than cutoff/N, so clients that are away for longer count less than
        others. The default is that of the authors' program, in effect none; they also try 50.

    Raises
    ------
    ConfigError
        If a weight is stated twice, or `among` has no rounds.

    References
    ----------
    Shiqiang Wang, Mingyue Ji, "A Lightweight Method for Tackling Unknown Participation Statistics
    in Federated Averaging", ICLR 2024 (arXiv:2306.03401).

    Examples
    --------
    >>> from flower_fedcon import Markov
    >>> rule = Estimated(Markov(stay=0.75, back=0.25), cutoff=50)
    >>> rule.rate(4)
    0.5
    """

    among: Participation = field(default_factory=Full)
    cutoff: int = 100_000

    unbiased = True

    def __post_init__(self) -> None:
        count("Estimated(cutoff)", self.cutoff)
        refused = Buffered | Only | Estimated
        if not isinstance(self.among, Participation) or isinstance(self.among, refused):
            raise ConfigError(
                "Estimated(among) must be a rule of participation that draws cohorts of several "
                f"clients, round by round, got {self.among!r}"
            )
        if self.among.unbiased:
            raise ConfigError(
                f"Estimated(among) has unbiased=True, weights from known shares, got "
                f"{self.among!r}: leave it out there, or give that rule alone"
            )

    def for_clients(self, clients: Sequence[Any]) -> Estimated:
        """Return the rule for these clients."""
        return replace(self, among=self.among.for_clients(clients))

    @property
    def drawn_by(self) -> Participation:
        """The rule that draws for the other one."""
        return self.among.drawn_by

    def rate(self, num_clients: int) -> float:
        """Return the other rule's rate."""
        return self.among.rate(num_clients)

    def size(self, num_clients: int) -> int | None:
        """Return the other rule's size."""
        return self.among.size(num_clients)

    def inclusion(self, num_clients: int) -> Array | None:
        """Return the other rule's shares."""
        return self.among.inclusion(num_clients)

    def is_full(self, num_clients: int) -> bool:
        """Return whether the other rule's cohorts are everyone."""
        return self.among.is_full(num_clients)


def unweighted(rule: Participation) -> str:
    """Return what a message says to give for plain means, in place of a rule with weights."""
    return repr(rule.among) if isinstance(rule, Estimated) else "unbiased=False"


class Gaps:
    """The gaps between each client's uploads in one run.

    Parameters
    ----------
    num_clients : int
    cutoff : int
        The longest gap.

    Examples
    --------
    >>> gaps = Gaps(2, cutoff=50)
    >>> for clients in ([0], [0], [0, 1]):
    ...     gaps.note(clients)
    >>> gaps.shares
    array([1.        , 0.33333333])
    """

    def __init__(self, num_clients: int, cutoff: int) -> None:
        self._cutoff = cutoff
        self._table = np.zeros((3, num_clients), np.int64)

    def note(self, clients: Sequence[int]) -> None:
        """Note whose uploads a round used."""
        number, total, missed = self._table
        missed += 1
        ended = missed >= self._cutoff
        ended[list(clients)] = True
        number += ended
        total += np.where(ended, missed, 0)
        missed[ended] = 0

    @property
    def shares(self) -> Array:
        """The estimate of each client's share of the rounds, 1 before its first gap."""
        number, total, _ = self._table
        estimates: Array = np.maximum(number, 1) / np.maximum(total, 1)
        return estimates

    def snapshot(self) -> Array:
        """Return how many gaps each client has had, their sum, and how long the present one is."""
        return self._table.copy()

    def resume(self, snapshot: Array) -> None:
        """Continue from a snapshot."""
        self._table = snapshot.copy()
