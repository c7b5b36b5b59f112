"""Weights of single rows: large ones of sampling, and broken frequencies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from flower_fedcon.errors import number_of
from flower_fedcon.tables.checks.conspicuous import (
    is_heavy,
)
from flower_fedcon.tables.row_weights import FREQUENCY, SAMPLING
from flower_fedcon.tables.small_cells import effective_rows
from flower_fedcon.tables.table import Table


def heavy_rows(names: Sequence[str], tables: Sequence[Table]) -> Iterator[str]:
    """Yield the training rows with a large share of the weight of all, for weights of sampling."""
    schema = tables[0].schema
    if schema.weight_kind != SAMPLING:
        return
    each = [np.asarray(table.weights)[table.training_rows] for table in tables]
    whole, rows = math.fsum(np.concatenate(each).tolist()), sum(map(len, each))
    effective = effective_rows(np.concatenate(each), np.arange(rows))
    for name, table, weights in zip(names, tables, each, strict=True):
        for place in np.flatnonzero(weights > 0).tolist():
            share = float(weights[place]) / whole
            if is_heavy(share, rows):
                row = table.numbers_of(table.training_rows[[place]])[0]
                yield (
                    f"column {schema.weight!r}: row {row} of {name} has {100 * share:.3g} % of the "
                    f"weight of all {rows} rows, whose effective number is {effective:.3g}, and "
                    f"estimates follow it: is it correct?"
                )


def broken_frequencies(tables: Sequence[Table]) -> Iterator[str]:
    """Yield a remark on weights that are stated to count equal rows, and are no whole numbers.

    Parameters
    ----------
    tables : sequence of Table
        Tables of one schema; on a node its own.
    """
    schema = tables[0].schema
    if schema.weight_kind != FREQUENCY:
        return
    weights = np.concatenate([np.asarray(table.weights) for table in tables])
    broken = weights[np.abs(weights - np.rint(weights)) > 1e-9 * weights]
    if len(broken):
        yield (
            f"column {schema.weight!r}: {len(broken)} of {number_of(len(weights), 'weight')} are "
            f"no whole numbers, such as {broken[0]:g}, and weight_kind = {FREQUENCY!r} takes each "
            f"for so many equal rows: are they sampling weights (weight_kind = {SAMPLING!r})?"
        )
