"""Ordered outcomes: proportional odds, and the thresholds between classes with the model.

With classes 0, ..., C - 1 and a row's score s the odds of more than class k are exp(s - t_k), with
0 = t_0 < t_1 < ... < t_{C-2}: the intercept stands for the first threshold. For an outcome j, with
a = t_{j-1}, b = t_j, and without the factors of the outer classes that do not exist,

    -log P(j) = log(1 + exp(a - s)) + log(1 + exp(s - b)) - log(1 - exp(a - b)).

It is convex in s and the thresholds. They are fitted as logarithms of their gaps, as by R's polr:
any values of these are in order, so every method can take any step. In them it is no longer convex
far from a fit; a local fit takes the second derivatives of gaps for those of their logarithms
where that loses convexity.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.more_entries import MoreEntries
from flower_fedcon.objectives.offset import WithOffset
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.validation import Array, count

_FAR = 30.0  # |log gap| up to which gaps and their reciprocals have digits


class ProportionalOdds(LinearModel):
    """Mean of -log P(class) under proportional odds with known gaps, plus l2/2 ||x||^2.

    Parameters
    ----------
    A : array of shape (m, features), or sparse matrix
    y : array of int, shape (m,)
        Classes in their order, 0 to num_classes - 1.
    num_classes : int
        >= 2.
    l2 : float
        >= 0.
    sample_weight, intercept
        As for `LogisticRegression`.

    Attributes
    ----------
    gaps : array, shape (num_classes - 2,)
        The differences of thresholds, 1 at first.

    Examples
    --------
    >>> from flower_fedcon.objectives import ProportionalOdds
    >>> f = ProportionalOdds(np.array([[1.0], [2.0]]), np.array([0, 2]), num_classes=3)
    >>> f.gaps, round(f.value(np.zeros(1)), 6)
    (array([1.]), 1.003204)
    """

    target_name = "y"
    separable = True
    curvatures = (0.0, 0.5)

    def __init__(
        self,
        A: object,
        y: object,
        num_classes: int,
        l2: float = 0.0,
        *,
        sample_weight: object = None,
        intercept: bool = False,
    ) -> None:
        self.num_classes = count("ProportionalOdds(num_classes)", num_classes, minimum=2)
        super().__init__(A, y, l2, sample_weight=sample_weight, intercept=intercept)
        self.gaps = np.ones(self.num_classes - 2)

    def _checked(self, targets: Any) -> Array:
        classes = super()._checked(targets)
        if (wrong := classes[~np.isin(classes, np.arange(self.num_classes))]).size:
            raise ConfigError(
                f"ProportionalOdds(y) must be 0, 1, ..., {self.num_classes - 1}, got {wrong[0]:g}"
            )
        return classes

    def ends(self, targets: Array) -> tuple[Array, Array]:
        """Return the thresholds below and above each target; infinite for outer classes."""
        inner = np.concatenate([[0.0], np.cumsum(self.gaps)])
        thresholds = np.concatenate([[-np.inf], inner, [np.inf]])
        places = targets.astype(np.intp)
        return thresholds[places], thresholds[places + 1]

    def loss(self, scores: Array, targets: Array) -> Array:
        """Return -log P(target)."""
        a, b = self.ends(targets)
        return minus_log(scores - a, scores - b, b - a)

    def slope(self, scores: Array, targets: Array) -> Array:
        """Return the derivative in the score."""
        from scipy.special import expit

        a, b = self.ends(targets)
        slopes: Array = expit(scores - b) - expit(a - scores)
        return slopes

    def curvature(self, scores: Array, targets: Array) -> Array:
        """Return the second derivative in the score."""
        a, b = self.ends(targets)
        return _steepness(scores - a) + _steepness(scores - b)


class WithThresholds(MoreEntries):
    """(x, log gaps) -> the mean -log P(class) of proportional odds.

    The model is that of the loss with C - 2 more entries at the end.

    Parameters
    ----------
    loss : ProportionalOdds, or WithOffset of one
        The loss, with an intercept; its own gaps are not used.

    Examples
    --------
    >>> from flower_fedcon.objectives import ProportionalOdds, WithThresholds
    >>> f = WithThresholds(ProportionalOdds(np.ones((3, 1)), np.arange(3), num_classes=3))
    >>> thirds = np.array([np.log(2.0), np.log(np.log(4.0))])  # a score, and the log of a gap
    >>> f.shape, round(f.value(thirds), 6), bool((np.abs(f.gradient(thirds)) < 1e-12).all())
    ((2,), 1.098612, True)
    """

    takes = ProportionalOdds
    separable = True

    def __init__(self, loss: Any) -> None:
        inner = loss.loss if isinstance(loss, WithOffset) else loss
        super().__init__(loss, len(getattr(inner, "gaps", ())))

    def formed(self, inner: Any, form: Array) -> None:
        """Give the loss these gaps."""
        inner.gaps = gaps_of(form)

    def terms(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Return each row's loss and its derivatives; see `MoreEntries.terms`."""
        value, first, cross, second, gaps = self._in_gaps(x)
        slopes = first * gaps
        curves = second * gaps * gaps[:, None]
        curves[:, np.arange(self.more), np.arange(self.more)] += slopes
        return value, slopes, cross * gaps, curves

    def _in_gaps(self, x: Array) -> tuple[Array, Array, Array, Array, Array]:
        """Return the same, in gaps instead of their logarithms, and the gaps."""
        from scipy.special import expit

        here = copy.copy(self.inner)
        self.formed(here, x[self.columns :])
        s, y, gaps = self.scores(x), here.targets.astype(np.intp), here.gaps
        a, b = here.ends(here.targets)
        short = np.minimum(gaps, 700.0)  # whose exponentials are numbers
        numbers = np.arange(1, self.more + 1)
        below = (numbers <= y[:, None] - 1).astype(float)  # gaps below a, and below b
        above = ((numbers <= y[:, None]) & (y[:, None] <= self.more)).astype(float)
        own = (numbers == y[:, None]).astype(float)
        first = (
            below * expit(a - s)[:, None] - above * expit(s - b)[:, None] - own / np.expm1(short)
        )
        at_a, at_b = _steepness(s - a)[:, None], _steepness(s - b)[:, None]
        cross = -(below * at_a + above * at_b)
        second = (below * at_a)[:, :, None] * below[:, None, :] + (above * at_b)[
            :, :, None
        ] * above[:, None, :]
        pull = own / (np.expm1(short) * -np.expm1(-short))
        second[:, numbers - 1, numbers - 1] += pull
        return here.loss(s, here.targets), first, cross, second, gaps

    def hessian(self, x: Array, columns: Array | None = None) -> Array:
        """Return second derivatives at x, without those that bend gaps downwards.

        See `LogisticRegression.hessian`.
        """
        matrix = self.indefinite_hessian(x)
        bends = np.minimum(self._mean(self.terms(x)[1]), 0.0)
        places = np.arange(self.columns, self.shape[0])
        matrix[places, places] -= bends
        return matrix if columns is None else matrix[np.ix_(columns, columns)]

    def by_threshold(self, x: Array) -> tuple[Array, Array, Array]:
        """Return how the rows' log P(class) depends on their log odds of more than each class.

        Parameters
        ----------
        x : array, shape (entries,)
            A model.

        Returns
        -------
        slopes : array, shape (m, classes - 1)
            The derivatives in the log odds.
        squares : array, shape (m, classes - 1)
            The expected squares of the slopes.
        products : array, shape (m, classes - 2)
            The expected products of slopes beside each other; those of others are 0.

        Examples
        --------
        >>> from flower_fedcon.objectives import ProportionalOdds, WithThresholds
        >>> f = WithThresholds(ProportionalOdds(np.ones((3, 1)), np.arange(3), num_classes=3))
        >>> thirds = np.array([np.log(2.0), np.log(np.log(4.0))])
        >>> [one[0].round(3) for one in f.by_threshold(thirds)]
        [array([-0.667,  0.   ]), array([0.296, 0.296]), array([-0.148])]
        """
        from scipy.special import expit

        gaps = gaps_of(x[self.columns :])
        thresholds = np.concatenate([[0.0], np.cumsum(gaps)])
        odds = self.scores(x)[:, None] - thresholds
        pulls = 1.0 / np.expm1(np.minimum(gaps, 700.0))  # of thresholds beside each other
        above = self.inner.targets[:, None] - np.arange(self.more + 1)
        slopes = np.where(above == 1, expit(-odds) + np.append(pulls, 0.0), 0.0)
        slopes -= np.where(above == 0, expit(odds) + np.append(0.0, pulls), 0.0)
        steepness = _steepness(odds)
        # The probability of a class is the difference of two logistic functions.
        within = expit(odds[:, :-1]) * expit(-odds[:, 1:]) * -np.expm1(-gaps)
        chances = np.hstack([expit(-odds[:, :1]), within, expit(odds[:, -1:])])
        chances = np.maximum(chances, np.finfo(float).tiny)  # of a class that no row can have
        squares = steepness**2 * (1.0 / chances[:, :-1] + 1.0 / chances[:, 1:])
        products = -steepness[:, :-1] * steepness[:, 1:] / chances[:, 1:-1]
        return slopes, squares, products


def minus_log(upper: Array, lower: Array, gap: Array) -> Array:
    """Return -log P(class), of the log odds of the class or more and of more than it.

    >>> float(minus_log(np.log(2.0), np.log(0.5), np.log(4.0)).round(9))  # log 3
    1.098612289
    """
    with np.errstate(divide="ignore"):  # infinite if a step has closed the gap
        between = np.log(-np.expm1(-gap))
    losses: Array = np.logaddexp(0, -upper) + np.logaddexp(0, lower) - between
    return losses


def gaps_of(logs: Array) -> Array:
    """Return the gaps of their logarithms."""
    gaps: Array = np.exp(np.clip(logs, -_FAR, _FAR))
    return gaps


def _steepness(at: Array) -> Array:
    """Return the derivative of the logistic function."""
    from scipy.special import expit

    steepness: Array = expit(at) * expit(-at)
    return steepness


__all__ = ["ProportionalOdds", "WithThresholds"]
