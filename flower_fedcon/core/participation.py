"""Who takes part in a round: everyone, a uniform sample, independent draws, or one client.

`flower_fedcon.core.availability` has rules for clients that come and go.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.errors import AlgorithmError, ConfigError, RoundError, clients_by_name
from flower_fedcon.objectives.set_aside import is_ours
from flower_fedcon.validation import Array, count, up_to_one
from flower_fedcon.wire.digests import digest, shown

_log = logging.getLogger("flwr")
_TRIES = 1000  # how often a cohort without a client in time is drawn again
_EXACT = 1e-9  # of shares that a rule states; those of a trial have a wider margin
_KEPT = 512  # rounds that can be asked for again without a replay of earlier ones


class Participation(ABC):
    """A rule that draws the cohort S of a round among N clients, without replacement.

    Your own rule defines `rate` and `draw`. If a cohort depends on the round or on earlier cohorts,
    it defines `step` instead of `draw`. `step` returns what it must remember: the rule itself does
    not change, so that a repeated or resumed run draws the same cohorts. A rule that prefers some
    clients may define `inclusion` and set `unbiased = True`; if it does not know how often each
    takes part, `Estimated` gives it weights.

    Examples
    --------
    Clients take turns, beginning with one that is drawn before round 1:

    >>> class InTurn(Participation):
    ...     def begin(self, num_clients, rng):
    ...         return int(rng.integers(num_clients))
    ...     def step(self, memory, server_round, num_clients, rng):
    ...         return [memory], (memory + 1) % num_clients
    ...     def rate(self, num_clients):
    ...         return 1 / num_clients
    >>> draws = Draws(InTurn(), 3, lambda server_round: np.random.default_rng(server_round))
    >>> [draws.cohort(server_round) for server_round in (1, 2, 3, 1)]
    [[2], [0], [1], [2]]
    """

    unbiased: bool | None = False
    """Whether means weight an upload by 1/(N p), p from `inclusion`; None: if the method can."""

    def for_clients(self, clients: Sequence[Any]) -> Participation:
        """Return the rule for these clients, a `ClientInfo` each: by default itself."""
        return self

    @property
    def drawn_by(self) -> Participation:
        """The rule that draws: itself, unless it only filters the draws of another rule."""
        return self

    def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
        """Return the cohort: sorted indices into the list of client names."""
        raise AlgorithmError(f"{type(self).__name__} defines neither draw nor step")

    @abstractmethod
    def rate(self, num_clients: int) -> float:
        """Return the expected fraction of clients in a cohort, in (0, 1]."""

    def begin(self, num_clients: int, rng: np.random.Generator) -> Any:
        """Return the memory for `step` in round 1: arrays, numbers, texts; lists, dicts of them."""
        return None

    def step(
        self, memory: Any, server_round: int, num_clients: int, rng: np.random.Generator
    ) -> tuple[list[int], Any]:
        """Return the cohort of a round (1, 2, ...), and the memory for the next round's `step`.

        `memory` is not changed in place.
        """
        return self.draw(num_clients, rng), memory

    def size(self, num_clients: int) -> int | None:
        """Return the size of every cohort; None if it varies or is not known."""
        return None

    def inclusion(self, num_clients: int) -> Array | None:
        """Return the share of the rounds in which each client takes part; None if not known.

        With `unbiased` it is each client's probability, > 0, of being in a round's cohort.
        """
        return None

    def reached(self, num_clients: int) -> int:
        """Return how many clients take part in some round: all, unless `inclusion` knows better."""
        shares = self.inclusion(num_clients)
        return num_clients if shares is None else int(np.count_nonzero(shares))

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

    def size(self, num_clients: int) -> int:
        """Return N."""
        return num_clients

    def rate(self, num_clients: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True, repr=False)
class Sample(Participation):
    """A cohort of fixed size, uniform without replacement.

    Parameters
    ----------
    count : int, optional
        Number of clients per round, at least 1 and at most the number of clients.
    fraction : float, optional
        Fraction of the clients per round, in (0, 1]; the size is rounded, and at least 1.
        Give exactly one of the two.

    >>> len(Sample(count=2).draw(5, np.random.default_rng(0)))
    2
    >>> Sample(fraction=0.5)
    Sample(fraction=0.5)
    """

    count: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.count is None) == (self.fraction is None):
            raise ConfigError(
                "Sample takes either count=... or fraction=...: give exactly one of them"
            )
        if self.count is not None:
            count("Sample(count)", self.count)
        else:
            up_to_one("Sample(fraction)", self.fraction)

    def __repr__(self) -> str:
        given = f"count={self.count}" if self.count is not None else f"fraction={self.fraction}"
        return f"Sample({given})"

    def size(self, num_clients: int) -> int:
        """Return the number of clients in a cohort."""
        if self.count is None:
            assert self.fraction is not None  # noqa: S101  (checked on construction)
            return max(1, round(self.fraction * num_clients))
        if self.count > num_clients:
            raise ConfigError(
                f"Sample(count={self.count}) is more than the {num_clients} clients: give at most "
                f"{num_clients}"
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
        up_to_one("Bernoulli(p)", self.p)

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
    """One client in every round: training on its data alone, a baseline for federation.

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

    def size(self, num_clients: int) -> int:
        """Return 1."""
        return 1

    def reached(self, num_clients: int) -> int:
        """Return 1."""
        return 1

    def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
        """Return the client."""
        return [self.client]

    def rate(self, num_clients: int) -> float:
        """Return 1 / N."""
        if self.client >= num_clients:
            raise ConfigError(
                f"Only(client={self.client}): there are {num_clients} clients, counted from 0: "
                f"give at most {num_clients - 1}"
            )
        return 1.0 / num_clients


