"""What the solvers' loops share: advancing solves, ending them, and reporting failures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from flower_fedcon.arrays import (
    is_array,
    keep,
    known,
    length,
    no,
    nobody,
    over,
    pick,
    placed,
    repeat,
    some,
)
from flower_fedcon.errors import FedConError
from flower_fedcon.solvers.problem import ClientsError, LocalProblem, Solution, Stop
from flower_fedcon.validation import Array

_State = TypeVar("_State")


def play(
    advance: Callable[[LocalProblem, Stop | None, _State], _State],
    problem: LocalProblem,
    stop: Stop | None,
    state: _State,
) -> _State:
    """Advance solves until all have ended.

    Clients whose solves have ended are masked. Once they are half of a cohort's arrays, they are
    removed from them.

    Parameters
    ----------
    advance : callable
        Takes problem, stop and state; returns the next state.
    problem, stop
        See `LocalSolver.solve`.
    state : NamedTuple
        Its arrays have an entry for each client; its numbers are shared. The flags `going` mark the
        solves that continue.
    """
    if not problem.many or not known(problem.start):
        return repeat(partial(advance, problem, stop), state)
    here, now = np.arange(len(problem.start)), state
    everyone: Any = None  # None while all clients are in the arrays
    while left := int(now.going.sum()):  # type: ignore[attr-defined]
        if 2 * left <= len(here):
            first = everyone is None
            merge = put if first else _into  # later the arrays are the loop's own
            everyone = over(partial(merge, here), now if first else everyone, now)
            places = np.flatnonzero(now.going)  # type: ignore[attr-defined]
            here, now = here[places], over(partial(taken, places), now)
            problem, stop = problem.only(places), some_of(stop, places)
        now = advance(problem, stop, now)
    return now if everyone is None else over(partial(_into, here), everyone, now)


def put(places: Any, whole: Any, part: Any) -> Any:
    """Return an array with a part put in some places; a shared value is taken from the part."""
    return _into(places, np.array(whole) if is_array(whole) else whole, part)


def _into(places: Any, whole: Any, part: Any) -> Any:
    """Do the same in place."""
    return placed(whole, places, part) if is_array(whole) else part


def taken(places: Array, part: Any) -> Any:
    """Return some clients' entries of an array; a shared value is returned unchanged."""
    return part[places] if isinstance(part, np.ndarray) else part


class Point(NamedTuple):
    """A point of the solves: x, and what `LocalProblem.evaluate` returns there.

    Attributes
    ----------
    x, g : array
        The iterate, and the gradient of h there.
    value, size, norm : float
        h(x), the sum of the sizes of its terms, and the gradient's norm; arrays (n,) for a cohort.
    """

    x: Any
    g: Any
    value: Any
    size: Any
    norm: Any

    @classmethod
    def of(cls, problem: LocalProblem, x: Array) -> Self:
        """Return the point x."""
        value, g, size = problem.evaluate(x)
        return cls(x, g, value, size, length(g, problem.axes))

    def moved(self, who: Any, new: Point) -> Point:
        """Return the new point for some clients, and this one for the others."""
        return Point(
            keep(who, new.x, self.x),
            keep(who, new.g, self.g),
            pick(who, new.value, self.value),
            pick(who, new.size, self.size),
            pick(who, new.norm, self.norm),
        )


def ended(
    found: Solution, going: Any, who: Any, x: Array, norm: Any, iterations: Any, converged: Any
) -> tuple[Solution, Any]:
    """Record the solves that end here; return the others, too."""
    who = who & going
    if not some(who):
        return found, going
    noted = found._replace(
        x=keep(who, x, found.x),
        gradient_norm=pick(who, norm, found.gradient_norm),
        iterations=pick(who, iterations, found.iterations),
        converged=pick(who, converged, found.converged),
    )
    return noted, going & no(who)


def is_good(
    problem: LocalProblem, stop: Stop | None, going: Any, x: Array, g: Array, norm: Any, goal: Any
) -> Any:
    """Return which of these solves are done: by the gradient's norm, or by a stopping rule.

    A gradient that is only rounding error of its terms reaches any goal > 0.
    """
    good, small = going & (norm <= goal), norm <= 1e6 * problem.eps * problem.usual[0]
    if some(small):
        good = good | (going & small & (goal > 0) & (norm <= problem.rounding(x)))
    return good if stop is None else good | holds(stop, going ^ good, x, g)


def told(
    problem: LocalProblem, lost: Any, iterations: Any, error: Callable[[int], FedConError]
) -> None:
    """Raise if a solve has failed.

    Raises
    ------
    FedConError
        For one client.
    ClientsError
        For a cohort.
    """
    if nobody(lost):
        return
    if not problem.many:
        raise error(iterations)
    cohort, places = problem.objective, np.flatnonzero(lost).tolist()
    errors = {place: cohort.failure(place) or error(int(iterations[place])) for place in places}
    raise ClientsError(errors)


def some_of(stop: Stop | None, places: Array) -> Stop | None:
    """Return the part of a stopping rule of many clients for some of them."""
    only = getattr(stop, "only", None)
    return stop if only is None else only(places)


def holds(stop: Stop | None, who: Any, x: Array, gradient: Array) -> Any:
    """Return for which of these clients a stopping rule holds; it is not called without clients."""
    if stop is None or not some(who):
        return who & False
    answer = stop(x, gradient)
    return who & (np.reshape(answer, who.shape) if is_array(who) else bool(answer))
