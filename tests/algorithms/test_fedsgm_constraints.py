"""FedSGM with several constraints, each client's own or of groups; bounds in doubt at the end."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from everywhere import agrees_everywhere
from harness import OpenRun
from problems import plain, q6_objectives, q6_walls, two_groups, two_own

from flower_fedcon import Bernoulli, FederatedProblem, Sample, simulate
from flower_fedcon.clients import FedSGMClient
from flower_fedcon.compressors import RandK, TopK
from flower_fedcon.objectives import GroupLossBounds, LossBound, Quadratic
from flower_fedcon.problems import fair_heart
from flower_fedcon.strategies import FedAvg, FedProxAL, FedSGM

STEPS = {"client_lr": 0.1, "local_steps": 2}
EACH = {**STEPS, "constraints": "each"}
TWO = {**STEPS, "constraints": "groups", "groups": 2}
FEEDBACK = {"uplink": TopK(fraction=0.5), "downlink": TopK(fraction=0.5)}


def path(strategy, problem, rounds):
    run = OpenRun(strategy, problem)
    return [run.play().x.item() for _ in range(rounds)]


# --- by hand -------------------------------------------------------------------------------------


def test_hard_only_the_client_that_is_violated_most_moves_and_its_step_is_not_averaged():
    # c = .5, .2 > .25 at most: client 1 alone, 1 - .1 - .1;  c_1 = .3: .6;  c_1 = .1: both on f:
    # 1: .8v + .4 twice: .6 -> 1.104;  2: .9v - .1 twice: .296;  mean .7
    strategy = FedSGM(**EACH, tolerance=0.25, switching="hard")
    assert path(strategy, two_own(), 3) == pytest.approx([0.8, 0.6, 0.7], rel=1e-14)


def test_soft_clients_share_sigma_by_how_near_they_are():
    # c = .5, .4; 1 + 2 (c - .75) = .5, .3: sigma = .5, lambda = .3125, .1875, omega = .5625, .4375
    one = two = 1.0
    for _ in range(2):
        one -= 0.1 * (0.25 * (2 * one - 4) + 0.3125 * 1) / 0.5625
        two -= 0.1 * (0.25 * (two + 1) + 0.1875 * 3) / 0.4375
    strategy = FedSGM(**EACH, tolerance=0.75, sharpness=2.0)
    expected = 0.5625 * one + 0.4375 * two
    assert path(strategy, two_own(second=2.6), 1) == pytest.approx([expected], rel=1e-14)


def test_hard_groups_are_weighed_by_rows():
    # g_1 = 1 is violated most, and only client 1 has such rows: v - .2v twice: .64, .4096
    strategy = FedSGM(**TWO, tolerance=0.25, switching="hard")
    assert path(strategy, two_groups([0.0, 0.0]), 2) == pytest.approx([0.64, 0.4096], rel=1e-14)
    # g_0 = (3 * .5 - 1.5)/4 + 1: client 0 by 3/4, .81; client 1 by 1/4, v - .1(v - 2) twice: 1.19
    found = path(strategy, two_groups([-1.0, 10.0]), 1)
    assert found == pytest.approx([0.75 * 0.81 + 0.25 * 1.19], rel=1e-14)


def test_soft_groups_share_sigma():
    # at 1: g = 0 - .5, 1 - .8 = .2; 1 + (g - 1) = -.5, .2... with beta = 1, tolerance = 1.5:
    # 1 + (g - 1.5): g = 1, 1.2 (bounds -1, -.2): sigma = .5, .7: sigma = .7
    lam = 0.7 * np.array([0.5, 0.7]) / 1.2
    omega = 0.3 / 2 + np.array([lam[0] * 3 / 4, lam[0] / 4 + lam[1]])
    one = two = 1.0
    for _ in range(2):
        one -= 0.1 / omega[0] * (0.15 * (2 * one - 4) + lam[0] * 3 / 4 * one)
        two -= 0.1 / omega[1] * (0.15 * (two + 1) + lam[0] / 4 * (two - 2) + lam[1] * 2 * two)
    assert omega.sum() == pytest.approx(1, rel=1e-15)
    strategy = FedSGM(**TWO, tolerance=1.5, sharpness=1.0)
    expected = omega @ [one, two]
    assert path(strategy, two_groups([-1.0, -0.2]), 1) == pytest.approx([expected], rel=1e-14)


# --- the optimum ---------------------------------------------------------------------------------


@pytest.mark.parametrize("switching", ["hard", "soft"])
def test_the_optimum_of_the_active_set_up_to_the_tolerance(switching):
    """Four of six walls bind at the optimum, which linear algebra gives."""
    problem = q6_walls()
    settings = {"client_lr": 1e-3, "local_steps": 2, "tolerance": 2e-3, "switching": switching}
    run = simulate(FedSGM(**settings, constraints="each"), problem, 3000, evaluate_every=0)
    average = problem.evaluate(run.outputs["average"])
    assert average["constraint"] <= 2e-3
    for last in (run.rows[-1], average):
        assert last["constraint"] < 8e-3
        assert abs(last["residual"]) < 0.02
    assert run.x == pytest.approx(problem.optimum.x, abs=1e-2)


def test_the_theorem_holds_for_groups():
    """w_bar is within eps of F* and of the constraints, on what is not smooth: ||w - a||."""
    problem, optimum = circle(), np.array([0.5, 0.5])
    for switching in ("hard", "soft"):
        strategy = FedSGM(local_steps=2, distance=1.0, lipschitz=1.0, switching=switching,
                          output="average", constraints="groups", groups=2)  # fmt: skip
        history = simulate(strategy, problem, 300, evaluate_every=0)
        best = problem.objective(optimum)
        eps = history["tolerance"][-1]
        assert problem.objective(history.x) - best <= eps
        assert problem.constraint_values(history.x).max() <= eps


def distance(*a):
    """Return ||x - a||, whose subgradients have norm 1 at most."""

    def gradient(x):
        return (x - a) / max(np.linalg.norm(x - a), 1e-300)

    return plain(lambda x: float(np.linalg.norm(x - a)), gradient, shape=(2,))


def coordinate(k, size=2):
    """Return x_k."""
    return plain(lambda x: float(x[k]), lambda x: np.eye(size)[k], shape=(size,))


def circle() -> FederatedProblem:
    """Towards (2, 2) on average, with x_0 <= .5 and x_1 <= .5, on two clients and on one."""
    clients = [
        GroupLossBounds(distance(3, 1), [coordinate(0), None], 0.5, counts=[2, 0]),
        GroupLossBounds(distance(1, 3), [coordinate(0), coordinate(1)], 0.5, counts=[1, 4]),
    ]
    return FederatedProblem(clients, constraints="groups")


# --- the forms agree where they must -------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, FEEDBACK, {"uplink": RandK(fraction=0.5)}], ids=str)
@pytest.mark.parametrize("switching", ["hard", "soft"])
def test_one_group_with_one_row_on_each_client_is_the_mean(switching, more):
    bounds = np.linspace(-0.4, 0.4, 6)
    means = [LossBound(f, b, Quadratic(np.eye(8), np.zeros(8)))
             for f, b in zip(q6_objectives(), bounds, strict=True)]  # fmt: skip
    excess = [plain(m.constraint_value, m.constraint_gradient) for m in means]
    groups = [GroupLossBounds(m.objective, [e], 0.0, counts=[1])
              for m, e in zip(means, excess, strict=True)]  # fmt: skip
    settings = {"client_lr": 1 / 100, "local_steps": 3, "tolerance": 0.01, "switching": switching}
    found = simulate(
        FedSGM(**settings, **more, constraints="groups", groups=1),
        FederatedProblem(groups, constraints="groups"), 40)  # fmt: skip
    expected = simulate(FedSGM(**settings, **more), FederatedProblem(means), 40)
    assert 0 < sum(expected["sigma"] > 0) < 40
    assert found.x == pytest.approx(expected.x, rel=1e-9)
    assert found["constraint_estimate"] == pytest.approx(expected["constraint_estimate"], abs=1e-12)


def test_a_sharp_soft_switch_is_a_hard_one_and_idle_constraints_are_none():
    hard, soft = (
        simulate(FedSGM(**EACH, tolerance=0.25, **switch), two_own(), 60)
        for switch in ({"switching": "hard"}, {"sharpness": 1e12})
    )
    assert set(hard["sigma"]) == {0.0, 1.0}
    assert soft.x == pytest.approx(hard.x, rel=1e-12)
    idle = FederatedProblem([LossBound(f, 1e6) for f in q6_objectives()], constraints="each")
    slow = {"client_lr": 1 / 400, "local_steps": 5}
    found = simulate(FedSGM(**slow, tolerance=0.1, constraints="each"), idle, 50)
    expected = simulate(FedAvg(**slow), FederatedProblem(q6_objectives()), 50)
    assert found.x == pytest.approx(expected.x, abs=1e-13)


def test_clients_without_a_constraint_are_not_bound():
    """x^2/2 - 3x twice: 3, unless the second client demands x <= 1."""
    f = Quadratic([[1.0]], [3.0])
    problem = FederatedProblem([f, LossBound(f, 1.0, coordinate(0, size=1))], constraints="each")
    slow = FedSGM(client_lr=0.01, local_steps=1, tolerance=1e-2, constraints="each")
    assert simulate(slow, problem, 600).x == pytest.approx([1.0], abs=1.2e-2)
    alone = simulate(slow, FederatedProblem([f, f]), 600)
    assert alone.x == pytest.approx([3.0], abs=1e-2)
    assert np.isnan(alone["constraint_estimate"]).all()


# --- sampling, faults, engines -------------------------------------------------------------------


def test_a_cohort_keeps_its_own_constraints():
    """Unseen violations in rounds with weight: (N/C - 1) per round of constraints, on average."""
    problem = q6_walls()
    steps = {"client_lr": 2e-3, "local_steps": 1, "tolerance": 1e-2, "switching": "hard"}
    run = OpenRun(
        FedSGM(**steps, constraints="each", participation=Sample(count=2)), problem, seed=3
    )
    unseen, switched = np.zeros(6), 0
    for _ in range(1500):
        own = problem.constraint_values(run.x)
        run.play()
        estimate, sigma, _ = run.state.switch
        assert estimate == pytest.approx(own[run.state.used].max(), abs=1e-14)
        switched += sigma == 1
        unseen += (sigma == 0) & (own > 1e-2)
    assert 100 < switched < 1400
    assert unseen.max() <= 1.2 * 2 * switched


def test_a_cohort_without_rows_of_a_group_leaves_it_out():
    one = FedSGM(**TWO, tolerance=0.25, switching="hard", participation=Sample(count=1))
    run = OpenRun(one, two_groups([0.0, 0.0]))
    seen = set()
    for _ in range(12):
        x = run.x.item()
        run.play()
        (client,) = run.state.used
        seen.add(int(client))
        g = [x**2 / 2] if client == 0 else [x**2 / 2 - 2 * x, x**2]
        assert run.state.switch.estimate == pytest.approx(max(g), rel=1e-12)
    assert seen == {0, 1}


@pytest.mark.parametrize(
    ("strategy", "build", "engines"),
    [
        (FedSGM(**EACH, tolerance=0.3), two_own, ()),
        (FedSGM(**TWO, tolerance=0.3), lambda: two_groups([0.0, 0.0]), ()),
        (FedSGM(**EACH, **FEEDBACK, tolerance=1e-2), q6_walls, ()),
        *((FedSGM(**EACH, **more, tolerance=1e-2, participation=Sample(count=3)), fair_heart,
           ("stacked", "workers")) for more in (FEEDBACK, {"batch_size": 3})),
    ],
)  # fmt: skip
def test_engines_wires_and_resumed_runs_agree(strategy, build, engines, tmp_path):
    bits = {"rel": 0, "abs": 0}
    agrees_everywhere(strategy, build(), tmp_path, engines=engines, near=bits)


def test_a_client_that_lost_its_state_starts_again():
    run = OpenRun(FedSGM(**EACH, **FEEDBACK, tolerance=1e-2), q6_walls()).play(5)
    run.clients[2] = run.new_client(2)
    run.play(3)
    assert run.server.counts["lost"] == 1
    assert np.isfinite(run.x).all()


def test_a_weight_that_a_node_is_told_is_on_the_objective_alone():
    for strategy, problem, names in (
        (FedSGM(**EACH, tolerance=0.3), two_own(), ["sum_0"]),
        (FedSGM(**TWO, tolerance=0.3), two_groups([0.0, 0.0]), ["sum_0", "sum_1"]),
    ):
        run, x = OpenRun(strategy, problem), np.array([2.0])
        told = FedSGMClient(problem.objectives[1])
        told.configure(replace(run.server.info, factor=2.5))
        plain = run.clients[1]
        assert told.objective.value(x) == 2.5 * plain.objective.value(x)
        assert [told.answers(x)[n] for n in names] == [plain.answers(x)[n] for n in names]


# --- refusals ------------------------------------------------------------------------------------


# --- what a run leaves in doubt at its end, and says ----------------------------------------------

DOUBT = {**EACH, "tolerance": 0.01}
PLACES = (-1.0, -0.5, 0.5, 1.0)


def apart(bound: float) -> FederatedProblem:
    """(x - a)^2/2 for four a: the largest is 1/2 at least, at x = 0."""
    clients = [Quadratic([[1.0]], [a]) for a in PLACES]
    bounded = [LossBound(f, bound - a * a / 2) for f, a in zip(clients, PLACES, strict=True)]
    return FederatedProblem(bounded, constraints="each", names=["a", "b", "c", "d"])


def warnings(caplog, strategy, problem, rounds=60):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        simulate(strategy, problem, rounds, evaluate_every=0)
    found = [r.message for r in caplog.records if r.name == "flwr.strategies"]
    caplog.clear()
    return found


@pytest.mark.parametrize("participation", [None, Sample(count=1), Bernoulli(0.1)], ids=str)
@pytest.mark.parametrize("switching", ["hard", "soft"])
def test_a_bound_out_of_reach_is_said_at_the_end(caplog, participation, switching):
    chosen = {} if participation is None else {"participation": participation}
    strategy = FedSGM(**DOUBT, **chosen, switching=switching)
    told = warnings(caplog, strategy, apart(0.3))
    assert sum("least_violation" in text for text in told) == 1
    assert apart(0.3).least_violation == pytest.approx(0.2, abs=1e-6)


def test_a_bound_that_is_kept_draws_no_warning(caplog):
    assert warnings(caplog, FedSGM(**DOUBT, output="average"), apart(0.7)) == []
    assert warnings(caplog, FedProxAL(), apart(0.7), 100) == []


def test_the_augmented_lagrangian_says_so_too(caplog):
    (told,) = warnings(caplog, FedProxAL(), apart(0.3), 100)
    assert "no model satisfies the bounds, the multipliers grow" in told


class Unknown(Quadratic):
    """A loss that is never a number."""

    def value(self, x):
        return np.nan


def test_bounds_that_were_never_seen_are_named(caplog):
    f = Quadratic([[1.0]], [0.0])
    clients = [LossBound(f, 1.0), LossBound(f, 1.0, Unknown([[1.0]], [0.0])), f]
    problem = FederatedProblem(clients, constraints="each", names=["a", "b", "c"])
    (told,) = warnings(caplog, FedSGM(**DOUBT, min_replies=1), problem, 5)
    assert "no usable answer of client b came in any round" in told
