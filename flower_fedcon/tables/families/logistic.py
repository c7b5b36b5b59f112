"""Logistic regression: two classes, by the logarithm of their odds."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.objectives.losses import LogisticRegression
from flower_fedcon.tables.families.base import Cells, Family, Parts, Stated
from flower_fedcon.tables.families.link_functions import LOGIT, bounded
from flower_fedcon.tables.pairs import auc
from flower_fedcon.validation import Array


class Logistic(Family):
    """Logistic regression, of targets -1 and 1."""

    name = "logistic"
    title = "Logistic regression"
    of = LogisticRegression
    link = LOGIT
    rank = 2
    ratio = "odds ratio"
    needs = "positive"
    labelled = True
    binary = True
    profiled = True
    endless = "outcomes are all alike within (nearly) all groups"
    debiased = True
    separable = True
    bounded_slopes = True
    metrics = ("auc", "accuracy", "loss")
    error = "brier"

    def read(self, cells: Cells, stated: Stated) -> Array:
        """Return 1 for the positive labels, else -1."""
        numbers = dict.fromkeys(stated.positive, 1.0) | dict.fromkeys(stated.negative, -1.0)
        remedy = "correct it, or list it in positive or negative in the schema"
        return cells.labels(stated.target, numbers, remedy, others=not stated.negative)

    def outcomes(self, stated: Stated) -> list[str]:
        """Return the rows of 0 and of 1, in words."""
        target, yes = f"a target {stated.target!r}", _either(stated.positive)
        no = f"of {_either(stated.negative)}" if stated.negative else f"other than {yes}"
        return [f"{target} {no}", f"{target} of {yes}"]

    def marks(self, stated: Stated) -> list[str]:
        """Return the name of the rows of 1."""
        return [" or ".join(stated.positive)]

    def counted(self, own: Array, stated: Stated) -> Array:
        """Return the rows of 0 and of 1."""
        return np.stack([own < 0, own > 0], axis=1)

    def cells(self, y: Array, stated: Stated) -> dict[str, list[Any]]:
        """Return 0 and 1."""
        return {"outcome": (y > 0).astype(int).tolist()}

    def limits(self, stated: Stated) -> tuple[Array, list[str]]:
        """Return the limit between the classes."""
        return np.array([0.0]), ["negative", "positive"]

    def decides(self, y: Array) -> bool:
        """Return whether all are of one class."""
        return bool((y == y[0]).all())

    def classes(self, stated: Stated) -> Array:
        """Return 0 and 1."""
        return np.array([0, 1])

    def likeliest(self, scores: Array) -> Array:
        """Return 1 above even odds."""
        return (scores > 0).astype(int)

    def probabilities(self, scores: Array) -> Array:
        """Return those of 0 and 1, each to full accuracy."""
        return np.stack([self.link.inverse(-scores), self.link.inverse(scores)], axis=1)

    def deviance(self, scores: Array, y: Array, parameter: float = 0.0) -> Array:
        """Return -2 log of the target's probability."""
        deviances: Array = 2.0 * np.logaddexp(0, -y * scores)
        return deviances

    def likelihood(self, loss: Any, scores: Array, y: Array) -> Parts:
        """Return the rows' parts."""
        deviance = self.deviance(scores, y)
        return -0.5 * deviance, deviance, np.exp(-y * scores), np.zeros_like(deviance)

    def slopes(self, scores: Array, y: Array, parameter: float = 0.0) -> tuple[Array, Array]:
        """Return y - p and p (1 - p), for outcomes 0 and 1."""
        mean = self.link.inverse(scores)
        return self.numbers(y) - mean, mean * (1.0 - mean)

    def rows_told(self, y: Array) -> list[Array]:
        """Return both classes' rows."""
        return [y > 0, y <= 0]

    def pairs(self, scores: Array, y: Array) -> dict[str, tuple[float, float]]:
        """Return the AUC."""
        return {"auc": auc(scores, y > 0)}

    def means(self, scores: Array, y: Array, x: Array) -> dict[str, Array]:
        """Return accuracy and log loss."""
        return {"accuracy": (scores > 0) == (y > 0), "loss": 0.5 * self.deviance(scores, y)}

    def numbers(self, y: Array) -> Array:
        """Return 0 and 1."""
        return (y > 0).astype(np.float64)

    def level(self, y: Array, offset: Array | None) -> tuple[float, float] | None:
        """Return the numbers of events and rows; None with an offset, as no ratio is the null."""
        return None if offset is not None else super().level(y, None)

    def between(self, own: float, mean: float, parameter: float = 0.0) -> float:
        """Return the expectation over outcomes 0 and 1, of which `own` is the share of 1."""
        y = np.array([1.0, -1.0])
        at, base = (bounded(self.deviance(self.link.of(np.array(p)), y)) for p in (mean, own))
        return float(np.array([own, 1.0 - own]) @ (at - base))


def _either(marks: tuple[str, ...]) -> str:
    return " or ".join(map(repr, marks))


FAMILY = Logistic()
