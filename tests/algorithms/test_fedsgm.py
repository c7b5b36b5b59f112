"""FedSGM: the switch, the average, and what is refused; see test_fedsgm_compression, too."""

from __future__ import annotations

import logging
import math
import re

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.fedsgm import BOTH, FIVE, LONG, STEPS, TENTH, WORKSHOP, cancer, constraint
from harness import OpenRun, wire_exchange
from problems import Limited, q6, q6_limited

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.clients import FedSGMClient
from flower_fedcon.compressors import Identity, RandK, TopK
from flower_fedcon.core.round import Round
from flower_fedcon.errors import AlgorithmError, ConfigError, FedConError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems import facility
from flower_fedcon.strategies import FedSGM


def average(problem, **settings):
    """Return f and g at the average after 500 rounds."""
    x = simulate(FedSGM(**settings), problem, 500, evaluate_every=0).outputs["average"]
    return problem.objective(x), constraint(problem, x)


# --- the paper's experiment ----------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0.5, 0.1])
def test_soft_switching_violates_four_times_less_often(kept):
    violations, last = {}, {}
    for switching in ("hard", "soft"):
        settings = {**WORKSHOP, "switching": switching, "uplink": RandK(fraction=kept)}
        runs = []
        for seed in range(3):
            problem = cancer(seed=seed)
            run = simulate(FedSGM(**settings), problem, 100, seed=seed, evaluate_every=0)
            assert constraint(problem, run.outputs["average"]) <= 0.1
            runs.append(run)
        violations[switching] = np.mean([run["violations"][-1] for run in runs])
        last[switching] = np.mean([run["objective"][-1] for run in runs])
    assert 24 <= violations["hard"] <= 32
    assert 5 <= violations["soft"] <= 8
    assert 3.5 < violations["hard"] / violations["soft"] < 6
    assert 0.030 < last["hard"] < 0.034
    assert 0.047 < last["soft"] < 0.054


@pytest.mark.parametrize(
    ("switching", "f", "g"), [("hard", 0.1323, 0.0497), ("soft", 0.1393, 0.0485)]
)
def test_error_feedback_both_ways_costs_nothing(switching, f, g):
    problem = cancer(clients=20)
    exact = average(problem, **LONG, switching=switching)
    squeezed = average(problem, **LONG, **TENTH, switching=switching)
    assert exact == pytest.approx((f, g), abs=3e-4)
    assert squeezed == pytest.approx((f, g), abs=3e-4)


@pytest.mark.parametrize(
    ("switching", "size", "g"),
    [("hard", 10, 0.064), ("hard", 5, 0.068), ("soft", 10, 0.061), ("soft", 5, 0.066)],
)
def test_cohorts_are_feasible_up_to_the_error_of_the_estimate(switching, size, g):
    problem, cohort = cancer(clients=20), Sample(count=size)
    found = average(problem, **LONG, **TENTH, switching=switching, participation=cohort)
    assert found[1] == pytest.approx(g, abs=2e-3)


def test_data():
    problem = cancer()
    benign = np.vstack([f.A0 for f in problem.objectives])
    malignant = np.vstack([f.A1 for f in problem.objectives])
    assert (benign.shape, malignant.shape) == ((350, 30), (210, 30))
    assert len(np.unique(np.vstack([benign, malignant]), axis=0)) == 560  # nobody twice
    assert benign[:, 0].mean() < 0 < malignant[:, 0].mean()  # the radius
    assert problem.evaluate(np.zeros(30)) == pytest.approx(
        {"objective": np.log(2), "violation": 0.0, "constraint": np.log(2)}
    )
    assert [len(f.A1) for f in cancer(clients=20).objectives] == [10] * 20
    with pytest.raises(ConfigError, match="clients must be at most 212, got 213"):
        cancer(clients=213)


