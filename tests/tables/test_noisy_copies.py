"""Rows that are held again, with a little noise in several columns, at a site or at two."""

from __future__ import annotations

import numpy as np
import pytest
from tabular import numeric

from flower_fedcon.tables import Schema
from flower_fedcon.tables.checks.noisy_copies import noisy_copies
from flower_fedcon.tables.site_rows import SiteRows

SCHEMA = {"target": "y", "loss": "squared", "cluster": "who", "features": numeric("a", "b", "c")}


def again(own, rows, size):
    """Return rows with noise of a share of their deviation, under other names."""
    rng = np.random.default_rng(9)
    return np.vstack([own, rows[:30] + size * rng.normal(size=rows[:30].shape)])


MESSES = {  # the rows of sites a and b, what becomes of b's, and what is said
    "as they are": (lambda a, b: b, ""),
    "within": (lambda a, b: again(b, b, 0.03),
               "rows of b are nearly like another one there in all columns of numbers, such as "),
    "another's": (lambda a, b: again(b, a, 0.03),
                  "rows of a are nearly like one of b in all columns of numbers, such as row "),
    "other days": (lambda a, b: again(b, b, 0.5), ""),
    "one value": (lambda a, b: b[:, :2].repeat([1, 3], axis=1) * [1, 1, 0, 0], ""),
    "one column": (lambda a, b: again(b, b, [0, 0, 0, 0.03]), ""),
}  # fmt: skip


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("mess", MESSES)
def test_rows_with_noise(mess, everywhere):
    """Of twins at all sites nothing is said."""
    sites = [np.random.default_rng(k).normal(size=(120, 4)) for k in range(3)]
    if everywhere:
        sites = [again(own, own, 0.1) for own in sites]
    change, words = MESSES[mess]
    sites[1] = change(*sites[:2])
    tables = [
        SiteRows("", Schema.load(SCHEMA), own[:, 0], None, own[:, 1:],
                 np.empty((len(own), 0), "U1"), clusters=np.arange(len(own)))
        for own in sites
    ]  # fmt: skip
    found = [*noisy_copies("abc", tables)]
    assert [words in line for line in found] == [True] * bool(words and not everywhere)
