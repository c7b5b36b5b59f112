"""Single wrong values in columns of numbers: a decimal point that slipped, codes, exchanged cells.

A value is compared with the tail of the others: the tenth of them that is nearest to it, the tail,
says how far apart the most extreme ones lie by chance. All chances are those of one honest column
having such a value, and only values with a small one are named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np

from flower_fedcon.validation import Array

_FEW = 20  # values: with fewer nothing is said
_SLIPS = 3  # rows of a column: more are rather in another unit
_FACTORS = 10.0, 100.0
_MIDDLE = 0.04  # of the others on either side: between them is their middle
_TAIL, _LEAST = 0.1, 5  # the share of the others that is their tail, and its least number
_CHANCE = 0.002  # of a value in an honest column
_FINER = 0.02  # the chance that only this value has one digit more than all others
_LIGHT = 4.0  # robust standard deviations: a column within them has no heavy tails
_CODES = 0.015  # the chance of a code in an honest column
_RARE, _SEVERAL = 0.2, 0.15  # of the rows: a value in more of them is no code
_APART = 4.0, 6.0  # mean excesses between skewed amounts and a 0, or several
_TIED = 5  # rows of each different value, and different values next to a code
_ALONE = 0.25  # the chance of a gap that counts as one; twice as much beside nines in two rows
_SKEWED = 0.5  # the skewness from which on 0 is the natural end of amounts
_OFTEN = 5  # times the next most frequent value: a code among the others
_KINDS = 10  # different values: with fewer they may be doses, or scores
_FAR, _NEAR = 1.5, 2.5  # robust standard deviations: of exchanged cells, as they are and exchanged
_BEYOND = 3.0  # and of both together
_SWAPPED = 0.003, 0.1  # the chance that some row lies as far: of one, and of others beside it
_OPPOSITE = -0.9  # the correlation of columns that have a constant sum, or are copies
_UNLIKE = 1.0  # robust standard deviations between the medians of columns that are compared
_WORK = 2e7  # values of pairs, a second: of more, exchanged cells are not searched


class Slip(NamedTuple):
    """Rows whose value seems to be `factor` times the true one."""

    factor: float
    places: Array


def slips(values: Array) -> Iterator[Slip]:
    """Yield up to three rows on either side whose decimal point seems to have slipped.

    A tenth, or ten times, of each lies in the middle of the others; they themselves lie beyond
    what the others' tail can give, both as a factor (tails up to those of incomes) and by their
    distance from the median (tails up to those of Student's t with 3 degrees of freedom; thinner
    ones if the others show no heavier). One digit more than all others have counts, too.

    Parameters
    ----------
    values : array, shape (m,)
        NaN where a value is missing.

    Examples
    --------
    >>> pressure = np.append(np.linspace(96, 164, 35).round(), [1380, 12.4])
    >>> [(slip.factor, slip.places.tolist()) for slip in slips(pressure)]
    [(10.0, [35]), (0.1, [36])]
    """
    whole = np.sort(values[~np.isnan(values)])
    if len(whole) < _FEW:
        return
    for up in (True, False):
        found: Slip | None = None
        for n in range(1, _SLIPS + 1):
            others, own = (whole[:-n], whole[-n:]) if up else (whole[n:], whole[:n])
            nearest = float(own[0] if up else own[-1])
            beyond = nearest > others[-1] if up else 0.0 < nearest < others[0]
            if len(others) < _FEW - 1 or not beyond or nearest <= 0:
                continue
            edge = max(2, int(_MIDDLE * len(others)))  # one may be wrong on the other side
            low, high = float(others[edge - 1]), float(others[-edge])
            for size in _FACTORS:
                factor = size if up else 1.0 / size
                typical = (own / factor >= low) & (own / factor <= high)
                if low > 0 and typical.all() and _is_slip(nearest, others, factor, low, high):
                    found = Slip(
                        factor, np.flatnonzero(values >= nearest if up else values <= nearest)
                    )
                    break
        if found is not None:
            yield found


def _is_slip(value: float, others: Array, factor: float, low: float, high: float) -> bool:
    """Return whether a value beyond the others, on the side of its factor, has a small chance."""
    up = factor > 1
    zone = [low * factor, high * factor]
    logs = np.log(others[others > 0]) if up else -np.log(others[::-1])
    ends = [math.log(v) if up else -math.log(v) for v in (value, *(zone if up else zone[::-1]))]
    chance = _in_zone(logs, ends)
    limit = _CHANCE / (_FINER if not up and _is_finer(value, others) else 1.0)
    if chance > limit:
        return False
    middle = float(np.median(others))
    away = others - middle if up else middle - others[::-1]
    steps = [v - middle if up else middle - v for v in (value, *(zone if up else zone[::-1]))]
    far = away[away > 0]
    if len(far) < _LEAST * 2 or min(steps) <= 0:
        return False
    heavy = _in_zone(np.log(far), [math.log(v) for v in steps])
    spread = 1.4826 * float(np.median(np.abs(away)))
    if float(np.abs(away).max()) <= _LIGHT * spread:
        heavy = min(heavy, _in_zone(away, steps))
    return heavy <= limit


def _in_zone(others: Array, ends: list[float]) -> float:
    """Return the chance of a value beyond `others` (ascending) and between the last two ends."""
    value, start, stop = ends
    top, excess, n = tail(others)
    return min(beyond(value, top, excess, n),
               beyond(start, top, excess, n) - beyond(stop, top, excess, n))  # fmt: skip


def tail(others: Array) -> tuple[float, float, int]:
    """Return the greatest of ascending values, their tail's mean excess, and its number of values.

    The excess of values on a grid is half a step more.
    """
    n = min(max(_LEAST, math.ceil(_TAIL * len(others))), len(others) // 2)
    excess = float((others[-n:] - others[-n - 1]).mean())
    return float(others[-1]), max(excess + step_of(others) / 2, 1e-300), n


def step_of(others: Array) -> float:
    """Return the least step between different ones of the greater half of ascending values."""
    steps = np.diff(others[len(others) // 2 :])
    return float(steps[steps > 0].min()) if (steps > 0).any() else abs(float(others[-1])) or 1.0


def beyond(value: float, top: float, excess: float, n: int) -> float:
    """Return the chance that the next one after `top` is as far, for a tail known by n values."""
    return float((1.0 + max(0.0, value - top) / (excess * n)) ** -n)


def _is_finer(value: float, others: Array) -> bool:
    """Return whether a value has one decimal more than any other.

    >>> _is_finer(17.2, np.array([172.0, 165.0])), _is_finer(17.0, np.array([172.0, 165.0]))
    (True, False)
    """
    digits = len(repr(value).partition(".")[2].rstrip("0"))
    scaled = others * 10.0 ** (digits - 1)
    return 0 < digits < 8 and bool((np.abs(scaled - np.rint(scaled)) < 1e-6).all())


# --- codes ---------------------------------------------------------------------------------------


def codes(values: Array) -> Iterator[tuple[float, Array]]:
    """Yield 0, nines, and numbers such as 77 or 88.8 that seem to stand for a missing value.

    They lie beyond all others, and are too far from them for the others' tail, or too often the
    same; or they lie anywhere, and are far more frequent than any other value. 0 is the natural end
    of counts, and of amounts that are 0 in some rows: it is no code where others come near it,
    where it is frequent, or where amounts are skewed.

    Of simulated columns of 150 rows, 5 % of them a code beyond the others, all are found; of 77
    among numbers from 30 to 210, 26 of 100 in a fifth of 60 rows, and 97 in a fifth of 150. One of
    6,000 simulated honest columns is said.

    Parameters
    ----------
    values : array, shape (m,)
        NaN where a value is missing.

    Examples
    --------
    >>> ages = np.append(np.arange(20.0, 81.0), [99.0, 99.0])
    >>> [(code, rows.tolist()) for code, rows in codes(ages)]
    [(99.0, [61, 62])]
    >>> list(codes(np.append(np.arange(1.0, 61.0), [0.0, 0.0])))
    []
    """
    whole = np.sort(values[~np.isnan(values)])
    if len(whole) < _FEW:
        return
    distinct, counts = np.unique(whole, return_counts=True)
    top = counts.argsort()[-2:]
    often = counts[top[-1]] >= max(_TIED, _OFTEN * counts[top[0]]) and len(distinct) >= _KINDS
    frequent = float(distinct[top[-1]])
    if often and is_repeated(frequent) and counts.max() <= len(whole) / 2:
        yield frequent, np.flatnonzero(values == frequent)
        whole = whole[whole != frequent]
    for value in dict.fromkeys((float(whole[0]), float(whole[-1]))):
        own = values == value
        others = whole[whole != value]
        if len(others) < _FEW - 1 or own.sum() > _RARE * len(whole):
            continue
        if value == 0 and others[0] > 0:
            said = _is_code(-others[::-1], 0.0, int(own.sum()))
        elif value > others[-1] and (is_nines(value) or (own.sum() > 2 and is_repeated(value))):
            said = _is_code(others, value, int(own.sum()))
        else:
            continue
        if said:
            yield value + 0.0, np.flatnonzero(own)  # 0, not -0


def is_nines(value: float) -> bool:
    """Return whether a number is written with nines alone.

    >>> [is_nines(value) for value in (9.0, 99.0, 9999.0, 99.9, 90.0)]
    [True, True, True, True, False]
    """
    return set(f"{value:.10g}".replace(".", "")) == {"9"}


def is_repeated(value: float) -> bool:
    """Return whether a number is written with one digit from 6 on, at least twice.

    >>> [is_repeated(value) for value in (77.0, 88.8, 66.6, 7.0, 55.0, -99.0)]
    [True, True, True, False, False, False]
    """
    digits = f"{value:.10g}".replace(".", "")
    return len(digits) > 1 and set(digits) in ({"6"}, {"7"}, {"8"}, {"9"})


def _is_code(others: Array, value: float, rows: int) -> bool:
    """Return whether a value beyond `others` (ascending) has a small chance.

    It is that of a gap as wide, times that of the same number on the others' grid in each row.
    """
    top, excess, n = tail(others)
    step, gap, distinct = step_of(others), value - top, np.unique(others)
    if len(others) > _TIED * len(distinct) > _TIED**2:  # the gaps between few values are no chance
        step = float(np.diff(distinct[-_TIED:]).max())
    if gap < 2 * step:
        return False
    chance = beyond(value, top, excess, n)
    if chance > _ALONE * (2 if rows > 1 and value else 1):
        return False
    if value == 0:
        frequent = rows > _SEVERAL * (rows + len(others))
        if len(distinct) < _KINDS or (
            gap < _APART[rows > 1] * excess and (frequent or _is_skewed(-others))
        ):
            return False
    elif others[0] > 0 and _is_skewed(others):  # a tail of factors
        chance = max(chance, beyond(math.log(value), *tail(np.log(others))))
    return chance * (1.0 - math.exp(-step / excess)) ** rows <= _CODES


def _is_skewed(values: Array) -> bool:
    """Return whether values may have a long upper tail: their skewness is not surely small."""
    away = values - values.mean()
    away = away / max(float(np.abs(away).max()), 1e-300)
    skewness = float((away**3).mean() / max(float((away**2).mean()) ** 1.5, 1e-300))
    return skewness + math.sqrt(6.0 / len(values)) > _SKEWED


# --- exchanged cells -----------------------------------------------------------------------------


def exchanged(columns: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]:
    """Yield pairs of columns with the rows in which their values seem exchanged.

    Both values are outside the middle of their column, and each is typical of the other; together
    they are far from all other rows. Of simulated pressures exchanged in one row of 150, 78 % are
    found; of 614 data sets of R, 8 have such rows and a ninth has exchanged cells.

    Parameters
    ----------
    columns : dict of array, shape (m,)
        NaN where a value is missing.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> high, low = rng.normal(130, 17, 80).round(), rng.normal(80, 11, 80).round()
    >>> high[7], low[7] = 70.0, 141.0
    >>> [(a, b, rows.tolist()) for a, b, rows in exchanged({"sbp": high, "dbp": low})]
    [('sbp', 'dbp', [7])]
    """
    usable = {}
    for name, values in columns.items():
        there = values[~np.isnan(values)]
        if len(there) < _FEW or len(np.unique(there)) < _KINDS:
            continue
        middle = float(np.median(there))
        spread = 1.4826 * float(np.median(np.abs(there - middle)))
        if spread > 0:
            usable[name] = values, middle, spread
    work = len(usable) ** 2 * max((len(values) for values, *_ in usable.values()), default=0)
    pairs = combinations(usable, 2) if work <= _WORK else ()
    found = {(a, b): _exchanged(*usable[a], *usable[b]) for a, b in pairs}
    least: dict[int, float] = {}  # a row counts for one pair: a value may suit a third column, too
    for chances in found.values():
        for place, chance in chances.items():
            least[place] = min(chance, least.get(place, 1.0))
    for (a, b), chances in found.items():
        if places := [place for place, chance in chances.items() if chance == least[place]]:
            yield a, b, np.array(places)


def _exchanged(x: Array, mx: float, sx: float, y: Array, my: float, sy: float) -> dict[int, float]:
    """Return the rows of two columns, with medians and spreads, whose cells seem exchanged.

    Each has the chance that some honest row lies as far.

    The score of a row is Fisher's linear discriminant between rows as they are and exchanged ones.
    """
    apart = np.array([(my - mx) / sx, (mx - my) / sy])
    if np.abs(apart).max() < _UNLIKE:
        return {}
    with np.errstate(invalid="ignore", over="ignore"):
        z = np.stack([(x - mx) / sx, (y - my) / sy])
        turned = np.stack([(y - mx) / sx, (x - my) / sy])
        far = ((np.abs(z) > _FAR) & (np.abs(turned) < _NEAR)).all(axis=0)
    there = ~np.isnan(z).any(axis=0)
    if not far.any() or far.sum() > _RARE * there.sum() or (there & ~far).sum() < _FEW:
        return {}
    near = np.clip(z[:, there & ~far], -_NEAR, _NEAR)
    with np.errstate(invalid="ignore"):
        r = float(np.corrcoef(near[0], near[1])[0, 1])
    if not _OPPOSITE < r < -_OPPOSITE:
        return {}
    weights = np.linalg.solve([[1.0, r], [r, 1.0]], apart)
    if (size := float(weights @ apart)) <= _BEYOND**2:
        return {}
    score: Array = weights @ z / math.sqrt(size)
    far &= score > _BEYOND
    others, places = np.sort(score[there & ~far]), np.flatnonzero(far)
    top, excess, n = tail(others)
    chances = {
        place: beyond(value, top, excess, n)
        for place, value in zip(places.tolist(), score[places].tolist(), strict=True)
        if value > top
    }
    if min(chances.values(), default=1.0) > _SWAPPED[0]:
        return {}
    return {place: chance for place, chance in chances.items() if chance <= _SWAPPED[1]}
