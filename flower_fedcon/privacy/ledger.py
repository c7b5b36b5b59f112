"""Ledgers of the privacy that a client has spent: by examples, and in noisy sums."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import ConfigError, RefusedError, StorageError
from flower_fedcon.privacy.accountant import (
    FULL,
    NoisySum,
    Sampling,
    noisy_gradient,
    spent_epsilon,
)
from flower_fedcon.validation import count, nonnegative, positive

if TYPE_CHECKING:
    from flower_fedcon.privacy.examples import ExampleDP
    from flower_fedcon.privacy.shares import Seen

NOISY_SUMS = "noisy-sums"
"""The place in a node's state-dir of `SumsLedger`'s counts, by the digest of its data."""
_NONE = '{"sums": [], "distance": 0.0, "ratios": [0.0, 0.0]}'
_FAR = 2**40  # gradients: no limit


class Ledger:
    """How many noisy gradients on a client's data were released; kept in this object.

    It counts all studies on the data, with any noise.

    Parameters
    ----------
    privacy : ExampleDP

    Attributes
    ----------
    gradients : Counter
        Their number at each noise multiplier and sampling rate.
    distance : float
        The distance of all their noise together from continuous noise.
    """

    def __init__(self, privacy: ExampleDP) -> None:
        self.privacy = privacy
        self.gradients: Counter[tuple[float, float]] = Counter()
        self.distance = 0.0
        self._left: tuple[float, int] = (0.0, 0)  # how many more are allowed at a rate
        self._exchanged: dict[Hashable, Ledger] = {}  # read or written, by place

    @property
    def spent(self) -> dict[float, int]:
        """The number of gradients at each sampling rate."""
        counts: Counter[float] = Counter()
        for (_, rate), n in self.gradients.items():
            counts[rate] += n
        return dict(counts)

    @property
    def epsilon(self) -> float:
        """The privacy spent so far."""
        return self._epsilon(self.gradients, self.distance)

    def spend(self, rate: float, distance: float = 0.0) -> None:
        """Count a gradient whose noise has this distance from continuous noise.

        Raises
        ------
        RefusedError
            If that would exceed the budget.
        """
        last_rate, left = self._left
        if last_rate != rate or left < 1:
            left = self._gradients_left(rate, distance)
        if left < 1:
            raise RefusedError(
                f"refused: this node's data have spent epsilon {self.epsilon:.4g} of "
                f"privacy.budget = {self.privacy.budget:g}, and one more gradient would exceed it"
            )
        self._left = rate, left - 1
        self.gradients[self.privacy.noise_multiplier, rate] += 1
        self.distance += distance

    # --- in a file -------------------------------------------------------------------------------

    def entries(self) -> dict[str, Any]:
        """Return all counts, with delta and budget, in JSON's types."""
        counted = [[noise, rate, n] for (noise, rate), n in sorted(self.gradients.items())]
        privacy = self.privacy
        return {
            "gradients": counted,
            "distance": self.distance,
            "target_delta": privacy.target_delta,
            "budget": privacy.budget,
        }

    def take(self, entries: Any, *, more: bool = False) -> None:
        """Take over what `entries` returned; `more` means that it counts other gradients.

        If both count the same gradients, the larger number is kept.

        Raises
        ------
        ConfigError, TypeError, KeyError, ValueError
            If the entries are not valid.
        """
        if "noise_multiplier" in entries:  # the form of older ledgers
            gradients = [(entries["noise_multiplier"], *pair) for pair in entries["spent"]]
        else:
            gradients = entries["gradients"]
        distance = nonnegative("distance", entries.get("distance", 0.0))
        counted = Counter[tuple[float, float]]()
        for noise, rate, n in gradients:
            if positive("rate", rate) > 1:
                raise ConfigError(f"rate must be at most 1, got {rate!r}")
            counted[positive("noise_multiplier", noise), rate] += count("gradients", n)
        if more:
            self.gradients, self.distance = self.gradients + counted, self.distance + distance
        else:
            self.gradients |= counted
            self.distance = max(self.distance, distance)
        self._left = (0.0, 0)

    def go_on(self, entries: Any, place: Hashable) -> None:
        """Add a place's counts, less those that this ledger has read or written there before.

        Spending since then is kept: no other place counts it.

        Raises
        ------
        ConfigError, TypeError, KeyError, ValueError
            If the entries are not valid.
        """
        ledger = Ledger(self.privacy)
        ledger.take(entries)
        before = self._exchanged.get(place, Ledger(self.privacy))
        self.gradients = self.gradients + (ledger.gradients - before.gradients)
        self.distance += max(0.0, ledger.distance - before.distance)
        self._left = (0.0, 0)
        self._exchanged[place] = ledger

    def covers(self, entries: Any, least: Any) -> bool:
        """Return whether entries count all that `least` counts.

        Raises
        ------
        ConfigError, TypeError, KeyError, ValueError
            If the entries are not valid.
        """
        counted, needed = Ledger(self.privacy), Ledger(self.privacy)
        counted.take(entries)
        needed.take(least)
        return not needed.gradients - counted.gradients and needed.distance <= counted.distance

    def written(self, place: Hashable) -> None:
        """Note that a place now has all the counts of this ledger."""
        self._exchanged[place] = ledger = Ledger(self.privacy)
        ledger.gradients, ledger.distance = self.gradients.copy(), self.distance

    def _epsilon(self, gradients: Counter[tuple[float, float]], distance: float) -> float:
        counts: Counter[NoisySum] = Counter()
        for (noise, rate), n in gradients.items():
            counts[noisy_gradient(noise, rate)] += n
        return spent_epsilon(counts, self.privacy.target_delta, distance)

    def _gradients_left(self, rate: float, distance: float) -> int:
        """Return a number of further gradients at a rate that the budget allows; may be too low."""
        budget = self.privacy.budget
        if budget is None:
            return _FAR

        def fits(more: int) -> bool:
            after = self.gradients + Counter({(self.privacy.noise_multiplier, rate): more})
            return self._epsilon(after, self.distance + more * distance) <= budget

        more = 0
        while more < _FAR and fits(2 * more + 1):
            more = 2 * more + 1
        return more