class Draws:
    """The cohorts of a run: a round's cohort is the same each time it is drawn.

    Parameters
    ----------
    rule : Participation
    num_clients : int
    rng : callable
        Returns the generator of a round; 0 stands for before round 1.

    Attributes
    ----------
    keep : callable, optional
        (round, number of failed draws so far, cohort) -> the clients of the cohort that take part;
        if there are none, the cohort is drawn again.
    """

    def __init__(
        self, rule: Participation, num_clients: int, rng: Callable[[int], np.random.Generator]
    ) -> None:
        rule = rule.drawn_by
        self._rule, self._num_clients, self._rng = rule, num_clients, rng
        self.remembers = _overrides(rule, "begin")
        self.keep: Callable[[int, int, list[int]], list[int]] | None = None
        self._round = 0
        self._memory: Any = rule.begin(num_clients, rng(0)) if self.remembers else None
        self._known: OrderedDict[int, tuple[list[int], Any]] = OrderedDict()

    def cohort(self, server_round: int) -> list[int]:
        """Return the clients that a round asks, in client order."""
        if not self.remembers:
            return self._step(None, server_round)[0]
        if server_round not in self._known:
            if server_round <= self._round:
                self._round, self._memory = 0, self._rule.begin(self._num_clients, self._rng(0))
            while self._round < server_round:
                self._round += 1
                drawn = self._step(self._memory, self._round)
                self._known[self._round], self._memory = drawn, drawn[1]
                if len(self._known) > _KEPT:
                    self._known.popitem(last=False)
        return list(self._known[server_round][0])

    def memory(self, server_round: int) -> Any:
        """Return the rule's memory after a round."""
        if server_round == 0:
            return self._rule.begin(self._num_clients, self._rng(0))
        self.cohort(server_round)
        return self._known[server_round][1]

    def resume(self, server_round: int, memory: Any) -> None:
        """Continue after a round, with the rule's memory of that time."""
        self._round, self._memory = server_round, memory
        self._known.clear()

    def _step(self, memory: Any, server_round: int) -> tuple[list[int], Any]:
        rng, n = self._rng(server_round), self._num_clients
        for vain in range(_TRIES):
            cohort, after = self._rule.step(memory, server_round, n, rng)
            if not is_ours(type(self._rule)):
                cohort = _checked(self._rule, cohort, server_round, n)
            if self.keep is not None:
                cohort = self.keep(server_round, vain, cohort)
            if cohort:
                return cohort, after
        raise RoundError(
            f"round {server_round}: none of {_TRIES} drawn cohorts would be in time: give a longer "
            f"Deadline(seconds)"
        )


