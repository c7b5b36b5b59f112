"""L-BFGS for many clients at once, along a leading axis.

The directions are those of Nocedal and Wright, "Numerical optimization" (2006), algorithm 7.4. The
line search is the bisection of Lewis and Overton, Math. Program. 141 (2013), algorithm 2.6, for the
weak Wolfe conditions; where values differ by rounding alone, the slopes tell, as in Hager and
Zhang, SIAM J. Optim. 16 (2005), (4.1). SciPy's search, that of one client, is another: both end
within the tolerance, after about as many steps, if not evaluations.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from flower_fedcon.arrays import anyone
from flower_fedcon.solvers.clients import (
    LocalProblems,
    Solutions,
    dots,
    norms,
    some,
    wide,
)
from flower_fedcon.solvers.descent import CLEAR, Rules
from flower_fedcon.solvers.lbfgs import LBFGS, PAIRS, diverged, expect_smooth
from flower_fedcon.solvers.masked import NewtonLike
from flower_fedcon.solvers.problem import Stop
from flower_fedcon.solvers.stacked_descent import descend_all
from flower_fedcon.solvers.stacked_exact import put
from flower_fedcon.validation import Array

_DECREASE, _CURVATURE = 1e-4, 0.9  # c1 and c2 of the Wolfe conditions
_TRIALS = 60  # of a line search, which lengthens steps, or halves intervals
_DOUBLINGS = 10  # of a step, before it grows faster
_IDLE = 4  # steps in a row that hardly change the value, and leave a longer gradient


def lbfgs_all(problems: LocalProblems, solver: LBFGS, stop: Stop | None = None) -> Solutions:
    """Return the minimisers of all clients; see `LBFGS`.

    Raises
    ------
    ConfigError
        If there is a regularizer.
    """
    expect_smooth(problems.regularizer)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found, goals, left = QuasiNewton(problems, solver, stop).run()
    for used in np.unique(found.iterations[left]).tolist():
        if used == solver.max_iterations:
            break
        who = left[found.iterations[left] == used]
        tolerances = goals[who] / np.maximum(1.0, found.gradient_norm[who])
        rest = problems.only(who, found.x[who])
        end = descend_all(rest, Rules(solver.max_iterations - used), some(stop, who), tolerances)
        evaluations = found.evaluations[who] + end.evaluations
        put(found, who, end._replace(iterations=used + end.iterations, evaluations=evaluations))
    return found


class QuasiNewton(NewtonLike):
    """A run of `lbfgs_all`."""

    ARRAYS = (*NewtonLike.ARRAYS, "moves", "changes", "weights", "scale", "best", "lowest", "idle")

    def __init__(self, problems: LocalProblems, solver: LBFGS, stop: Stop | None) -> None:
        super().__init__(problems, stop, solver.tolerance)
        self.most, self.goals = solver.max_iterations, self.goal
        n, d = len(self.x), self.x[0].size
        pairs = min(PAIRS, self.most)
        self.moves, self.changes = np.zeros((n, pairs, d)), np.zeros((n, pairs, d))
        self.weights = np.zeros((n, pairs))  # 1/<s, y>; 0 for a pair that does not count
        self.scale = np.full(n, np.nan)  # <s, y>/<y, y> of the last pair, once there is one
        self.best, self.lowest, self.idle = self.length, self.value, np.zeros(n, np.int64)

    def run(self) -> tuple[Solutions, Array, Array]:
        """Return the solutions, the norms to reach, and who is left to `AOGM`."""
        self._go(self.most)
        self._look(self.most)
        self._end(self.going.copy(), self.x, self.most, converged=False)
        return self.found, self.goals, np.array(sorted(self.unsolved), np.intp)

    def _look(self, k: Any) -> None:
        """End the solves of those that are good, diverge, or go in circles."""
        self._end(self._good(), self.x, k, converged=True)
        self._diverge(self.going & ~np.isfinite(self.length))
        self._give_up(self.going & (self.idle > _IDLE), k)

    def _diverge(self, who: Array) -> None:
        for place in np.flatnonzero(who).tolist():
            self._fail(place, diverged())

    def _step(self, k: Any) -> None:
        """Move those that are still going; those who cannot are left to `AOGM`."""
        direction = self._direction(k)
        slope = dots(self.g, direction)
        steep = ~(slope < 0)  # rounding has spoilt the pairs
        if anyone(steep):
            self.weights = np.where(steep[:, None], 0.0, self.weights)
            self.scale = np.where(steep, np.nan, self.scale)
            direction = np.where(wide(steep, direction), -self.g, direction)
            slope = np.where(steep, -np.square(self.length), slope)
        x, g = self.x, self.g
        stuck = self._search(direction, slope)
        self._remember(k, self.x - x, self.g - g)
        self._give_up(stuck, k)

    def _slots(self, k: Any) -> list[Any]:
        """Return where the pairs of the last steps are, the oldest first."""
        pairs = self.weights.shape[1]
        return [j % pairs for j in range(max(0, k - pairs), k)]

    def _direction(self, k: Any) -> Array:
        """Return -H_i g_i, with the last pairs of moves and changes of the gradient."""
        q = self.g.reshape(len(self.g), -1).astype(np.float64)
        slots, shares = self._slots(k), []
        for slot in reversed(slots):
            shares.append(self.weights[:, slot] * dots(self.moves[:, slot], q))
            q -= shares[-1][:, None] * self.changes[:, slot]
        q *= np.where(np.isnan(self.scale), 1.0, self.scale)[:, None]
        for slot in slots:
            back = self.weights[:, slot] * dots(self.changes[:, slot], q)
            q += (shares.pop() - back)[:, None] * self.moves[:, slot]
        return (-q).astype(self.g.dtype).reshape(self.g.shape)

    def _remember(self, k: Any, move: Array, change: Array) -> None:
        """Keep a pair of each client, if there is curvature along it."""
        slot, n = k % self.weights.shape[1], len(move)
        s, y = (a.reshape(n, -1).astype(np.float64) for a in (move, change))
        sy, yy = dots(s, y), dots(y, y)
        curved = sy > self.problems.eps * norms(s) * np.sqrt(yy)
        self.moves[:, slot] = np.where(curved[:, None], s, 0.0)
        self.changes[:, slot] = np.where(curved[:, None], y, 0.0)
        self.weights[:, slot] = np.where(curved, 1.0 / sy, 0.0)
        self.scale = np.where(curved, sy / yy, self.scale)

    def _search(self, direction: Array, slope: Array) -> Array:
        """Take steps along the directions; return who found none."""
        self.left = self.going.copy()
        first = np.isnan(self.scale)  # no pair yet: a step of length 1
        self.share = np.where(first, 1.0 / norms(direction), 1.0)
        self.low, self.high = np.zeros(len(self.x)), np.full(len(self.x), np.inf)
        attempt = partial(self._try, self.x, direction, slope, self.value, self.size)
        self._search_with(attempt, _TRIALS)
        endless = self.left & np.isinf(self.high)
        self._diverge(endless)
        stuck: Array = self.left & ~endless
        return stuck

    def _try(
        self,
        x: Array,
        direction: Array,
        slope: Array,
        before: Array,
        size: Array,
        trial: Any,
    ) -> None:
        """Try the steps of those still without one, and find others for what is not good."""
        left, share, eps = self.left, self.share, self.problems.eps
        new, value, g, sizes = self._tried(x, direction)
        length, rise = norms(g), dots(g, direction)
        clear = -share * slope > CLEAR * eps * size
        lower = np.where(
            clear,
            value <= before + _DECREASE * share * slope,
            (rise <= (2 * _DECREASE - 1) * slope) & (value <= before + CLEAR * eps * size),
        )
        lower = lower & np.isfinite(length)
        good = left & lower & (rise >= _CURVATURE * slope)
        if anyone(good):
            self._take(good, new, value, g, sizes, length)
            self._count(good & ~clear, good & clear)
        self.left = left & ~good
        # Of those that have their step, nobody looks at these any more.
        self.low, self.high = np.where(lower, share, self.low), np.where(lower, self.high, share)
        longer = np.where(trial < _DOUBLINGS, 2.0, 100.0) * share
        self.share = np.where(np.isinf(self.high), longer, 0.5 * (self.low + self.high))

    def _count(self, unclear: Array, clear: Array) -> None:
        """Count the steps in a row that rounding may have chosen; they can go in circles."""
        lower = self.value < self.lowest - self.problems.eps * self.size
        better = (self.length < self.best) | lower
        self.idle = np.where(clear | (unclear & better), 0, self.idle + unclear)
        self.best = np.minimum(self.length, self.best)
        self.lowest = np.where(lower, self.value, self.lowest)
