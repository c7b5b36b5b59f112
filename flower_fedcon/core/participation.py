"""Who takes part in a round: everyone, a uniform sample, each by an independent draw, or one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import count, positive


class Participation(ABC):
    """A rule that draws the cohort S of a round among N clients, without replacement."""

    @abstractmethod
    def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
        """Return the cohort: sorted indices into the list of client names."""

    @abstractmethod
    def rate(self, num_clients: int) -> float:
        """Return the expected fraction of clients in a cohort, in (0, 1]."""

    def is_full(self, num_clients: int) -> bool:
        """Return whether every cohort is everyone."""
        return self.rate(num_clients) == 1.0


@dataclass(frozen=True)
class Full(Participation):
    """Every client takes part in every round.

    >>> Full().draw(3, np.random.default_rng(0))
    [0, 1, 2]
    """

    def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
        """Return everyone."""
        return list(range(num_clients))

    def rate(self, num_clients: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Sample(Participation):
    """A cohort of fixed size, uniform without replacement.

    Parameters
    ----------
    count : int, optional
        Number of clients per round, at least 1 and at most the number of clients.
    fraction : float, optional
        Fraction of the clients per round, in (0, 1]; the size is rounded, and at least 1.
        Exactly one of the two is given.

    >>> len(Sample(count=2).draw(5, np.random.default_rng(0)))
    2
    """

    count: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.count is None) == (self.fraction is None):
            raise ConfigError("Sample takes either count=... or fraction=..., and not both")
        if self.count is not None:
            count("Sample(count)", self.count)
        elif not 0 < positive("Sample(fraction)", self.fraction) <= 1:
            raise ConfigError(f"Sample(fraction) must be in (0, 1], got {self.fraction!r}")

    def size(self, num_clients: int) -> int:
        """Return the number of clients in a cohort."""
        if self.count is None:
            assert self.fraction is not None  # noqa: S101  (checked on construction)
            return max(1, round(self.fraction * num_clients))
        if self.count > num_clients:
            raise ConfigError(
                f"Sample(count={self.count}) asks for more clients than the {num_clients} there are"
            )
        return self.count

    def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
        """Return a sorted cohort of the fixed size."""
        size = self.size(num_clients)
        cohort: list[int] = np.sort(rng.choice(num_clients, size=size, replace=False)).tolist()
        return cohort

    def rate(self, num_clients: int) -> float:
        """Return size / N."""
        return self.size(num_clients) / num_clients


@dataclass(frozen=True)
class Bernoulli(Participation):
    """Each client takes part with probability `p`, independently; an empty draw is repeated.

    Parameters
    ----------
    p : float
        Probability in (0, 1].
    """

    p: float

    def __post_init__(self) -> None:
        if not 0 < positive("Bernoulli(p)", self.p) <= 1:
            raise ConfigError(f"Bernoulli(p) must be in (0, 1], got {self.p!r}")

    def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
        """Return a sorted, non-empty cohort."""
        while True:
            cohort = np.flatnonzero(rng.random(num_clients) < self.p)
            if cohort.size:
                drawn: list[int] = cohort.tolist()
                return drawn

    def rate(self, num_clients: int) -> float:
        """Return p (the redraw of empty cohorts is not counted)."""
        return self.p


@dataclass(frozen=True)
class Only(Participation):
    """One client in every round: training on its data alone, the baseline of federation.

    For methods whose clients keep no state.

    Parameters
    ----------
    client : int
        Its place in the list of names, from 0.

    >>> Only(2).draw(5, np.random.default_rng(0))
    [2]
    """

    client: int

    def __post_init__(self) -> None:
        count("Only(client)", self.client, minimum=0)

    def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
        """Return the client."""
        return [self.client]

    def rate(self, num_clients: int) -> float:
        """Return 1 / N."""
        if self.client >= num_clients:
            raise ConfigError(
                f"Only(client={self.client}): there are {num_clients} clients, counted from 0"
            )
        return 1.0 / num_clients
