"""The stacked engine where something fails: bad uploads, and steps that raise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import near, squares
from harness import OpenRun
from test_stacked import made, objectives, open_run, opened

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.engines.stacked import StackedEngine
from flower_fedcon.errors import RoundError
from flower_fedcon.objectives import LeastSquares, ManyClients
from flower_fedcon.objectives.client_axis import Stack, together
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedMiD


class Faulty(StackedEngine):
    """One client's first upload of some rounds holds non-finite values."""

    bad: dict[int, int]

    def answer(self, request):
        replies = list(super().answer(request))
        if self.bad.get(request.round) in request.clients and len(request.clients) > 1:
            for reply in replies:
                mine = np.flatnonzero(np.array(reply.clients) == self.bad[request.round])
                for value in reply.payload.values():
                    value[mine] = np.nan
        return replies


@pytest.mark.parametrize("rule", [Full(), Sample(count=5)])
def test_the_gate(rule, caplog):
    """A bad upload is dropped, counted and named; that client alone is asked again."""
    settings = {"participation": rule, "min_replies": 5}
    strategy, problem = made("scaffold", objectives("quadratic"), **settings)
    calm, engine = open_run(strategy, problem)
    run = OpenRun(strategy, problem)
    faulty = opened(Faulty, run)
    client = OpenRun(strategy, problem).play(3).server.cohort[1]
    faulty.bad = {3: client}
    for _ in range(6):
        calm.round(engine)
        run.round(faulty)
    # With everyone the quorum is there without it: it is left out.
    assert run.server.counts == {"dropped": 1} | ({} if rule == Full() else {"retries": 1})
    if rule != Full():
        near(run.x, calm.x, 1e-12)
        assert run.server.uplink_bytes == calm.server.uplink_bytes
    assert f"dropped the reply of client {client}" in caplog.text


@pytest.mark.parametrize("kind", [FedMiD, FedDualAvg])
def test_a_client_that_fails_is_left_out_as_on_the_local_engine(kind, caplog):
    """An oracle refuses what one client computes in two rounds: the others go on."""
    psi, found = L1(0.1), []
    for engine in (LocalEngine, StackedEngine):
        rng = np.random.default_rng(0)
        A = together([rng.standard_normal((8, 5)) for _ in range(4)])
        A.flags.writeable = A.base.flags.writeable = False  # so that engines use it as it is
        b = rng.standard_normal((4, 8))
        problem = FederatedProblem([LeastSquares(*own) for own in zip(A, b, strict=True)])
        strategy = kind(psi, client_lr=0.05, local_steps=2)
        run = OpenRun(strategy, problem)
        clients = opened(engine, run)
        A.base.flags.writeable = A.flags.writeable = True
        good = A[2, 0, 0]
        for played in range(9):
            A[2, 0, 0] = np.nan if played in (3, 4) else good  # the objectives are views
            run.round(clients)
        assert run.server.counts == {"dropped": 2}
        assert caplog.text.count("L1 got a value that is not finite (nan)") == 2
        caplog.clear()
        found.append(run)
    near(found[0].x, found[1].x, 1e-12)
    assert found[0].acknowledged == found[1].acknowledged
    for name in ("uplink_bytes", "downlink_bytes"):
        assert getattr(found[0].server, name) == getattr(found[1].server, name), name


@pytest.mark.parametrize("many", [False, True], ids=["objectives", "one array"])
@pytest.mark.parametrize("name", ["fedfw", "scaffold", "compositefl"])
def test_a_round_that_fails_half_way_is_done_client_by_client(name, many, monkeypatch):
    """Some states are written by then, and everyone's last reply is confirmed already."""
    parts: Any = objectives("least squares")
    if many:
        A, b = (np.array([getattr(f, of) for f in parts]) for of in "Ab")
        parts = ManyClients(LeastSquares, A, b)
    strategy, problem = made(name, parts)
    expected = simulate(strategy, problem, 8).x
    monkeypatch.setattr(Stack, "models_at_once", 2 * problem.start.size)  # four parts
    plain, failed = StackedEngine._step, []

    def step(self, clients, request, *more):
        if len(clients) == 2 and request.round in (1, 4, 5) and clients[0] == 3:
            failed.append(request.round)
            raise RoundError("half way")
        return plain(self, clients, request, *more)

    monkeypatch.setattr(StackedEngine, "_step", step)
    found = simulate(strategy, problem, 8, engine="stacked")
    assert failed == [1, 4, 5]
    near(found.x, expected, 1e-12)
    assert found["dropped"][-1] == found["lost"][-1] == 0


