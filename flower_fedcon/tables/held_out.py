"""A model's metrics on a node's held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flower_fedcon.tables.families import Family, family_of
from flower_fedcon.tables.families.link_functions import bounded
from flower_fedcon.tables.small_cells import effective_rows
from flower_fedcon.validation import Array
from flower_fedcon.wire.digests import LATER


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The metrics of a model on rows that it was not trained on.

    Called with a model it returns pairs (value, weight) by name. The pooled metric is the mean of
    the nodes' values with these weights. For a mean over rows the weight is the number of rows, and
    the pooled value is the mean over all rows together. The weight of "test_auc" and
    "test_concordance" is the number of pairs of rows that they compare: pooled, they are the share
    of concordant pairs among all pairs of rows *of one node*. The AUC of all rows together would
    also compare rows of different nodes, so their scores would have to leave the nodes.

    A metric that a node cannot compute (without rows, or pairs to compare) or must not send has
    weight 0: the pooled value is then that of the other nodes.

    Parameters
    ----------
    loss : str
        As in `Schema`.
    A : array, shape (m, columns)
        m may be 0.
    y : array, shape (m,), or (m, 2)
    least : int
        With fewer rows, or fewer rows of either class, nothing is sent, and the weight is 0.
    offset : array, shape (m,), optional
        Added to the linear predictors.
    own : Profiled, optional
        For a site with its own intercept: its training rows, from which the intercept follows. If
        it is infinite, nothing is sent.
    cell : int
        The least number of rows of a class in a bin of `tables.quality`, except 0.
    weights : array, shape (m,), optional
        By which rows count for `least` and `cell`; metrics ignore them.
    """

    loss: str
    A: Any
    y: Array
    least: int = 1
    offset: Array | None = field(default=None, metadata={LATER: True})
    own: Any = field(default=None, metadata={LATER: True})
    cell: int = field(default=1, metadata={LATER: True})
    weights: Array | None = field(default=None, metadata={LATER: True})

    @property
    def family(self) -> Family:
        """The loss's record."""
        return family_of(self.loss)

    def counted(self, rows: Any) -> float:
        """Return the effective number of some of the rows, by their weights."""
        return effective_rows(self.weights, rows)

    @property
    def rarer(self) -> float:
        """The effective number of rows of the rarer class, of two; or of events."""
        return min(self.counted(group) for group in self.family.rows_told(self.y))

    def scores(self, x: Array) -> Array:
        """Return the linear predictors of a model: see `__call__`."""
        whole = x if self.own is None else self.own.full(x)
        scores = linear_predictors(self.A, whole, self.offset)
        return self.family.spread(scores, whole, self.A.shape[1])

    @property
    def usable(self) -> bool:
        """Whether the node has held-out rows, and a model for them."""
        return bool(len(self.y)) and (self.own is None or self.own.informative)

    def __call__(self, x: Array) -> dict[str, tuple[float, float]]:
        """Return the metrics of a model x: one entry (or row) a column, and the intercept.

        For a negative binomial loss log alpha comes last.
        """
        y, n, family = self.y, float(len(self.y)), self.family
        if not self.usable:
            return dict.fromkeys(family.held_out, (0.0, 0.0))
        scores = self.scores(x)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            means = family.means(scores, y, x)
            metrics = {
                name: self._told(value, pairs, self.rarer)
                for name, (value, pairs) in family.pairs(scores, y).items()
            }
            rows = self.counted(np.arange(len(y)))
            for name, values in means.items():
                metrics[name] = self._told(float(np.mean(bounded(values))), n, rows)
        return {f"test_{name}": told for name, told in metrics.items()}

    def _told(self, value: float, weight: float, rows: float) -> tuple[float, float]:
        return (value, weight) if rows >= self.least and weight else (0.0, 0.0)


def linear_predictors(A: Any, x: Array, offset: Array | None = None) -> Array:
    """Return the linear predictors of rows, shape (m,) or (m, classes).

    Parameters
    ----------
    A : array, shape (m, columns)
        Rows as the model sees them.
    x : array
        A model: columns, any intercept, and log alpha for a negative binomial loss.
    offset : array, shape (m,), optional
    """
    columns = A.shape[1]
    scores: Array = A @ x[:columns]
    if len(x) > columns:
        scores += x[columns]
    return scores if offset is None else scores + offset
