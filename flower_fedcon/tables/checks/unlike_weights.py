"""Weights of one client that are scaled, or something else, there alone.

Weights of one study have one scale: where a client divides its own by their mean, its rows count
less, or more, than others'.

Of 10,000 simulated honest federations, drawn after the bounds were set, four were said, whose
lognormal or raked weights have a mean of 1 by chance; they have weights of strata, of inverse
probabilities, stabilised or not, lognormal, raked and calibrated ones, whole numbers, and means of
1 at all sites. Of weights divided by their mean at one site 90 % were found, the others have a mean
near 1 elsewhere, and of identifiers 45 %, where weights have few values elsewhere. Weights that are
squared or cubed are not known by these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_FEW = 20  # rows of a client: with fewer nothing is said
_MEAN, _OFF = 2e-4, 0.1  # from 1: a mean there at most, and means elsewhere at least
_VARIES = 0.05  # of the mean: the least spread
_VALUES, _NEAR = 20, 1e-3  # values that are strata's; of a factor, up to rounding
_DIFFERENT, _GROUPED = 0.9, 0.25  # of rows: values of identifiers; values elsewhere


def unlike_weights(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients whose weights are scaled to a mean of 1, or others' times a factor, or ids.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    column = tables[0].schema.weight
    known = [(name, np.asarray(table.weights)) for name, table in zip(names, tables, strict=True)
             if column and len(table.targets) >= _FEW]  # fmt: skip
    told = [np.unique(weights) for _, weights in known]
    means = np.array([weights.mean() for _, weights in known])
    at_one = [k for k in range(len(known)) if abs(means[k] - 1) <= _MEAN]
    for k, (name, weights) in enumerate(known):
        rest, others = np.delete(means, k), [*told[:k], *told[k + 1 :]]
        sizes = [len(own) for j, (_, own) in enumerate(known) if j != k]
        if not others:
            return
        scaled = weights.std() > _VARIES * means[k] and (np.abs(rest - 1) >= _OFF).all()
        grouped = all(len(one) <= _GROUPED * n for one, n in zip(others, sizes, strict=True))
        if at_one == [k] and scaled:
            yield (
                f"column {column!r}: the mean at {name} is 1, and elsewhere it is from "
                f"{rest.min():.4g} to {rest.max():.4g}: are weights scaled there alone?"
            )
        elif turned := _turned(told[k], others):
            yield f"column {column!r}: its {len(told[k])} values at {name} are {turned}"
        elif _are_ids(told[k], len(weights)) and grouped:
            counts = sorted({len(one) for one in others})
            yield (
                f"column {column!r}: {len(told[k])} different whole numbers in {len(weights)} rows "
                f"of {name}, and elsewhere {counts[0]} to {counts[-1]} values: is it an identifier "
                f"there?"
            )


def _turned(own: Array, others: Sequence[Array]) -> str:
    """Return what a client's few values are of those that all others share; "" for none.

    >>> strata = np.array([1.0, 5.9297])
    >>> _turned(0.299 * strata, [strata, strata])
    'those of all others times 0.299: are weights scaled there alone?'
    >>> _turned(1 / strata[::-1], [strata, strata])
    'the inverses of the others: are they probabilities there?'
    >>> _turned(strata, [strata, strata])
    ''
    """
    one = others[0]
    if len(others) < 2 or not 2 <= len(one) <= _VALUES or len(own) != len(one):
        return ""
    if not all(np.array_equal(one, other) for other in others) or min(own[0], one[0]) <= 0:
        return ""
    factor = float(own[-1] / one[-1])
    if abs(factor - 1) < _OFF:
        return ""
    if np.allclose(own[::-1] * one, 1.0, rtol=_NEAR, atol=0):
        return "the inverses of the others: are they probabilities there?"
    if np.allclose(own, factor * one, rtol=_NEAR, atol=0):
        return f"those of all others times {factor:.4g}: are weights scaled there alone?"
    return ""


def _are_ids(distinct: Array, rows: int) -> bool:
    """Return whether weights are whole numbers, nearly all of them different."""
    return bool(len(distinct) >= _DIFFERENT * rows and (distinct == np.rint(distinct)).all())
