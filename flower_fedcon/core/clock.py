"""A simulated clock: how long the rounds of a run would take on clients of given speeds.

    seconds of client i = latency + bytes down / down_i + compute_i + K gradient_i + bytes up / up_i

in a round, with the bytes that are counted for the client. A round lasts as long as the slowest
client whose reply is used. A method with a query before the step has two exchanges: each lasts as
long as its slowest client, and the time of the work is counted in the second.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flower_fedcon.core.availability import read_rows
from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.estimated import Estimated
from flower_fedcon.core.participation import Full, Participation
from flower_fedcon.core.rng import CLOCK, stream
from flower_fedcon.errors import ConfigError, repr_of
from flower_fedcon.validation import Array, choice, nonnegative, positive, real


@dataclass(frozen=True)
class Distribution(ABC):
    """The distribution of a clock's numbers.

    Attributes
    ----------
    per : {"client", "round"}
        Whether each client has one number for the whole run, or a new one in each round.
    """

    per: str = field(default="client", kw_only=True)

    def __post_init__(self) -> None:
        choice(f"{type(self).__name__}(per)", self.per, ("client", "round"))

    @abstractmethod
    def sample(self, rng: np.random.Generator, num_clients: int) -> Array:
        """Return a positive number for each client."""

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds of the numbers that are drawn."""
        return 0.0, math.inf


@dataclass(frozen=True)
class LogNormal(Distribution):
    """Log-normal numbers, a usual model of bandwidths.

    Parameters
    ----------
    median : float
        > 0.
    spread : float (default: 0.5)
        The standard deviation of the logarithm, >= 0.
    per : {"client", "round"} (default: "client")

    >>> LogNormal(median=2.0, spread=0.0).sample(np.random.default_rng(0), 2)
    array([2., 2.])
    """

    median: float = 1.0
    spread: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("LogNormal(median)", self.median)
        nonnegative("LogNormal(spread)", self.spread)

    def sample(self, rng: np.random.Generator, num_clients: int) -> Array:
        """Return a number for each client."""
        numbers: Array = self.median * np.exp(self.spread * rng.standard_normal(num_clients))
        return numbers


