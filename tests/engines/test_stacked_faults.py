"""The stacked engine where something fails, and where local problems are solved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import agree, near, squares
from harness import OpenRun
from test_stacked import made, objectives, open_run, opened

from flower_fedcon import FederatedProblem, Full, Only, Sample, simulate
from flower_fedcon.clients.fedprox import FedProxClient
from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.round import Round
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.engines.stacked import StackedEngine
from flower_fedcon.errors import AlgorithmError, RoundError
from flower_fedcon.objectives import LeastSquares, LogisticRegression, ManyClients, Quadratic
from flower_fedcon.objectives.client_axis import Stack, together
from flower_fedcon.regularizers import L1, Zero
from flower_fedcon.solvers import AOGM, GradientDescent
from flower_fedcon.strategies import DualFL, FedAvg, FedDR, FedDualAvg, FedMiD, FedPD, FedProx


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


# --- local solvers --------------------------------------------------------------------------------


ENGINES = ["local", "stacked"]


@pytest.mark.parametrize(
    "solver", ["exact", AOGM(tolerance=1e-9), GradientDescent(steps=9)], ids=repr
)
def test_the_same_work_as_local(solver):
    problem = FederatedProblem(objectives("logistic"), regularizer=Zero())
    strategy = FedDR(Zero(), step_size=1.0, local_solver=solver, participation=Sample(count=4))
    work = dict.fromkeys(("local_iterations", "local_evaluations"), 0.02)
    found = agree(strategy, problem, 12, 1e-8, about=work)
    assert "local_unconverged" not in found


@pytest.mark.parametrize("kind", ["quadratic", "matrix"])
def test_clients_that_were_away_for_different_times(kind, monkeypatch):
    """Each is told its own numbers, which no other client's step may use; one pass serves all."""
    passes, step = [], StackedEngine._step

    def counted(self, clients, *args):
        passes.append(len(clients))
        return step(self, clients, *args)

    monkeypatch.setattr(StackedEngine, "_step", counted)
    problem = FederatedProblem(objectives(kind))
    strategy = DualFL(form="accelerated", regularization=0.1, participation=Sample(count=3))
    agree(strategy, problem, 60)
    assert sum(passes) == 180
    assert passes.count(3) >= 53  # all but rounds in which some of seven clients are new


@pytest.mark.parametrize("bad", [[2], [0, 5], list(range(7))])
def test_clients_whose_solves_fail_are_named(bad):
    """They get the error that they get alone, in every engine; the others go on."""
    parts = objectives("quadratic")
    for client in bad:
        parts[client] = Quadratic(np.diag([-9.0, 1, 1, 1, 1, 1]), np.ones(6))
    strategy = FedPD(step_size=1.0, local_solver="aogm")
    told = []
    for kind in (LocalEngine, StackedEngine):
        run = OpenRun(strategy, FederatedProblem(parts))
        engine = opened(kind, run)
        request = Round.begin(run.server).next_request()
        assert request is not None
        told.append({r.clients[0]: r for reply in engine.answer(request) for r in reply.single()})
    local, many = told
    assert local.keys() == many.keys() == set(range(7))
    for client in range(7):
        assert bool(many[client].error) == (client in bad)
        assert many[client].error == local[client].error
        if client in bad:
            assert "the local solver diverged in iteration" in many[client].error
        else:
            one, other = (each[client].payload["u"][0] for each in (many, local))
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


def test_steps_that_cannot_serve_many_are_told(monkeypatch):
    problem = FederatedProblem([LogisticRegression(np.eye(2), np.ones(2), l2=0.1)] * 3)

    def step(self, state, down):
        return {"v": self.minimize(down["w"], shift=1.0, stop=lambda x, g: False)}, None

    monkeypatch.setattr(FedProxClient, "step", step)
    with pytest.raises(AlgorithmError, match=r"needs only\(places\)"):
        simulate(FedProx(proximal=1.0), problem, 2, engine="stacked")


@pytest.mark.parametrize("engine", ENGINES)
def test_no_consensus_while_a_client_has_no_iterate(engine):
    """None of its replies was used: what it started from is nobody's iterate."""
    rng = np.random.default_rng(0)
    far = [Quadratic(np.eye(4), rng.standard_normal(4) * (9 if j else 0.01)) for j in range(3)]
    problem = FederatedProblem(far, regularizer=L1(0.1))
    strategy = FedDR(problem.regularizer, step_size=0.5, norm_bound=0.3)
    row = simulate(strategy, problem, 3, engine=engine, certificates=True).rows[-1]
    assert row["dropped"] == 6
    assert "kkt" in row
    assert "consensus" not in row


@pytest.mark.parametrize("rows", [3, 12])
def test_a_client_without_weight_is_solved_as_the_others_are(rows):
    problem = squares((rows,) * 3, 6, weights=[0, 1, 1])
    here, there = (simulate(FedProx(proximal=5.0), problem, 9, engine=e) for e in ENGINES)
    assert there.x == pytest.approx(here.x, rel=1e-12)
    assert there["local_evaluations"][-1] <= 1.3 * here["local_evaluations"][-1]


@pytest.mark.parametrize("engine", ENGINES)
def test_work_of_nothing_is_recorded_as_0(engine):
    problem = FederatedProblem(objectives("logistic")[:3], weights=[0, 1, 1])
    strategy = FedProx(proximal=2.0, participation=Only(0))
    history = simulate(strategy, problem, 3, engine=engine)
    assert history["local_iterations"].tolist() == [0, 0, 0]
