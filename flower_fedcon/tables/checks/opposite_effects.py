"""Clients whose events or levels seem to be coded the other way round: their effects are opposite.

A client's rows are summed as score g and information I of its effects, its own intercept or
thresholds eliminated: its log likelihood of effects b is g'b - b'I b / 2. A common effect b has
deviations between clients of the variance TAU^2, in standard deviations of a column. Then

    h = (1 + TAU^2 I)^-1 g,  J = (1 + TAU^2 I)^-1 I,  and with b's prior N(0, 1)
    log p(signs) = (sum_k sign_k h_k)' (1 + sum_k J_k)^-1 (sum_k sign_k h_k) / 2 + constant.

So each pair of clients has one number, and a client's sign is turned at the cost of twice the sum
of its numbers with the others. The shares of events, whose logits are taken to vary with variance
1, add to this. Of 8,000 simulated federations of 2 to 6 clients with 40 to 1,500 rows and 2 to 12
columns, whose effects vary between clients by up to 0.6 of their size, 2 are remarked upon falsely;
of 4,000 in which they vary by up to their size, 12. Of linear models, whose outcomes count by their
ranks, 2 and 3 of 2,000 are, and 60 and 58 % of those turned round are found; where rows are alike
within clusters, and effects vary between these by up to their size, 0 and 9 of 2,100, and 69 % are
found. With one client turned round 59 and 57 % are found, with another named in 0.2 and 0.6 %: of
few rows or small effects nobody can tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.errors import first_few
from flower_fedcon.validation import Array

TAU = 0.2
"""The standard deviation of effects between clients, for columns divided by their own."""
COLUMNS = 200
"""With more columns nothing is said, since matrices of this size are solved for each client."""
CODED = "coded the other way round"
FEW = 20
"""With fewer rows nothing is said of a client."""
EVIDENCE = 4.0
"""In the log likelihood: with more a client is named."""


_CLUSTERS = 5
"""Beyond the clients: with fewer, nobody can tell how much clusters differ."""
_ROUNDING = 1e-9  # of a variance
_ALIKE = 0.05  # between shares of events that say nothing


Rows = tuple[Array, Array, Array | None]
"""A client's columns, shape (m, p); its outcomes, above 0 for an event, levels from 0 on if there
are more than two, or numbers; and the weights by which rows count."""


class SiteSums(NamedTuple):
    """What a client's rows tell of its effects, its own intercept or thresholds eliminated."""

    score: Array  # of effects of 0
    information: Array
    spread: Array | float  # the information of its intercept, or of a column with variance 1
    share: float  # of events, or the mean level from 0 to 1
    rows: int


def spread_of(share: Array) -> tuple[Array, float]:
    """Return each level's slope of the log likelihood at effects of 0, and their mean square.

    Parameters
    ----------
    share : array, shape (levels,)
        The levels' shares of rows, the lowest first.

    Examples
    --------
    >>> spread_of(np.array([0.75, 0.25]))
    (array([-0.25,  0.75]), 0.1875)
    """
    slopes = 2.0 * (np.cumsum(share) - share) + share - 1.0
    return slopes, float(share @ slopes**2)


def turned_in_rows(
    names: Sequence[str],
    rows: Sequence[Rows],
    levels: int = 2,
    clusters: Sequence[Array] = (),
) -> list[str]:
    """Return the remark on clients whose outcomes seem to be turned round; [] without any.

    Parameters
    ----------
    names : sequence of str
    rows : sequence of Rows
        Each client's.
    levels : int
        See `sums_of`.
    clusters : sequence of array of int
        Each row's cluster, for numbers.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A = rng.normal(size=(3, 90, 2))
    >>> y = (A.sum(axis=2) + rng.logistic(size=(3, 90)) > 1) ^ np.array([[False], [True], [False]])
    >>> said = turned_in_rows(["a", "b", "c"], [(*one, None) for one in zip(A, y, strict=True)])
    >>> said[0][:68]
    'the outcome may be coded the other way round at b (68% of the rows h'
    """
    if not rows or rows[0][0].shape[1] > COLUMNS:
        return []
    return turned_by_sums(names, sums_of(rows, levels, clusters), levels)


def sums_of(rows: Sequence[Rows], levels: int, clusters: Sequence[Array] = ()) -> list[SiteSums]:
    """Return the clients' sums.

    Parameters
    ----------
    rows : sequence of Rows
    levels : int
        0 for numbers: each different one at a client is a level there, so only ranks count.
    clusters : sequence of array of int
        Each row's cluster, for numbers.
    """
    if clusters:
        return sums_of_clusters(rows, clusters)
    return [sums_of_rows(*one, levels) for one in rows]


