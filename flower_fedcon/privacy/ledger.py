"""How much privacy of its examples a client has spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flower_fedcon.errors import RefusedError

if TYPE_CHECKING:
    from flower_fedcon.privacy.examples import ExampleDP

_FAR = 2**40  # gradients: without end


class Ledger:
    """How many noisy gradients of a client's data have left; kept in this object.

    Parameters
    ----------
    privacy : ExampleDP

    Attributes
    ----------
    spent : dict
        The number of gradients at each sampling rate.
    distance : float
        How far their noise is from continuous noise, all together.
    """

    def __init__(self, privacy: ExampleDP) -> None:
        self.privacy = privacy
        self.spent: dict[float, int] = {}
        self.distance = 0.0
        self._left: tuple[float, int] = (0.0, 0)  # how many more at that rate

    @property
    def epsilon(self) -> float:
        """The privacy spent so far."""
        return self.privacy.epsilon(self.spent, self.distance)

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
        self.spent[rate] = self.spent.get(rate, 0) + 1
        self.distance += distance

    def _gradients_left(self, rate: float, distance: float) -> int:
        """Return how many more gradients at a rate the budget allows, perhaps fewer than that."""
        budget, spent = self.privacy.budget, self.spent.get(rate, 0)
        if budget is None:
            return _FAR

        def fits(more: int) -> bool:
            after, far = {**self.spent, rate: spent + more}, self.distance + more * distance
            return self.privacy.epsilon(after, far) <= budget

        more = 0
        while more < _FAR and fits(2 * more + 1):
            more = 2 * more + 1
        return more
