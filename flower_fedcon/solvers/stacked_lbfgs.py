"""L-BFGS for many clients at once, along a leading axis.

The directions are those of Nocedal and Wright, "Numerical optimization" (2006), algorithm 7.4. The
line search is the bisection of Lewis and Overton, Math. Program. 141 (2013), algorithm 2.6, for the
weak Wolfe conditions; where values differ by rounding alone, the slopes tell, as in Hager and
Zhang, SIAM J. Optim. 16 (2005), (4.1). SciPy's search, that of one client, is another: both end
within the tolerance, after about as many steps, if not evaluations.
"""

from __future__ import annotations

import numpy as np

from flower_fedcon.solvers.clients import (
    LocalProblems,
    Solutions,
    along,
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
_IDLE = 4  # steps in a row that are too short to be seen in values, and leave a longer gradient


def lbfgs_all(problems: LocalProblems, solver: LBFGS, stop: Stop | None = None) -> Solutions:
    """Return the minimisers of all clients; see `LBFGS`.

    Raises
    ------
    ConfigError
        If there is a regularizer.
    """
    expect_smooth(problems.regularizer)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found, goals, left = _QuasiNewton(problems, solver, stop).run()
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


class _QuasiNewton(NewtonLike):
    ARRAYS = (*NewtonLike.ARRAYS, "moves", "changes", "weights", "scale", "best", "idle")

    def __init__(self, problems: LocalProblems, solver: LBFGS, stop: Stop | None) -> None:
        super().__init__(problems, stop, solver.tolerance)
        self.most, self.goals = solver.max_iterations, self.goal
        n, d = len(self.x), self.x[0].size
        pairs = min(PAIRS, self.most)
        self.moves, self.changes = np.zeros((n, pairs, d)), np.zeros((n, pairs, d))
        self.weights = np.zeros((n, pairs))  # 1/<s, y>; 0 for a pair that does not count
        self.scale = np.full(n, np.nan)  # <s, y>/<y, y> of the last pair, once there is one
        self.best, self.idle = self.length, np.zeros(n, np.int64)

    def run(self) -> tuple[Solutions, Array, Array]:
        for k in range(self.most + 1):
            self._end(self._good(), self.x, k, converged=True)
            self._diverge(self.going & ~np.isfinite(self.length))
            if k == self.most:
                break
            self._give_up(self.going & (self.idle > _IDLE), k)
            self._compact()
            if not self.going.any():
                break
            self._step(k)
        self._end(self.going.copy(), self.x, self.most, converged=False)
        return self.found, self.goals, np.array(sorted(self.unsolved), np.intp)

    def _diverge(self, who: Array) -> None:
        for place in np.flatnonzero(who).tolist():
            self._fail(place, diverged())

    def _step(self, k: int) -> None:
        """Move those that are still going; those who cannot are left to `AOGM`."""
        direction = self._direction(k)
        slope = dots(self.g, direction)
        steep = ~(slope < 0)  # rounding has spoilt the pairs
        if steep.any():
            self.weights[steep], self.scale[steep] = 0.0, np.nan
            direction = np.where(wide(steep, direction), -self.g, direction)
            slope = np.where(steep, -np.square(self.length), slope)
        x, g = self.x, self.g
        stuck = self._search(direction, slope)
        self._remember(k, self.x - x, self.g - g)
        self._give_up(stuck, k)

    def _direction(self, k: int) -> Array:
        """Return -H_i g_i, with the last pairs of moves and changes of the gradient."""
        q = self.g.reshape(len(self.g), -1).astype(np.float64)
        slots = [j % self.weights.shape[1] for j in range(max(0, k - self.weights.shape[1]), k)]
        shares = {}
        for slot in reversed(slots):
            shares[slot] = self.weights[:, slot] * dots(self.moves[:, slot], q)
            q -= shares[slot][:, None] * self.changes[:, slot]
        q *= np.where(np.isnan(self.scale), 1.0, self.scale)[:, None]
        for slot in slots:
            back = self.weights[:, slot] * dots(self.changes[:, slot], q)
            q += (shares[slot] - back)[:, None] * self.moves[:, slot]
        return (-q).astype(self.g.dtype).reshape(self.g.shape)

    def _remember(self, k: int, move: Array, change: Array) -> None:
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
        x, left, eps = self.x, self.going.copy(), self.problems.eps
        first = np.isnan(self.scale)  # no pair yet: a step of length 1
        share = np.where(first, 1.0 / norms(direction), 1.0)
        low, high = np.zeros(len(x)), np.full(len(x), np.inf)
        before, size = self.value, self.size
        for trial in range(_TRIALS):
            new = np.where(wide(left, x), x + along(share, x) * direction, self.x)
            value, g, sizes = self.problems.evaluate(new)
            self.found.evaluations[self.here] += left
            length, rise = norms(g), dots(g, direction)
            clear = -share * slope > CLEAR * eps * size
            lower = np.where(
                clear,
                value <= before + _DECREASE * share * slope,
                (rise <= (2 * _DECREASE - 1) * slope) & (value <= before + CLEAR * eps * size),
            )
            lower &= np.isfinite(length)
            good = left & lower & (rise >= _CURVATURE * slope)
            if good.any():
                keep = wide(good, x)
                self.x, self.g = np.where(keep, new, self.x), np.where(keep, g, self.g)
                self.value = np.where(good, value, self.value)
                self.size = np.where(good, sizes, self.size)
                self.length = np.where(good, length, self.length)
                self._count(good & ~clear, good & clear)
                left &= ~good
                if not left.any():
                    return left
            low, high = np.where(lower, share, low), np.where(lower, high, share)
            longer = (2 if trial < _DOUBLINGS else 100) * share
            share = np.where(np.isinf(high), longer, 0.5 * (low + high))
        endless = left & np.isinf(high)
        self._diverge(endless)
        stuck: Array = left & ~endless
        return stuck

    def _count(self, unclear: Array, clear: Array) -> None:
        """Count the steps in a row that rounding may have chosen; they can go in circles."""
        better = self.length < self.best
        self.idle = np.where(clear | (unclear & better), 0, self.idle + unclear)
        self.best = np.where(better, self.length, self.best)