def sums_of_rows(A: Array, y: Array, given: Array | None, levels: int) -> SiteSums:
    """Return a client's sums; see `turned_in_rows`."""
    w = np.ones(len(y)) if given is None else given
    if levels:
        places = y.astype(np.intp) if levels > 2 else (y > 0).astype(np.intp)
    else:
        places = np.unique(y, return_inverse=True)[1]
    share = np.bincount(places, w, levels) / w.sum()
    slopes, spread = spread_of(share)
    centred = A - np.average(A, axis=0, weights=w)
    weighed = w[:, None] * centred
    middle = float(np.arange(levels) @ share / (levels - 1)) if levels else 0.5
    return SiteSums(
        weighed.T @ slopes[places], spread * (weighed.T @ centred), spread * float(w.sum()), middle,
        len(y),
    )  # fmt: skip


def sums_of_clusters(rows: Sequence[Rows], clusters: Sequence[Array]) -> list[SiteSums]:
    """Return the clients' sums of numbers whose rows are alike within clusters.

    A cluster's mean counts as one row. Differences within it, of which its own level falls out, add
    to this by their own variance. They tell less where effects vary between clusters: by the factor
    by which clusters' scores vary more than those of rows, all clients together.

    Parameters
    ----------
    rows : sequence of Rows
    clusters : sequence of array of int
        Each row's cluster.
    """
    from scipy import sparse

    parts, free = [], 0
    meat = bread = np.zeros(rows[0][0].shape[1])
    for (A, y, given), codes in zip(rows, clusters, strict=True):
        w, own = (
            np.ones(len(y)) if given is None else given,
            np.unique(codes, return_inverse=True)[1],
        )
        places = np.unique(y, return_inverse=True)[1]
        slopes, spread = spread_of(np.bincount(places, w) / w.sum())
        member = sparse.csr_array((w, (own, np.arange(len(y)))))
        each = np.column_stack([A, slopes[places]])
        means = member @ each / np.bincount(own, w)[:, None]
        within, means = each - means[own], means - means.mean(axis=0)
        B, s = within[:, :-1], within[:, -1]
        score, gram, left = B.T @ (w * s), B.T @ (w[:, None] * B), float(w @ s**2 / w.sum())
        rest = s - B @ (np.linalg.pinv(gram, hermitian=True) @ score)
        meat = meat + ((member @ (B * rest[:, None])) ** 2).sum(axis=0)
        bread, free = bread + left * gram.diagonal(), free + len(means) - 1
        parts.append((means, spread, score, gram, left, A.var(axis=0), len(y)))
    told = bread > _ROUNDING * bread.max()
    more = math.inf
    if free >= _CLUSTERS and told.any():
        ratio = float((meat[told] / bread[told]).max())
        more = max(1.0, ratio * (free + len(parts)) / free)
    found = []
    for means, spread, score, gram, left, variance, m in parts:
        # Of outcomes that are constant within clusters only rounding is left.
        factor = spread / (left * more) if left > _ROUNDING * spread else 0.0
        between, A = means[:, :-1].T @ means[:, -1], means[:, :-1]
        information = spread * (A.T @ A + factor * gram)
        unit = information.diagonal() / np.maximum(variance, 1e-300)
        found.append(SiteSums(between + factor * score, information, unit, 0.5, m))
    return found


def turned_by_sums(
    names: Sequence[str], sums: Sequence[SiteSums], levels: int, evidence: float = EVIDENCE
) -> list[str]:
    """Return the remark on clients that are turned round, by the sums of all clients' rows."""
    if len(sums) < 2:
        return []
    rows, shares = [one.rows for one in sums], [one.share for one in sums]
    pairs, n, share = agreement(sums), np.array(rows), np.array(shares)
    turned: list[int] = []
    while 2 * len(turned) < len(names):
        signs = np.where(np.isin(np.arange(len(names)), turned), -1.0, 1.0)
        gains = -2.0 * signs * (pairs @ signs - signs * pairs.diagonal())
        for k in range(len(names)):
            rest = (signs > 0) & (np.arange(len(names)) != k)
            if k in turned or n[k] < FEW or not 0 < share[k] < 1 or not rest.any():
                gains[k] = -math.inf
                continue
            elsewhere = float(n[rest] @ share[rest] / n[rest].sum())
            others = float(n[rest].sum())
            gains[k] += of_shares(shares[k], rows[k], elsewhere, others, int(rest.sum()))
        best = int(np.argmax(gains))
        if not gains[best] > evidence:
            break
        turned.append(best)
    if not turned:
        return []
    rest = np.setdiff1d(np.arange(len(names)), turned)
    named = [names[k] for k in sorted(turned)], [shares[k] for k in sorted(turned)]
    if 2 * len(turned) < len(names):
        return [turned_in_words(*named, float(n[rest] @ share[rest] / n[rest].sum()), levels)]
    groups = [
        first_few([_site_in_words(names[k], shares[k], levels) for k in group])
        for group in sorted([sorted(turned), rest.tolist()])
    ]
    return [
        f"columns have opposite effects on the outcome at {' and '.join(groups)}: is it, or a "
        f"column, {CODED} at one of them?"
    ]


