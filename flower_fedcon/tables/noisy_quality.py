"""How good a model is on private held-out rows: noisy counts, and the AUC from them.

A site tells, once for a model, how many of its rows held out lie in each of `NOISY_BINS` bins of
the predicted probability, without the event and with it, each count with the discrete Gaussian
noise of the node's multiplier z. One row is in one count, so that the release is that of a sum
whose summands are at most 1 long, and counts in the node's ledger like a gradient over all rows.
Which bin a row is in follows from that row alone. The number of rows is public.

Let e_b and n_b be the counts with and without the event, all sites' together. The area is

    sum_b e_b (sum_{a < b} n_a + n_b / 2) / (sum_b e_b sum_b n_b),

and its standard error for the noise that of the first derivatives, with z^2 for each count of each
site (the delta method). Counts are not cut at 0, which would move the area.
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
"""What a site sends: the counts; and the number of held-out rows and each count's deviation."""


def told_noisily(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return what a site with private rows tells of the model "x".

    Raises
    ------
    RefusedError
        If its rows are not private, or it sends nothing of held-out ones.
    """
    tell: Callable[[Array], Payload] | None = getattr(unscaled(objective), "noisy_quality", None)
    if tell is None:
        raise RefusedError("refused: no noise protects what this node could send of held-out rows")
    return tell(down["x"])


def bins_of(f: LinearModel, x: Array) -> Array:
    """Return the bin of each row, from that row alone: by class, then by probability.

    A row whose probability overflows, since the model is too large, counts as 0.

    >>> from flower_fedcon.objectives import LogisticRegression
    >>> f = LogisticRegression(np.array([[0.0], [9.0], [9.0]]), np.array([1.0, -1.0, 1.0]))
    >>> bins_of(f, np.ones(1)).tolist()
    [30, 19, 39]
    """
    losses = f.row_losses(x, np.arange(f.num_examples))
    likely = np.exp(-np.maximum(losses, 0.0))  # the probability of what was seen
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
    found: Array = grid.release(counts * one).reshape(2, NOISY_BINS)
    return found


# --- on the server -------------------------------------------------------------------------------


def as_binned(told: Mapping[str, Array], bins: int) -> Array:
    """Return noisy counts in the form of `quality.binned_counts`, with so many finer bins."""
    wide = bins // NOISY_BINS
    found = np.zeros((4, bins))
    ends = np.arange(wide - 1, bins, wide)
    middles = (np.arange(NOISY_BINS) + 0.5) / NOISY_BINS
    found[:2, ends] = told["noisy"]
    found[2, ends], found[3, ends] = told["noisy"].sum(axis=0) * middles, ends - (wide - 1)
    return found


def area_error(counts: Array, noisy: Sequence[Mapping[str, Array]]) -> float:
    """Return the standard error that noise leaves in the area of counts; infinite where unknown.

    Parameters
    ----------
    counts : array, shape (2, NOISY_BINS)
        All sites' together.
    noisy : sequence of dict
        What each site with private rows has told.

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
