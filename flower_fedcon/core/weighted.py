"""A rule that draws clients with unequal probabilities, given by weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flower_fedcon.core.participation import Participation
from flower_fedcon.errors import ConfigError, nearest, repr_of
from flower_fedcon.validation import Array, count, optional


@dataclass(frozen=True)
class Weighted(Participation):
    """Each client takes part with its own probability p_i.

    If a method's server moves by a mean of uploads, each upload gets the weight 1/(N p_i). On
    average the server then moves as if everyone took part (Horvitz and Thompson, "A generalization
    of sampling without replacement from a finite universe", JASA 1952).

    Parameters
    ----------
    weights : sequence of float, dict of float, or "examples"
        A weight > 0 for each client, in client order or by name; or "examples", their numbers of
        examples. Without a count, the weights are the p_i (at most 1) and clients are drawn
        independently; an empty draw is repeated.
    count : int, optional
        The number of clients to draw, with probabilities proportional to the weights.
    replacement : bool (default: False)
        Whether a client may be drawn more than once (it then takes part once). Without replacement,
        a cohort has `count` clients and p_i is exactly proportional to the weights (a systematic
        sample in random order); a client whose p_i would exceed 1 always takes part.
    unbiased : bool, optional
        Whether means weight uploads by 1/(N p_i). By default they do if the method's server moves
        by their mean. True refuses other methods. False takes plain means, which favour clients
        that take part more often.

    Raises
    ------
    ConfigError
        If there is not one positive weight for each client.

    Examples
    --------
    >>> rule = Weighted([1, 1, 2, 4], count=2)
    >>> rule.inclusion(4)
    array([0.25, 0.25, 0.5 , 1.  ])
    >>> 3 in rule.draw(4, np.random.default_rng(0))
    True
    """

    weights: Sequence[float] | Mapping[str, float] | str
    count: int | None = None
    replacement: bool = False
    unbiased: bool | None = None

    def __post_init__(self) -> None:
        optional(count, "Weighted(count)", self.count)
        for name in ("replacement", "unbiased"):
            if not isinstance(getattr(self, name), bool | None):
                raise ConfigError(f"Weighted({name}) must be true or false, got {self!r}")
        if self.count is None and (self.replacement or self.weights == "examples"):
            what = "replacement" if self.replacement else 'weights="examples"'
            raise ConfigError(f"Weighted({what}) needs count, the number of clients to draw")
        if isinstance(self.weights, str):
            if self.weights != "examples":
                raise ConfigError(
                    'Weighted(weights) must be numbers, a table of them by name, or "examples", '
                    f"got {self.weights!r}"
                )
            return
        given = self.weights.values() if isinstance(self.weights, Mapping) else self.weights
        try:
            values = np.array([float(value) for value in given])
        except (TypeError, ValueError):
            values = np.array([np.nan])
        bound = 1.0 if self.count is None else np.inf
        if not values.size or not ((values > 0) & (values <= bound) & np.isfinite(values)).all():
            least = "in (0, 1] without a count: they are probabilities" if bound == 1 else "> 0"
            raise ConfigError(
                f"Weighted(weights) must be {least}, one for each client, got "
                f"{repr_of(self.weights)}"
            )
        if not isinstance(self.weights, Mapping):
            object.__setattr__(self, "weights", tuple(values.tolist()))

    def for_clients(self, clients: Sequence[Any]) -> Weighted:
        """Return the rule with a number for each of these clients, in their order."""
        weights = self.weights
        if isinstance(weights, str):
            return replace(self, weights=[float(client.num_examples) for client in clients])
        if not isinstance(weights, Mapping):
            return self
        names = [client.name for client in clients]
        known = set(names)
        for name in weights:
            if name not in known:
                raise ConfigError(f"Weighted(weights) names {name!r}: {nearest(name, names)}")
        if missing := [name for name in names if name not in weights]:
            raise ConfigError(f"Weighted(weights) has no weight of {', '.join(missing)}")
        return replace(self, weights=[weights[name] for name in names])

    def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
        """Return a sorted, non-empty cohort."""
        weights = self._of(num_clients)
        if self.count is None:
            while not (cohort := np.flatnonzero(rng.random(num_clients) < weights)).size:
                pass
        elif self.replacement:
            shares = weights / weights.sum()
            cohort = np.unique(rng.choice(num_clients, size=self.count, p=shares))
        else:
            p = self.inclusion(num_clients)
            always, order = np.flatnonzero(p >= 1), rng.permutation(np.flatnonzero(p < 1))
            # Each client has a stretch of length p on a line; marks at distance 1 choose clients.
            marks = rng.random() + np.arange(self._size(num_clients) - len(always))
            ends = np.cumsum(p[order])
            places = np.minimum(np.searchsorted(ends, marks, side="right"), len(order) - 1)
            cohort = np.sort(np.concatenate([always, order[places]]))
        drawn: list[int] = cohort.tolist()
        return drawn

    def size(self, num_clients: int) -> int | None:
        """Return the size of every cohort, if it is constant."""
        return None if self.replacement or self.count is None else self._size(num_clients)

    def inclusion(self, num_clients: int) -> Array:
        """Return p_i, the probability that a client is in a cohort."""
        weights = self._of(num_clients)
        if self.count is None:
            p: Array = weights / (1 - np.prod(1 - weights))
            return p
        shares = weights / weights.sum()
        if self.replacement:
            drawn: Array = 1 - (1 - shares) ** self.count
            return drawn
        size, p = self._size(num_clients), np.ones(num_clients)
        below = np.ones(num_clients, dtype=bool)
        while below.any():
            p[below] = (size - (~below).sum()) * weights[below] / weights[below].sum()
            if not (above := below & (p >= 1 - 1e-12)).any():
                break
            p[above], below = 1.0, below & ~above
        return p

    def rate(self, num_clients: int) -> float:
        """Return the mean of the p_i."""
        if (size := self.size(num_clients)) is not None:
            return size / num_clients
        return float(self.inclusion(num_clients).mean())

    def is_full(self, num_clients: int) -> bool:
        """Return whether every cohort is everyone."""
        size, weights = self.size(num_clients), self.weights
        if size is not None or isinstance(weights, str):
            return size == num_clients
        given = weights.values() if isinstance(weights, Mapping) else weights
        return self.count is None and min(given) == 1

    def _size(self, num_clients: int) -> int:
        assert self.count is not None  # noqa: S101  (the callers' case)
        if self.count > num_clients:
            raise ConfigError(
                f"Weighted(count={self.count}) is more than the {num_clients} clients: give at "
                f"most {num_clients}"
            )
        return self.count

    def _of(self, num_clients: int) -> Array:
        if isinstance(self.weights, str | Mapping):
            raise ConfigError(f"{self!r} has a number for each client once a run has begun")
        if len(self.weights) != num_clients:
            raise ConfigError(
                f"Weighted(weights) needs a number for each of {num_clients} clients, got "
                f"{len(self.weights)} numbers"
            )
        return np.array(self.weights)
