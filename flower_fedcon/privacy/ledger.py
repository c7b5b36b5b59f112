"""How much privacy of its examples a client has spent."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.privacy.accountant import NoisySum, noisy_gradient, spent_epsilon
from flower_fedcon.validation import count, nonnegative, positive

if TYPE_CHECKING:
    from flower_fedcon.privacy.examples import ExampleDP

_FAR = 2**40  # gradients: without end


class Ledger:
    """How many noisy gradients of a client's data have left; kept in this object.

    Of all studies on the data, whatever noise each has had.

    Parameters
    ----------
    privacy : ExampleDP

    Attributes
    ----------
    gradients : Counter
        How many at each noise multiplier and sampling rate.
    distance : float
        How far their noise is from continuous noise, all together.
    """

    def __init__(self, privacy: ExampleDP) -> None:
        self.privacy = privacy
        self.gradients: Counter[tuple[float, float]] = Counter()
        self.distance = 0.0
        self._left: tuple[float, int] = (0.0, 0)  # how many more at that rate

    @property
    def spent(self) -> dict[float, int]:
        """The number of gradients at each sampling rate."""
        found: Counter[float] = Counter()
        for (_, rate), n in self.gradients.items():
            found[rate] += n
        return dict(found)

    @property
    def epsilon(self) -> float:
        """The privacy spent so far."""
        return self._epsilon(self.gradients, self.distance)

    def spend(self, rate: float, distance: float = 0.0) -> None:
        """Count a gradient, whose noise is so far from continuous noise.

        Raises
        ------
        RefusedError
            If that would exceed the budget.
        """
        known, left = self._left
        if known != rate or left < 1:
            left = self._gradients_left(rate, distance)
        if left < 1:
            raise RefusedError(
                f"refused: this node's data have spent epsilon {self.epsilon:.4g} of "
                f"privacy.budget = {self.privacy.budget:g}, and one more gradient exceeds it"
            )
        self._left = rate, left - 1
        self.gradients[self.privacy.noise_multiplier, rate] += 1
        self.distance += distance

    # --- in a file -------------------------------------------------------------------------------

    def entries(self) -> dict[str, Any]:
        """Return all that counts, and of which delta and budget, as JSON holds it."""
        counted = [[noise, rate, n] for (noise, rate), n in sorted(self.gradients.items())]
        known = self.privacy
        return {
            "gradients": counted,
            "distance": self.distance,
            "target_delta": known.target_delta,
            "budget": known.budget,
        }

    def take(self, entries: Any, *, more: bool = False) -> None:
        """Take over what `entries` returned; `more` of it where it counts others.

        What this ledger knows of the same gradients stays: the larger number of each.

        Raises
        ------
        ConfigError, TypeError, KeyError, ValueError
            If that is not what they are.
        """
        if "noise_multiplier" in entries:  # as ledgers were once
            found = [(entries["noise_multiplier"], *pair) for pair in entries["spent"]]
        else:
            found = entries["gradients"]
        distance = nonnegative("distance", entries.get("distance", 0.0))
        counted = Counter[tuple[float, float]]()
        for noise, rate, n in found:
            if positive("rate", rate) > 1:
                raise ConfigError(f"rate must be at most 1, got {rate!r}")
            counted[positive("noise_multiplier", noise), rate] += count("gradients", n)
        if more:
            self.gradients, self.distance = self.gradients + counted, self.distance + distance
        else:
            self.gradients |= counted
            self.distance = max(self.distance, distance)
        self._left = (0.0, 0)

    def _epsilon(self, gradients: Counter[tuple[float, float]], distance: float) -> float:
        counts: Counter[NoisySum] = Counter()
        for (noise, rate), n in gradients.items():
            counts[noisy_gradient(noise, rate)] += n
        return spent_epsilon(counts, self.privacy.target_delta, distance)

    def _gradients_left(self, rate: float, distance: float) -> int:
        """Return how many more gradients at a rate the budget allows, perhaps fewer than that."""
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