@pytest.mark.parametrize("engine", ["stacked", "local"])
def test_many_clients_that_diverge_fill_no_log(engine, caplog):
    """What is wrong is said once in each attempt, with the number of clients; and in the error."""
    problem = FederatedProblem([LeastSquares(np.eye(2), np.ones(2))] * 40)
    strategy = FedAvg(client_lr=1e200, local_steps=4)
    words = (
        r"0 usable replies of 40.*4 attempts \(clients 0, 1, 2, 3, 4 and 35 more: 'delta' holds "
    )
    with np.errstate(all="ignore"), pytest.raises(RoundError, match=words):
        simulate(strategy, problem, 1, engine=engine, evaluate_every=0)
    lines = [m for m in caplog.messages if m.startswith("round 1: dropped the replies of clients")]
    assert len(lines) == caplog.text.count("dropped") == 4
    assert all("0, 1, 2, 3, 4 and 35 more: 'delta' holds non-finite values" in m for m in lines)


def test_of_many_reasons_to_drop_replies_ten_are_logged(caplog):
    problem = FederatedProblem([LeastSquares(np.eye(2), np.full(2, 1.0 + k)) for k in range(40)])
    strategy = FedAvg(client_lr=1.0, local_steps=1, norm_bound=20.0, min_replies=10)
    history = simulate(strategy, problem, 1)
    assert history["dropped"][-1] == caplog.text.count("dropped the reply") + 2 == 12
    assert "dropped the reply of client 28: 'delta' has norm 20.5, more than 20" in caplog.text
    assert "round 1: and more, for 2 other reasons" in caplog.text


@pytest.mark.parametrize("rule", [Full(), Sample(count=5)], ids=["full", "sampled"])
@pytest.mark.parametrize("gone", [[1, 4], list(range(7))], ids=["two", "all"])
@pytest.mark.parametrize("name", ["fedfw", "fedfwplus", "scaffold", "scaffnew", "compositefl"])
def test_clients_that_lost_their_state_come_back_as_on_the_local_engine(name, gone, rule):
    """Some of them, or everyone: a run that began on nodes goes on in this process, say."""
    if name == "scaffnew" and rule != Full():
        pytest.skip("refuses cohorts")
    strategy, problem = made(name, objectives("least squares"), participation=rule)
    found = []
    for kind in (LocalEngine, StackedEngine):
        run = OpenRun(strategy, problem)
        engine = opened(kind, run)
        for played in range(10):
            if played == 4:
                states, engine = engine.save(), opened(kind, run)
                engine.load([Versions() if j in gone else v for j, v in enumerate(states)])
            run.round(engine)
        found.append(run)
    local, stacked = found
    assert stacked.server.counts == local.server.counts
    assert local.server.counts["lost"] > 0
    near(stacked.x, local.x, 1e-12)


def test_an_error_names_the_place_in_the_model():
    """And not in the stack of the clients' models."""
    problem = squares((6,) * 3, 4, regularizer=L1(0.1))
    strategy = FedMiD(L1(0.1), client_lr=1e200, local_steps=5)
    said = []
    for engine in ("local", "stacked"):
        with np.errstate(all="ignore"), pytest.raises(RoundError) as caught:
            simulate(strategy, problem, 1, engine=engine)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert ") at (0,): has the run diverged?" in said[0]
