"""Counts that vary more than a Poisson model's: the model and alpha together."""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Objective
from flower_fedcon.objectives.losses import NegativeBinomialRegression
from flower_fedcon.objectives.offset import WithOffset
from flower_fedcon.validation import Array

_SERIES = 1e-4  # alpha times the largest count
_FAR = 30.0  # |log alpha| up to which differences of digamma keep digits


class WithDispersion(Objective):
    """(x, log alpha) -> the mean negative log-likelihood of NB2 counts, without log y!.

    The model is that of the loss with one more entry at the end, log alpha.

    Parameters
    ----------
    loss : NegativeBinomialRegression, or WithOffset of one
        The loss; its own alpha is not used.

    Examples
    --------
    >>> from flower_fedcon.objectives import NegativeBinomialRegression, WithDispersion
    >>> f = WithDispersion(NegativeBinomialRegression(np.ones((3, 1)), np.array([0.0, 1.0, 5.0])))
    >>> f.shape, f.gradient(np.array([np.log(2.0), 0.0])).round(4)
    ((2,), array([-0.    , -0.0042]))
    """

    def __init__(self, loss: Any) -> None:
        inner = loss.loss if isinstance(loss, WithOffset) else loss
        if not isinstance(inner, NegativeBinomialRegression) or inner.l2:
            raise ConfigError(
                f"WithDispersion takes a NegativeBinomialRegression without l2, got {loss!r}"
            )
        self.loss, self.inner = loss, inner
        self.shape, self.dtype = (loss.shape[0] + 1,), inner.dtype
        self.num_examples, self.total_weight = inner.num_examples, inner.total_weight

    @property
    def targets(self) -> Array:
        """The counts of the rows."""
        return self.inner.targets

    @property
    def weights(self) -> Array | None:
        """The weights of the rows, with mean 1; None if all are 1."""
        return self.inner.weights

    def scores(self, x: Array) -> Array:
        """Return <a_i, x>, offsets included."""
        at = x[:-1]
        if isinstance(self.loss, WithOffset):
            at = self.loss.full(at)
        return self.inner._scores(at, self.inner.rows)

    def terms(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Return each row's negative log-likelihood, without log y!, and its derivatives.

        Returns
        -------
        tuple of arrays, shape (m,)
            The value, its derivative in t = log alpha, the mixed one in t and the score, and the
            second one in t.
        """
        y, t = self.inner.targets, float(np.clip(x[-1], -_FAR, _FAR))
        r, s = math.exp(-t), self.scores(x)
        logs, p = np.logaddexp(0.0, s + t), np.exp(-np.logaddexp(0.0, -s - t))
        whole, first, second = _rising(y, t)
        values = (y + r) * logs - y * (s + t) - whole
        spread = (y + r) * p * (1.0 - p)
        slopes = first - y - r * logs + (y + r) * p
        cross = spread - r * p
        curves = spread - 2.0 * r * p + r * logs - first - second
        return values, slopes, cross, curves

    def _mean(self, values: Array) -> float:
        w = self.inner.weights
        return float(values.mean() if w is None else (w @ values) / len(w))

    def at(self, x: Array) -> Any:
        """Return the loss with this alpha."""
        inner = copy.copy(self.inner)
        inner.alpha = math.exp(float(np.clip(x[-1], -_FAR, _FAR)))
        if not isinstance(self.loss, WithOffset):
            return inner
        whole = copy.copy(self.loss)
        whole.loss = inner
        return whole

    def entry_curvatures(self) -> Array:
        """Return the approximate curvature along each entry."""
        return np.append(self.loss.entry_curvatures(), 1.0)

    def value(self, x: Array) -> float:
        """Return f(x)."""
        return self._mean(self.terms(x)[0])

    def gradient(self, x: Array) -> Array:
        """Return the gradient at x."""
        derivatives: Array = np.append(self.at(x).gradient(x[:-1]), self._mean(self.terms(x)[1]))
        return derivatives

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return second derivatives at x, made positive in log alpha where they are negative.

        Far from a fit the likelihood is not concave in log alpha. The sign of that curvature, after
        elimination of x, is then reversed. See `LogisticRegression.hessian`.
        """
        matrix = self.indefinite_hessian(x)
        cross, curvature = matrix[:-1, -1], float(matrix[-1, -1])
        explained = float(cross @ np.linalg.lstsq(matrix[:-1, :-1], cross, rcond=None)[0])
        if curvature <= explained:
            matrix[-1, -1] = explained + abs(curvature - explained) + np.finfo(float).tiny
        return matrix if columns is None else matrix[np.ix_(columns, columns)]

    def indefinite_hessian(self, x: Array) -> Array:
        """Return the matrix of second derivatives at x, unchanged: sums over clients need it."""
        d = self.shape[0]
        _, _, cross, curves = self.terms(x)
        matrix = np.empty((d, d), self.dtype)
        matrix[:-1, :-1] = self.at(x).hessian(x[:-1])
        w = self.inner.weights
        counts = (cross if w is None else w * cross) / len(cross)
        pulled = self.inner._pull(counts, self.inner.rows)
        kept = self.loss.entries if isinstance(self.loss, WithOffset) else slice(None)
        matrix[-1, :-1] = matrix[:-1, -1] = pulled[kept]
        matrix[-1, -1] = self._mean(curves)
        return matrix

    def subset(self, rows: Array) -> Self:
        """Return the same function on some rows (integers): a fold of the data."""
        return type(self)(self.loss.subset(rows))


def _rising(y: Array, t: float) -> tuple[Array, Array, Array]:
    """Return log Gamma(y + r) / Gamma(r), r = exp(-t), and r and r^2 times its derivatives in r.

    Near Poisson's model r is large and differences lose their digits; series replace them there.
    """
    from scipy.special import digamma, gammaln, polygamma

    r, a = math.exp(-t), math.exp(t)
    if a * max(1.0, float(y.max(initial=0.0))) > _SERIES:
        first, second = digamma(y + r) - digamma(r), polygamma(1, y + r) - polygamma(1, r)
        return gammaln(y + r) - gammaln(r), r * first, r * r * second
    pairs, squares = a * y * (y - 1.0), a * a * y * (y - 1.0) * (2.0 * y - 1.0) / 6.0
    whole = 0.5 * pairs - 0.5 * squares - y * t
    return whole, y - 0.5 * pairs + squares, pairs - y - 3.0 * squares


__all__ = ["WithDispersion"]
