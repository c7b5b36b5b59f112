"""Rules for clients that come and go: in turns, in chains, by a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.core.participation import Participation
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, count, optional


def _some(available: Array, most: int | None, rng: np.random.Generator) -> list[int]:
    """Return the available clients, or `most` of them, drawn uniformly."""
    if most is not None and len(available) > most:
        available = np.sort(rng.choice(available, size=most, replace=False))
    clients: list[int] = available.tolist()
    return clients


def _at_most(rate: float, most: int | None, num_clients: int) -> float:
    return rate if most is None else min(rate, most / num_clients)


@dataclass(frozen=True)
class Cyclic(Participation):
    """Groups of clients take turns, one group in each round.

    Cyclic client participation as in Cho, Sharma, Joshi, Xu, Kale, Zhang, "On the convergence of
    federated averaging with cyclic client participation" (ICML 2023).

    Parameters
    ----------
    groups : int
        Number of groups, at least 1 and at most the number of clients. Each group is a stretch of
        the list of names, and their sizes differ by at most 1.
    count : int, optional
        The number of a group's clients that take part, drawn uniformly; by default all.
    unbiased : bool (default: False)
        Whether means weight uploads by 1/(N p_i), where p_i is the share of the rounds in which a
        client takes part. Over many rounds, though not in each, all clients then have equal weight.

    >>> rule, rng = Cyclic(groups=2), np.random.default_rng(0)
    >>> [rule.step(None, t, 5, rng)[0] for t in (1, 2, 3)]
    [[0, 1, 2], [3, 4], [0, 1, 2]]
    """

    groups: int
    count: int | None = None
    unbiased: bool = False

    def __post_init__(self) -> None:
        count("Cyclic(groups)", self.groups)
        optional(count, "Cyclic(count)", self.count)

    def step(
        self, memory: Any, server_round: int, num_clients: int, rng: np.random.Generator
    ) -> tuple[list[int], Any]:
        """Return the group whose turn it is, or some of it."""
        turn = self._parts(num_clients)[(server_round - 1) % self.groups]
        return _some(turn, self.count, rng), memory

    def size(self, num_clients: int) -> int | None:
        """Return the size of the groups, if they have one."""
        sizes = {min(len(part), self.count or len(part)) for part in self._parts(num_clients)}
        return sizes.pop() if len(sizes) == 1 else None

    def inclusion(self, num_clients: int) -> Array:
        """Return each client's share of the rounds."""
        parts = self._parts(num_clients)
        shares = [min(1.0, (self.count or len(part)) / len(part)) for part in parts]
        return np.repeat(shares, [len(part) for part in parts]) / self.groups

    def rate(self, num_clients: int) -> float:
        """Return the mean size of a cohort, over N."""
        return float(self.inclusion(num_clients).mean())

    def _parts(self, num_clients: int) -> list[Array]:
        if self.groups > num_clients:
            raise ConfigError(
                f"Cyclic(groups={self.groups}): there are only {num_clients} clients to share out"
            )
        return np.array_split(np.arange(num_clients), self.groups)


@dataclass(frozen=True)
class Markov(Participation):
    """Each client comes and goes by its own Markov chain; available clients take part.

    A client that takes part in a round is available in the next with probability `stay`; an absent
    one comes back with probability `back`. Before round 1 the chains are in their stationary
    distribution. If no client is available, time passes until one is.

    Parameters
    ----------
    stay : float or sequence of float
        In [0, 1]; of all clients, or of each.
    back : float or sequence of float
        In (0, 1]; of all clients, or of each.
    count : int, optional
        The largest number of available clients that take part, drawn uniformly.
    unbiased : bool (default: False)
        Whether means weight uploads by 1/(N p_i), where p_i is the share of the rounds in which a
        client takes part. Over many rounds, though not in each, all clients then have equal weight.

    >>> rule, rng = Markov(stay=0.75, back=0.25), np.random.default_rng(0)
    >>> there = rule.begin(6, rng)
    >>> cohort, there = rule.step(there, 1, 6, rng)
    >>> cohort == np.flatnonzero(there).tolist(), rule.rate(6)
    (True, 0.5)
    """

    stay: float | Sequence[float]
    back: float | Sequence[float]
    count: int | None = None
    unbiased: bool = False

    def __post_init__(self) -> None:
        for name, least in (("stay", "[0"), ("back", "(0")):
            values = np.asarray(getattr(self, name), dtype=float)
            low = values >= 0 if least == "[0" else values > 0
            if values.ndim > 1 or not (low & (values <= 1)).all():
                raise ConfigError(
                    f"Markov({name}) must be in {least}, 1], a number or one for each client, got "
                    f"{getattr(self, name)!r}"
                )
            if values.ndim:
                object.__setattr__(self, name, tuple(values.tolist()))
        optional(count, "Markov(count)", self.count)

    def begin(self, num_clients: int, rng: np.random.Generator) -> Array:
        """Return which clients are available before round 1, as booleans."""
        return rng.random(num_clients) < self._there(num_clients)

    def step(
        self, memory: Any, server_round: int, num_clients: int, rng: np.random.Generator
    ) -> tuple[list[int], Any]:
        """Return which clients are available now, and which take part."""
        stay, back = self._chains(num_clients)
        there = memory
        while True:
            there = rng.random(num_clients) < np.where(there, stay, back)
            if there.any():
                return _some(np.flatnonzero(there), self.count, rng), there

    def inclusion(self, num_clients: int) -> Array:
        """Return roughly the share of the rounds in which each client takes part."""
        there = self._there(num_clients)
        return there * _at_most(1.0, self.count, max(1, round(float(there.sum()))))

    def rate(self, num_clients: int) -> float:
        """Return the expected share of the clients that take part (empty rounds not counted)."""
        return _at_most(float(self._there(num_clients).mean()), self.count, num_clients)

    def _chains(self, num_clients: int) -> tuple[Array, Array]:
        probabilities = []
        for name in ("stay", "back"):
            values = np.asarray(getattr(self, name), dtype=float)
            if values.ndim and len(values) != num_clients:
                raise ConfigError(
                    f"Markov({name}) has {len(values)} values, one for each client, and there are "
                    f"{num_clients} clients"
                )
            probabilities.append(np.broadcast_to(values, num_clients))
        return probabilities[0], probabilities[1]

    def _there(self, num_clients: int) -> Array:
        stay, back = self._chains(num_clients)
        there: Array = back / (1 - stay + back)
        return there


