"""Losses as likelihoods: constants, deviance and variance, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.validation import Array

KNOWN, RESIDUAL, PEARSON, NONE = "known", "residual", "pearson", "none"
Rows = Callable[[Any, Array, Array], tuple[Array, Array, Array, Array]]


@dataclass(frozen=True)
class Family:
    """A loss as a likelihood.

    Attributes
    ----------
    name : str
        The loss's name in schemas.
    title : str
        The model's name in a summary.
    scale : {"known", "residual", "pearson", "none"}
        The source of phi: 1; RSS / (n - p); Pearson's chi^2 / (n - p); or no likelihood.
    rows : callable
        (loss, scores, targets) -> for each row the log-likelihood, the deviance, Pearson's square,
        and one more number that the family needs (log y for the gamma family).
    expected : bool
        Whether the model's errors use the expected information.
    ratio : str
        The name of a coefficient's exponential.
    link : str
    """

    name: str
    title: str
    scale: str
    rows: Rows | None
    expected: bool = False
    ratio: str = ""
    link: str = "identity"


def _squared(loss: Any, scores: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    squares = np.square(scores - y)
    return np.zeros_like(squares), squares, squares, np.zeros_like(squares)


def _huber(loss: Any, scores: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    none = np.zeros_like(scores)
    return none, 2.0 * loss.loss(scores, y), none, none


def _logistic(loss: Any, scores: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    losses = loss.loss(scores, y)
    return -losses, 2.0 * losses, np.exp(-y * scores), np.zeros_like(losses)


def _multinomial(loss: Any, scores: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    losses = loss.loss(scores, y)
    pearson = np.expm1(losses)  # (1 - p)^2 / p + sum of the others' p: 1/p - 1
    return -losses, 2.0 * losses, pearson, np.zeros_like(losses)


def _poisson(loss: Any, scores: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    from scipy.special import gammaln, xlogy

    mu = np.exp(scores)
    known = y * scores - mu - gammaln(y + 1.0)
    deviance = 2.0 * (xlogy(y, y) - y * scores - (y - mu))
    return known, deviance, np.square(y - mu) / mu, np.zeros_like(mu)


def _gamma(loss: Any, scores: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    ratio = y * np.exp(-scores)
    deviance = 2.0 * (ratio - 1.0 - np.log(ratio))
    return np.zeros_like(ratio), deviance, np.square(ratio - 1.0), np.log(y)


def _negative_binomial(loss: Any, scores: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    from scipy.special import gammaln, xlogy

    a = loss.alpha
    r, t, mu = 1.0 / a, math.log(a), np.exp(scores)
    logs = np.logaddexp(0.0, scores + t)
    known = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0) + y * (scores + t) - (y + r) * logs
    deviance = 2.0 * (xlogy(y, y) - y * scores - (y + r) * (np.log1p(a * y) - logs))
    return known, deviance, np.square(y - mu) / (mu * (1.0 + a * mu)), np.zeros_like(mu)


FAMILIES: dict[str, Family] = {
    "LeastSquares": Family("squared", "Linear regression", RESIDUAL, _squared),
    "LogisticRegression": Family(
        "logistic", "Logistic regression", KNOWN, _logistic, ratio="odds ratio", link="logit"
    ),
    "SoftmaxRegression": Family(
        "multinomial", "Multinomial logit", KNOWN, _multinomial, ratio="odds ratio", link="logit"
    ),
    "PoissonRegression": Family(
        "poisson", "Poisson regression", KNOWN, _poisson, ratio="rate ratio", link="log"
    ),
    "GammaRegression": Family(
        "gamma", "Gamma regression", PEARSON, _gamma, True, "ratio of means", "log"
    ),
    "WithDispersion": Family(
        "negative_binomial", "Negative binomial regression", KNOWN, _negative_binomial,
        ratio="rate ratio", link="log",
    ),
    "HuberRegression": Family("huber", "Huber regression", NONE, _huber),
    "CoxRegression": Family("cox", "Cox regression", KNOWN, None, ratio="hazard ratio", link="log"),
}  # fmt: skip
"""The families by the name of the loss's class."""


def family_of(name: str) -> Family:
    """Return a family by its name."""
    return next(family for family in FAMILIES.values() if family.name == name)
