"""Scaffold: what it keeps true, and what breaks it.

Its lost states are in test_conserved_sums.
"""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun
from problems import q6, two_clients
from q6_runs import STEPS, cohort, gradients, played, ten_digits

from flower_fedcon import Sample
from flower_fedcon.strategies import Scaffold


@pytest.mark.parametrize(
    ("settings", "tenth", "slack"), [(STEPS, 264, 1), (cohort(2), 261, 53)], ids=["full", "two"]
)
def test_rounds_to_ten_digits(settings, tenth, slack):
    """The first round with an error below 1e-10, and the error in the end."""
    first, last = ten_digits(Scaffold(**settings), q6(), 1000)
    assert abs(first - tenth) <= slack
    assert last < 3e-15


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_ends_with_the_gradients(option):
    run = played(Scaffold(**cohort(3), option=option), 1000)
    assert run.state.c == pytest.approx(np.zeros(8), abs=1e-13)
    assert run.state.mirror.rows["c"] == pytest.approx(gradients(run), abs=1e-12)


def test_scaffold_moves_c_by_the_share_of_all():
    """One of two: c = dc/2, where the mean over the cohort would be dc."""
    strategy = Scaffold(client_lr=0.1, local_steps=2, participation=Sample(count=1))
    seen = {OpenRun(strategy, two_clients(), seed=s).play().state.c.item() for s in range(9)}
    assert sorted(seen) == pytest.approx([-0.9, 0.95])


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_sends_one_vector_where_it_is_enough(option):
    bytes_up = [
        played(Scaffold(**STEPS, option=option, mirror=mirror), 1).server.uplink_bytes
        for mirror in (True, False)
    ]
    vector = q6().num_clients * (128 + 8 * 8)
    assert bytes_up == [vector if option == "II" else 2 * vector, 2 * vector]