# --- the switch and the average ------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, TENTH], ids=["plain", "error feedback"])
def test_a_sharp_soft_switch_is_a_hard_one(more):
    hard, soft = (
        simulate(FedSGM(**WORKSHOP, **more, **switch), cancer(), 60)
        for switch in ({"switching": "hard"}, {"sharpness": 1e12})
    )
    assert set(hard["sigma"]) == {0.0, 1.0}
    assert soft["sigma"].tobytes() == hard["sigma"].tobytes()
    assert soft.x.tobytes() == hard.x.tobytes()
    assert soft.outputs["average"].tobytes() == hard.outputs["average"].tobytes()


def test_the_switch():
    soft = OpenRun(FedSGM(client_lr=1, local_steps=1, tolerance=0.5), cancer()).server.strategy
    assert soft.constants.sharpness == 4.0
    assert [soft.switch(z) for z in (-1, -0.25, -0.0625, 0, 1)] == [0, 0, 0.75, 1, 1]
    hard = FedSGM(client_lr=1, local_steps=1, tolerance=0.5, switching="hard")
    assert [hard.switch(z) for z in (-1, 0, 1e-300, 1)] == [0, 0, 1, 1]


def test_the_theorem_gives_step_and_tolerance():
    """N = 4, E = 2, T = 30, q = 1: Gamma = 8 + 2/8; its f(w_bar) and g(w_bar) hold."""
    problem = facility(clients=4, columns=6, distance=2.0)
    options = {"local_steps": 2, "distance": 2.0, "lipschitz": 1.0, "uplink": RandK(fraction=0.5)}
    for switching, factor in (("hard", 1), ("soft", 2)):
        strategy = FedSGM(**options, switching=switching, output="average")
        run = OpenRun(strategy, problem, 30)
        found = run.server.strategy.constants
        assert found.client_lr == pytest.approx(2 / math.sqrt(2 * 60 * 8.25), rel=1e-14)
        eps = factor * 2 * math.sqrt(2 * 8.25 / 60)
        assert (found.tolerance, found.sharpness) == pytest.approx((eps, 2 / eps), rel=1e-14)
        history = simulate(strategy, problem, 30)
        last = history.rows[-1]
        assert last["tolerance"] == found.tolerance
        assert max(last["residual"], last["constraint"]) < eps
        assert np.array_equal(history.x, history.outputs["average"])
        given = FedSGM(local_steps=2, client_lr=found.client_lr, tolerance=eps,
                       switching=switching, uplink=RandK(fraction=0.5))  # fmt: skip
        same = simulate(given, problem, 30)
        assert same.outputs["average"] == pytest.approx(history.x, abs=1e-14)
        assert not np.array_equal(same.x, history.x)


@pytest.mark.parametrize("more", [{}, BOTH], ids=["plain", "error feedback"])
def test_the_average_weighs_by_how_far_inside(more):
    problem = cancer()
    run = OpenRun(FedSGM(**WORKSHOP, **more), problem)
    models, weights, above = [], [], 0
    for _ in range(30):
        models.append(run.x)
        estimate = constraint(problem, run.x)
        weights.append(1 - run.server.strategy.switch(estimate - 0.1))
        above += estimate > 0.1
        run.play()
        report = run.server.strategy.report(run.state)
        assert report["constraint_estimate"] == pytest.approx(estimate, rel=1e-14)
        assert report["violations"] == above
        assert report["sigma"] == pytest.approx(1 - weights[-1], abs=1e-12)
    assert 0 < above < 30
    expected = np.average(models, axis=0, weights=weights)
    found = run.server.strategy.outputs(run.state)["average"]
    assert found == pytest.approx(expected, rel=1e-12)