def agreement(sums: Sequence[SiteSums]) -> Array:
    """Return for each pair of clients how far their effects agree; see the module."""
    own = h_and_J(sums, sizes_of(sums))
    h = np.array([one[0] for one in own])
    whole = np.eye(h.shape[1]) + np.sum([one[1] for one in own], axis=0)
    pairs: Array = h @ _solved(whole, h.T)
    return pairs


def _solved(matrix: Array, right: Array) -> Array:
    """Return the solution, or zeros, which tell nothing, where rounding has left no rank."""
    try:
        return np.asarray(np.linalg.solve(matrix, right))
    except np.linalg.LinAlgError:
        return np.zeros_like(right)


def sizes_of(sums: Sequence[SiteSums]) -> Array:
    """Return the columns' standard deviations within clients."""
    total = np.sum([one.information.diagonal() for one in sums], axis=0)
    spread = sum((np.asarray(one.spread) for one in sums), np.zeros(1))
    sizes: Array = np.sqrt(np.maximum(total, 0.0) / np.maximum(spread, 1e-300))
    return sizes


def h_and_J(sums: Sequence[SiteSums], sizes: Array) -> list[tuple[Array, Array]]:  # noqa: N802
    """Return each client's h and J, for columns divided by `sizes`; see the module."""
    inverse = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 0)
    found = []
    for one in sums:
        scaled = one.information * inverse * inverse[:, None]
        both = np.column_stack([one.score * inverse, scaled])
        solved = _solved(np.eye(len(sizes)) + TAU**2 * scaled, both)
        found.append((solved[:, 0], solved[:, 1:]))
    return found


def of_shares(share: float, rows: float, elsewhere: float, others: float, clients: int) -> float:
    """Return the evidence in a client's share of events beside that in other clients' rows.

    It is -inf if the share, turned round, is farther from that elsewhere.
    """
    if not may_be_turned(share, rows, elsewhere):
        return -math.inf
    return -2.0 * _logit(share, rows) * _logit(elsewhere, others) / (1.0 + 1.0 / clients)


def may_be_turned(share: float, rows: float, elsewhere: float) -> bool:
    """Return whether a share of events, turned round, is at least as near to that elsewhere.

    >>> may_be_turned(0.8, 100, 0.2), may_be_turned(0.2, 100, 0.2), may_be_turned(0.5, 100, 0.45)
    (True, False, True)
    """
    own, other = (_logit(p, rows) for p in (share, elsewhere))
    error = 2.0 / math.sqrt(rows * max(share * (1 - share), 1.0 / rows))
    return abs(-own - other) <= abs(own - other) + error


def turned_in_words(
    names: Sequence[str], shares: Sequence[float], elsewhere: float, levels: int = 2
) -> str:
    """Return the remark on clients, with their shares of events, or means of ordered levels.

    Shares are left out where they are alike.

    >>> [turned_in_words(["b"], [share], 0.44)[25:57] for share in (0.43, 0.56)]
    ['the other way round at b: what g', 'the other way round at b (56% of']
    """
    alike = levels == 2 and all(abs(share - elsewhere) < _ALIKE for share in shares)
    each = zip(names, shares, strict=True)
    listed = ", ".join(_site_in_words(one, share, levels) for one, share in each)
    if not levels:
        return (
            f"columns have effects on the outcome opposite to those elsewhere at {listed}: is it, "
            f"or a column, {CODED} there, as a loss beside a gain?"
        )
    if levels > 2:
        return (
            f"columns have effects on the level opposite to those elsewhere at {listed}: elsewhere "
            f"the {_share_in_words(elsewhere, levels)}. Is the order of levels, or a column, "
            f"{CODED} there?"
        )
    if alike:
        listed, there = first_few(list(names)), ""
    else:
        there = f"elsewhere {elsewhere:.0%} have one, and "
    return (
        f"the outcome may be {CODED} at {listed}: {there}what "
        f"goes with more events elsewhere goes with fewer there. Does 1 mean there what 0 means "
        f"elsewhere, in the outcome or in a column?"
    )


def _site_in_words(name: str, share: float, levels: int) -> str:
    return f"{name} ({_share_in_words(share, levels)})" if levels else name


def _share_in_words(share: float, levels: int) -> str:
    """Return a share of events, or the mean of the levels 1, 2, ...

    >>> _share_in_words(0.25, 2), _share_in_words(0.25, 5)
    ('25% of the rows have an event', 'mean level is 2 of 5')
    """
    if levels == 2:
        return f"{share:.0%} of the rows have an event"
    return f"mean level is {1 + share * (levels - 1):.2g} of {levels}"


def _logit(share: float, rows: float) -> float:
    inside = min(max(share, 0.5 / rows), 1.0 - 0.5 / rows)
    return math.log(inside / (1.0 - inside))
