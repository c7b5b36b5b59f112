"""Shares of pairs of rows that a model orders as their outcomes are."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_fedcon.validation import Array


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
    scores: Array,
    time: Array,
    event: Array,
    weight: Array | None = None,
    entry: Array | None = None,
) -> tuple[float, float]:
    """Return Harrell's share of concordant pairs, and the number of pairs that can be compared.

    A row of weight w counts as w rows: a pair counts as the product of its weights. An event is
    compared only with rows that have entered before it.

    >>> concordance(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1]))
    (1.0, 2.0)
    """
    # Longest time first, and censored rows before events of the same time: an event is compared
    # with the rows before the first event of its time.
    order = np.lexsort((event != 0, -time))
    time, died, ranks = time[order], event[order] != 0, np.unique(scores, return_inverse=True)[1]
    ranks = ranks[order]
    events = np.flatnonzero(died)
    new = (np.diff(time[events], prepend=np.nan) != 0).astype(np.intp)
    ends = events[new == 1][np.cumsum(new) - 1] if events.size else events
    every = np.ones(len(ranks)) if weight is None else weight[order]
    pairs = float(every[events] @ np.append(0.0, np.cumsum(every))[ends])
    below, same = _before(ranks, ends, ranks[events], every, every[events])
    if entry is not None:  # of these rows some enter later
        late = np.argsort(-entry[order], kind="stable")
        ends = np.searchsorted(-entry[order][late], -time[events], side="right")
        more = _before(ranks[late], ends, ranks[events], every[late], every[events])
        below, same = below - more[0], same - more[1]
        pairs -= float(every[events] @ np.append(0.0, np.cumsum(every[late]))[ends])
    return ((below + 0.5 * same) / pairs, pairs) if pairs else (0.0, 0.0)


def concordant(
    strata: Array,
    scores: Array,
    time: Array,
    event: Array,
    weight: Array | None = None,
    entry: Array | None = None,
) -> tuple[float, float]:
    """Return the concordant pairs, a tie counted half, and all pairs, within strata."""
    right = pairs = 0.0
    for stratum in np.unique(strata):
        inside = strata == stratum
        weights, late = (None if one is None else one[inside] for one in (weight, entry))
        share, number = concordance(scores[inside], time[inside], event[inside], weights, late)
        right, pairs = right + share * number, pairs + number
    return right, pairs


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