@dataclass(frozen=True)
class Exponential(Distribution):
    """`least` plus exponential numbers, a usual model of waiting times.

    Parameters
    ----------
    mean : float
        The mean of the exponential numbers, > 0.
    least : float (default: 0)
        >= 0.
    per : {"client", "round"} (default: "client")

    >>> bool(Exponential(mean=1.0, least=3.0).sample(np.random.default_rng(0), 5).min() > 3)
    True
    """

    mean: float = 1.0
    least: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("Exponential(mean)", self.mean)
        nonnegative("Exponential(least)", self.least)

    def sample(self, rng: np.random.Generator, num_clients: int) -> Array:
        """Return a number for each client."""
        return self.least + self.mean * rng.standard_exponential(num_clients)

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds of the numbers that are drawn."""
        return self.least, math.inf


@dataclass(frozen=True)
class Uniform(Distribution):
    """Numbers between two bounds.

    Parameters
    ----------
    low, high : float
        0 <= low <= high.
    per : {"client", "round"} (default: "client")
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not nonnegative("Uniform(low)", self.low) <= real("Uniform(high)", self.high):
            raise ConfigError(f"Uniform needs low <= high, got {self!r}")

    def sample(self, rng: np.random.Generator, num_clients: int) -> Array:
        """Return a number for each client."""
        return rng.uniform(self.low, self.high, num_clients)

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds of the numbers that are drawn."""
        return self.low, self.high


_SPEEDS = ("up", "down")
_LONGEST = sys.float_info.max
DISTRIBUTIONS = {kind.__name__: kind for kind in (Exponential, LogNormal, Uniform)}


class Clock:
    """The speeds of a run's clients; they add the column "simulated_seconds" to the history.

    Each argument is a number for all clients; a sequence with one for each; a `LogNormal`,
    `Exponential` or `Uniform`, drawn with the run's seed; or a trace: an array of shape (rounds,
    clients), or the path of such a file (CSV with commas, or .npy), whose rows begin again after
    the last.

    Parameters
    ----------
    up, down : optional
        Bytes per second, > 0: 1.25e6 is 10 Mbit/s. By default transfers take no time.
    latency : (default: 0)
        Further seconds of each exchange, there and back, >= 0.
    compute : (default: 0)
        Seconds of a client's work in a round, >= 0.
    gradient : (default: 0)
        Seconds for each gradient of a client, >= 0. Their number is `local_steps`, or what the
        client's step has counted. In the second case a `Deadline` uses the number of the client's
        last round.
    away : sequence of (client, from, to), or path
        Times, in seconds since the start, at which a client (its number, from 0) is away: its work
        and its transfers pause. Or the path of such rows (CSV with commas, or .npy).
    events : path, optional
        The `events.jsonl` in the folder of a run with `Buffered`, which this run repeats: who was
        asked, and when replies came. Then no other argument has a meaning.

    Raises
    ------
    ConfigError
        If a number is out of range, or a file cannot be read.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.strategies import FedAvg
    >>> problem = FederatedProblem([Quadratic(np.eye(2), np.ones(2)) for _ in range(2)])
    >>> strategy = FedAvg(client_lr=0.5, local_steps=3)
    >>> history = simulate(strategy, problem, 2, clock=Clock(compute=[1.0, 5.0], gradient=0.5))
    >>> history["simulated_seconds"]  # 5 and 3 times 0.5, each round
    array([ 6.5, 13. ])
    """

    NAMES: ClassVar = ("up", "down", "latency", "compute", "gradient")

    def __init__(
        self,
        *,
        up: Any = None,
        down: Any = None,
        latency: Any = 0.0,
        compute: Any = 0.0,
        gradient: Any = 0.0,
        away: Any = (),
        events: str | Path | None = None,
    ) -> None:
        given = dict(zip(self.NAMES, (up, down, latency, compute, gradient), strict=True))
        self.stated = {
            name: value
            for name, value in given.items()
            if value is not None and (name in _SPEEDS or np.ndim(value) or value != 0)
        }
        self._of: dict[str, float | Array | Distribution] = {
            name: _read(name, value) for name, value in self.stated.items()
        }
        self.away = _read_away(away)
        if self.away:
            self.stated["away"] = away
        if not isinstance(events, str | Path | None):
            raise ConfigError(f"Clock(events) must be the path of a log, got {events!r}")
        self.events = None if events is None else Path(events)
        if events is not None:
            if self.stated:
                raise ConfigError(
                    f"Clock(events={str(events)!r}) repeats the times of a run, and takes no "
                    f"{', '.join(self.stated)}: leave them out"
                )
            self.stated["events"] = str(events)

    def __repr__(self) -> str:
        return f"Clock({', '.join(f'{k}={repr_of(v)}' for k, v in self.stated.items())})"

    def check(self, num_clients: int) -> None:
        """Raise unless it has numbers for this many clients."""
        if self.away and max(self.away) >= num_clients:
            raise ConfigError(
                f"Clock(away): there is no client {max(self.away)}: the numbers of {num_clients} "
                f"clients begin with 0"
            )
        for name, value in self._of.items():
            if isinstance(value, np.ndarray) and value.shape[-1] != num_clients:
                raise ConfigError(
                    f"Clock({name}) needs a number for each of {num_clients} clients, got "
                    f"{value.shape[-1]} numbers"
                )

    @property
    def varies(self) -> bool:
        """Whether a client's numbers differ from round to round."""
        return any(
            value.per == "round" if isinstance(value, Distribution) else np.ndim(value) == 2
            for value in self._of.values()
        )

    def best(self, name: str, num_clients: int, seed: int) -> Any:
        """Return each client's fastest number in any round, or one number for all."""
        value, speed = self._of.get(name), name in _SPEEDS
        if isinstance(value, Distribution) and value.per == "round":
            return value.ends[speed]
        if isinstance(value, np.ndarray) and value.ndim == 2:
            return value.max(axis=0) if speed else value.min(axis=0)
        return self.numbers(name, num_clients, seed, 1, 0)

    def numbers(self, name: str, num_clients: int, seed: int, server_round: int, again: int) -> Any:
        """Return each client's number in a round, or one for all; None if there is none.

        `again` is how often the round's times have been drawn again.
        """
        value = self._of.get(name)
        if isinstance(value, Distribution):
            each = self.NAMES.index(name)
            now = server_round if value.per == "round" else 0
            key = 8 * (again if value.per == "round" else 0) + each
            return value.sample(stream(seed, CLOCK, now, key), num_clients)
        if isinstance(value, np.ndarray) and value.ndim == 2:
            return value[(server_round - 1) % len(value)]
        return value


def _read(name: str, value: Any) -> float | Array | Distribution:
    """Return an argument of a clock, checked."""
    if isinstance(value, Distribution):
        return value
    if isinstance(value, str | Path):
        try:
            numbers = read_rows(Path(value))
        except (OSError, ValueError) as error:
            raise ConfigError(f"Clock({name}={str(value)!r}): cannot read it: {error}") from None
    else:
        try:
            numbers = np.array(value, dtype=float)
        except (TypeError, ValueError):
            numbers = np.array(np.nan)
    speed = name in _SPEEDS
    right = (numbers > 0 if speed else numbers >= 0) & (np.isfinite(numbers))
    if numbers.ndim > 2 or not numbers.size or not right.all():
        raise ConfigError(
            f"Clock({name}) must be {'> 0' if speed else '>= 0'} and finite: a number, one for "
            "each client, rows of these for rounds, a file of such rows, or LogNormal, Exponential "
            f"or Uniform, got {repr_of(value)}"
        )
    return float(numbers) if not numbers.ndim else numbers


