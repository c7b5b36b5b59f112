"""The quality of a model on private held-out rows: noisy counts, and the AUC from them.

Once for a model, a site sends how many of its held-out rows, without and with the event, lie in
each of `NOISY_BINS` bins of the predicted probability. Each count has discrete Gaussian noise with
the node's multiplier z. A row is in one count, so that this is a release of a sum of vectors of
norm at most 1: the node's ledger counts it like a gradient over all rows. A row's bin depends on
that row only. The number of rows is public.

Let e_b and n_b be the counts with and without the event, summed over sites. The area is

    sum_b e_b (sum_{a < b} n_a + n_b / 2) / (sum_b e_b sum_b n_b),

and the delta method gives its standard error for the noise, with variance z^2 for each count of
each site. Counts are not cut at 0, which would bias the area.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flower_fedcon.errors import RefusedError
from flower_fedcon.objectives.base import unscaled
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

NOISY_BINS = 20
SHAPES: dict[str, tuple[int, ...]] = {"noisy": (2, NOISY_BINS), "known": (2,)}
"""A site's message: the counts; the number of held-out rows, and the deviation of a count."""


def told_noisily(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return the answer of a site with private rows for the model "x".

    Raises
    ------
    RefusedError
        If the rows are not private, or the site sends nothing about held-out rows.
    """
    tell: Callable[[Array], Payload] | None = getattr(unscaled(objective), "noisy_quality", None)
    if tell is None:
        raise RefusedError("refused: no noise protects what this node could send of held-out rows")
    return tell(down["x"])


def bins_of(f: LinearModel, x: Array) -> Array:
    """Return the bin of each row, computed from that row alone: by class, then by probability.

    If the model is so large that a row's probability overflows, it counts as 0.

    >>> from flower_fedcon.objectives import LogisticRegression
    >>> f = LogisticRegression(np.array([[0.0], [9.0], [9.0]]), np.array([1.0, -1.0, 1.0]))
    >>> bins_of(f, np.ones(1)).tolist()
    [30, 19, 39]
    """
    losses = f.row_losses(x, np.arange(f.num_examples))
    likely = np.exp(-np.maximum(losses, 0.0))  # the probability of the observed outcome
    event = f.targets > 0
    probability = np.nan_to_num(np.where(event, likely, 1.0 - likely))
    place = np.minimum((probability * NOISY_BINS).astype(np.intp), NOISY_BINS - 1)
    return np.where(event, NOISY_BINS, 0) + place


def noisy_counts(places: Array, grid: Grid) -> Array:
    """Return how many rows are in each bin, with noise.

    >>> grid = Grid(1.0, 1e-3, 10)
    >>> noisy_counts(np.array([0, 0, 39]), grid).round(1).shape
    (2, 20)
    """
    one = grid.steps(np.ones((1, 1)))[0, 0]
    counts = np.bincount(places, minlength=2 * NOISY_BINS).astype(np.int64)
    noisy: Array = grid.release(counts * one).reshape(2, NOISY_BINS)
    return noisy


# --- on the server -------------------------------------------------------------------------------


def as_binned(told: Mapping[str, Array], bins: int) -> Array:
    """Return noisy counts in the form of `quality.binned_counts`, on its finer bins."""
    wide = bins // NOISY_BINS
    binned = np.zeros((4, bins))
    ends = np.arange(wide - 1, bins, wide)
    middles = (np.arange(NOISY_BINS) + 0.5) / NOISY_BINS
    binned[:2, ends] = told["noisy"]
    binned[2, ends], binned[3, ends] = told["noisy"].sum(axis=0) * middles, ends - (wide - 1)
    return binned


def area_error(counts: Array, noisy: Sequence[Mapping[str, Array]]) -> float:
    """Return the standard error of the area due to noise in counts; infinite if unknown.

    Parameters
    ----------
    counts : array, shape (2, NOISY_BINS)
        The counts, summed over sites.
    noisy : sequence of dict
        The answer of each site with private rows.

    Examples
    --------
    >>> counts = np.array([np.arange(20.0, 0.0, -1.0), np.arange(1.0, 21.0)]) * 100
    >>> one = {"noisy": counts, "known": np.array([42_000.0, 10.0])}
    >>> round(area_error(counts, [one]), 4)
    0.001
    """
    without, events = counts
    n, e = float(without.sum()), float(events.sum())
    if not (n > 0 and e > 0):
        return math.inf
    below = np.cumsum(without) - 0.5 * without
    above = e - np.cumsum(events) + 0.5 * events
    area = float(events @ below) / (e * n)
    slopes = np.concatenate([above / (e * n) - area / n, below / (e * n) - area / e])
    deviation = math.sqrt(math.fsum(float(one["known"][1]) ** 2 for one in noisy))
    return float(np.linalg.norm(slopes)) * deviation
