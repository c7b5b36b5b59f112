"""Rows that occur again next to each other, or in blocks, at one of three sites."""

from __future__ import annotations

import numpy as np
import pytest
from tabular import numeric

from flower_fedcon.tables import Schema
from flower_fedcon.tables.checks.doubled_rows import doubled_rows
from flower_fedcon.tables.checks.frequent_row import frequent_row
from flower_fedcon.tables.site_rows import SiteRows

ROWS = 150
SCHEMA = {"target": "y", "loss": "squared", "features": numeric("a", "b")}
CLUSTERED = SCHEMA | {"cluster": "who"}


def rows(site):
    """Columns of few values: about 6 rows of each site are equal to another by chance."""
    rng = np.random.default_rng(site)
    return rng.integers(0, [5, 20, 20], (ROWS, 3)).astype(float)


def table(own, schema=SCHEMA):
    clusters = np.arange(len(own)) if "cluster" in schema else None
    return SiteRows("", Schema.load(schema), own[:, 0], None, own[:, 1:],
                    np.empty((len(own), 0), "U1"), clusters=clusters)  # fmt: skip


def joined(own):
    return np.repeat(own, np.tile([1, 1, 2], ROWS // 3), axis=0)


def measured_again(own):
    again = joined(own)
    again[1:, 0] += 7.0 * (again[1:] == again[:-1]).all(axis=1)
    return again


MESSES = {  # what site b does to its rows, and what is said
    "as it is": (lambda own: own, ""),
    "sorted": (lambda own: own[np.lexsort(own.T)], ""),
    "joined": (joined, "of 200 rows of b have all values of the row before, and elsewhere "),
    "measured again": (measured_again, "of 200 rows of b have all values but 'y' of the row befor"),
    "stacked": (lambda own: np.concatenate([own, own[40:70]]),
                "27 rows of b from row 151 on have all values of those from row 41 on"),
}  # fmt: skip


@pytest.mark.parametrize("schema", [SCHEMA, CLUSTERED])
@pytest.mark.parametrize("mess", MESSES)
def test_rows_that_occur_again(mess, schema):
    change, words = MESSES[mess]
    sites = [table(own, schema) for own in (rows(0), change(rows(1)), rows(2))]
    found = [*doubled_rows("abc", sites)]
    said = bool(words) and "cluster" not in schema
    assert [words in line for line in found] == [True] * said


@pytest.mark.parametrize(("forms", "where", "said"), [
    (0, "anywhere", 0), (12, "anywhere", 0), (60, "anywhere", 1), (60, "at the end", 0),
    (60, "everywhere", 0),
])  # fmt: skip
def test_forms_that_nobody_filled_in(forms, where, said):
    sites = [np.random.default_rng(k).integers(0, [2, 4, 5], (ROWS, 3)).astype(float)
             for k in range(3)]  # fmt: skip
    for own in sites if where == "everywhere" else sites[1:2]:
        order = np.arange(ROWS)
        if where != "at the end":
            np.random.default_rng(7).shuffle(order)
        own[order[ROWS - forms :]] = [0, 0, 1]
    found = [*frequent_row("abc", [table(own) for own in sites])]
    assert ["rows of b have the same values in all " in line for line in found] == [True] * said