def _read_away(value: Any) -> dict[int, list[tuple[float, float]]]:
    """Return the times at which each client is away, in order."""
    try:
        rows = read_rows(Path(value)) if isinstance(value, str | Path) else np.array(value, float)
        rows = rows.reshape(-1, 3)
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(
            f"Clock(away) must be rows of a client's number and the seconds from and to which it "
            f"is away, got {repr_of(value)} ({error})"
        ) from None
    away: dict[int, list[tuple[float, float]]] = {}
    for client, start, end in rows.tolist():
        whole = client >= 0 and client == int(client) if math.isfinite(client) else False
        if not whole or not 0 <= start < end < math.inf:
            raise ConfigError(
                f"Clock(away): ({client:g}, {start:g}, {end:g}) is not a client's number and "
                f"0 <= from < to, both finite"
            )
        away.setdefault(int(client), []).append((start, end))
    return {client: _joined(times) for client, times in away.items()}


def _joined(times: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return times in order, those that overlap as one."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(times):
        if joined and start <= joined[-1][1]:
            start, last = joined.pop()
            end = max(end, last)
        joined.append((start, end))
    return joined


class Timekeeper:
    """A run's simulated time.

    Parameters
    ----------
    clock : Clock
    num_clients, seed : int
    steps : int, optional
        How many gradients a client takes in a round, if that is known; otherwise they are counted.

    Attributes
    ----------
    seconds : float
        The simulated time of all rounds so far.
    sizes : (int, int)
        The most bytes, down and up, of a client in the last round; (0, 0) before the first.
    most : float
        The longest that a round may last, in seconds.
    counts_gradients : bool
        Whether it needs to be told how many gradients each client took.
    """

    def __init__(self, clock: Clock, num_clients: int, seed: int, steps: int | None) -> None:
        clock.check(num_clients)
        self.counts_gradients = steps is None and "gradient" in clock.stated
        self._gradients = np.full(num_clients, np.nan)  # in each client's last exchange, counted
        self._clock, self._num_clients, self._seed = clock, num_clients, seed
        self._steps, self.seconds, self.sizes = steps or 0, 0.0, (0, 0)
        self._known: tuple[Any, dict[str, Any]] = (None, {})
        self._again, self.most = 0, math.inf

    def anew(self, vain: int) -> None:
        """Note how many draws of a round failed, so that its times are drawn again each time."""
        self._again = vain

    def took(self, clients: Sequence[int], gradients: Any) -> None:
        """Note how many gradients clients took in the exchange to be timed."""
        self._gradients[clients] = gradients

    @np.errstate(over="ignore", invalid="ignore")  # `with_pauses` refuses what is not finite
    def times(
        self,
        server_round: int,
        clients: Any,
        down: Any,
        up: Any,
        *,
        work: bool = True,
        exchanges: int = 1,
    ) -> Array:
        """Return the seconds of each of these clients for an exchange of so many bytes."""
        key = (server_round, self._again) if self._clock.varies else (1, 0)
        if self._known[0] != key:
            self._known = (
                key,
                {
                    name: self._clock.numbers(name, self._num_clients, self._seed, *key)
                    for name in Clock.NAMES
                },
            )
        return self._sum(self._known[1], clients, down, up, work=work, exchanges=exchanges)

    @np.errstate(over="ignore", invalid="ignore")
    def least_times(self, down: int, up: int, *, exchanges: int = 1) -> Array:
        """Return the seconds of each client in its fastest round.

        Gradients whose number is not known in advance count 0 seconds.
        """
        n = self._num_clients
        best = {name: self._clock.best(name, n, self._seed) for name in Clock.NAMES}
        return self._sum(best, range(n), down, up, work=True, exchanges=exchanges)

    def _sum(
        self,
        numbers: Mapping[str, Any],
        clients: Any,
        down: Any,
        up: Any,
        *,
        work: bool,
        exchanges: int,
    ) -> Array:
        """Return the seconds of an exchange with these numbers."""
        which, seconds = np.asarray(clients, dtype=np.intp), np.zeros(len(clients))
        gradients: Any = work * self._steps
        if self.counts_gradients:  # clients not heard from yet: as many as the others
            counted = self._gradients[np.isfinite(self._gradients)]
            usual = counted.mean() if len(counted) else 0.0
            gradients = np.nan_to_num(self._gradients[which], nan=usual)
        amounts = {
            "latency": exchanges,
            "compute": work,
            "gradient": gradients,
            "down": np.asarray(down),
            "up": np.asarray(up),
        }
        for name, amount in amounts.items():
            each = numbers[name]
            if each is None:
                continue
            each = each[which] if isinstance(each, np.ndarray) else each
            seconds += amount / each if name in _SPEEDS else amount * each
        return seconds

    @property
    def needs_replies(self) -> bool:
        """Whether the time of a reply depends on the reply."""
        return self.counts_gradients or "up" in self._clock.stated

    @property
    def events(self) -> Path | None:
        """The log of events that the run repeats, if it does."""
        return self._clock.events

    def with_pauses(self, now: float, clients: Sequence[int], seconds: Array) -> Array:
        """Return how long work that begins now takes, with the times at which clients are away.

        Raises
        ------
        ConfigError
            If it would end at a time that no number has.
        """
        away = self._clock.away
        lasting = seconds
        if away and not away.keys().isdisjoint(clients):
            lasting = seconds.copy()
            for place, client in enumerate(clients):
                end = now + float(seconds[place])
                for start, back in away.get(client, ()):
                    if back > now and start < end:
                        end += back - max(start, now)
                lasting[place] = end - now
        ends = lasting <= _LONGEST - now
        if not ends.all():
            place = int(ends.argmin())
            raise ConfigError(
                f"{self._clock!r}: client {clients[place]} needs {lasting[place]:g} seconds from "
                f"second {now:g} on, beyond the largest number (1.8e308): give fewer seconds, or "
                f"more bytes per second"
            )
        return lasting

    def played(self, server_round: int, cohort: Sequence[int], down: int, up: int) -> None:
        """Count a round by the bytes that each client was sent and has sent."""
        times = self.with_pauses(self.seconds, cohort, self.times(server_round, cohort, down, up))
        self.passed(float(times.max()), (down, up))

    def passed(self, seconds: float, sizes: tuple[int, int]) -> None:
        """Count a round of so many seconds."""
        self.seconds += min(seconds, self.most)
        self.sizes = sizes

    def snapshot(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        counted = {"gradients": self._gradients.tolist()} if self.counts_gradients else {}
        return {"seconds": self.seconds, "sizes": list(self.sizes), **counted}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.seconds, (down, up) = snapshot["seconds"], snapshot["sizes"]
        self.sizes = down, up
        if self.counts_gradients and "gradients" in snapshot:
            self._gradients = np.array(snapshot["gradients"])


@dataclass(frozen=True)
class Deadline(Participation):
    """The clients drawn by another rule whose simulated time is within a deadline.

    The server asks only these, as in Nishio, Yonetani, "Client selection for federated learning
    with heterogeneous resources in mobile edge" (ICC 2019), so a round lasts at most `seconds`.
    Times are computed with the bytes of the round before; in round 1 an upload counts as many bytes
    as the model, and a compact upload none. The history's column "late" counts the clients that
    were drawn but not asked. If no client would be in time, the draw is repeated. The rule needs a
    clock: ``simulate(..., clock=Clock(...))``.

    Parameters
    ----------
    seconds : float
        > 0.
    among : Participation (default: Full())
        The rule that draws clients.

    >>> Deadline(2.5).rate(4)
    1.0
    """

    seconds: float
    among: Participation = field(default_factory=Full)

    def __post_init__(self) -> None:
        positive("Deadline(seconds)", self.seconds)
        if isinstance(self.among, Estimated):
            raise ConfigError(
                f"Deadline(among) draws clients, and weights come after the deadline: write "
                f"Estimated(Deadline({self.seconds:g}, ...)), got {self.among!r}"
            )
        if not isinstance(self.among, Participation) or isinstance(self.among, Deadline | Buffered):
            raise ConfigError(
                f"Deadline(among) must be another rule of participation, got {self.among!r}"
            )

    def for_clients(self, clients: Sequence[Any]) -> Deadline:
        """Return the rule for these clients."""
        return replace(self, among=self.among.for_clients(clients))

    @property
    def drawn_by(self) -> Participation:
        """The other rule."""
        return self.among

    def rate(self, num_clients: int) -> float:
        """Return the other rule's rate, an upper bound."""
        return self.among.rate(num_clients)

    def inclusion(self, num_clients: int) -> Array:
        """Return the other rule's shares, which are upper bounds."""
        shares = self.among.inclusion(num_clients)
        return np.full(num_clients, self.rate(num_clients)) if shares is None else shares

    def is_full(self, num_clients: int) -> bool:
        """Return False, since some clients may be late."""
        return False
