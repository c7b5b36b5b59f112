"""Columns that may be something else than the schema says: codes, dates, identifiers, rates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flower_fedcon.tables.checks.odd_values import (
    odd_pairs,
    odd_values,
    remedy_of,
    totals,
)
from flower_fedcon.tables.columns import Columns
from flower_fedcon.tables.families.base import RESIDUAL
from flower_fedcon.tables.marks import DATE, canonical, is_id, number_in
from flower_fedcon.tables.table import Table
from flower_fedcon.validation import Array

_CODES = 3, 7  # so many whole numbers, below 10, may be codes of categories
_FEW = 20  # with fewer values a column is not taken for an identifier


def seen_in_rows(columns: Columns) -> Iterator[str]:
    """Yield remarks on one client's columns of numbers.

    Parameters
    ----------
    columns : Columns
        The columns; `table` must have been called.
    """
    yield from columns.repeated
    numbers, rows, clusters = columns.numbers, columns.rows, columns.clusters
    if total := [*totals({name: values for name, values in numbers.items() if len(values)})]:
        yield from total
        numbers, rows = {name: values[:-1] for name, values in numbers.items()}, rows[:-1]
        clusters = None if clusters is None else clusters[:-1]
    yield from odd_pairs(numbers, rows)
    stated = {one.name: one.range[0] for one in columns.schema.numeric if one.range}
    for column, values in numbers.items():
        filled = values[~np.isnan(values)]
        distinct = np.unique(filled)
        schema = columns.schema
        nothing = column in (schema.weight, schema.entry, schema.offset)  # where 0 has a meaning
        looked_at = np.where(values == 0, np.nan, values) if nothing else values
        least = stated.get(column, 0.0)
        for said in odd_values(looked_at, rows, remedy_of(schema, column), clusters, least):
            yield f"column {column!r}: {said}"
        if column in columns.schema.names and _counts_rows(column, filled, distinct):
            yield (
                f"column {column!r} has a different whole number in each row: is it an identifier? "
                f"Leave it out"
            )
        part = filled[filled != np.floor(filled)]
        if column == columns.schema.target and columns.schema.family.whole and part.size:
            yield (
                f"column {column!r}: {part.size} of {filled.size} values, such as {part[0]:g}, are "
                f"not whole numbers: are they counts? For a rate give the count and its exposure"
            )
    for column, texts in columns.counts.items():
        dates = [text for text in texts if DATE.match(text)]
        if column in columns.schema.names and len(dates) > max(_FEW, len(texts)) / 2:
            yield (
                f"column {column!r}: {dates[0]!r} is a date, and each date becomes a category: "
                f"write the number of days since a fixed day, or leave the column out"
            )
        elif column in columns.schema.names and _measured(list(map(canonical, texts))):
            yield (
                f"column {column!r}: its {len(texts)} categories are all numbers, close together: "
                'are they measured, or counted? Then write type = "numeric"'
            )


def _counts_rows(column: str, known: Array, distinct: Array) -> bool:
    """Return whether a column looks like row numbers, or like an identifier that is a number."""
    if len(known) < _FEW or len(distinct) < len(known) or (known != np.floor(known)).any():
        return False
    consecutive = distinct[-1] - distinct[0] == len(distinct) - 1
    return bool(consecutive) or is_id(column)


def _measured(marks: Sequence[str]) -> bool:
    """Return whether categories look like measured or counted numbers rather than codes.

    >>> _measured([str(age) for age in range(20, 90)]), _measured(["01067", "20095"] * 20)
    (True, False)
    """
    numbers = [number_in(mark) for mark in marks]
    if len(marks) <= _FEW or None in numbers or any(re.match(r"0\d", mark) for mark in marks):
        return False
    values: Any = np.unique(np.array(numbers))
    dense = values[-1] - values[0] <= 2 * len(values)
    return bool((values != np.floor(values)).any() or dense)


def codes_as_numbers(tables: Sequence[Table]) -> Iterator[str]:
    """Yield the numeric features that may be categories: a few small whole numbers at all clients.

    Numbers from 0 on whose frequencies have one peak may be counts, or a score. A feature whose
    schema states a range, or uses it in a spline or a polynomial, is meant as a number.

    Parameters
    ----------
    tables : sequence of Table
        Tables of one schema; on a node its own.
    """
    schema = tables[0].schema
    bent = {factor.feature for term in schema.design for factor in term.factors if factor.basis}
    for j, feature in enumerate(schema.numeric):
        if feature.range or feature.transform != "none" or feature.name in bent:
            continue
        values = np.concatenate([table.numeric[:, j] for table in tables])
        distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
        few = _CODES[0] <= len(distinct) <= _CODES[1] and counts.sum() >= _FEW
        if not few or distinct[0] < 0 or distinct[-1] >= 10 or (distinct % 1).any():
            continue
        steps = np.diff(counts.astype(float))
        rises = steps[np.abs(steps) > 2.0 * np.sqrt(counts[1:] + counts[:-1])] > 0  # not by chance
        if distinct[0] == 0 and not (rises[1:] & ~rises[:-1]).any():
            continue
        said = ", ".join(f"{value:g}" for value in distinct)
        yield (
            f"column {feature.name!r}: its values are {said}, and one slope is fitted to them: if "
            f'they are codes, write type = "categorical"; if numbers, a range'
        )


def two_values(tables: Sequence[Table]) -> Iterator[str]:
    """Yield a remark on the target of a linear model that has two values over all clients."""
    schema = tables[0].schema
    if schema.family.scale != RESIDUAL:
        return
    distinct = np.unique(np.concatenate([table.targets for table in tables]))
    if len(distinct) == 2 and sum(len(table.targets) for table in tables) >= _FEW:
        low, high = distinct.tolist()
        yield (
            f"target {schema.target!r} has two values, {low:g} and {high:g}, and a linear model is "
            f"fitted: positive = [{high:g}] with negative = [{low:g}] fits a logistic one"
        )