class Available(Participation):
    """A trace, recorded or made up, states which clients are available in which round.

    Parameters
    ----------
    trace : array of shape (rounds, clients), or path
        True, or 1, where a client is available; or the path of a CSV file of 0 and 1 with a row for
        each round, or of a .npy file. Where nobody is available, time passes to the next row. After
        the last row the trace begins again.
    count : int, optional
        The largest number of available clients that take part, drawn uniformly.
    unbiased : bool (default: False)
        Whether means weight uploads by 1/(N p_i), where p_i is the share of the rounds in which a
        client takes part. Over many rounds, though not in each, all clients then have equal weight.

    >>> rule = Available([[1, 1, 0], [0, 0, 1]])
    >>> [rule.step(None, t, 3, np.random.default_rng(0))[0] for t in (1, 2, 3)]
    [[0, 1], [2], [0, 1]]
    """

    def __init__(self, trace: Any, count: int | None = None, unbiased: bool = False) -> None:
        given = f"Available({trace})" if isinstance(trace, str | Path) else "Available(trace)"
        values = _read(Path(trace)) if isinstance(trace, str | Path) else np.asarray(trace)
        if values.ndim != 2 or not values.size or not np.isin(values, (0, 1)).all():
            raise ConfigError(
                f"{given} must have a row of zeros and ones for each round, one for each client, "
                f"got an array of shape {values.shape}"
            )
        there = values.astype(bool)
        if not there.any():
            raise ConfigError(f"{given}: no client is ever available: a round needs one")
        there = there[there.any(axis=1)]  # while nobody is there, time passes
        self.trace, self.source = there, str(trace) if isinstance(trace, str | Path) else None
        optional(_count, "Available(count)", count)
        self.count, self.unbiased = count, unbiased
        if unbiased and not there.any(axis=0).all():
            never = int(there.any(axis=0).argmin())
            raise ConfigError(
                f"{given}: client {never} is never there, which no weight mends: leave it out of "
                "the problem, or give unbiased=False"
            )

    def __repr__(self) -> str:
        rows, clients = self.trace.shape
        most = "" if self.count is None else f", count={self.count}"
        weighed = ", unbiased=True" if self.unbiased else ""
        return f"Available({rows} rounds of {clients} clients{most}{weighed})"

    def step(
        self, memory: Any, server_round: int, num_clients: int, rng: np.random.Generator
    ) -> tuple[list[int], Any]:
        """Return the available clients, or some of them."""
        row = self._of(num_clients)[(server_round - 1) % len(self.trace)]
        return _some(np.flatnonzero(row), self.count, rng), memory

    def size(self, num_clients: int) -> int | None:
        """Return how many take part in each round, if it is the same number."""
        sizes = set(np.minimum(self.trace.sum(axis=1), self.count or num_clients).tolist())
        return int(sizes.pop()) if len(sizes) == 1 else None

    def inclusion(self, num_clients: int) -> Array:
        """Return the share of the rounds in which each client takes part, on average."""
        there = self._of(num_clients)
        most = self.count or num_clients
        shares: Array = (there * np.minimum(1.0, most / there.sum(axis=1, keepdims=True))).mean(0)
        return shares

    def rate(self, num_clients: int) -> float:
        """Return the mean size of a cohort, over N."""
        return float(self.inclusion(num_clients).mean())

    def _of(self, num_clients: int) -> Array:
        if self.trace.shape[1] != num_clients:
            raise ConfigError(
                f"{self!r}: a row must have a number for each client, and there are {num_clients}"
            )
        return self.trace


_count = count


def short_trace(rule: Participation, num_rounds: int) -> str:
    """Return a sentence on a trace's file that is shorter than a run; "" if it is not.

    A pattern given in Python is meant to be repeated.
    """
    rule = rule.drawn_by
    if not isinstance(rule, Available) or rule.source is None or len(rule.trace) >= num_rounds:
        return ""
    rows = len(rule.trace)
    return (
        f"participation: {rule.source} has {rows} {'row' if rows == 1 else 'rows'} with available "
        f"clients, and the run {num_rounds} rounds: from round {rows + 1} on the trace is repeated"
    )


def read_rows(path: Path) -> Array:
    """Return the numbers of a .npy file, or of rows with commas.

    Raises
    ------
    OSError, ValueError
        If it cannot be read.
    """
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
    return np.loadtxt(path, delimiter=",", ndmin=2)


def _read(path: Path) -> Array:
    try:
        return read_rows(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Available({path}): cannot read it as rows of zeros and ones: {error}"
        ) from None