def test_without_a_feasible_round_the_average_is_the_last_model(caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        slow = {**WORKSHOP, "client_lr": 1e-3}
        history = simulate(FedSGM(**slow), cancer(), 20)
    assert history["violations"][-1] == 20
    assert history.outputs["average"].tobytes() == history.x.tobytes()
    assert sum("above the tolerance in every round" in r.message for r in caplog.records) == 1


def test_minibatches_are_of_the_objective_alone():
    batch = FedSGM(**WORKSHOP, batch_size=7)
    history = simulate(batch, cancer(), 40)
    full = simulate(FedSGM(**WORKSHOP), cancer(), 40)
    assert history["constraint_estimate"][0] == full["constraint_estimate"][0]
    assert history.x.tobytes() != full.x.tobytes()
    assert full["sigma"][0] == 1  # nothing is drawn where the constraint's gradient is all
    first, whole = (simulate(FedSGM(**WORKSHOP, **b), cancer(), 1) for b in ({"batch_size": 7}, {}))
    assert first.x.tobytes() == whole.x.tobytes()


# --- constraints pass through --------------------------------------------------------------------


def test_weights_and_layers_keep_the_constraint():
    clients = [Limited(Quadratic(np.eye(2), np.zeros(2)), slope, 1.0) for slope in (1.0, 3.0)]
    x = np.array([1.0, 2.0])
    even = FederatedProblem(clients)
    assert even.evaluate(x)["constraint"] == pytest.approx((3 * 1 + 3 * 3) / 2 - 1)
    heavy = FederatedProblem(clients, weights=[3, 1])
    assert heavy.evaluate(x)["constraint"] == pytest.approx((3 * 3 + 1 * 9) / 4 - 1)
    assert heavy.clients[0].constraint_gradient(x).tolist() == [1.5, 1.5]
    plain = FederatedProblem([Quadratic(np.eye(2), np.zeros(2))] * 2, weights=[3, 1])
    assert not hasattr(plain.clients[0], "constraint_value")
    assert "constraint" not in plain.evaluate(x)


# --- refusals ------------------------------------------------------------------------------------


def test_objectives_without_a_constraint_are_refused_on_nodes():
    words = r"FedSGM needs objectives with a constraint.*no constraint_value\(x\): use Neyman"
    run = OpenRun(FedSGM(**FIVE), q6_limited())
    run.problem = q6()
    replies = wire_exchange(run)[0].answer(Round.begin(run.server).next_request())
    assert len(replies) == len(run.clients)
    assert all(re.search(words, reply.error) for reply in replies)


def test_a_node_takes_no_malformed_increment():
    """What a server sends is checked as a client's upload is."""
    run = OpenRun(FedSGM(**FIVE, **BOTH), q6_limited()).play()
    client, sent = run.clients[0], dict(run.state.increment)
    state = client.versions.pending
    sent["increment.indices"] = sent["increment.indices"] + 8
    with pytest.raises(FedConError, match="indices must increase strictly within 0 to 7"):
        client.model(state, sent)


@pytest.mark.parametrize("older", ["uplink", "downlink"])
def test_compressors_have_older_names(older):
    """They mean the same argument, which can be given once."""
    name, one, two = f"{older}_compressor", TopK(count=1), RandK(count=2)
    known = FedSGM(**FIVE, **{older: one}).arguments()
    assert known == FedSGM(**FIVE, **{name: one}).arguments()
    assert known[name] == one
    assert older not in known
    assert [*known.values()].count(Identity()) == 1
    for both in ({name: one, older: two}, {name: one, older: one}):
        with pytest.raises(
            ConfigError, match=f"^{name} and {older} are two names of one argument: give one of"
        ):
            FedSGM(**FIVE, **both)
    runs = [simulate(FedSGM(**FIVE, **{given: one}), q6_limited(), 10).x for given in (name, older)]
    assert runs[0].tobytes() == runs[1].tobytes()


def test_a_misspelt_answer_is_named_as_an_answer(monkeypatch):
    plain = FedSGMClient.query

    def misspelt(self, state, down):
        answer, held = plain(self, state, down)
        return {f"{name}_": value for name, value in answer.items()}, held

    monkeypatch.setattr(FedSGMClient, "query", misspelt)
    words = r"answers \['constraint_'\], and FedSGM declares \['constraint'\].*`queries` in strat"
    with pytest.raises(AlgorithmError, match=words):
        simulate(FedSGM(**STEPS, tolerance=0.1), q6_limited(), 3)
