"""Outcomes of one client, or of a category there, that end sharply where many others go on.

Rows that are left out by their outcome leave an edge, at which the frequencies do not fall. Sites
differ in their outcomes, and those of a scale end at its end. So an edge is asked about only if
many of the others' outcomes are beyond it, and also would be if they were moved, or stretched, to
the client's; of a category, if the rest is as elsewhere, and the client's other categories have
such outcomes, too.

Of 1,351 federations made of R's data sets none was said, and 3 of 8,000 simulated ones, of normal,
lognormal, bounded and survival times whose sites differ by up to a standard deviation, and
categories within sites by as much again (1 in 1,000 of times, which are not stretched). Where one
of two to six clients of 60 to 800 rows had lost its highest fifth to three fifths, 28 % were found
of normal outcomes, 20 % of lognormal ones, and few of times and of bounded ones; of the lowest
25 %, 3 % and few. Of a category without its lowest fifth to three fifths 11 % were found of normal,
12 % of lognormal outcomes and 35 % of times. Sites that differ by much hide it, and tails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_FEW, _MANY = 20, 60  # rows of a category, of a client: with fewer nothing is said
_END = 0.2  # the share of the rows at an end
_LEVEL, _FALLS = 0.45, 0.4  # their mean place from their inner end (0) to the edge (1)
_ERRORS = 4.0  # standard errors from the others' place
_BEYOND = 0.1  # of the others' rows
_HIGH, _LEVEL_OF_FEW = 10, 0.35  # values at a category's end; their place
_LIKE = 0.05  # the chance of values up to the edge that are as unlike the others'
_MOVED, _MOVED_THERE = 1e-6, 1e-4  # the same if others' values are moved or stretched
_BY_CHANCE = 3e-5  # that no row of a category is beyond
_DIFFERENT = 20  # values: with fewer they may be scores
_LEVELS = 30  # categories of a column: with more nothing is sought
_WORK = 2e6  # cells, some seconds: of more nothing is sought


def outcomes_left_out(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients, or their categories, without outcomes beyond an edge.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    rows = sum(len(table.targets) for table in tables)
    width = 1 + tables[0].categories.shape[1]
    if len(tables) < 2 or schema.sparse or rows * width > _WORK:
        return
    if schema.family.labelled and not schema.event:
        return
    values = [table.targets.reshape(len(table.targets), -1)[:, 0] for table in tables]
    coded = {
        feature.name: _codes([table.categories[:, j] for table in tables])
        for j, feature in enumerate(schema.categorical)
    }
    for sign, what in ((1.0, "above"), (-1.0, "below")):
        signed = [sign * own for own in values]
        at_edge = list(_at_edge(signed))
        for k in at_edge:
            edge = float(signed[k].max())
            rest = np.concatenate([own for j, own in enumerate(signed) if j != k])
            yield (
                f"column {schema.target!r}: no row of {names[k]} is {what} {sign * edge:g}, where "
                f"its rows do not get fewer, and {(rest > edge).mean():.0%} of the others' are: "
                f"are rows left out by it?"
            )
        for name, (levels, codes) in coded.items():
            for k, level, own, share in _of_category(signed, levels, codes, not schema.event):
                if k not in at_edge:
                    yield (
                        f"column {schema.target!r}: none of the {len(own)} rows of {names[k]} "
                        f"with {name!r} {level!r} is {what} {sign * own.max():g}, and "
                        f"{share:.0%} or more of others are: are they left out there?"
                    )


def _at_edge(each: Sequence[Array]) -> Iterator[int]:
    """Yield the clients whose greatest outcomes are at an edge, unlike the others'."""
    ends = [_end(own) for own in each]
    known = [k for k, end in enumerate(ends) if end is not None]
    if len(known) < 2:
        return
    whole = np.sort(np.concatenate(each))
    places, errors = np.array([ends[k] for k in known]).T
    for k, place, error in zip(known, places.tolist(), errors.tolist(), strict=True):
        others = (places.sum() - place) / (len(known) - 1)
        beyond = len(whole) - int(np.searchsorted(whole, each[k].max(), side="right"))
        if place < _LEVEL or others > _FALLS or place - others < _ERRORS * error:
            continue
        if beyond < _BEYOND * (len(whole) - len(each[k])):
            continue
        rest = np.concatenate([own for j, own in enumerate(each) if j != k])
        if _chance(each[k], rest) < _MOVED:
            yield k


