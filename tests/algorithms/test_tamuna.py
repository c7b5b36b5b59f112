"""TAMUNA: what the contract test does not say."""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun
from hypothesis import given
from hypothesis import strategies as st
from problems import q6
from q6_runs import error

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.compressors.stripes import Stripes
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import TAMUNA


@given(st.integers(2, 9), st.integers(2, 9), st.integers(1, 20))
def test_every_entry_is_in_as_many_columns_and_the_columns_are_alike(c, s, size):
    s = min(c, s)
    held = [Stripes(c, s).indices(column, size) for column in range(c)]
    assert np.bincount(np.concatenate(held), minlength=size).tolist() == [s] * size
    assert max(map(len, held)) - min(map(len, held)) <= 1


@pytest.mark.parametrize(("share", "rounds"), [(0.2, 900), (0.5, 2200)])
def test_missing_replies_leave_the_sum_whole(share, rounds):
    """A mean that divided by s, and not by those who sent, would end at 0.37."""
    rng = np.random.default_rng(5)
    strategy = TAMUNA(copies=2, participation=Sample(count=3))
    run = OpenRun(strategy, q6(), alter=lambda asked, one: [one] if rng.random() > share else [])
    run.server.max_retries = None
    run.play(rounds)
    assert run.server.counts["dropped"] + run.server.counts["retries"] > 0
    assert error(run) < 1e-15


def test_entries_that_nobody_sends_stay():
    """One client of four replies, with half of the entries: gradient steps of 1/2 to 3."""
    problem = FederatedProblem([Quadratic(np.eye(6), np.full(6, float(b))) for b in range(4)])
    strategy = TAMUNA(client_lr=0.5, communication_probability=1.0, copies=2)
    run = OpenRun(strategy, problem, alter=lambda asked, one: [one] if asked.client == 3 else [])
    column = int(run.state.columns[3])
    sent = Stripes(4, 2).indices(column, 6)
    run.play()
    expected = np.zeros(6)
    expected[sent] = 1.5
    assert run.x.tolist() == expected.tolist()
    assert 0 < len(sent) < 6
    assert not run.state.mirror.rows["h"].any()


def test_the_uplink_is_sparse():
    """Of 1000 entries each of ten clients sends 200, as plain numbers."""
    clients = [Quadratic(np.eye(1000), np.full(1000, float(j))) for j in range(10)]
    problem = FederatedProblem(clients)
    dense, sparse = (simulate(TAMUNA(copies=s), problem, 1)["uplink_bytes"][0] for s in (None, 2))
    assert 0.19 < sparse / dense < 0.24


def test_hostile_stripes_are_refused():
    stripes = Stripes(3, 2)
    good = stripes.pick(np.arange(4.0), 1)
    assert stripes.decode(good.arrays(), (4,), np.dtype(float)).dense().tolist() == (
        good.dense().tolist()
    )
    wrong = {"column": np.array(3, dtype=np.int32), "values": good.values}
    with pytest.raises(ConfigError, match="'column' must be from 0 to 2, got 3"):
        stripes.decode(wrong, (4,), np.dtype(float))
    wrong = {"column": np.array(1, dtype=np.int32), "values": np.zeros(4)}
    with pytest.raises(ConfigError, match=r"'values' has shape \(4,\)"):
        stripes.decode(wrong, (4,), np.dtype(float))
