"""Multinomial logit: several classes, each with its own linear predictor."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.objectives.softmax import SoftmaxRegression
from flower_fedcon.tables.families.base import Cells, Family, Parts, Stated
from flower_fedcon.tables.families.link_functions import SOFTMAX
from flower_fedcon.validation import Array


class Classes(Family):
    """A model of several classes, of targets that are the classes' places."""

    ratio = "odds ratio"
    labelled = True
    separable = True
    bounded_slopes = True
    metrics = ("accuracy", "loss")

    def read(self, cells: Cells, stated: Stated) -> Array:
        """Return the place of each row's class."""
        places = {mark: float(place) for place, mark in enumerate(self.marks(stated))}
        return cells.labels(stated.target, places, "correct it, or add the value to the schema")

    def outcomes(self, stated: Stated) -> list[str]:
        """Return the classes, in words."""
        return [f"a target {stated.target!r} of {mark!r}" for mark in self.marks(stated)]

    def marks(self, stated: Stated) -> list[str]:
        """Return the classes."""
        return list(stated.classes)

    def counted(self, own: Array, stated: Stated) -> Array:
        """Return the rows of each class."""
        each: Array = own[:, None] == np.arange(len(self.marks(stated)))
        return each

    def cells(self, y: Array, stated: Stated) -> dict[str, list[Any]]:
        """Return the classes' names."""
        marks = self.marks(stated)
        return {"outcome": [marks[k] for k in y.astype(int).tolist()]}

    def limits(self, stated: Stated) -> tuple[Array, list[str]]:
        """Return the limits between the classes' places."""
        return np.arange(len(self.marks(stated)) - 1) + 0.5, self.marks(stated)

    def classes(self, stated: Stated) -> Array:
        """Return the schema's classes."""
        return np.array(self.marks(stated))

    def means(self, scores: Array, y: Array, x: Array) -> dict[str, Array]:
        """Return accuracy and log loss."""
        return {"accuracy": self.likeliest(scores) == y, "loss": 0.5 * self.deviance(scores, y)}


class Multinomial(Classes):
    """Multinomial logit, of targets that are the classes' places; scores of shape (m, classes)."""

    name = "multinomial"
    title = "Multinomial logit"
    of = SoftmaxRegression
    link = SOFTMAX
    rank = 3
    needs = "classes"
    several = True
    no_quality = "a multinomial model has only accuracy and loss"

    def loss(self, A: Any, y: Array, stated: Stated, **options: Any) -> Any:
        """Return the objective, which knows the number of classes."""
        return SoftmaxRegression(A, y.astype(np.intp), len(stated.classes), **options)

    def likeliest(self, scores: Array) -> Array:
        """Return the place of the largest score."""
        places: Array = scores.argmax(axis=1)
        return places

    def probabilities(self, scores: Array) -> Array:
        """Return the classes' probabilities."""
        return self.link.inverse(scores)

    def deviance(self, scores: Array, y: Array, parameter: float = 0.0) -> Array:
        """Return -2 log of the class's probability."""
        of_class = scores[np.arange(len(y)), y.astype(np.intp)]
        top = scores.max(axis=1)
        total = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
        deviances: Array = 2.0 * (total - of_class)
        return deviances

    def likelihood(self, loss: Any, scores: Array, y: Array) -> Parts:
        """Return the rows' parts; here the objective's scores have the classes first."""
        losses = loss.loss(scores, y)
        pearson = np.expm1(losses)  # (1 - p)^2 / p + sum of the others' p: 1/p - 1
        return -losses, 2.0 * losses, pearson, np.zeros_like(losses)


FAMILY = Multinomial()
