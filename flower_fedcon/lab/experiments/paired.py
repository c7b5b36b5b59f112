"""Differences between methods that ran with the same seeds, with intervals and tests."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy import stats

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.lab.experiments.targets import (
    Cell,
    TargetTable,
    number,
    scientific,
    with_spread,
)
from flower_fedcon.runs.paper_tables import tex
from flower_fedcon.validation import Array

LEAST = 3
"""The number of pairs that a difference needs."""
_EXACT = 12  # pairs up to which all signs are tried, so that ties do not matter
TESTS = {"mean": "paired t", "median": "Wilcoxon"}


class Difference(NamedTuple):
    """The difference of two methods' costs, over the seeds with which both reached the target.

    Attributes
    ----------
    middle : float
        The mean or median of the differences; NaN of fewer than three.
    low, high : float
        The 95 % interval; NaN if there is none.
    p : float
        Of a two-sided test that there is no difference; NaN if it says nothing.
    pairs, total : int
        The number of differences, and of seeds.
    """

    middle: float
    low: float
    high: float
    p: float
    pairs: int
    total: int


def difference(own: Cell, other: Cell, middle: str) -> Difference:
    """Return the difference of a cell to another one with the same seeds.

    The mean has Student's interval and the paired t-test. The median has the interval between two
    of the sorted differences that holds it with at least 95 %, which needs six, and Wilcoxon's
    signed-rank test.

    >>> a = Cell([5.0, 7.0, 9.0], 3, {"0": 5.0, "1": 7.0, "2": 9.0})
    >>> b = Cell([4.0, 5.0, 6.0], 3, {"0": 4.0, "1": 5.0, "2": 6.0})
    >>> found = difference(a, b, "mean")
    >>> found.middle, round(found.low, 3), round(found.high, 3), round(found.p, 4)
    (2.0, -0.484, 4.484, 0.0742)
    """
    d = np.array([cost - other.seeds[seed] for seed, cost in own.seeds.items()])
    total, d = len(d), np.sort(d[np.isfinite(d)])
    n = len(d)
    if n < LEAST:
        return Difference(math.nan, math.nan, math.nan, math.nan, n, total)
    mean, error = float(d.mean()), float(d.std(ddof=1)) / math.sqrt(n)
    if not error > 1e-12 * float(np.abs(d).max()):  # nothing depends on the seed: no test
        return Difference(mean, mean, mean, math.nan, n, total)
    if middle == "median":
        return Difference(float(np.median(d)), *_middle_interval(d), _signed_ranks(d), n, total)
    half = error * float(stats.t.ppf(0.975, n - 1))
    p = float(stats.ttest_1samp(d, 0.0).pvalue)  # of differences it is the paired one
    return Difference(mean, mean - half, mean + half, p, n, total)


def _middle_interval(d: Array) -> tuple[float, float]:
    """Return the two sorted differences that hold the median with at least 95 %; NaN if none do."""
    n = len(d)
    k = int(stats.binom.ppf(0.025, n, 0.5))  # P(at most k - 1 of n below) <= 0.025
    return (float(d[k - 1]), float(d[n - k])) if k else (math.nan, math.nan)


def _signed_ranks(d: Array) -> float:
    """Return the p-value of Wilcoxon's signed-rank test, exact also with ties if there are few."""
    d = d[d != 0]
    if len(d) > _EXACT:
        return float(stats.wilcoxon(d).pvalue)
    ranks = stats.rankdata(np.abs(d))
    signs = 1 - 2 * ((np.arange(2 ** len(d))[:, None] >> np.arange(len(d))) & 1)
    return float(np.mean(np.abs(signs @ ranks) >= abs(np.sign(d) @ ranks) - 1e-9))


