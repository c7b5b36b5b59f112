"""Counts that vary more than a Poisson model's: the model and alpha together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_fedcon.objectives.losses import NegativeBinomialRegression
from flower_fedcon.objectives.more_entries import MoreEntries
from flower_fedcon.validation import Array

_SERIES = 1e-4  # alpha times the largest count
_FAR = 30.0  # |log alpha| up to which differences of digamma keep digits


class WithDispersion(MoreEntries):
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

    takes = NegativeBinomialRegression

    def __init__(self, loss: Any) -> None:
        super().__init__(loss, 1)

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

    def formed(self, inner: Any, form: Array) -> None:
        """Give the loss this alpha."""
        inner.alpha = math.exp(float(np.clip(form[0], -_FAR, _FAR)))

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
