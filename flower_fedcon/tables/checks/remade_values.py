"""Values of one client that are those of the others made into something else.

They are ranks; some have a minus sign; some are in another unit; or they are logarithms: made back,
they are distributed like the others', by Kolmogorov's distance. Or they are apart from all others,
which are alike. Of 1,351 federations made of R's data sets 24 were said to be ranks, and are
numbers of rows or groups, 3 to have a minus sign, 3 in part another unit, none to be logarithms,
and 12 lie apart, of other species most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.validation import Array

_FEW = 20  # rows of a client: with fewer nothing is said
_KINDS = 6  # different values
_SOME = 5  # rows with a minus sign, or in another unit
_BY_CHANCE = 1e-6  # of no such row elsewhere
_BEYOND = 1.2  # times the others' greatest value, or their least by this
_UNITS = (10.0, 100.0, 1000.0, 12.0, 18.016, 30.4375, 365.25, 88.4)
_ALIKE, _NEAR = 0.12, 0.35  # distances: of all values made back, and of two parts
_ABOUT, _UNLIKE, _LESS = 0.25, 0.5, 0.4  # of other sites; as they are; less with logarithms
_APART = 0.8  # of values that hardly overlap
_NOISE = 1.36  # of the distance of two samples, times sqrt(1 / m + 1 / n)


def remade(names: Sequence[str], each: Sequence[Array]) -> Iterator[str]:
    """Yield the clients whose values seem to be made of ones like the others', and how.

    Parameters
    ----------
    names : sequence of str
    each : sequence of array, shape (m,)
        NaN where a value is missing.

    Examples
    --------
    >>> x, y = np.random.default_rng(0).gamma(9.0, size=(2, 120)).round(2)
    >>> list(remade("ab", [x, 1.0 + np.argsort(np.argsort(y))]))
    ['the values of b are their ranks, 1 to 120: are they ranks, or numbers of rows, there?']
    >>> some = np.arange(120) % 5 == 0
    >>> list(remade("ab", [x, np.where(some, -y, y)]))
    ['24 of 120 values of b are negative and like the others without the sign, and none elsewhere \
is: is the sign wrong?']
    >>> list(remade("ab", [x, np.where(some, 100 * y, y)]))
    ["24 of 120 values of b are beyond all others' (up to 19.78), and would not be 1/100 of it: \
are these rows in another unit?"]
    """
    known = [values[~np.isnan(values)] for values in each]
    for k, (name, own) in enumerate(zip(names, known, strict=True)):
        others = [values for j, values in enumerate(known) if j != k and len(values) >= _FEW]
        if len(own) < _FEW or not others:
            continue
        rest = np.concatenate(others)
        if min(len(np.unique(own)), len(np.unique(rest))) < _KINDS:
            continue
        if _are_ranks(own) and not any(map(_are_ranks, others)):
            yield (
                f"the values of {name} are their ranks, {own.min():g} to {own.max():g}: are they "
                f"ranks, or numbers of rows, there?"
            )
        else:
            said = (
                _negative(name, own, rest)
                or _in_part(name, own, rest)
                or _unlike(name, own, others)
            )
            yield from [said] if said else []


def distance(x: Array, y: Array) -> float:
    """Return Kolmogorov's distance of two samples.

    >>> distance(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.5
    """
    x, y = np.sort(x), np.sort(y)
    both = np.concatenate([x, y])
    below = [np.searchsorted(part, both, side="right") / len(part) for part in (x, y)]
    return float(np.abs(below[0] - below[1]).max())


def alike(x: Array, y: Array) -> bool:
    """Return whether two samples are distributed alike, up to 0.12 or their noise."""
    return distance(x, y) <= max(_ALIKE, _NOISE * math.sqrt(1 / len(x) + 1 / len(y)))


def _are_ranks(values: Array) -> bool:
    from scipy.stats import rankdata

    return any(np.array_equal(rankdata(values, how), values) for how in ("average", "min", "max"))


def _only_here(rows: int, own: Array, rest: Array) -> bool:
    return rows >= _SOME and (1 - rows / len(own)) ** len(rest) < _BY_CHANCE


def _negative(name: str, own: Array, rest: Array) -> str:
    """Return the remark on values with a wrong sign; "" for none."""
    rows = int((own < 0).sum())
    if rest.min() < 0 or not _only_here(rows, own, rest) or distance(np.abs(own), rest) > _ABOUT:
        return ""
    return (
        f"{rows} of {len(own)} values of {name} are negative and like the others without the sign, "
        f"and none elsewhere is: is the sign wrong?"
    )


def _in_part(name: str, own: Array, rest: Array) -> str:
    """Return the remark on rows in another unit, which all others are not; "" for none."""
    if min(own.min(), rest.min()) < 0 or not (rest > 0).any():
        return ""
    least, most = float(rest[rest > 0].min()), float(rest.max())
    beyond, below = own > _BEYOND * most, (own > 0) & (own < least / _BEYOND)
    for far, side in (
        (beyond, f"beyond all others' (up to {most:g})"),
        (below, f"below all others' (from {least:g} on)"),
    ):
        rows = int(far.sum())
        if rows > len(own) / 2 or not _only_here(rows, own, rest):
            continue
        for unit in _UNITS:
            times = f"1/{unit:g} of it" if far is beyond else f"{unit:g} times as large"
            made = np.where(far, own / unit if far is beyond else own * unit, own)
            inside = least / _BEYOND <= made[far].min() and made[far].max() <= _BEYOND * most
            if inside and distance(made[far], made[~far]) <= _NEAR and alike(made, rest):
                return (
                    f"{rows} of {len(own)} values of {name} are {side}, and would not be {times}: "
                    f"are these rows in another unit?"
                )
    return ""


def _unlike(name: str, own: Array, others: Sequence[Array]) -> str:
    """Return the remark on values distributed as the others' logarithms, or apart from all others.

    The others are alike. Values that are apart are said of three clients or more.
    """
    rest = np.concatenate(others)
    far = distance(own, rest)
    among = max((distance(x, y) for i, x in enumerate(others) for y in others[:i]), default=0.0)
    ranges = (
        f"({own.min():.4g} to {own.max():.4g}, and elsewhere {rest.min():.4g} to {rest.max():.4g})"
    )
    for base, log in (("natural logarithms", np.log), ("log10", np.log10)):
        if rest.min() > 0 and far >= _UNLIKE and among <= far / 2:
            left = distance(own, log(rest))
            if left <= _ABOUT and far - left >= _LESS:
                return (
                    f"values at {name} are distributed as {base} of the others {ranges}: are they "
                    f"logarithms there?"
                )
    if len(others) > 1 and far >= _APART and among <= _ABOUT:
        return (
            f"values at {name} lie apart from all others, which are alike {ranges}: is it another "
            f"measure, or unit, there?"
        )
    return ""
