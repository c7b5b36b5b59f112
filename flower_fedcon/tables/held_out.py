"""A model's metrics on a node's held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flower_fedcon.tables.few_rows import effective_rows
from flower_fedcon.tables.schema import LOG_LINK
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

    def counted(self, rows: Any) -> float:
        """Return the effective number of some of the rows, by their weights."""
        return effective_rows(self.weights, rows)

    @property
    def rarer(self) -> float:
        """The effective number of rows of the rarer class, of a logistic loss."""
        return min(self.counted(self.y > 0), self.counted(self.y <= 0))

    def scores(self, x: Array) -> Array:
        """Return the linear predictors of a model: see `__call__`."""
        whole = x if self.own is None else self.own.full(x)
        return linear_predictors(self.A, whole, self.offset)

    @property
    def usable(self) -> bool:
        """Whether the node has held-out rows, and a model for them."""
        return bool(len(self.y)) and (self.own is None or self.own.informative)

    def __call__(self, x: Array) -> dict[str, tuple[float, float]]:
        """Return the metrics of a model x: one entry (or row) a column, and the intercept.

        For a negative binomial loss log alpha comes last.
        """
        y, n = self.y, float(len(self.y))
        if not self.usable:
            return dict.fromkeys(names(self.loss), (0.0, 0.0))
        scores = self.scores(x)
        if self.loss == "cox":
            events = self.counted(y[:, 1] != 0)
            return {"test_concordance": self._told(*concordance(scores, y[:, 0], y[:, 1]), events)}
        rows = self.counted(np.arange(len(y)))
        means: dict[str, Array] = {}
        found: dict[str, tuple[float, float]] = {}
        if self.loss == "logistic":
            means = {"accuracy": (scores > 0) == (y > 0), "loss": np.logaddexp(0, -y * scores)}
            value, pairs = auc(scores, y > 0)
            found["test_auc"] = self._told(value, pairs, self.rarer)
        elif self.loss == "multinomial":
            own = scores[np.arange(len(y)), y.astype(np.intp)]
            top = scores.max(axis=1)
            total = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
            means = {"accuracy": scores.argmax(axis=1) == y, "loss": total - own}
        elif self.loss in LOG_LINK:
            means = {"deviance": deviances(self.loss, y, expected(self.loss, scores), alpha_of(x))}
        else:
            means = {"mse": (y - scores) ** 2, "mae": np.abs(y - scores)}
        for name, values in means.items():
            found[f"test_{name}"] = self._told(float(np.mean(values)), n, rows)
        return found

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


def alpha_of(x: Array) -> float:
    """Return alpha of a negative binomial model: the model's last entry is log alpha."""
    return float(np.exp(np.clip(x.flat[-1], -30.0, 30.0)))


def expected(loss: str, scores: Array) -> Array:
    """Return the expected outcomes: the inverse link of linear predictors."""
    from scipy.special import expit

    if loss == "logistic":
        means: Array = expit(scores)
        return means
    return np.exp(np.minimum(scores, 700.0)) if loss in LOG_LINK else scores


def deviances(loss: str, y: Array, mean: Array, alpha: float = 0.0) -> Array:
    """Return the deviance of each row.

    Parameters
    ----------
    loss : str
    y, mean : array, shape (m,)
    alpha : float
        For a negative binomial loss.

    Examples
    --------
    >>> deviances("gamma", np.array([2.0]), np.array([1.0])).round(6)  # 2 (1 - log 2)
    array([0.613706])
    """
    from scipy.special import xlogy

    with np.errstate(divide="ignore", invalid="ignore"):
        if loss == "logistic":
            each = -2.0 * (xlogy(y, mean) + xlogy(1.0 - y, 1.0 - mean))
        elif loss == "poisson":
            each = 2.0 * (xlogy(y, y) - xlogy(y, mean) - y + mean)
        elif loss == "gamma":
            each = 2.0 * (y / mean - 1.0 - np.log(y / mean))
        elif loss == "negative_binomial":
            logs = np.log1p(alpha * y) - np.log1p(alpha * mean)
            each = 2.0 * (xlogy(y, y) - xlogy(y, mean) - (y + 1.0 / alpha) * logs)
        else:
            each = np.square(y - mean)
    found: Array = each
    return found


def names(loss: str) -> tuple[str, ...]:
    """Return the names of a loss's metrics.

    >>> names("logistic")
    ('test_auc', 'test_accuracy', 'test_loss')
    """
    known = {
        "cox": ("concordance",),
        "logistic": ("auc", "accuracy", "loss"),
        "multinomial": ("accuracy", "loss"),
        **dict.fromkeys(LOG_LINK, ("deviance",)),
    }
    return tuple(f"test_{name}" for name in known.get(loss, ("mse", "mae")))


def auc(scores: Array, positive: Any) -> tuple[float, float]:
    """Return the share of correctly ordered pairs of a positive and a negative row, and all pairs.

    A tie counts half; without a pair the share is 0.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, True, False, True]))
    (0.875, 4.0)
    """
    from scipy.stats import rankdata

    n = int(np.sum(positive))
    pairs = float(n * (len(scores) - n))
    if not pairs:
        return 0.0, 0.0
    above = float(rankdata(scores)[positive].sum()) - n * (n + 1) / 2
    return above / pairs, pairs


def concordance(
    scores: Array, time: Array, event: Array, weight: Array | None = None
) -> tuple[float, float]:
    """Return Harrell's share of concordant pairs, and the number of pairs that can be compared.

    A row of weight w counts as w rows: a pair counts as the product of its weights.

    >>> concordance(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1]))
    (1.0, 2.0)
    """
    # Longest time first, and censored rows before events of the same time: an event is compared
    # with the rows before the first event of its time.
    order = np.lexsort((event != 0, -time))
    time, died, ranks = time[order], event[order] != 0, np.unique(scores, return_inverse=True)[1]
    ranks = ranks[order]
    own = np.flatnonzero(died)
    new = (np.diff(time[own], prepend=np.nan) != 0).astype(np.intp)
    ends = own[new == 1][np.cumsum(new) - 1] if own.size else own
    every = np.ones(len(ranks)) if weight is None else weight[order]
    pairs = float(every[own] @ np.append(0.0, np.cumsum(every))[ends])
    below, same = _before(ranks, ends, ranks[own], every, every[own])
    return ((below + 0.5 * same) / pairs, pairs) if pairs else (0.0, 0.0)


def _before(
    ranks: Array, ends: Array, values: Array, weights: Array, times: Array
) -> tuple[float, float]:
    """Return the numbers of ranks[:end] below a value and equal to it, summed over all pairs.

    Each rank counts by its weight, and each value as often as `times` says. An end is a sum of
    powers of 2, so that the ranks before it form blocks, which are sorted separately.
    """
    below = same = 0.0
    most = int(ranks.max(initial=0)) + 1
    places = np.arange(len(ranks))
    for bit in range(len(ranks).bit_length()):
        use = (ends >> bit) & 1 == 1
        if use.any():
            keys = (places >> bit) * most + ranks
            by = np.argsort(keys, kind="stable")
            sums = np.append(0.0, np.cumsum(weights[by]))
            block = (ends[use] >> bit) - 1
            wanted = block * most + values[use]
            left, right = (
                np.searchsorted(keys[by], wanted, side=side) for side in ("left", "right")
            )
            below += float(times[use] @ (sums[left] - sums[block << bit]))
            same += float(times[use] @ (sums[right] - sums[left]))
    return below, same
