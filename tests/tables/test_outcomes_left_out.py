"""Rows of one of three sites that are left out by their outcome, in all or in one category."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon.tables import Schema
from flower_fedcon.tables.checks.outcomes_left_out import outcomes_left_out
from flower_fedcon.tables.site_rows import SiteRows

ROWS = 900
PLAIN = {"target": "y", "loss": "squared", "features": {"arm": "categorical"}}
TIMES = PLAIN | {"loss": "cox", "event": "died"}


def table(site, kept, schema):
    """Sites differ by a twentieth of a standard deviation, and site 1 keeps some rows."""
    rng = np.random.default_rng(site)
    y, arm = rng.normal(10 + site / 20, 1.0, ROWS).round(3), rng.choice(["A", "B", "C"], ROWS)
    if site == 1:
        keep = kept(y, arm)
        y, arm = y[keep], arm[keep]
    targets = np.column_stack([y, np.ones(len(y))]) if "event" in schema else y
    return SiteRows("", Schema.load(schema), targets, None, np.empty((len(y), 0)), arm[:, None])


MESSES = {  # the rows that site b keeps, and what is said
    "all": (lambda y, arm: y < 99, ""),
    "low": (lambda y, arm: y < 10.5, "no row of b is above 10.497, where its rows do not get "),
    "high": (lambda y, arm: y > 10, "no row of b is below 10.01, where its rows do not get "),
    "a tail": (lambda y, arm: y < 12.5, ""),
    "high of an arm": (lambda y, arm: (y > 10.2) | (arm == "A") | (arm == "C"),
                       "rows of b with 'arm' 'B' is below 10.21"),
    "no arm": (lambda y, arm: arm != "B", ""),
}  # fmt: skip


@pytest.mark.parametrize("schema", [PLAIN, TIMES])
@pytest.mark.parametrize("mess", MESSES)
def test_an_edge_of_outcomes(mess, schema):
    kept, words = MESSES[mess]
    found = [*outcomes_left_out("abc", [table(site, kept, schema) for site in range(3)])]
    assert [words in line for line in found] == [True] * bool(words)
