"""A study's columns by the levels of one of them, such as the arms of a trial: Table 1, and tests.

If the schema has `describe_by`, one more exchange before round 1 asks each node for sums by level,
over its training rows:

    down  the pooled means, and all categories
    up    the rows of each level; for each level and numeric column the number of values, their sum
          and the sum of (value - mean)^2; for each level the rows of each category and outcome

Small cells do not leave a node, the rest of a row or column included. Cells rest on at least
`min_rows` rows, and on `min_cell`. Categories with a smaller count in some level, other than 0, are
merged with the next smallest ones until the count of all of them together is large enough in each
level; what is merged is NaN, and follows from the rows of a level. Without enough categories that
column is not told. A numeric column is not told if in some level few rows have a value, or lack
one, or all but few are alike. Rows without a level are in no count, and rest on the same rule.

Over all sites a category stands alone where every site that tells the column tells it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.paper_tables import p_in_words
from flower_fedcon.tables.encoding import codes, is_wide
from flower_fedcon.tables.own_files import BY_LEVEL, LEVEL_TESTS
from flower_fedcon.tables.packed_text import packed_text, unpacked_text
from flower_fedcon.tables.row_weights import counted_once
from flower_fedcon.tables.schema import Schema
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.tables.small_cells import all_but_few_alike, is_few, known_marks
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

LEVELS = "levels"
"""The word for sums by level, in the exchanges of preparation and in policies."""
MERGED, MISSING = "(merged)", "(no value)"
WELCH, ANOVA, CHI2 = "Welch t", "ANOVA F", "chi-squared"
_SHOWN = 100  # lines of the table in a text
_EXPECTED = 5.0  # with smaller expected counts a chi-squared test is not exact

# --- at a site -----------------------------------------------------------------------------------


def told_by_level(table: SiteRows, down: Payload, least: int, cell: int) -> dict[str, Any]:
    """Return a site's sums by level; see the module.

    Parameters
    ----------
    table : SiteRows
    down : dict
        The pooled means, and the categories of all clients.
    least, cell : int
        The node's `min_rows` and `min_cell`.
    """
    schema, rows, few = table.schema, table.training_rows, max(least, cell)
    agreed, means = unpacked_text(down["categories"]), down["means"]
    known = [marks[rows] for marks, _ in table.known_categories(least)]
    weights = None if table.weights is None else table.weights[rows]
    by = [feature.name for feature in schema.categorical].index(schema.describe_by)
    levels = known_marks(table.categories[:, by], rows, table.weights, few)[0][rows]
    own, level = np.unique(levels, return_inverse=True)
    inside = [level == k for k in range(len(own))]
    places = codes(np.array(agreed[schema.describe_by]), tuple(own.tolist()))

    def by_agreed(of_own: Array) -> Array:
        hidden = np.isnan(of_own).any(axis=0)  # in a level without rows, too
        told: Array = np.where(hidden, np.nan, np.zeros((len(places), *of_own.shape[1:])))
        told[places >= 0] = of_own[places[places >= 0]]
        return told

    sums = []
    for column, mean in zip(table.known_numbers(least)[rows].T, means, strict=True):
        there = ~np.isnan(column)
        hidden = any(
            is_few(weights, one & there, few)
            or is_few(weights, one & ~there, few)
            or all_but_few_alike(column[one & there],
                                 None if weights is None else weights[one & there], few)
            for one in inside
        )  # fmt: skip
        parts = [column[one & there] for one in inside]
        each = [(float(len(p)), math.fsum(p), math.fsum((p - mean) ** 2)) for p in parts]
        sums.append(np.full((len(own), 3), np.nan) if hidden else np.array(each))
    counts = []
    for column, marks in _columns(table, known, agreed):
        distinct, place = np.unique(column, return_inverse=True)
        cells = np.array([np.bincount(place[one], minlength=len(distinct)) for one in inside])
        hidden = _merged(place, len(distinct), inside, weights, few)
        cells = np.where(hidden, np.nan, cells)
        where = codes(np.array(marks), tuple(distinct.tolist()))
        counts.append(np.where(where >= 0, cells[:, where], 0.0))
        if hidden.all():
            counts[-1][:] = np.nan
    none = np.zeros((len(own), 0))
    moments = np.stack(sums, axis=1) if sums else np.zeros((len(own), 0, 3))
    return {
        "level_rows": by_agreed(np.array([float(one.sum()) for one in inside])),
        "level_sums": by_agreed(moments).ravel(),
        "level_counts": by_agreed(np.hstack([none, *counts])).ravel(),
    }


def _columns(
    table: SiteRows, known: Sequence[Any], agreed: Mapping[str, Any]
) -> Iterator[tuple[Any, Sequence[str]]]:
    """Yield the rows' marks of outcome and categorical features, with the agreed marks."""
    schema, y = table.schema, table.outcome[table.training_rows]
    if schema.outcome_marks:
        marks = list(map(str, schema.outcome_marks))
        counted = schema.family.counted(y, schema)[:, -len(marks) :]
        yield np.where(counted.any(axis=1), np.array(marks)[counted.argmax(axis=1)], ""), marks
    for feature, marks_ in zip(schema.categorical, known, strict=True):
        if _shown(feature.name, schema, agreed):
            yield marks_, agreed[feature.name]


