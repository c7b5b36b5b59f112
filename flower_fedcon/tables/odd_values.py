"""Values of one client's column of numbers that stand apart from its others, and rows of totals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from flower_fedcon.errors import number_of
from flower_fedcon.tables.marks import fills_in
from flower_fedcon.validation import Array

_LOWER = 4.0  # rows below a value, of which a few are expected if the frequencies have one peak
_PEAK = 0.8  # of the rows of the most frequent value: as many are a peak, too
_ALONE = 0.2  # of the others' range: so far from them one row is said, too
_SEVERAL = 4  # values: with fewer a negative one is not taken for a code
_FEW = 20  # rows: with fewer nothing is said
_MEASURED = 10  # values: with fewer they may be doses or codes
_SURE = 0.05  # of the spread: how finely a mean must be written
_RARE = 0.2  # of the rows: a value in more of them is rather nothing than missing
_APART = 3.0  # times the range of most rows: a gap to others in another unit


def odd_values(rows: Mapping[float, int], remedy: str) -> Iterator[str]:
    """Yield remarks on the values of a column.

    Parameters
    ----------
    rows : dict
        The number of rows by value, ascending.
    remedy : str
        What to do about a code for a missing value.
    """
    if sum(rows.values()) < _FEW:
        return
    for value in _negative_codes(rows):
        yield (
            f"{value:g} ({number_of(rows[value], 'row')}) is the only negative value: if it stands "
            f"for a missing value, {remedy}"
        )
    if _zero_apart(rows):
        values = [value for value in rows if value]
        yield (
            f"0 ({number_of(rows[0.0], 'row')}), and all others from {values[0]:g} to "
            f"{values[-1]:g}: if it stands for a missing value, {remedy}"
        )
    if _dates(rows):
        first = next(iter(rows))
        yield (
            f"its numbers are dates, such as {first:.0f}, whose differences are no numbers of "
            f"days: write the number of days since a fixed day, or leave the column out"
        )
    elif apart := _another_group(rows):
        n, low, high, rest = apart
        yield (
            f"{n} rows from {low:g} to {high:g} are far from all others ({rest[0]:g} to "
            f"{rest[1]:g}): are they in another unit?"
        )


def _negative_codes(rows: Mapping[float, int]) -> Iterator[float]:
    """Yield a negative whole number that seems to be a code: the only one.

    It is in several rows, or far from all others, which are from 0 on. It is no code if it
    continues them: it lies no further from them than they from each other, it is rarer than the
    next one, which is not among the most frequent, and so rare that the lack of still lower ones is
    no wonder.

    Parameters
    ----------
    rows : dict
        The number of rows by value, ascending.

    Examples
    --------
    >>> visits = {0.0: 60, 1.0: 25, 2.0: 12, 3.0: 8, 4.0: 4, 5.0: 1}
    >>> list(_negative_codes({-1.0: 9} | visits))
    [-1.0]
    >>> degrees = {0.0: 4, 1.0: 9, 2.0: 15, 3.0: 12, 4.0: 8, 5.0: 5}
    >>> list(_negative_codes({-1.0: 2} | degrees)), list(_negative_codes({-4.0: 2} | degrees))
    ([], [-4.0])
    """
    value, *others = rows or [0.0]
    if not -10 < value < 0 or value != int(value) or fills_in(value):
        return
    if len(others) < _SEVERAL or others[0] < 0:
        return
    if rows[value] < 2 and others[0] - value < _ALONE * (others[-1] - others[0]):
        return
    gap = max(b - a for a, b in pairwise(others[:_SEVERAL]))
    nearest = others[0]
    continued = others[0] - value <= gap and rows[value] <= rows[nearest]
    rare = rows[value] ** 2 < _LOWER * rows[nearest]
    tail = rows[nearest] < _PEAK * max(rows[other] for other in others)
    if not (continued and rare and tail):
        yield value


def _zero_apart(rows: Mapping[float, int]) -> bool:
    """Return whether 0 occurs in some rows below measured values that are far from it.

    In many rows it may stand for nothing, as a dose does.

    >>> _zero_apart({0.0: 3} | {18.0 + k: 2 for k in range(12)})
    True
    >>> _zero_apart({0.0: 30, 20.0: 10, 40.0: 10}), _zero_apart({float(k): 3 for k in range(20)})
    (False, False)
    """
    value, *others = rows
    few = 2 <= rows[value] <= _RARE * sum(rows.values())
    if value != 0 or not few or len(others) < _MEASURED:
        return False
    return others[0] > 0.5 * (others[-1] - others[0])


def _dates(rows: Mapping[float, int]) -> bool:
    """Return whether all numbers are days, as 20240131 is.

    >>> _dates({20240131.0: 1, 19991201.0: 2} | {20230101.0 + k: 1 for k in range(9)})
    True
    >>> _dates({20240100.0 + 3 * k: 2 for k in range(30)})
    False
    """
    if len(rows) < _MEASURED:
        return False
    values: Array = np.array(list(rows))
    whole = (values == np.floor(values)) & (values >= 18000101) & (values <= 21001231)
    month, day = values // 100 % 100, values % 100
    return bool((whole & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all())


def _another_group(rows: Mapping[float, int]) -> tuple[int, float, float, list[float]] | None:
    """Return the rows beyond a wide gap: their number, least and greatest, and the others' ends.

    >>> _another_group({18.0 + k: 5 for k in range(16)} | {190.0 + 10 * k: 1 for k in range(9)})
    (9, 190.0, 270.0, [18.0, 33.0])
    >>> _another_group({18.0 + k: 5 for k in range(16)} | {60.0: 3})
    """
    values = list(rows)
    if len(values) < _MEASURED:
        return None
    gap, place = max((b - a, k) for k, (a, b) in enumerate(pairwise(values), 1))
    groups = values[:place], values[place:]
    fewer, more = sorted(groups, key=lambda group: sum(rows[value] for value in group))
    n = sum(rows[value] for value in fewer)
    if len(fewer) < 2 or len(more) < _MEASURED or gap <= _APART * (more[-1] - more[0]):
        return None
    return n, fewer[0], fewer[-1], [more[0], more[-1]]


def totals(columns: Mapping[str, Array]) -> Iterator[str]:
    """Yield a remark if the last row has the sums or means of all rows above it.

    Parameters
    ----------
    columns : dict of array, shape (m,)
        Columns of numbers, NaN where a value is missing.

    Examples
    --------
    >>> x, y = np.array([1.5, 2.5, 3.0, 6.5, 8.25, 2.0]), np.array([7.0, 8, 1, 1, 9, 3])
    >>> list(totals({"x": np.append(x, x.sum()), "y": np.append(y, y.sum())}))
    ["the last row has the sums of all rows above it in columns 'x', 'y': remove it"]
    """
    for what in ("sums", "means"):
        found, others = [], 0
        for name, values in columns.items():
            above = values[:-1][~np.isnan(values[:-1])]
            if len(above) < 5 or math.isnan(values[-1]) or (above == above[0]).all():
                continue
            total = math.fsum(above) / (1 if what == "sums" else len(above))
            digits = len(f"{values[-1]:.6f}".rstrip("0").partition(".")[2])
            near = abs(values[-1] - total) <= 0.5 * 10.0**-digits * (1 + 1e-6) + 1e-12 * abs(total)
            told = 10.0**-digits <= _SURE * above.std()  # else they are near by chance
            if what == "sums":
                told = not above.min() <= total <= above.max()
            others += not near
            found += [repr(name)] if near and told else []
        if len(found) >= 2 and not others:
            yield (
                f"the last row has the {what} of all rows above it in columns {', '.join(found)}: "
                f"remove it"
            )
