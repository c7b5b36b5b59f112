"""A client whose outcomes are of another kind: ranks, counts cut off, or without those of 0.

The distribution of ranks and percentiles is even: nearer to a straight line than a sample's, by
Kolmogorov's distance times sqrt(rows) below 0.2. Of 15,000 uniform samples of 20 to 1,000 rows,
some rounded, none is remarked upon, and of 5,000 of numbered rows with noise 2; ranks are found in
98 %.

Counts have a Poisson law with the client's own rate per exposure, or are more dispersed, if they
are so elsewhere: this gives the chance that no row is 0, or above the client's greatest count. Of
4,000 simulated federations with Poisson or negative binomial counts none is remarked upon, and of
2,000 with numbers of successes 11; if the number of trials differs between clients, 25 %, which is
another kind as well. Of counts without 0 at one client 59 % are found, of those cut off at their
85th percentile 33 %, of 0 and 1 for none and some 68 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from flower_fedcon.validation import Array

FEW = 20
"""With fewer rows nothing is said of a client."""
_EVEN = 0.2  # Kolmogorov's distance, times sqrt(rows)
_CHANCE = 1e-4
_LIKE_POISSON = 0.5  # of the expected rows elsewhere: with fewer, counts are less dispersed


def even_outcomes(column: str, names: Sequence[str], values: Sequence[Array]) -> Iterator[str]:
    """Yield the clients whose outcomes are as evenly distributed as ranks, unlike the others'.

    Examples
    --------
    >>> scores = np.random.default_rng(0).normal(600.0, 100.0, (3, 50))
    >>> scores[1] = 20.0 * (np.argsort(np.argsort(scores[1])) + 1)
    >>> list(even_outcomes("score", "abc", scores))
    ["column 'score': values at b are evenly distributed from 20 to 1000, as ranks or percentiles \
are, and elsewhere they are not: are they ranks there?"]
    """
    if len(values) < 2:
        return
    even = [_is_even(own) for own in values]
    if all(even):
        return
    for name, own, is_so in zip(names, values, even, strict=True):
        if is_so:
            yield (
                f"column {column!r}: values at {name} are evenly distributed from {own.min():g} to "
                f"{own.max():g}, as ranks or percentiles are, and elsewhere they are not: are they "
                f"ranks there?"
            )


def _is_even(values: Array) -> bool:
    distinct, counts = np.unique(values, return_counts=True)
    n = len(values)
    if n < FEW or len(distinct) < FEW:
        return False
    middle = (np.cumsum(counts) - 0.5 * counts) / n
    line = (distinct - distinct[0]) / (distinct[-1] - distinct[0])
    line = middle[0] + (middle[-1] - middle[0]) * line
    return float(np.abs(middle - line).max()) * math.sqrt(n) < _EVEN


def counts_left_out(
    column: str, names: Sequence[str], values: Sequence[Array], exposures: Sequence[Array]
) -> Iterator[str]:
    """Yield the clients without counts of 0, or above some count from 2 on, which others have.

    Counts of 0 and 1 alone are known from sums; see `zeros_and_ones`.

    Parameters
    ----------
    column : str
    names : sequence of str
    values, exposures : sequence of array
        Each client's counts, with their exposures.

    Examples
    --------
    >>> y = np.random.default_rng(0).poisson(1.0, (3, 200)).astype(float)
    >>> e = np.ones((3, 200))
    >>> [*counts_left_out("falls", "abc", y, e)]
    []
    >>> y[1] = np.minimum(y[1], 2.0)
    >>> [*counts_left_out("falls", "abc", y, e)]
    ["column 'falls': no count at b is above 2, where about 13 would be at its own rate, and 10% \
are elsewhere: are they cut off there?"]
    """
    from scipy.stats import poisson

    means = [
        e * (y.sum() / max(float(e.sum()), 1e-300))
        for y, e in zip(values, exposures, strict=True)
    ]  # fmt: skip

    usable = [k for k in range(len(names)) if values[k].sum() > 0 and len(values[k]) >= FEW]
    for k in usable:
        rest, own = [j for j in range(len(names)) if j != k and j in usable], means[k]
        if not rest:
            continue
        others, at_others = (np.concatenate([each[j] for j in rest]) for each in (values, means))
        highest = float(values[k].max())
        sides = (
            ("0", "are rows of 0 left out", values[k].min() == 0, others == 0, _none),
            (f"above {highest:g}", "are they cut off", highest <= 1, others > highest,
             partial(poisson.sf, highest)),
        )  # fmt: skip
        for what, asked, found, there, share in sides:
            by_chance = float(np.log1p(-np.minimum(share(own), 1.0 - 1e-16)).sum())
            like_poisson = there.sum() >= _LIKE_POISSON * share(at_others).sum()
            if not found and by_chance < math.log(_CHANCE) and like_poisson:
                yield (
                    f"column {column!r}: no count at {names[k]} is {what}, where about "
                    f"{share(own).sum():.0f} would be at its own rate, and {there.mean():.0%} are "
                    f"elsewhere: {asked} there?"
                )


def zeros_and_ones(
    column: str, names: Sequence[str], rows: Array, sums: Array, squares: Array
) -> Iterator[str]:
    """Yield the clients whose counts are all 0 or 1, by the sums of counts and of their squares.

    Examples
    --------
    >>> told = np.array([[300.0] * 3, [180.0, 90.0, 200.0], [320.0, 90.0, 330.0]])
    >>> [*zeros_and_ones("falls", "abc", *told)]
    ["column 'falls': all counts at b are 0 or 1, where about 11 would be above 1 at its own rate: \
does 1 stand for one or more there?"]
    """
    for k, name in enumerate(names):
        rest = (rows > 0) & (np.arange(len(rows)) != k)
        if squares[k] != sums[k] or not sums[k] > 0 or not rest.any() or rows[k] < FEW:
            continue
        mean = float(sums[k] / rows[k])
        above = -math.expm1(-mean) - mean * math.exp(-mean)
        expected = float((sums[rest] ** 2 / rows[rest]).sum())  # of y (y - 1), by Poisson's law
        found = float((squares[rest] - sums[rest]).sum())
        like_poisson = found >= _LIKE_POISSON * expected > 0
        if rows[k] * math.log1p(-above) < math.log(_CHANCE) and like_poisson:
            yield (
                f"column {column!r}: all counts at {name} are 0 or 1, where about "
                f"{rows[k] * above:.0f} would be above 1 at its own rate: does 1 stand for one or "
                f"more there?"
            )


def _none(mean: Array) -> Array:
    """Return the chance of a count of 0."""
    chance: Array = np.exp(-mean)
    return chance
