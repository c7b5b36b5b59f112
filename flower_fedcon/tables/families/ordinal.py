"""Proportional odds: ordered classes, by the logarithm of the odds of a higher one.

The intercept is minus the first threshold, and the model's last entries are the logarithms of the
gaps between thresholds; see `flower_fedcon.objectives.WithThresholds`. A row's scores are its
linear predictor less each threshold, with the first at 0: the log odds of more than each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flower_fedcon.objectives.proportional_odds import (
    ProportionalOdds,
    WithThresholds,
    gaps_of,
    minus_log,
)
from flower_fedcon.tables.families.base import GAP, INTERCEPT, Parts, Stated
from flower_fedcon.tables.families.link_functions import LOGIT, Link
from flower_fedcon.tables.families.multinomial import Classes
from flower_fedcon.validation import Array


class Ordinal(Classes):
    """Proportional odds, of targets that are the classes' places in their order."""

    name = "ordinal"
    title = "Proportional-odds logistic regression"
    of = WithThresholds
    link = Link("cumulative logit", LOGIT.of, LOGIT.inverse)
    rank = 8
    ordered = True
    needs = "levels"
    instead = "multinomial"
    no_quality = "an ordinal model has only accuracy and loss"

    def marks(self, stated: Stated) -> list[str]:
        """Return the levels."""
        return list(stated.levels)

    def loss(self, A: Any, y: Array, stated: Stated, **options: Any) -> Any:
        """Return the objective for known gaps."""
        return ProportionalOdds(A, y, len(stated.levels), **options)

    def completed(self, objective: Any) -> Any:
        """Return the objective of coefficients and gaps."""
        return WithThresholds(objective)

    def more(self, stated: Stated) -> tuple[str, ...]:
        """Return a name for each gap, by the threshold that it leads to."""
        return between_levels(stated.levels)

    def spread(self, scores: Array, x: Array, columns: int) -> Array:
        """Return the log odds of more than each class."""
        after = np.concatenate([[0.0], x[columns + 1 :]])
        odds: Array = scores[:, None] - thresholds_of(after)[0]
        return odds

    def stated_form(self, end: Array) -> dict[str, list[float]]:
        """Return the thresholds."""
        return {"thresholds": thresholds_of(end)[0].tolist()}

    def told(self, names: Sequence[str], values: Array, covariance: Array) -> list[str]:
        """Return the thresholds with their errors."""
        first = list(names).index(INTERCEPT)
        thresholds, jacobian = thresholds_of(values[first:])
        errors = np.sqrt(np.diag(jacobian @ covariance[first:, first:] @ jacobian.T))
        marks = ["the first", *(name.removeprefix(GAP) for name in names[first + 1 :])]
        each = zip(marks, thresholds.tolist(), errors.tolist(), strict=True)
        listed = ", ".join(f"{mark} {value:.5g} ({error:.4g})" for mark, value, error in each)
        return [f"thresholds and their standard errors: {listed}. The first is -{INTERCEPT}"]

    def likeliest(self, scores: Array) -> Array:
        """Return the place of the most probable class."""
        places: Array = self.probabilities(scores).argmax(axis=1)
        return places

    def probabilities(self, scores: Array) -> Array:
        """Return the classes' probabilities, each to full accuracy."""
        upper, lower = _sides(scores)
        chances: Array = (
            self.link.inverse(upper) * self.link.inverse(-lower) * -np.expm1(lower - upper)
        )
        return chances

    def deviance(self, scores: Array, y: Array, parameter: float = 0.0) -> Array:
        """Return -2 log of the class's probability."""
        rows, places = np.arange(len(y)), y.astype(np.intp)
        upper, lower = (side[rows, places] for side in _sides(scores))
        return 2.0 * minus_log(upper, lower, upper - lower)

    def likelihood(self, loss: Any, scores: Array, y: Array) -> Parts:
        """Return the rows' parts; here scores are linear predictors, and the loss has the gaps."""
        losses = loss.loss(scores, y)
        return -losses, 2.0 * losses, np.expm1(losses), np.zeros_like(losses)


def _sides(scores: Array) -> tuple[Array, Array]:
    """Return the log odds of each class or more, and of more than it."""
    ends = np.full((len(scores), 1), np.inf)
    return np.hstack([ends, scores]), np.hstack([scores, -ends])


def between_levels(levels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the gaps' logarithms.

    >>> between_levels(["no", "some", "much"])
    ('log gap to some|much',)
    """
    return tuple(f"{GAP}{low}|{high}" for low, high in pairwise(levels[1:]))


def thresholds_of(end: Array) -> tuple[Array, Array]:
    """Return the thresholds, and their derivatives in a model's last entries.

    >>> thresholds_of(np.array([1.0, 0.0]))[0]  # the intercept, and the logarithm of a gap
    array([-1.,  0.])
    """
    gaps = gaps_of(end[1:])
    jacobian = np.tril(np.ones((len(end), len(end))))
    jacobian[:, 0], jacobian[:, 1:] = -1.0, jacobian[:, 1:] * gaps
    return np.concatenate([[0.0], np.cumsum(gaps)]) - end[0], jacobian


FAMILY = Ordinal()
