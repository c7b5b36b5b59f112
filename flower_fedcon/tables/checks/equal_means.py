"""Groups of one client whose means are all alike, up to rounding, where elsewhere they differ.

A column that is normed, or centred, within clusters or within the levels of a category has one mean
in each. Means of m rows with standard deviation s differ by s / sqrt(m) at least, so the chance
that all are as near to each other as they are is known; with two levels it is not small enough,
and there it is also asked whether the levels' difference is elsewhere beyond chance. Of clusters
the chance must be one in a million, of levels one in a thousand for all that are looked at.

Of 3,863 federations made of R's data sets none was said, of 2,721 with clusters none, and none of
4,000 simulated ones. Of columns centred at one of two to six clients of 40 to 600 rows within
clusters 77 % are found with three decimals, 63 % with two and 16 % with one; within levels 5 %, as
with two levels of about 250 rows, three decimals and differences that are clear elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flower_fedcon.tables.checks.comparable import comparable
from flower_fedcon.tables.checks.odd_values import numbers_of
from flower_fedcon.tables.checks.split_outcomes import flags_of
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.validation import Array

_FEW = 5  # rows with a level, and without
_NEVER = math.log(1e-6)
OWN = 0.5
"""Of the rows: with more whose value another group has, too, groups are alike by design."""
_STEPS = 1.0  # of the last digit: how far means may be apart
_DIGITS = 9  # decimals: of more a value is not rounded
_FAR = 3.0  # standard deviations between the differences of clients: no more is counted
_OF_ALL = math.log(1e-3)  # the chance that any of the differences looked at is so near to 0
_APART = math.log(1e-3)  # the chance of the others' means, if they were alike


class _Means(NamedTuple):
    means: Array
    errors: Array
    apart: float  # the greatest distance of one from their mean


def equal_means(names: Sequence[str], tables: Sequence[SiteRows]) -> Iterator[str]:
    """Yield the clients with a column whose means within groups are alike, unlike elsewhere.

    Parameters
    ----------
    names : sequence of str
    tables : sequence of SiteRows
        Rows of one schema.
    """
    schema = tables[0].schema
    if not comparable(tables):
        return
    numbers = [numbers_of(table) for table in tables]
    by_category: dict[str, list[list[Array]]] = {}
    flags = flags_of(tables, numbers)
    for (category, _), each in flags.items():
        by_category.setdefault(category, []).append(each)
    columns = [name for name in numbers[0] if not (schema.event and name == schema.target)]
    if not columns:
        return
    apart = [
        _differences([one[column] for column in columns], [each[k] for each in flags.values()])
        for k, one in enumerate(numbers)
    ]
    looks = max(len(columns) * len(by_category) * len(tables), 1)
    for place, column in enumerate(columns):
        values = [one[column] for one in numbers]
        steps = [last_digit(own) for own in values]
        if schema.cluster and all(table.clusters is not None for table in tables):
            clusters = [np.asarray(table.clusters) for table in tables]
            yield from _of_clusters(column, schema.cluster, names, values, clusters, steps)
        near = [np.abs(own[place]) <= _STEPS * step for own, step in zip(apart, steps, strict=True)]
        for category, levels in by_category.items():
            these = [name == category for name, _ in flags]
            several = max(len(levels) - 1, 1)
            if category != column and any(own[these].sum() >= several for own in near):
                yield from _of_levels(column, category, names, values, levels, steps, looks)


def _means(values: Array, groups: Array) -> _Means | None:
    """Return the means of groups with two rows or more that vary, and their errors."""
    known = ~np.isnan(values)
    values, groups = values[known], np.unique(groups[known], return_inverse=True)[1].reshape(-1)
    rows = np.bincount(groups)
    if len(rows) < 2:
        return None
    means = np.bincount(groups, values) / rows
    within = values - means[groups]
    spread = np.sqrt(np.bincount(groups, within**2) / np.maximum(rows - 1, 1))
    used = (rows > 1) & (spread > 0)
    if used.sum() < 2:
        return None
    center = np.average(means[used], weights=rows[used])
    apart = float(np.abs(means[used] - center).max())
    return _Means(means[used], spread[used] / np.sqrt(rows[used]), apart)


def shared(values: Array, groups: Array) -> float:
    """Return the share of rows whose value is in several groups.

    >>> shared(np.array([1.0, 2.0, 1.0, 3.0]), np.array([0, 0, 1, 1]))
    0.5
    """
    values, groups = values[~np.isnan(values)], groups[~np.isnan(values)]
    kinds, groups_of = np.unique(
        np.unique(np.column_stack([values, groups]), axis=0)[:, 0], return_counts=True
    )
    return float(np.isin(values, kinds[groups_of > 1]).mean())


def last_digit(values: Array) -> float:
    """Return the step of the last decimal of values; 1 for whole numbers.

    >>> last_digit(np.array([0.25, 3.0, np.nan]))
    0.01
    """
    known = values[~np.isnan(values)]
    for digits in range(_DIGITS):
        if np.array_equal(np.round(known, digits), known):
            break
    return 10.0**-digits if len(known) else 1.0


def _of_clusters(
    column: str, cluster: str, names: Sequence[str], values: Sequence[Array],
    clusters: Sequence[Array], steps: Sequence[float],
) -> Iterator[str]:  # fmt: skip
    told = [_means(*pair) for pair in zip(values, clusters, strict=True)]
    alike = [own is not None and _by_chance(own) < _NEVER and own.apart <= _STEPS * step
             for own, step in zip(told, steps, strict=True)]  # fmt: skip
    rest = [own for own, is_so in zip(told, alike, strict=True) if own and not is_so]
    if not rest or min(_if_alike(own) for own in rest) > _APART:
        return
    for k, own in enumerate(told):
        if own is not None and alike[k] and shared(values[k], clusters[k]) <= OWN:
            mean = round(float(own.means.mean()) / steps[k]) * steps[k] + 0.0
            yield (
                f"column {column!r}: its means in the {len(own.means)} clusters of {names[k]} with "
                f"several rows are all {mean:.5g}, and elsewhere they differ: is it "
                f"centred or normed within {cluster!r} there?"
            )


def _by_chance(own: _Means) -> float:
    """Return the logarithm of the chance that means are as near to each other, if rows are not."""
    near = np.minimum(2 * own.apart / (own.errors * math.sqrt(2 * math.pi)), 1.0)
    logs = np.sort(np.log(np.maximum(near, 1e-12)))
    return float(logs[1:].sum())


def _if_alike(own: _Means) -> float:
    """Return the logarithm of the chance of such means, if those of all groups are alike."""
    from scipy.stats import chi2

    size = own.errors**-2
    center = float(size @ own.means / size.sum())
    return float(chi2.logsf(float(size @ (own.means - center) ** 2), len(size) - 1))


def _differences(values: Sequence[Array], flags: Sequence[Array]) -> Array:
    """Return for each column and level the difference of means of rows with it and without."""
    columns = np.column_stack(values)
    levels = np.array(flags).reshape(len(flags), len(columns)).T
    known = (~np.isnan(columns)).astype(float)
    filled = np.where(known > 0, columns, 0.0)
    sides = [(levels == side).astype(float) for side in (1, 0)]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [(filled.T @ side) / (known.T @ side) for side in sides]
    apart: Array = means[0] - means[1]
    return apart


class _Apart(NamedTuple):
    by: float  # the difference of means with a level and without
    error: float
    rounding: float  # the error of the difference by that of the last digit


def _of_levels(
    column: str, category: str, names: Sequence[str], values: Sequence[Array],
    levels: Sequence[Sequence[Array]], steps: Sequence[float], looks: int,
) -> Iterator[str]:  # fmt: skip
    told = [[_apart(*three) for three in zip(values, each, steps, strict=True)] for each in levels]
    for k, name in enumerate(names):
        chances, differ = [], False
        for level in told:
            own, rest = level[k], [one for j, one in enumerate(level) if one and j != k]
            if own and rest and abs(own.by) <= _STEPS * steps[k]:
                chances.append(_at_zero(own, rest))
                differ |= any(abs(one.by) > _FAR * one.error for one in rest)
        # with three levels or more one difference follows from the others
        chances = sorted(chances)[len(levels) > 1 :]
        if len(chances) < max(len(levels) - 1, 1) or not differ:
            continue
        never = sum(chances) < _OF_ALL - math.log(looks)
        if never and _own_values(values[k], [each[k] for each in levels]):
            yield (
                f"column {column!r}: its mean at {name} is {np.nanmean(values[k]):.5g} with each "
                f"value of {category!r}, up to rounding, and elsewhere they differ: is it centred "
                f"or normed by {category!r} there?"
            )


def _apart(values: Array, flag: Array, step: float) -> _Apart | None:
    known = ~np.isnan(values) & ~np.isnan(flag)
    sides = [values[known & (flag == side)] for side in (1, 0)]
    if min(map(len, sides)) < _FEW or not min(map(np.ptp, sides)) > 0:
        return None
    per_row = math.sqrt(sum(1 / len(side) for side in sides))
    error = math.sqrt(sum(float(side.var(ddof=1)) / len(side) for side in sides))
    if not error > 0:
        return None  # of numbers whose squares are 0
    by = float(sides[0].mean() - sides[1].mean())
    return _Apart(by, error, step * per_row / math.sqrt(12))


def _at_zero(own: _Apart, rest: Sequence[_Apart]) -> float:
    """Return the logarithm of the chance of a difference so near 0, by those elsewhere."""
    by = np.array([one.by for one in rest])
    between = float(by.std(ddof=1)) if len(by) > 1 else abs(float(by[0])) / 2
    error = math.hypot(own.error, between, max(one.error for one in rest))
    near = 2 * max(abs(own.by), own.rounding) / (math.sqrt(2 * math.pi) * own.error)
    return math.log(min(max(near, 1e-300), 1.0)) - min(abs(float(by.mean())) / error, _FAR) ** 2 / 2


def _own_values(values: Array, flags: Sequence[Array]) -> bool:
    """Return whether most values with a level are not found without it."""
    return all(np.isin(values[flag == 1], values[flag == 0]).mean() <= OWN for flag in flags)
