"""Methods with a local solver in the stacked engine: what local solves cost, and who fails."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import agree, squares
from harness import OpenRun
from test_stacked import objectives, opened

from flower_fedcon import FederatedProblem, Only, Sample, simulate
from flower_fedcon.clients.fedprox import FedProxClient
from flower_fedcon.core.round import Round
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.engines.stacked import StackedEngine
from flower_fedcon.errors import AlgorithmError
from flower_fedcon.objectives import LogisticRegression, Quadratic
from flower_fedcon.regularizers import L1, Zero
from flower_fedcon.solvers import AOGM, GradientDescent
from flower_fedcon.strategies import DualFL, FedDR, FedPD, FedProx

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
