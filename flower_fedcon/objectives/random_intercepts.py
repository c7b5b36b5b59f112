r"""A loss of rows in groups, with normally distributed group intercepts integrated out.

Group c adds u_c ~ N(0, sd^2) to the scores of its rows. With l_i the log-likelihood of row i, w_i
its weight, s_i its score without u_c, t = log sd and P = 1 / sd^2,

    g_c(u) = sum_i w_i l_i(s_i + u) - P u^2 / 2 - t,
    L_c    = log int exp(g_c(u)) du / sqrt(2 pi).

The Gauss-Hermite rule with nodes z_k and weights q_k (for the standard normal distribution, sum q_k
= 1) is centred at the mode v of g_c and scaled by r = h^{-1/2}, h = -g_c''(v):

    L_c ~ log r + log sum_k q_k exp(g_c(u_k) + z_k^2 / 2),   u_k = v + r z_k.

Value, gradient and second derivatives are exact for this approximation. Let D be the total
derivative in theta = (x, t), d the partial one at fixed u. As g'(v) = 0 at the mode,

    h Dv = d g'(v),                      Dh = -(d g''(v) + g'''(v) Dv),
    R := D log r = -Dh / (2 h),          Du_k = Dv + z_k r R,

and, with W_k the share of node k in the sum,

    D L = R + sum_k W_k F_k,    F_k = d g(u_k) + g'(u_k) Du_k.

The second derivatives follow, where [.] is a matrix plus its transpose and the first two lines are
at v:

    h D^2 v    = dd g' + [d g'' Dv'] + g''' Dv Dv',
    D^2 log r  = (dd g'' + [d g''' Dv'] + g'''' Dv Dv' + g''' D^2 v) / (2 h) + 2 R R',
    D^2 u_k    = D^2 v + z_k r (D^2 log r + R R'),
    D^2 L      = D^2 log r + cov_W(F) + sum_k W_k (dd g(u_k) + [d g'(u_k) Du_k']
                 + g''(u_k) Du_k Du_k' + g'(u_k) D^2 u_k).

t enters g only through the normal density: d_t g = P u^2 - 1, d_t g' = 2 P u, d_t g'' = 2 P, d_t
g''' = 0; dd_tt g = -2 P u^2, dd_tt g' = -4 P u, dd_tt g'' = -4 P; mixed derivatives in t and x are
0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Objective
from flower_fedcon.objectives.losses import LogisticRegression, PoissonRegression
from flower_fedcon.objectives.offset import WithOffset
from flower_fedcon.validation import Array

_KINDS = (LogisticRegression, PoissonRegression)
_MOST_NODES = 25
_STEPS = 100
_NEAR = 1e-9  # a step to the mode relative to its spread: the next one is 1e-18
_ROUNDING = 1e-14  # a step to the mode relative to the scores
_LARGE = 1e6  # a count times a variance above which Wright's function has few digits


class RandomIntercepts(Objective):
    """(x, log sd) -> the mean negative log-likelihood of rows whose groups have normal intercepts.

    Integrals are computed by adaptive Gauss-Hermite quadrature. Second derivatives are exact, but
    not positive everywhere: the function is not convex in log sd.

    Parameters
    ----------
    loss : LogisticRegression or PoissonRegression, or WithOffset of one
        A loss without l2.
    groups : array of int, shape (m,), optional
        The group of each row, from 0; by default all rows are one group.
    nodes : int (default: 7)
        Odd, from 1 (Laplace's approximation) to 25.

    Raises
    ------
    ConfigError
        If the loss is not one of these, or nodes are out of range.

    Examples
    --------
    >>> from flower_fedcon.objectives import PoissonRegression, RandomIntercepts
    >>> f = RandomIntercepts(PoissonRegression(np.ones((3, 1)), [0, 1, 5]), np.array([0, 1, 2]))
    >>> f.shape, round(f.value(np.zeros(2)), 6)
    ((2,), 1.960928)
    >>> f.effects(np.zeros(2)).round(6)  # e^u + u = y
    array([-0.567143,  0.      ,  1.306559])
    """

    def __init__(self, loss: Any, groups: Array | None = None, nodes: int = 7) -> None:
        core = loss.loss if isinstance(loss, WithOffset) else loss
        if type(core) not in _KINDS or len(core.shape) != 1 or core.l2:
            names = " and ".join(kind.__name__ for kind in _KINDS)
            raise ConfigError(f"random intercepts need one of {names}, without l2, got {loss!r}")
        self.loss, self._core = loss, core
        self.nodes = checked_nodes(nodes)
        self.shape, self.dtype = (loss.shape[0] + 1,), np.dtype(np.float64)
        self.num_examples, self.total_weight = core.num_examples, core.total_weight
        given = core.given_weights
        self._w = np.ones(self.num_examples) if given is None else given
        codes = np.zeros(self.num_examples, np.intp) if groups is None else groups
        self._codes, self._sum = codes, group_sums(codes)
        self._columns = loss.entries if isinstance(loss, WithOffset) else slice(None)
        z, q = np.polynomial.hermite_e.hermegauss(self.nodes)
        self._z, self._q = z, q / q.sum()
        self._last: tuple[Array, Array, Array] | None = None

    @property
    def targets(self) -> Array:
        """The targets of the rows."""
        return self._core.targets

    @property
    def weights(self) -> Array | None:
        """The weights of the rows, with mean 1; None if all are 1."""
        return self._core.weights

    @property
    def group_weights(self) -> Array:
        """The sum of the rows' weights in each group."""
        weights: Array = self._sum @ self._w
        return weights

    @property
    def group_rows(self) -> Array:
        """The number of rows with a positive weight in each group."""
        counts: Array = self._sum @ (self._w > 0).astype(np.float64)
        return counts

    def effects(self, x: Array) -> Array:
        """Return the mode of each group's intercept at (x, log sd): they stay at the site."""
        return self._modes(x)[1].copy()

    def logliks(self, x: Array) -> Array:
        """Return the log-likelihood of each group, with all its constants."""
        base, mode = self._modes(x)
        return self._expanded(x, base, mode)[0]

    def value(self, x: Array) -> float:
        """Return f(x)."""
        return -float(self.logliks(x).sum()) / self.total_weight

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x."""
        return -self.derivatives(x)[0] / self.total_weight

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return the matrix of second derivatives at x; see `LogisticRegression.hessian`."""
        matrix: Array = -self.derivatives(x)[1] / self.total_weight
        return matrix if columns is None else matrix[np.ix_(columns, columns)]

    def derivatives(self, x: Array) -> tuple[Array, Array]:
        """Return the first and second derivatives of the log-likelihood of all rows."""
        base, mode = self._modes(x)
        return self._derivatives(x, base, mode)

    # --- the groups' integrals, all groups together ----------------------------------------------

    def _slopes(self, scores: Array) -> tuple[Array, Array]:
        """Return w l' and w l'' of each row."""
        core, y = self._core, self._core.targets
        return -self._w * core.slope(scores, y), -self._w * core.curvature(scores, y)

    def _further(self, scores: Array, second: Array) -> tuple[Array, Array]:
        """Return w l''' and w l'''' of each row, from w l''."""
        if isinstance(self._core, PoissonRegression):
            return second, second
        half = np.tanh(0.5 * scores)  # 2 p - 1
        return -second * half, second * (1.5 * np.square(half) - 0.5)

    def _modes(self, x: Array) -> tuple[Array, Array]:
        """Return the rows' scores without intercepts, and the mode of each group."""
        if self._last is None or not np.array_equal(self._last[2], x):
            full = self.loss.full(x[:-1]) if isinstance(self.loss, WithOffset) else x[:-1]
            base = np.asarray(self._core._scores(full, self._core.rows), np.float64)
            self._last = base, self._mode(base, math.exp(-2.0 * float(x[-1]))), np.array(x)
        return self._last[:2]

    def _mode(self, base: Array, P: float) -> Array:
        """Return the mode of each g, by Newton's method between bounds."""
        slope = self._sum @ self._slopes(base)[0]  # g' falls: the mode is on this side of 0
        low, high = np.minimum(slope / P, 0.0), np.maximum(slope / P, 0.0)
        u = np.zeros(len(slope))
        if isinstance(self._core, PoissonRegression):
            u, low, high = self._closed(base, P, low, high)
        size = 1.0 + np.abs(base).max(initial=0.0)
        for _ in range(_STEPS):
            first, second = self._slopes(base + u[self._codes])
            slope, h = self._sum @ first - P * u, P - self._sum @ second
            low, high = np.where(slope > 0, u, low), np.where(slope < 0, u, high)
            new = u + slope / h
            far = (new < low) | (new > high) | (np.abs(new - u) > 0.5 * (high - low))
            new = np.where(far, 0.5 * (low + high), new)
            step, u = np.abs(new - u), new
            if (step <= np.maximum(_NEAR / np.sqrt(h), _ROUNDING * (size + np.abs(u)))).all():
                break
        return u

    def _closed(self, base: Array, P: float, low: Array, high: Array) -> tuple[Array, Array, Array]:
        """Return the approximate root of u = (y - m e^u) / P for counts, and its bounds."""
        from scipy.special import wrightomega

        top = np.full(len(low), -np.inf)
        np.maximum.at(top, self._codes, np.where(self._w > 0, base, -np.inf))
        top = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):  # for groups without a count or weight
            log_m = top + np.log(self._sum @ (self._w * np.exp(base - top[self._codes])))
            y = self._sum @ (self._w * self._core.targets)
            even = np.log(y) - log_m
        finite = np.isfinite(even)
        low = np.where(finite, np.minimum(even, 0.0), low)
        high = np.where(finite, np.maximum(even, 0.0), high)
        a = y / P
        u = a - wrightomega(np.where(np.isfinite(log_m), log_m, -1e3) - math.log(P) + a)
        u = np.where((a > _LARGE) & finite, even, u)
        return np.clip(u, low, high), low, high

    def _expanded(self, x: Array, base: Array, mode: Array) -> tuple[Array, Array, Array]:
        """Return each group's log-likelihood, h, and W of each node, shape (nodes, groups)."""
        P, core = math.exp(-2.0 * float(x[-1])), self._core
        h = P - self._sum @ self._slopes(base + mode[self._codes])[1]
        logs = np.empty((self.nodes, len(mode)))
        for k, z in enumerate(self._z.tolist()):
            u = mode + z / np.sqrt(h)
            rows = core.loss(base + u[self._codes], core.targets)
            logs[k] = math.log(self._q[k]) + 0.5 * z * z - 0.5 * P * u * u
            logs[k] -= self._sum @ (self._w * rows)
        most = logs.max(axis=0)
        share = np.exp(logs - most)
        whole = share.sum(axis=0)
        likelihoods = most + np.log(whole) - 0.5 * np.log(h) - float(x[-1])
        if isinstance(core, PoissonRegression):
            from scipy.special import gammaln

            likelihoods -= self._sum @ (self._w * gammaln(core.targets + 1.0))
        return likelihoods, h, share / whole

    def _derivatives(self, x: Array, base: Array, v: Array) -> tuple[Array, Array]:
        """Return the sums over groups of D L and D^2 L; see the module."""
        P, codes = math.exp(-2.0 * float(x[-1])), self._codes
        _, h, W = self._expanded(x, base, v)
        scores = base + v[codes]
        first, second = self._slopes(scores)
        third, fourth = self._further(scores, second)
        g3, g4 = self._sum @ third, self._sum @ fourth
        at = P * np.stack([2.0 * v, np.full(len(v), 2.0), np.zeros(len(v))])
        dg1, dg2, dg3 = (
            self._pulled(rows, t) for rows, t in zip((second, third, fourth), at, strict=True)
        )
        Dv = dg1 / h[:, None]
        Dr = 0.5 * (dg2 + g3[:, None] * Dv) / h[:, None]  # of log r
        total, outer = Dr.copy(), np.zeros((len(x), len(x)))
        a, e = np.zeros(len(v)), np.zeros(len(v))  # sum W g', and with r z
        counts, last = np.zeros(len(base)), 0.0
        for k, z in enumerate(self._z.tolist()):
            step = z / np.sqrt(h)
            u = v + step
            first, second = self._slopes(base + u[codes])
            g1, g2 = self._sum @ first - P * u, self._sum @ second - P
            Du = Dv + step[:, None] * Dr
            F = self._pulled(first, P * u * u - 1.0) + g1[:, None] * Du
            M = self._pulled(second, 2.0 * P * u)
            share = W[k][:, None]
            total += share * F
            outer += _even((share * M).T @ Du) + (share * F).T @ F
            outer += (share * g2[:, None] * Du).T @ Du
            a, e = a + W[k] * g1, e + W[k] * g1 * step
            counts += W[k][codes] * second
            last -= 2.0 * P * float(W[k] @ (u * u))
        F = total - Dr
        outer -= F.T @ F
        c2 = 0.5 * (1.0 + e) / h  # the coefficient of D^2 (-h)
        c1 = (a + c2 * g3) / h  # and h D^2 v
        outer += _even((c1[:, None] * dg2 + c2[:, None] * dg3).T @ Dv)
        outer += ((c1 * g3 + c2 * g4)[:, None] * Dv).T @ Dv
        outer += ((2.0 + 3.0 * e)[:, None] * Dr).T @ Dr
        counts += c1[codes] * third + c2[codes] * fourth
        outer[:-1, :-1] += self._gram(counts)
        outer[-1, -1] += last - 4.0 * P * float(c1 @ v + c2.sum())
        return total.sum(axis=0), outer

    def _pulled(self, counts: Array, of_t: Array) -> Array:
        """Return the sums over groups of counts times rows, with the entry of t."""
        rows = group_sums(self._codes, counts) @ self._core.rows
        rows = (rows if isinstance(rows, np.ndarray) else rows.toarray())[:, self._columns]
        return np.concatenate([rows, of_t[:, None]], axis=1)

    def _gram(self, counts: Array) -> Array:
        rows = self._core.rows
        if self._core.sparse:
            gram = (rows.T @ rows.multiply(counts[:, None])).toarray()
        else:
            gram = rows.T @ (counts[:, None] * rows)
        kept: Array = gram[self._columns][:, self._columns]
        return kept


def group_sums(codes: Array, counts: Array | None = None) -> Any:
    """Return the sparse matrix whose product sums rows by group, each times its count.

    >>> group_sums(np.array([0, 1, 0])) @ np.array([1.0, 2.0, 4.0])
    array([5., 2.])
    """
    from scipy import sparse

    weights = np.ones(len(codes)) if counts is None else counts
    return sparse.csr_array((weights, (codes, np.arange(len(codes)))))


def checked_nodes(nodes: Any) -> int:
    """Return a checked number of quadrature nodes.

    Raises
    ------
    ConfigError
        If it is not an odd number from 1 to 25.
    """
    whole = isinstance(nodes, int | np.integer) and not isinstance(nodes, bool)
    if not whole or not 1 <= nodes <= _MOST_NODES or nodes % 2 == 0:
        raise ConfigError(
            f"nodes must be odd, from 1 (Laplace's approximation) to {_MOST_NODES}, got {nodes!r}: "
            "7 are usual"
        )
    return int(nodes)


def _even(square: Array) -> Array:
    """Return a matrix plus its transpose."""
    doubled: Array = square + square.T
    return doubled


__all__ = ["RandomIntercepts"]