def _shown(name: str, schema: Schema, agreed: Mapping[str, Any]) -> bool:
    return name != schema.describe_by and not is_wide(agreed[name])


def _merged(place: Any, cells: int, inside: Sequence[Any], weights: Any, few: int) -> Any:
    """Return which categories are merged, shape (cells,)."""

    def too_few(chosen: Any) -> bool:
        return any(is_few(weights, one & chosen, few) for one in inside)

    hidden = np.array([too_few(place == cell) for cell in range(cells)], dtype=bool)
    sizes = np.bincount(place, minlength=cells)
    while hidden.any() and not hidden.all() and too_few(hidden[place]):
        hidden[np.argmin(np.where(hidden, np.inf, sizes))] = True
    return hidden


# --- on the server -------------------------------------------------------------------------------


def asked_by_level(means: Array, categories: Mapping[str, tuple[str, ...]]) -> Payload:
    """Return the server's question."""
    return {
        "means": means,
        "categories": packed_text({name: list(marks) for name, marks in categories.items()}),
    }


def sizes_by_level(schema: Schema, categories: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Return the names and sizes of the arrays that each node sends."""
    levels = len(categories[schema.describe_by])
    marks = sum(len(marks) for _, marks in _stated(schema, categories))
    return {
        "level_rows": levels,
        "level_sums": 3 * levels * len(schema.numeric),
        "level_counts": levels * marks,
    }


def _stated(
    schema: Schema, categories: Mapping[str, tuple[str, ...]]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the columns of categories that are told, with their marks; the outcome is first.

    Raises
    ------
    ConfigError
        If a category has the name of what is no category.
    """
    outcome = [(schema.event or schema.target, tuple(schema.outcome_marks))]
    features = [f.name for f in schema.categorical if _shown(f.name, schema, categories)]
    told = [*outcome * bool(schema.outcome_marks), *((name, categories[name]) for name in features)]
    for name, marks in told:
        for mark in {MERGED, MISSING}.intersection(marks):
            raise ConfigError(
                f"column {name!r} has a category {mark!r}, as rows are called that have no value, "
                "or none that is told alone: give it another name, list it in the column's "
                "`missing`, or leave describe_by out"
            )
    return told


@dataclass(frozen=True)
class LevelTest:
    """The comparison of one column between levels.

    Attributes
    ----------
    column : str
    test : {"Welch t", "ANOVA F", "chi-squared"}
        Welch's t-test of two means; one-way analysis of variance of more; Pearson's chi-squared of
        a two-way table, without continuity correction.
    statistic, df, pvalue : float
        NaN where there is nothing to compare. The degrees of freedom of F are `df` and `df_within`.
    smd : float
        The standardised difference, absolute; of more than two levels its mean over all pairs. Of
        numbers |m1 - m2| / sqrt((s1^2 + s2^2) / 2); of categories Yang and Dalton's, as in R's
        tableone.
    least_expected : float
        The smallest expected count of a two-way table.
    df_within : float
    """

    column: str
    test: str
    statistic: float
    df: float
    pvalue: float
    smd: float
    least_expected: float = math.nan
    df_within: float = math.nan


@dataclass(frozen=True, eq=False)
class ByLevel:
    """The training rows of all sites by the levels of a column.

    Parameters
    ----------
    by : str
    levels : tuple of str
    rows : array, shape (levels,)
    numeric : tuple of str
    moments : array, shape (levels, columns, 3)
        Number of values, mean, and standard deviation (with n - 1).
    tables : dict of (tuple of str, array)
        For each column its categories and the two-way table, shape (levels, categories). The last
        category may be "(merged)", or "(no value)", which no test counts.
    untold : tuple of str
        Which sites do not tell of which columns.
    labels : Schema, optional
        Says what columns and categories are called in texts.
    """

    by: str
    levels: tuple[str, ...]
    rows: Array
    numeric: tuple[str, ...]
    moments: Array
    tables: Mapping[str, tuple[tuple[str, ...], Array]]
    untold: tuple[str, ...] = ()
    labels: Schema | None = None

    @classmethod
    def of(
        cls,
        schema: Schema,
        clients: Sequence[str],
        means: Array,
        categories: Mapping[str, tuple[str, ...]],
        told: Sequence[Payload],
    ) -> ByLevel:
        """Return what follows from all sites' sums."""
        levels = categories[schema.describe_by]
        rows = np.stack([one["level_rows"] for one in told])
        shape = (len(told), len(levels), len(schema.numeric), 3)
        sums = np.stack([one["level_sums"] for one in told]).reshape(shape)
        names = [
            f.name if f.transform == "none" else f"{f.transform}({f.name})" for f in schema.numeric
        ]
        untold = []

        def lacking(column: str, hidden: Any) -> None:
            if hidden.any():
                where = ", ".join(np.array(clients)[hidden].tolist())
                untold.append(f"{column}: {where}")

        for j, name in enumerate(names):
            lacking(name, np.isnan(sums[:, :, j, 0]).any(axis=1))
        each = np.nan_to_num(sums).transpose(1, 2, 3, 0)  # a sum in the clients' order
        n, total, squares = (np.array([[math.fsum(cell[k]) for cell in one] for one in each])
                             .reshape(len(levels), -1) for k in range(3))  # fmt: skip
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(n > 0, total / n, np.nan)
            left = np.maximum(squares - n * (mean - np.asarray(means)) ** 2, 0.0)
            deviation = np.where(n > 1, np.sqrt(left / (n - 1)), np.nan)
        counts = np.stack([one["level_counts"] for one in told])
        counts, place, tables = counts.reshape(len(told), len(levels), -1), 0, {}
        for name, marks in _stated(schema, categories):
            own = counts[:, :, place : place + len(marks)]
            place += len(marks)
            nothing = np.isnan(own).all(axis=(1, 2)) & (rows > 0).any(axis=1)
            lacking(name, nothing)
            own, of = own[~nothing], rows[~nothing].sum(axis=0)
            alone = ~np.isnan(own).any(axis=(0, 1)) if len(own) else np.zeros(len(marks), bool)
            cells = own[:, :, alone].sum(axis=0)
            rest = of - cells.sum(axis=1)
            shown = [mark for mark, one in zip(marks, alone, strict=True) if one]
            outcome = name == (schema.event or schema.target) and len(marks) == 1
            if outcome and len(shown) == 1:
                shown, cells = [shown[0], f"not {shown[0]}"], np.column_stack([cells, rest])
            elif rest.any():
                shown.append(MERGED if len(shown) < len(marks) else MISSING)
                cells = np.column_stack([cells, rest])
            tables[name] = (tuple(shown), cells)
        moments = np.stack([n, mean, deviation], axis=2)
        return cls(schema.describe_by, tuple(levels), rows.sum(axis=0), tuple(names), moments,
                   tables, tuple(untold), schema)  # fmt: skip

    @property
    def tests(self) -> list[LevelTest]:
        """The comparison of each column, categories first as in `tables`, then numbers."""
        numbers = [_of_numbers(name, one) for name, one in
                   zip(self.numeric, self.moments.transpose(1, 0, 2), strict=True)]  # fmt: skip
        return [*(_of_counts(name, *one) for name, one in self.tables.items()), *numbers]

    @property
    def table(self) -> dict[str, list[Any]]:
        """The columns of `by_level.csv`."""
        lines: list[tuple[Any, ...]] = []
        for name, (marks, cells) in self.tables.items():
            expected = _expected(marks, cells)
            for j, mark in enumerate(marks):
                for k, level in enumerate(self.levels):
                    whole = float(cells[k].sum())
                    share = float(cells[k, j]) / whole if whole else math.nan
                    apart = math.nan if mark == MISSING else float(expected[k, j])
                    lines.append((name, mark, level, int(cells[k, j]), math.nan, math.nan,
                                  share, apart))  # fmt: skip
        for j, name in enumerate(self.numeric):
            for k, level in enumerate(self.levels):
                n, mean, deviation = self.moments[k, j].tolist()
                lines.append((name, "", level, int(n), mean, deviation, math.nan, math.nan))
        return _by_column(BY_LEVEL, lines)

    @property
    def test_table(self) -> dict[str, list[Any]]:
        """The columns of `by_level_tests.csv`."""
        lines = [
            (one.column, one.test, one.statistic, one.df, one.df_within, one.pvalue, one.smd,
             one.least_expected) for one in self.tests
        ]  # fmt: skip
        return _by_column(LEVEL_TESTS, lines)

    @property
    def paper(self) -> tuple[list[str], list[list[str]]]:
        """A table for a paper: its head, and its lines of texts."""
        sizes = [
            f"{self._called(self.by, level)} (n = {n:.0f})"
            for level, n in zip(self.levels, self.rows, strict=True)
        ]
        head, lines = [self._called(self.by), *sizes, "p", "SMD"], []
        by_column = {one.column: one for one in self.tests}

        def ends(name: str) -> list[str]:
            smd = by_column[name].smd
            return [p_in_words(by_column[name].pvalue), "" if math.isnan(smd) else f"{smd:.3f}"]

        for name, (marks, cells) in self.tables.items():
            whole = cells.sum(axis=1)
            for j, mark in enumerate(marks):
                shares = [
                    f"{n:.0f} ({100 * n / all_:.1f} %)" if all_ else "0"
                    for n, all_ in zip(cells[:, j], whole, strict=True)
                ]
                called = f"{self._called(name)}: {self._called(name, mark)}"
                lines.append([called, *shares, *(["", ""] if j else ends(name))])
        for j, name in enumerate(self.numeric):
            means = ["" if math.isnan(mean) else f"{mean:.4g} ({deviation:.3g})"
                     for _, mean, deviation in self.moments[:, j].tolist()]  # fmt: skip
            lines.append([self._called(name), *means, *ends(name)])
        return head, lines

    def _called(self, name: str, mark: str | None = None) -> str:
        return (mark or name) if self.labels is None else self.labels.called(name, mark)

    @property
    def lines(self) -> list[str]:
        """The lines of a report: the table, and what a reader has to know."""
        head, rows = self.paper
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        shown = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in (head, *rows[:_SHOWN])
        ]
        more = [f"and {len(rows) - _SHOWN} more lines"] if len(rows) > _SHOWN else []
        return [*shown, *more, *self.notes]

    @property
    def notes(self) -> list[str]:
        """What a reader of the table has to know."""
        said = [
            f"columns by {self._called(self.by)}: mean (standard deviation) of numbers, rows "
            f"(share) of categories; p of Welch's t-test, of an analysis of variance for more than "
            f"two levels, or of chi-squared without continuity correction"
        ]
        small = [one.column for one in self.tests if one.least_expected < _EXPECTED]
        if small:
            said.append(
                f"expected counts below {_EXPECTED:g}: {', '.join(map(self._called, small))}"
            )
        if any(MERGED in marks for marks, _ in self.tables.values()):
            said.append(f"{MERGED}: categories that some site does not tell alone, or no value")
        if self.labels is not None and self.labels.weight:
            said.append(counted_once(self.labels.weight))
        return [*said, *(f"not told by level, for few rows: {one}" for one in self.untold)]


