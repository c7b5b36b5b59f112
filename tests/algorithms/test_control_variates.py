"""Scaffold, CompositeFL, Scaffnew, TAMUNA and LoCoDL: what the contract test does not say."""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun
from hypothesis import given
from hypothesis import strategies as st
from pages import ROOT
from problems import plain, q6, q6_l1, two_clients
from q6_runs import PSI, STEPS, error, played

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.clients.compositefl import CompositeFLClient
from flower_fedcon.compressors import QSGD
from flower_fedcon.compressors.stripes import Stripes
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import TAMUNA, CompositeFL, LoCoDL, Scaffnew, Scaffold

# --- Scaffold and CompositeFL ---------------------------------------------------------------------


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


def test_compositefl_moves_c_as_the_paper_writes_it(monkeypatch):
    """c_i = (P - x_bar(new))/(eta_g eta K) - (1/K) sum of the round's gradients, + their mean."""
    seen = {}
    gradient = CompositeFLClient.gradient

    def watched(client, v):
        g = gradient(client, v)
        seen.setdefault(client._index, []).append(g)
        return g

    monkeypatch.setattr(CompositeFLClient, "gradient", watched)
    run = OpenRun(CompositeFL(PSI, **STEPS, server_lr=2.0), q6_l1())
    for _ in range(5):
        seen.clear()
        p = run.x
        run.play()
        common = (p - run.state.x_bar) / (2.0 * STEPS["client_lr"] * 5)
        for i, c in enumerate(run.state.mirror.rows["c"]):
            assert c == pytest.approx(common - np.mean(seen[i], axis=0), abs=1e-12)


@pytest.mark.parametrize(("rule", "vectors"), [(Full(), 6 * 1), (Sample(count=3), 3 * 2)])
def test_compositefl_sends_c_to_cohorts_alone(rule, vectors):
    run = played(CompositeFL(PSI, **STEPS, participation=rule), 4, q6_l1)
    assert run.server.downlink_bytes == 4 * vectors * (128 + 8 * 8)


def test_compositefl_has_no_floor_on_digits():
    """Clients with few labels each: FedDualAvg stops at 1.27e-2, after 8,000 rounds."""
    experiment = Experiment.load(ROOT / "sims" / "composite_digits.toml")
    problem, best = experiment.problem(), experiment.problem().optimum.value
    history = simulate(experiment.strategy(), problem, 500, evaluate_every=100)
    errors = (np.array(history["objective"]) - best) / best
    assert all(np.diff(errors) < 0)
    assert errors[2] < 1e-2
    assert errors[-1] == pytest.approx(4.34e-4, rel=0.05)


# --- Scaffnew, TAMUNA and LoCoDL ------------------------------------------------------------------


def test_scaffnew_draws_its_steps():
    run = OpenRun(Scaffnew(communication_probability=0.2), q6())
    strategy, state = run.server.strategy, run.state
    steps = [strategy.broadcast(state._replace(r=r))["steps"] for r in range(1, 4001)]
    assert min(steps) == 1
    assert np.mean(steps) == pytest.approx(5, rel=0.03)  # four standard errors are 6 %
    assert np.mean(np.array(steps) == 1) == pytest.approx(0.2, abs=0.02)


@given(st.integers(2, 9), st.integers(2, 9), st.integers(1, 20))
def test_tamuna_s_columns_are_alike_and_hold_every_entry_as_often(c, s, size):
    s = min(c, s)
    held = [Stripes(c, s).indices(column, size) for column in range(c)]
    assert np.bincount(np.concatenate(held), minlength=size).tolist() == [s] * size
    assert max(map(len, held)) - min(map(len, held)) <= 1


@pytest.mark.parametrize(("share", "rounds"), [(0.2, 900), (0.5, 2200)])
def test_missing_replies_leave_the_sum_of_tamuna_whole(share, rounds):
    """A mean that divided by s, and not by those who sent, would end at 0.37."""
    rng = np.random.default_rng(5)
    strategy = TAMUNA(copies=2, participation=Sample(count=3))
    run = OpenRun(strategy, q6(), alter=lambda asked, one: [one] if rng.random() > share else [])
    run.server.max_retries = None
    run.play(rounds)
    assert run.server.counts["dropped"] + run.server.counts["retries"] > 0
    assert error(run) < 1e-15


def test_entries_that_nobody_sends_to_tamuna_stay():
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


def test_the_uplink_of_tamuna_is_sparse():
    """Of 1000 entries each of ten clients sends 200, as plain numbers."""
    clients = [Quadratic(np.eye(1000), np.full(1000, float(j))) for j in range(10)]
    problem = FederatedProblem(clients)
    dense, sparse = (simulate(TAMUNA(copies=s), problem, 1)["uplink_bytes"][0] for s in (None, 2))
    assert 0.19 < sparse / dense < 0.24


def test_hostile_stripes_are_refused_by_tamuna():
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


def test_quantised_messages_save_locodl_bytes_and_hardly_cost_rounds():
    """Of 200 entries, each in one byte instead of eight."""
    rng = np.random.default_rng(0)
    clients = [Quadratic(np.diag(rng.uniform(1, 5, 200)), rng.normal(size=200)) for _ in range(6)]
    problem = FederatedProblem(clients)
    x = sum(f.b for f in clients) / sum(np.diag(f.Q) for f in clients)
    sent = []
    for compressor in (None, QSGD(levels=64)):
        strategy = LoCoDL(uplink_compressor=compressor)
        history = simulate(strategy, problem, 70, evaluate_every=70)
        assert np.linalg.norm(history.x - x) < 1e-9
        sent.append(history["uplink_bytes"][-1])
    assert sent[1] < 0.3 * sent[0]


def test_constants_of_locodl_that_clients_do_not_state_can_be_given():
    problem = FederatedProblem([plain(lambda x: float(x @ x), lambda x: 2 * x)] * 2, x0=np.ones(3))
    found = simulate(LoCoDL(strong_convexity=2.0, client_lr=0.4), problem, 60).x
    assert found == pytest.approx(np.zeros(3), abs=1e-12)
