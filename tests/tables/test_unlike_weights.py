"""Weights of strata that one of three sites scales, inverts, or takes from another column."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon.tables import Schema
from flower_fedcon.tables.checks.unlike_weights import unlike_weights
from flower_fedcon.tables.site_rows import SiteRows

SCHEMA = Schema("y", {"x": "numeric"}, loss="squared", weight="w", weight_kind="sampling")
MESSES = {  # what site b does to its weights, and what is said
    "as they are": (lambda w: w, ""),
    "other strata": (lambda w: np.where(w == 4.5, 9.25, w), ""),
    "one stratum": (lambda w: np.full_like(w, 4.5), ""),
    "mean 1": (lambda w: (w / w.mean()).round(4), "the mean at b is 1, and elsewhere it is from "),
    "in hundreds": (lambda w: 100 * w, "its 3 values at b are those of all others times 100: are "),
    "inverted": (lambda w: 1 / w, "its 3 values at b are the inverses of the others: are they pr"),
    "numbers": (lambda w: 7.0 + np.arange(90), "90 different whole numbers in 90 rows of b, and e"),
}  # fmt: skip


@pytest.mark.parametrize("mess", MESSES)
def test_weights_of_one_site(mess):
    change, words = MESSES[mess]
    sites = [np.random.default_rng(k).choice([1.5, 2.5, 4.5], 90) for k in range(3)]
    sites[1] = change(sites[1])
    x, none = np.zeros((90, 1)), np.empty((90, 0), "U1")
    found = [*unlike_weights("abc", [SiteRows("", SCHEMA, x[:, 0], w, x, none) for w in sites])]
    assert [line.startswith(f"column 'w': {words}") for line in found] == [True] * bool(words)