def _by_column(names: Sequence[str], lines: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    columns = zip(*lines, strict=True) if lines else [()] * len(names)
    cells = [[None if v != v else v for v in column] for column in columns]
    return dict(zip(names, cells, strict=True))


def _of_numbers(name: str, moments: Array) -> LevelTest:
    """Return the test of the means of levels; see `LevelTest`."""
    from scipy import special

    used = moments[moments[:, 0] > 1]
    n, mean, variance = used[:, 0], used[:, 1], used[:, 2] ** 2
    kind = WELCH if len(moments) == 2 else ANOVA
    if len(used) < 2 or not variance.any():
        return LevelTest(name, kind, math.nan, math.nan, math.nan, math.nan)
    differences = [
        abs(mean[a] - mean[b]) / math.sqrt((variance[a] + variance[b]) / 2)
        for a, b in combinations(range(len(used)), 2)
        if variance[a] + variance[b] > 0
    ]
    smd = float(np.mean(differences))
    if kind == WELCH:
        own = variance / n
        t = float((mean[0] - mean[1]) / math.sqrt(own.sum()))
        df = float(own.sum() ** 2 / (own**2 / (n - 1)).sum())
        return LevelTest(name, kind, t, df, 2.0 * float(special.stdtr(df, -abs(t))), smd)
    levels, whole = len(used), float(n.sum())
    between = float((n * (mean - n @ mean / whole) ** 2).sum()) / (levels - 1)
    within = float(((n - 1) * variance).sum()) / (whole - levels)
    F = between / within
    p = float(special.fdtrc(levels - 1, whole - levels, F))
    return LevelTest(name, kind, F, levels - 1.0, p, smd, df_within=whole - levels)


def _counted(marks: Sequence[str], cells: Array) -> Array:
    """Return the cells that a test counts."""
    return cells[:, : -1 if marks and marks[-1] == MISSING else None]


def _expected(marks: Sequence[str], cells: Array) -> Array:
    """Return the expected counts of a table; 0 where no test counts."""
    counted = _counted(marks, cells)
    expected = np.zeros_like(cells)
    if counted.sum():
        rows, columns = counted.sum(axis=1), counted.sum(axis=0)
        expected[:, : counted.shape[1]] = np.outer(rows, columns) / counted.sum()
    return expected


def _of_counts(name: str, marks: Sequence[str], cells: Array) -> LevelTest:
    """Return the chi-squared test of a two-way table; see `LevelTest`."""
    from scipy import special

    used = _counted(marks, cells)
    used = used[used.sum(axis=1) > 0]
    used = used[:, used.sum(axis=0) > 0]
    if min(used.shape) < 2:
        return LevelTest(name, CHI2, math.nan, math.nan, math.nan, math.nan)
    expected = np.outer(used.sum(axis=1), used.sum(axis=0)) / used.sum()
    statistic = float(((used - expected) ** 2 / expected).sum())
    df = (used.shape[0] - 1) * (used.shape[1] - 1)
    shares = used / used.sum(axis=1, keepdims=True)
    smd = float(np.mean([_distance(a, b) for a, b in combinations(shares, 2)]))
    p = float(special.chdtrc(df, statistic))
    return LevelTest(name, CHI2, statistic, float(df), p, smd, float(expected.min()))


def _distance(a: Array, b: Array) -> float:
    """Return Yang and Dalton's standardised difference between shares of categories.

    >>> round(_distance(np.array([0.5, 0.5]), np.array([0.3, 0.7])), 4)  # as of one proportion
    0.417
    """
    covariance = np.zeros((len(a) - 1, len(a) - 1))
    for shares in (a[1:], b[1:]):
        covariance += (np.diag(shares) - np.outer(shares, shares)) / 2
    apart = a[1:] - b[1:]
    squared = float(apart @ np.linalg.pinv(covariance) @ apart)
    return math.sqrt(max(squared, 0.0))
