"""Links between expected outcomes and linear predictors, and the rule for overflow.

Where a score enters an exponential it is cut at `FARTHEST`, so that the exponential is a number
above 0. What is summed over rows is bounded by `BOUND` in each row, so that no sum of it overflows.
A number that is not one (NaN), as for a row without a prediction, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flower_fedcon.validation import Array

FARTHEST = 700.0
"""The largest size of a score in an exponential, just below the largest of float64."""
BOUND = 1e100
"""The largest size of a row's part of a sum."""


@dataclass(frozen=True)
class Link:
    """A link function.

    Parameters
    ----------
    name : str
        As in `model.json`.
    of : callable
        Returns the scores of means.
    inverse : callable
        Returns the means of scores.
    """

    name: str
    of: Callable[[Array], Array]
    inverse: Callable[[Array], Array]


def cut(scores: Array) -> Array:
    """Return scores whose exponentials are numbers above 0.

    >>> cut(np.array([1.0, -800.0, np.inf]))
    array([   1., -700.,  700.])
    """
    limited: Array = np.clip(scores, -FARTHEST, FARTHEST)
    return limited


def bounded(each: Array) -> Array:
    """Return rows' parts of a sum, each within `BOUND`."""
    limited: Array = np.clip(each, -BOUND, BOUND)
    return limited


def _same(values: Array) -> Array:
    return values


def _log(means: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return cut(np.log(means))


def _exp(scores: Array) -> Array:
    values: Array = np.exp(cut(scores))
    return values


def _logit(means: Array) -> Array:
    from scipy.special import logit

    return cut(logit(means))


def _expit(scores: Array) -> Array:
    from scipy.special import expit

    probabilities: Array = expit(scores)
    return probabilities


def _softmax(scores: Array) -> Array:
    from scipy.special import softmax

    probabilities: Array = softmax(scores, axis=-1)
    return probabilities


IDENTITY = Link("identity", _same, _same)
LOG = Link("log", _log, _exp)
LOGIT = Link("logit", _logit, _expit)
SOFTMAX = Link("softmax", _log, _softmax)
"""From scores of classes, up to a number that all classes share, to probabilities."""
LOG_HAZARD = Link("log hazard ratio", _same, _same)