def check_rule(
    rule: Participation,
    names: Sequence[str],
    rng: Callable[[int], np.random.Generator],
    *,
    even: bool = False,
) -> None:
    """Refuse a rule that changes as it draws; warn of a rule that prefers some clients.

    With `even` clients count alike however often they take part, since uploads are weighted or
    the method remembers everyone's. Then the warning is only of clients that never take part.

    Raises
    ------
    AlgorithmError
        If the user's own rule keeps its memory in itself, changes the memory in place, or draws a
        different cohort from the same generator.
    """
    n, rule = len(names), rule.drawn_by
    shares, error = rule.inclusion(n), _EXACT
    if not is_ours(type(rule)):
        _check_pure(rule, n, rng)
        if shares is None and not _overrides(rule, "step"):
            shares, error = _measured(rule, n)
    if even and shares is not None:
        never = [] if error > _EXACT else [names[j] for j in np.flatnonzero(shares == 0).tolist()]
        if never:
            _log.warning(
                "participation: %d of %d clients never take part (%s), so the model is not that of "
                "all clients: leave them out of the problem, or give another rule",
                len(never), n, clients_by_name(never),
            )  # fmt: skip
        return
    if shares is None or shares.max() - shares.min() <= error:
        return
    low, high = int(shares.argmin()), int(shares.argmax())
    _log.warning(
        "participation: clients take part unequally often, from %.3g of the rounds (%s) to %.3g "
        "(%s). Means over cohorts, and so the model, favour clients that take part more often",
        shares[low], names[low], shares[high], names[high],
    )  # fmt: skip


def _check_pure(
    rule: Participation, num_clients: int, rng: Callable[[int], np.random.Generator]
) -> None:
    kind, tried = type(rule).__name__, copy.deepcopy(rule)
    before = digest(tried)
    memory = tried.begin(num_clients, rng(0))
    for server_round in range(1, 6):
        held = digest(memory)
        cohort, following = tried.step(memory, server_round, num_clients, rng(server_round))
        if digest(memory) != held:
            raise AlgorithmError(f"{kind}.step changes its memory in place: return another one")
        again, _ = tried.step(memory, server_round, num_clients, rng(server_round))
        if digest(tried) != before:
            raise AlgorithmError(
                f"{kind} changes as it draws, so a repeated or resumed run would draw other "
                f"cohorts: define begin and step, and return what must be remembered"
            )
        if list(again) != list(cohort):
            raise AlgorithmError(
                f"{kind} draws other cohorts from the same generator: draw only from rng"
            )
        memory = following


def _measured(rule: Participation, num_clients: int) -> tuple[Array, float]:
    """Return shares of rounds from a short trial of draws, and the margin that chance explains."""
    rng, ends = np.random.default_rng(0), time.perf_counter() + 0.1
    counts, rounds = np.zeros(num_clients), 0
    while rounds < 100 or (rounds < 2000 and time.perf_counter() < ends):
        counts[_checked(rule, rule.draw(num_clients, rng), rounds + 1, num_clients)] += 1
        rounds += 1
    shares = counts / rounds
    p = float(shares.mean())
    return shares, 8 * math.sqrt(p * (1 - p) / rounds)


def _checked(rule: Participation, cohort: Any, server_round: int, num_clients: int) -> list[int]:
    """Return the sorted cohort of the user's own rule, or refuse it."""
    drawn = np.asarray(cohort)
    usable = drawn.ndim == 1 and drawn.size and drawn.dtype.kind in "iu"
    if not usable or drawn.min() < 0 or drawn.max() >= num_clients or len({*cohort}) < len(drawn):
        raise AlgorithmError(
            f"{type(rule).__name__}: the cohort of round {server_round} must be a list of at least "
            f"one number, all different, from 0 to {num_clients - 1}, got {shown(cohort)}"
        )
    return sorted(map(int, cohort))


def _overrides(rule: Participation, method: str) -> bool:
    return getattr(type(rule), method) is not getattr(Participation, method)