class SumsLedger:
    """The number of sums with clients' noise that contained a client's uploads, in a file.

    It counts all studies on its data, with the noise that keys guarantee. The server may not have
    seen a sum of each.

    Parameters
    ----------
    text : str
        The content of the file; "" at first.
    place : str
        The file's name, for messages.

    Raises
    ------
    StorageError
        If the content was not made by `text`.
    """

    def __init__(self, text: str, place: str) -> None:
        try:
            content: dict[str, Any] = json.loads(text or _NONE)
            self.sums = Counter[float]()
            for noise, n in content["sums"]:
                self.sums[positive("noise", noise)] += count("sums", n)
            self.distance = nonnegative("distance", content["distance"])
            first, second = (nonnegative("ratios", r) for r in content["ratios"])
        except (ValueError, TypeError, KeyError, ConfigError) as error:
            raise StorageError(
                f"{place} does not state in how many noisy sums this client took part "
                f"({error!r:.99}): restore a copy; without the file earlier releases are forgotten"
            ) from None
        self.ratios = first, second

    def add(self, seen: Seen, entries: int) -> None:
        """Count a sum with this number of entries."""
        assert seen.shares is not None  # noqa: S101  (the caller's case)
        self.sums[seen.noise] += 1
        more = seen.shares.ratios(entries, seen.sure)
        self.ratios = self.ratios[0] + more[0], self.ratios[1] + more[1]
        self.distance += seen.shares.distance(entries, seen.summed)

    @property
    def text(self) -> str:
        """The content for a file."""
        sums = [[noise, n] for noise, n in sorted(self.sums.items())]
        return json.dumps({"sums": sums, "distance": self.distance, "ratios": self.ratios})

    def epsilon(self, delta: float) -> float:
        """Return the epsilon spent by all sums."""
        everyone = Sampling(FULL, 1, 1.0)
        counts = {NoisySum(noise, everyone): n for noise, n in self.sums.items()}
        return spent_epsilon(counts, delta, self.distance, self.ratios)
