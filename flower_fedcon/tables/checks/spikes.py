"""One value, or up to three, that a client has far more often than others, among many.

Missing values were filled in with a usual one of their sex or group, or with a limit of the normal.
Such rows are anywhere in a file; those of one year, or of a sorted file, are next to each other,
and are not asked about.

Of 1,351 federations made of R's data sets two were said, one of them of sums of money that seem to
be filled in; the bounds were set with these in view. None was of 1,500 simulated ones, drawn
afterwards. With one value in a tenth of the rows of one of 2 to 6 clients 51 % were found (30 % by
`unlike_values.filled_in`), in 15 % of the rows 74 %, and in 30 % 97 %; with two values,
of a tenth of the rows each, 39 %, of 15 % each 64 %, and of 30 % each 81 %, which that does not
find. Counts and scores have too few different values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.errors import first_few
from flower_fedcon.tables.checks.doubled_rows import neighbours_alike, tail
from flower_fedcon.validation import Array

_FEW, _KINDS = 20, 20  # rows of a client, and different values: with fewer nothing is said
_LEAST, _SHARE, _SIDE = 10, 0.08, 0.1  # rows of a value; their share, and of rows on either side
_TIMES, _NEXT = 3.0, 3.0  # its share elsewhere; rows of any other value here
_SLACK, _BY_CHANCE = 1.5, 1e-6  # times the share elsewhere; the chance of as many at this
_SOME = 3  # values: more are heaped, as at tens


def spikes(names: Sequence[str], each: Sequence[Array]) -> Iterator[str]:
    """Yield the clients with a few values within that are far more frequent than elsewhere.

    Parameters
    ----------
    names : sequence of str
    each : sequence of array, shape (m,)
        NaN where a value is missing.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(13, 2, (3, 200)).round(1)
    >>> x[1, ::3][:60] = np.repeat([12.0, 13.5], 30)
    >>> list(spikes("abc", x))
    ['12, 13.5 are in 17%, 16% of the rows of b, and elsewhere in 2% at most: are they filled in \
for missing ones?']
    """
    known = [values[~np.isnan(values)] for values in each]
    told = [np.unique(values, return_counts=True) for values in known]
    enough = [k for k, (distinct, _) in enumerate(told)
              if len(known[k]) >= _FEW and len(distinct) >= _KINDS]  # fmt: skip
    for k in enough if len(enough) > 1 else ():
        distinct, counts = told[k]
        n = len(known[k])
        below = np.cumsum(counts) - counts
        within = np.minimum(below, n - below - counts) >= _SIDE * n
        places = np.flatnonzero(within & (counts >= max(_LEAST, _SHARE * n)))
        if not 0 < len(places) <= _SOME:
            continue
        if counts[places].min() < _NEXT * np.delete(counts, places).max():
            continue
        if neighbours_alike(np.isin(known[k], distinct[places]).astype(np.float64)):
            continue  # of one year, or one group of a sorted file
        rest = [_shares(distinct[places], *told[j]) for j in enough if j != k]
        usual, rows = np.max(rest, axis=0), sum(len(known[j]) for j in enough if j != k)
        shares = counts[places] / n
        if all(
            share >= _TIMES * often and _is_no_chance(int(found), n, often + 1 / rows)
            for share, often, found in zip(shares, usual, counts[places], strict=True)
        ):
            values = first_few([f"{value:g}" for value in distinct[places]])
            said = first_few([f"{share:.0%}" for share in shares])
            is_are, it = ("is", "is it") if len(places) == 1 else ("are", "are they")
            yield (
                f"{values} {is_are} in {said} of the rows of {names[k]}, and elsewhere in "
                f"{usual.max():.0%} at most: {it} filled in for missing ones?"
            )


def _shares(values: Array, distinct: Array, counts: Array) -> Array:
    """Return the shares of some values among a client's."""
    places = np.minimum(np.searchsorted(distinct, values), len(distinct) - 1)
    shares: Array = np.where(distinct[places] == values, counts[places], 0) / counts.sum()
    return shares


def _is_no_chance(found: int, of: int, share: float) -> bool:
    share *= _SLACK
    return found > share * of and tail(found, of, share) < math.log(_BY_CHANCE)