class PairedTable(NamedTuple):
    """The differences of a table's rows to one of them.

    Attributes
    ----------
    table : TargetTable
    against : str
        The row.
    rows : dict
        Each other row -> its differences; None where one of the two has no runs.
    """

    table: TargetTable
    against: str
    rows: dict[str, list[Difference | None]]

    def texts(self, label: str) -> list[str]:
        """Return a row's differences: "-12 (-20 to -4), p = 0.004"."""
        return [self._text(one) for one in self.rows[label]]

    def _text(self, one: Difference | None) -> str:
        if one is None:
            return ""
        few = f"{one.pairs} of {one.total}"
        if one.pairs < LEAST:
            return f"too few pairs ({few})"
        middle, low, high = _alike(one)
        held = f" ({low} to {high})" if low else ""
        text = f"{middle}{held}{_p(one.p)}"
        return text if one.pairs == one.total else f"{text}, {few}"

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the differences."""
        middle = self.table.middle
        every = [one for row in self.rows.values() for one in row if one is not None]
        test = {"mean": "the paired t-test", "median": "Wilcoxon's signed-rank test"}[middle]
        notes = [
            f"{middle} difference to {self.against} over the same seeds, with its 95 % interval "
            f"and the p-value of {test}, two-sided"
        ]
        if any(LEAST <= one.pairs < one.total for one in every):
            notes.append("where not all arrived, over the seeds with which both did")
        if any(one.pairs >= LEAST and math.isnan(one.low) for one in every):
            notes.append("a median has no 95 % interval of fewer than 6 seeds")
        if any(one.pairs >= LEAST and math.isnan(one.p) for one in every):
            notes.append("no test where all differences are equal")
        if sum(one.pairs >= LEAST and not math.isnan(one.p) for one in every) > 1:
            notes.append("p-values are of one comparison each, not corrected for their number")
        return notes

    def latex(self) -> str:
        """Return the differences as LaTeX, below the same heads."""
        body = {label: [self._latex(one) for one in row] for label, row in self.rows.items()}
        notes = [tex(note) for note in self.notes]
        return self.table._replace(failed={}).tabular(body, notes)

    def _latex(self, one: Difference | None) -> str:
        if one is None:
            return ""
        share = "" if one.pairs == one.total else f" ({one.pairs}/{one.total})"
        if one.pairs < LEAST:
            return f"---{share}"
        middle, low, high = (scientific(text) for text in _alike(one))
        held = f" [${low}$, ${high}$]" if low else ""
        p = _p(one.p).removeprefix(", ")
        return f"${middle}$" + held + (f", ${p}$" if p else "") + share

    def csv(self) -> str:
        """Return the table as CSV, with the differences in further columns."""
        titles = ["against", "pairs", "difference", "lower", "upper", "test", "p_value"]
        none = [""] * len(titles)
        more = {label: [self._cells(one) for one in row] for label, row in self.rows.items()}
        width = len(next(iter(self.table.rows.values())))
        return self.table.csv(titles, {self.against: [none] * width, **more})

    def _cells(self, one: Difference | None) -> list[str]:
        if one is None:
            return [""] * 7
        numbers = ["" if math.isnan(n) else repr(n) for n in one[:4]]
        test = TESTS[self.table.middle]
        return [self.against, str(one.pairs), *numbers[:3], test, numbers[3]]


def paired(table: TargetTable, against: str) -> PairedTable:
    """Return the differences of a table's rows to one of them.

    Raises
    ------
    ConfigError
        If there is no such row, or two methods do not have the same seeds, or fewer than three.
    """
    if against not in table.rows:
        raise ConfigError(
            f"--against {against}: no row is called so: {nearest(against, table.rows)}"
        )
    others = {label: cells for label, cells in table.rows.items() if label != against}
    if not others:
        raise ConfigError(f"--against {against}: there is no other row to compare with it")
    rows = {}
    for label, cells in others.items():
        pairs = zip(cells, table.rows[against], strict=True)
        rows[label] = [
            _checked(label, own, against, other, table.middle)
            if own.total and other.total
            else None
            for own, other in pairs
        ]
    return PairedTable(table, against, rows)


def _checked(label: str, own: Cell, against: str, other: Cell, middle: str) -> Difference:
    """Return the difference, if both have the same seeds, at least three."""
    for name, cell in ((label, own), (against, other)):
        if len(cell.seeds) < cell.total:
            raise ConfigError(
                f"--against {against}: two runs of {name} have the same seed, and it is not known "
                f"which of them makes a pair: name one folder of a comparison"
            )
    if own.seeds.keys() != other.seeds.keys():
        raise ConfigError(
            f"--against {against}: {label} ran with the seeds {_listed(own.seeds)}, and {against} "
            f"with {_listed(other.seeds)}: differences need runs of both with the same seeds"
        )
    if own.total < LEAST:
        raise ConfigError(
            f"--against {against}: differences need at least {LEAST} seeds, and {label} and "
            f"{against} ran with {own.total}: repeat the comparison with --seeds 0,1,2 or more"
        )
    return difference(own, other, middle)


def _listed(seeds: Iterable[str]) -> str:
    seeds = list(seeds)
    return "; ".join(seeds) if any("," in seed for seed in seeds) else ", ".join(seeds)


def _alike(one: Difference) -> tuple[str, str, str]:
    """Return middle, low and high with the digits that their interval needs; "" for no interval."""
    if math.isnan(one.low):
        return number(one.middle), "", ""
    half = (one.high - one.low) / 2
    middle, low, high = (with_spread(value, half)[0] for value in one[:3])
    return middle, low, high


def _p(p: float) -> str:
    if math.isnan(p):
        return ""
    return ", p < 0.001" if p < 0.001 else f", p = {p:.2g}" if p < 0.1 else f", p = {p:.2f}"
