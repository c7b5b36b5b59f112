"""Many clients at once: whose solve has ended waits under a mask, and leaves with half of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from flower_fedcon.arrays import anyone
from flower_fedcon.errors import FedConError
from flower_fedcon.solvers.clients import LocalProblems, Solutions, along, ends, norms, some, wide
from flower_fedcon.solvers.problem import Stop, targets
from flower_fedcon.validation import Array


class Masked:
    """What a solver of many clients holds of those that are still in its arrays.

    Parameters
    ----------
    problems : LocalProblems
    stop : callable, optional
        Of all clients' x and gradients; it returns for whom it holds.
    """

    ARRAYS: ClassVar[tuple[str, ...]] = ("here", "x", "g", "value", "size", "length")
    """The arrays with an entry of each client, which leave them together."""

    x: Array
    g: Array
    value: Array
    size: Array
    length: Array  # of the gradient, or of the proximal step

    def __init__(self, problems: LocalProblems, stop: Stop | None) -> None:
        self.problems, self.stop = problems, stop
        self.found, n = Solutions.begun(problems.start), len(problems.start)
        self.here, self.going = np.arange(n), np.ones(n, bool)

    def _end(self, who: Array, x: Array, iterations: int, converged: bool) -> None:
        """Note where some clients' solves have ended."""
        who = who & self.going
        if not who.any():
            return
        places = self.here[who]
        self.found.x[places] = x[who]
        self.found.gradient_norm[places] = self.length[who]
        self.found.iterations[places] = iterations
        self.found.converged[places] = converged
        self.going &= ~who

    def _fail(self, place: int, error: FedConError) -> None:
        """Note that one client's solve has failed."""
        self.found.errors[int(self.here[place])] = error
        self.going[place] = False

    def _compact(self) -> None:
        """Drop the clients that wait, once they are half of those in the arrays."""
        left = int(self.going.sum())
        if not left or 2 * left > len(self.going):
            return
        keep = np.flatnonzero(self.going)
        for name in self.ARRAYS:
            setattr(self, name, getattr(self, name)[keep])
        self.problems, self.stop = self.problems.only(keep, self.x), some(self.stop, keep)
        self.going = np.ones(left, bool)


class NewtonLike(Masked, ABC):
    """What Newton's method and L-BFGS share: when to end, and whom to leave to `AOGM`.

    Parameters
    ----------
    problems : LocalProblems
    stop : callable, optional
        See `Masked`.
    tolerance : float
        Of a gradient's norm, relative to max(1, its norm at the start).

    Attributes
    ----------
    left : array of bool, shape (n,)
        Who searches for a step still.
    share : array, shape (n,)
        The length of the next one to be tried, in directions.
    """

    ARRAYS = (*Masked.ARRAYS, "goal")

    def __init__(self, problems: LocalProblems, stop: Stop | None, tolerance: float) -> None:
        super().__init__(problems, stop)
        self.x = problems.start
        self.value, self.g, self.size = problems.evaluate(self.x)
        self.length = norms(self.g)
        self.found.evaluations[:] = 1
        self.goal = targets(tolerance, self.length, problems.start)
        self.unsolved: list[int] = []
        self.left, self.share = self.going.copy(), np.ones(len(self.x))

    def _go(self, most: int) -> None:
        """Move those that are still going, again and again."""
        for k in range(most):
            self._look(k)
            self._compact()
            if not self.going.any():
                break
            self._step(k)

    @abstractmethod
    def _look(self, k: Any) -> None:
        """End the solves of those that are good, and of those that are lost."""

    @abstractmethod
    def _step(self, k: Any) -> None:
        """Move those that are still going, or give them up."""

    def _search_with(self, attempt: Callable[[Any], None], most: int) -> None:
        """Try step lengths until nobody is left without one."""
        for trial in range(most):
            attempt(trial)
            if not self.left.any():
                break

    def _tried(self, x: Array, direction: Array) -> tuple[Array, Array, Array, Array]:
        """Return where the steps of those left lead, and `evaluate` what is there."""
        new = np.where(wide(self.left, x), x + along(self.share, x) * direction, self.x)
        self.found.evaluations[self.here] += self.left
        return new, *self.problems.evaluate(new)

    def _good(self) -> Array:
        """Return who is within the tolerance, or within rounding of it, or is stopped."""
        good = self.length <= self.goal
        small = self.length <= 1e6 * self.problems.eps
        if anyone(small):
            good = good | (small & (self.length <= self.problems.rounding(self.x)))
        return (good | ends(self.stop, self.x, self.g)) & np.isfinite(self.length)

    def _give_up(self, who: Array, iterations: int) -> None:
        """Leave some clients to `AOGM`, from where they are."""
        self.unsolved += self.here[who].tolist()
        self._end(who, self.x, iterations, converged=False)

    def _take(
        self, good: Array, x: Array, value: Array, g: Array, size: Array, length: Array
    ) -> None:
        """Move some clients to where a search has led them."""
        keep = wide(good, x)
        self.x, self.g = np.where(keep, x, self.x), np.where(keep, g, self.g)
        self.value = np.where(good, value, self.value)
        self.size = np.where(good, size, self.size)
        self.length = np.where(good, length, self.length)
