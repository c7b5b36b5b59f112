"""The releases of a private run whose clients come back by a pattern, and their cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from flower_fedcon.core.availability import Cyclic
from flower_fedcon.core.participation import Participation
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.privacy.accountant import FULL, NoisySum, Sampling
from flower_fedcon.privacy.gaussian import MECHANISMS, GaussianDP
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.privacy.prefix import Banded, encoder
from flower_fedcon.validation import Array


class PatternedReleases:
    """The releases of one run by an encoder (`privacy.prefix`), and who took part in them.

    A run may continue from a checkpoint although later rounds were already released. New releases
    cannot share the noise of these: a second line of releases begins, and both lines are counted.

    Parameters
    ----------
    rule : GaussianDP
    separation : int
        The result of `separation_of`.
    num_clients, num_rounds, entries : int
        The numbers of clients and rounds, and of entries in a release.

    Attributes
    ----------
    rounds : int
        Rounds released on this line.
    """

    def __init__(
        self, rule: GaussianDP, separation: int, num_clients: int, num_rounds: int, entries: int
    ) -> None:
        self._rule, self._num_clients = rule, num_clients
        self._encoder = encoder(rule.mechanism, separation, num_rounds, rule.bands, rule.restart)
        summands = num_clients * self._encoder.longest
        deviation = rule.noise(rule.clip, num_clients)
        self.grid = Grid(rule.clip, deviation, summands, self._encoder.bits)
        self._distance = self.grid.distance(entries)
        self.rounds, self._before = 0, list[int]()  # rounds of earlier lines
        self._memory = self._encoder.begin()
        self._last = np.zeros(num_clients, np.int64)  # each client's last round; 0 for none

    def cost(self, more: int = 0) -> tuple[NoisySum, float]:
        """Return the single noisy sum equivalent to so many more rounds, and its distance."""
        lines = [*self._before, self.rounds + more]
        square = sum(map(self._encoder.sensitivity, lines))
        noise = self._rule.noise_multiplier / math.sqrt(square) if square else math.inf
        releases = sum(map(self._encoder.releases, lines))
        everyone = Sampling(FULL, self._num_clients, self._num_clients)
        return NoisySum(noise, everyone), releases * self._distance

    def kept(self, cohort: list[int], server_round: int) -> list[int]:
        """Return the clients of a cohort that do not come back too soon."""
        b, last = self._encoder.separation, self._last
        return [c for c in cohort if not last[c] or server_round - last[c] >= b]

    def release(self, total: Array, clients: list[int], server_round: int) -> Array:
        """Return a round's noisy sum; `rounds` must count it already.

        Raises
        ------
        RoundError
            If a client comes back sooner than the accounting allows.
        """
        if len(self.kept(clients, server_round)) < len(clients):
            raise RoundError(
                f"round {server_round}: a client took part again within {self._encoder.separation} "
                f"rounds, for which this run's noise is too small"
            )
        self._last[clients] = server_round
        estimate, self._memory = self._encoder.release(self._memory, total, self.grid.noise)
        return self.grid.value(estimate)

    def abandon(self, more: int) -> None:
        """Begin another line after so many more rounds were released on this one."""
        self._before.append(self.rounds + more)
        self.rounds, self._memory = 0, self._encoder.begin()

    def snapshot(self) -> dict[str, Any]:
        """Return what a checkpoint holds, including sums without noise."""
        made = self._encoder
        return {
            "coefficients": made.coefficients if isinstance(made, Banded) else [],
            "rounds": self.rounds,
            "before": list(self._before),
            "last": self._last.copy(),
            "memory": self._memory,
        }

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, with its coefficients."""
        if snapshot["coefficients"]:
            self._encoder = Banded(self._encoder.separation, snapshot["coefficients"])
        self.rounds, self._before = snapshot["rounds"], list(snapshot["before"])
        self._last, self._memory = snapshot["last"].copy(), snapshot["memory"]


def separation_of(rule: GaussianDP, participation: Participation, num_clients: int) -> int | None:
    """Return b such that each client comes back after b rounds at the earliest.

    None if the accounting does not use it: for independent noise and independent cohorts.

    Raises
    ------
    ConfigError
        If it is not known, or contradicts the rule.
    """
    independent, given, period = rule.mechanism == MECHANISMS[0], rule.min_separation, None
    if participation.is_full(num_clients):
        period = 1
    elif isinstance(participation, Cyclic):
        period = participation.groups
    if given is not None and period is not None and given > period:
        raise ConfigError(
            f"GaussianDP(min_separation={given}): with {participation!r} clients come back after "
            f"{period} {'round' if period == 1 else 'rounds'}: give at most that, or leave it out"
        )
    b = period or given
    if independent:
        return given and b if period == 1 else b
    if b is None:
        raise ConfigError(
            f"GaussianDP(mechanism={rule.mechanism!r}) needs a limit on how often a client takes "
            f"part, which {participation!r} does not have: give Cyclic(groups=...), or "
            f"min_separation, which leaves out clients that come back sooner"
        )
    if rule.mechanism == "banded" and b == 1:
        raise ConfigError(
            'GaussianDP(mechanism="banded") with clients in every round is independent noise: give '
            f"Cyclic(groups=...) or a min_separation of 2 or more in place of {participation!r}, "
            "or leave mechanism out"
        )
    for name, most in (("bands", b), ("restart", b if b > 1 else math.inf)):
        value = getattr(rule, name)
        if value is not None and value > most:
            raise ConfigError(
                f"GaussianDP({name}) must be at most {most:g}, since clients come back after "
                f"{b} rounds, got {value}"
            )
    return b