def _end(values: Array) -> tuple[float, float] | None:
    """Return the mean place of the greatest values from their least to their greatest, and error.

    It is 1/2 where frequencies are alike up to an edge, and less where they fall.

    >>> _end(np.arange(100.0))[0]
    0.5
    """
    count = round(_END * len(values))
    if len(values) < _MANY or len(np.unique(values)) < _DIFFERENT:
        return None
    high = np.sort(values)[-count:]
    if high[0] == high[-1]:
        return None
    places = (high - high[0]) / (high[-1] - high[0])
    return float(places.mean()), float(places.std()) / math.sqrt(count)


def _codes(marks: Sequence[Array]) -> tuple[list[str], list[Array]]:
    """Return the categories of all clients, and each one's rows' places among them."""
    levels, codes = np.unique(np.concatenate(marks), return_inverse=True)
    ends = np.cumsum([len(own) for own in marks])[:-1]
    return levels.tolist(), np.split(codes.reshape(-1), ends)


def _of_category(
    each: Sequence[Array], levels: Sequence[str], codes: Sequence[Array], stretched: bool
) -> Iterator[tuple[int, str, Array, float]]:
    """Yield clients and categories without outcomes as great as many of others are.

    Others are those of the same category elsewhere, and those of the client's other categories.
    """
    for code, mark in enumerate(levels if 2 <= len(levels) <= _LEVELS else ()):
        inside = [own[places == code] for own, places in zip(each, codes, strict=True)]
        whole = np.sort(np.concatenate(inside))
        for k, own in enumerate(inside if mark else ()):
            elsewhere, others = len(whole) - len(own), len(each[k]) - len(own)
            if min(len(own), others, elsewhere) < _FEW:
                continue
            edge = float(own.max())
            there = len(whole) - int(np.searchsorted(whole, edge, side="right"))
            here = int((each[k] > edge).sum())
            share = min(there / elsewhere, here / others, 0.999)
            if share < _BEYOND or len(own) * math.log1p(-share) > math.log(_BY_CHANCE):
                continue
            rest = np.concatenate([part for i, part in enumerate(inside) if i != k])
            moved = len(np.unique(own)) < _DIFFERENT or _chance(own, rest, stretched)
            if moved < _MOVED_THERE and _is_level(own) and _is_cut(own, rest[rest <= edge]):
                yield k, mark, own, share


def _chance(own: Array, rest: Array, stretched: bool = True) -> float:
    """Return the greatest chance that others' values, moved or stretched to these, end so early.

    Values of one sign are moved as their logarithms.
    """
    sign = float(np.sign(own[0]))
    if min((sign * own).min(), (sign * rest).min()) > 0:
        own, rest = sign * np.log(sign * own), sign * np.log(sign * rest)
    edge = float(own.max())
    ends = [edge - float(np.median(own)) + float(np.median(rest))]
    if stretched:
        ends.append(float((edge - own.mean()) / own.std() * rest.std() + rest.mean()))
    share = min(float((rest > end).mean()) for end in ends)
    return float((1 - share) ** len(own))


def _is_level(values: Array) -> bool:
    """Return whether the frequencies of values do not fall at their end."""
    high = np.sort(values)[-max(_HIGH, round(_END * len(values))) :]
    return bool((high - high[0]).mean() >= _LEVEL_OF_FEW * (high[-1] - high[0]) > 0)


def _is_cut(own: Array, rest: Array) -> bool:
    """Return whether values are as others' up to the same end, by the test of Smirnov."""
    from scipy.stats import ks_2samp

    return len(rest) >= _FEW and float(ks_2samp(own, rest, method="asymp").pvalue) > _LIKE
