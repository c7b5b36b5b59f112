"""Columns that one of three sites fills down, gives to two rows each, or numbers."""

from __future__ import annotations

import numpy as np
import pytest
from tabular import numeric

from flower_fedcon.tables import Schema
from flower_fedcon.tables.checks.row_by_row import row_by_row
from flower_fedcon.tables.site_rows import SiteRows

SCHEMA = Schema.load({"target": "y", "loss": "squared", "features": numeric("a", "b")})
PLACES = np.arange(120)
DOWN = PLACES - PLACES % 5 % 3  # rows 0 0 0 3 3 5 5 5 8 8, ...


def of_a(made):
    return lambda own: np.column_stack([own[:, 0], made(own[:, 1]), own[:, 2]])


MESSES = {  # what site b does to its rows, and what is said
    "as it is": (lambda own: own, ""),
    "sorted": (lambda own: own[np.argsort(own[:, 1])], ""),
    "visits": (lambda own: np.column_stack([own[:, 0], own[DOWN, 1:]]), ""),
    "one run": (of_a(lambda x: np.where(PLACES < 50, 3.0, x)), ""),
    "filled down": (of_a(lambda x: x[DOWN]), "have the value of the row before, and elsewhere "),
    "in pairs": (of_a(lambda x: x[PLACES // 2 * 2]), "of 119 rows of b have the value of the row"),
    "numbers": (of_a(lambda x: PLACES % 30), "97% of the steps from row to row at b are 1, and "),
}  # fmt: skip


@pytest.mark.parametrize("mess", MESSES)
def test_values_from_row_to_row(mess):
    change, words = MESSES[mess]
    sites = [np.random.default_rng(k).integers(0, 30, (120, 3)).astype(float) for k in range(3)]
    sites[1] = change(sites[1])
    found = [*row_by_row("abc", [
        SiteRows("", SCHEMA, own[:, 0], None, own[:, 1:], np.empty((120, 0), "U1"))
        for own in sites
    ])]  # fmt: skip
    assert [line.startswith("column 'a': ") and words in line for line in found] == (
        [True] * bool(words)
    )
