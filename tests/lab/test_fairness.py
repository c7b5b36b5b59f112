"""Bounds on losses: the objectives, the problems with their optima, and what methods reach."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from harness import ran, refusal
from scipy.optimize import minimize, minimize_scalar

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives import (
    GroupLossBounds,
    LossBound,
    PrivateObjective,
    Quadratic,
    TanhNetwork,
)
from flower_fedcon.objectives.foreign import as_seen
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.problems import fair_digits, fair_heart, neyman_pearson
from flower_fedcon.problems.mismatch import kept_constraints
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedProxAL, FedSGM

SIMS = Path(__file__).parents[2] / "sims"
hearts, digits = cache(fair_heart), cache(fair_digits)


# --- the problems --------------------------------------------------------------------------------


def test_heart_has_the_optimum_of_the_dual_problem():
    """One hospital's bound binds: F* = max over mu of min F + mu (f_va - bound)."""
    problem, last = hearts(bound=0.43), hearts(bound=0.43).clients[3]

    def least(mu):
        return minimize(
            lambda x: problem.objective(x) + mu * last.constraint_value(x),
            np.zeros(19),
            jac=lambda x: problem.gradient(x) + mu * last.constraint_gradient(x),
            options={"gtol": 1e-9},
        ).fun

    dual = minimize_scalar(lambda mu: -least(mu), bounds=(0, 5), method="bounded",
                           options={"xatol": 1e-6})  # fmt: skip
    assert problem.optimum.value == pytest.approx(-dual.fun, abs=1e-9)
    assert problem.optimum.residual < 1e-6
    values = problem.constraint_values(problem.optimum.x)
    assert values.argmax() == 3
    assert abs(values[3]) < 1e-10
    assert problem.evaluate(problem.optimum.x)["excess"] < 1e-9


def test_heart_has_a_least_bound():
    problem = hearts()
    losses = problem.constraint_values

    found = minimize(
        lambda z: z[-1], np.r_[np.zeros(19), 1.0], method="SLSQP",
        constraints={"type": "ineq", "fun": lambda z: z[-1] - losses(z[:-1])},
        options={"ftol": 1e-10, "maxiter": 500})  # fmt: skip
    assert found.fun + 0.42 == pytest.approx(0.41795, abs=1e-5)
    assert problem.least_violation == pytest.approx(found.fun, abs=1e-7)
    with pytest.raises(FedConError, match=r"no model satisfies .* by at least about 0\.00795"):
        _ = fair_heart(bound=0.41).optimum
    free = minimize(lambda x: problem.objective(x), np.zeros(19), jac=problem.gradient).x
    assert losses(free) + 0.42 == pytest.approx([0.360, 0.435, 0.308, 0.455], abs=1e-3)


def test_the_least_violation_is_where_two_parabolas_cross():
    curves = [(2.0, 1.0, 0.3), (1.0, -2.0, 0.1), (3.0, 0.1, 0.5)]  # q/2 x^2 - b x - bound
    x = np.linspace(-4, 4, 800_001)
    grid = np.max([q / 2 * x**2 - b * x - bound for q, b, bound in curves], axis=0).min()
    crossing = 3 - np.sqrt(9.4)  # x^2 - x - .3 = x^2/2 + 2x - .1
    expected = crossing**2 - crossing - 0.3
    assert grid == pytest.approx(expected, abs=1e-4)
    clients = [LossBound(Quadratic([[q]], [b]), bound) for q, b, bound in curves]
    problem = FederatedProblem(clients, constraints="each")
    assert problem.least_violation == pytest.approx(expected, abs=1e-9)
    more = abs(problem.least_violation) + 1e-3
    raised = [LossBound(f.objective, f.bound + more) for f in clients]
    assert FederatedProblem(raised, constraints="each").optimum.residual < 1e-5
    with pytest.raises(ConfigError, match="and this problem has none"):
        _ = FederatedProblem([f.objective for f in clients]).least_violation


def test_without_an_optimum_a_run_keeps_its_result():
    """No model keeps 0.3, so that F* cannot be found: what needs it is left out."""
    settings = {"client_lr": 0.3, "local_steps": 1, "tolerance": 0.01, "constraints": "each"}
    run = simulate(FedSGM(**settings), fair_heart(bound=0.3), 2)
    assert run["worst_loss"][-1] == pytest.approx(0.3 + run["constraint"][-1], rel=1e-12)
    assert "excess" not in run.rows[-1]


class Wave:
    """cos x, which is not convex and does not say so."""

    shape = (1,)

    def value(self, x):
        return float(np.cos(x[0]))

    def gradient(self, x):
        return -np.sin(x)


def test_what_is_not_convex_has_no_certified_optimum():
    rng = np.random.default_rng(0)
    network = TanhNetwork(rng.normal(size=(20, 4)), rng.integers(0, 3, 20), 3, 5)
    start = [0.3 * rng.normal(size=shape) for shape in network.shape]
    zeros = GroupLossBounds(network, [network], 0.5)
    for objective, kind, x0 in (
        (LossBound(network, 0.5), "each", start),
        (zeros, "groups", start),
        (LossBound(Quadratic(np.eye(1), np.ones(1)), 0.5, Wave()), "each", None),
        (LossBound(Wave(), 0.5, Quadratic(np.eye(1), np.ones(1))), "each", None),
    ):
        problem = FederatedProblem([objective] * 2, constraints=kind, weights=[1, 2], x0=x0)
        with pytest.raises(ConfigError, match=r"not convex, so no solver certifies a minimum"):
            _ = problem.optimum


def test_a_file_is_told_once_how_to_do_without_the_optimum(run_command):
    file = str(SIMS / "fairness_heart.toml")
    told = " ".join(refusal(run_command, "run", file, "--set", "problem.bound=0.3").split())
    assert (
        "no model satisfies these bounds: every model exceeds one of them by at least about 0.118"
        in told
    )
    assert told.count("reference") == 1
    assert "--set problem.reference=false" in told
    changed = ["--set", "problem.bound=0.3", "--set", "problem.reference=false"]
    out = ran(run_command, "run", file, *changed, "--rounds", "2", "--run-dir", "run")
    assert "directory: run" in out


def test_weights_are_on_the_mean_alone():
    even, patients = hearts(), fair_heart(weighting="examples")
    x = np.linspace(-0.3, 0.3, 19)
    assert patients.constraint_values(x) == pytest.approx(even.constraint_values(x), rel=1e-14)
    assert patients.objective(x) != pytest.approx(even.objective(x), rel=1e-3)
    rows = [f.num_examples for f in even.clients]
    losses = even.constraint_values(x) + 0.42
    assert patients.objective(x) == pytest.approx(np.average(losses, weights=rows), rel=1e-12)


def test_a_class_has_its_mean_over_all_rows_of_all_clients():
    problem, x = digits(), 0.1 * np.random.default_rng(0).standard_normal((65, 10))
    A = np.concatenate([f.A for f in problem.clients])
    y = np.concatenate([f.targets for f in problem.clients])
    scores = A @ x
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]
    expected = [losses[y == k].mean() - 0.4 for k in range(10)]
    assert problem.constraint_values(x) == pytest.approx(expected, rel=1e-12)
    record = problem.evaluate(x)
    assert record["constraint"] == pytest.approx(max(expected), rel=1e-12)
    assert record["worst_loss"] == pytest.approx(max(expected) + 0.4, rel=1e-12)
    by_client = fair_digits(groups="clients")
    first = problem.clients[0]
    own = losses[: first.num_examples].mean() - 0.4
    assert by_client.constraint_values(x)[0] == pytest.approx(own, rel=1e-12)
    assert (problem.constraints, by_client.constraints) == ("groups", "each")


def test_gradients_of_the_constraints_are_those_of_their_values():
    rng = np.random.default_rng(1)
    for problem in (hearts(), digits(), fair_digits(groups="clients"), neyman_pearson(clients=3)):
        x, step = rng.standard_normal((2, *problem.layout.shape)) * 0.1
        slopes = problem._functional.gradients(x)
        h = 1e-6
        change = problem.constraint_values(x + h * step) - problem.constraint_values(x - h * step)
        expected = change / (2 * h)
        assert (slopes * step).reshape(len(slopes), -1).sum(axis=1) == pytest.approx(
            expected, rel=1e-5, abs=1e-8
        )


# --- what methods reach --------------------------------------------------------------------------


def test_proximal_augmented_lagrangian_finds_the_optimum_of_the_fair_problem():
    problem = hearts()
    assert problem.optimum.residual < 1e-5  # asked for first: "excess" is recorded from then on
    run = simulate(FedProxAL(penalty=100.0, coupling=0.3), problem, 170, evaluate_every=0)
    assert run["excess"][-1] < 1e-4
    assert run.x == pytest.approx(problem.optimum.x, abs=4e-2)


@pytest.mark.parametrize("switching", ["hard", "soft"])
def test_switching_keeps_every_hospital_within_the_tolerance(switching):
    problem = hearts()
    assert problem.optimum.residual < 1e-5
    settings = {"client_lr": 0.1, "local_steps": 5, "tolerance": 1e-3, "switching": switching}
    strategy = FedSGM(**settings, **kept_constraints(FedSGM, problem), output="average")
    run = simulate(strategy, problem, 400, evaluate_every=0)
    assert run["constraint"][-1] <= 1e-3
    assert abs(run["residual"][-1]) < 1.5e-3


@pytest.mark.parametrize("switching", ["hard", "soft"])
def test_switching_keeps_every_class_within_the_tolerance(switching):
    problem = digits()
    assert problem.optimum.residual < 1e-4  # "residual" is recorded from then on
    settings = {"client_lr": 0.1, "local_steps": 1, "tolerance": 0.02, "switching": switching}
    strategy = FedSGM(**settings, **kept_constraints(FedSGM, problem), output="average")
    run = simulate(strategy, problem, 800, evaluate_every=0)
    assert run["constraint"][-1] <= 0.02
    assert run["residual"][-1] < 0.04
    free = digits(bound=10.0)
    assert free.optimum.value == pytest.approx(0.73944, abs=1e-5)
    assert free.constraint_values(free.optimum.x).max() + 10 == pytest.approx(0.6946, abs=1e-3)


# --- the objectives ------------------------------------------------------------------------------


def test_a_bounded_objective_is_else_the_one_it_bounds():
    f = Quadratic(2 * np.eye(2), np.ones(2))
    bounded = LossBound(f, 0.5)
    assert (bounded.smoothness, bounded.shape, bounded.value(np.ones(2))) == (2.0, (2,), 0.0)
    assert not hasattr(bounded, "batch_gradient") or hasattr(f, "batch_gradient")

    class Own:
        shape = (2,)

        def value(self, x):
            x += 1
            return 0.0

        def gradient(self, x):
            return [0.0, 0.0]

    x = np.zeros(2)
    seen = as_seen(LossBound(Own(), 0.5), FederatedProblem([f]).layout)
    assert seen.constraint_value(x) == -0.5
    assert x.tolist() == [0.0, 0.0]  # an objective of the user's own cannot change it


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f: LossBound(f, np.inf), r"LossBound\(bound\) must be finite, got inf"),
        (lambda f: LossBound(None, 1.0), r"LossBound needs an objective with value\(x\), got None"),
        (
            lambda f: LossBound(f, 1.0, 7),
            r"LossBound\(loss\) needs an objective with value\(x\), got 7",
        ),
        (
            lambda f: LossBound(LossBound(f, 1.0), 2.0),
            r"objective's own constraint \(constraint_value",
        ),
        (lambda f: GroupLossBounds(f, [f, 7], 1.0), r"GroupLossBounds\(losses\) needs .*got 7"),
        (lambda f: GroupLossBounds(f, [], 1.0), "for each of m >= 1 groups.*got 0 losses and 1"),
        (lambda f: GroupLossBounds(f, [f] * 3, [1, 2]), "got 3 losses and 2 bounds"),
        (
            lambda f: GroupLossBounds(f, [f, None], 1, counts=[1, 1]),
            "> 0 for a loss and 0 for None, got",
        ),
        (lambda f: GroupLossBounds(f, [f, f], 1, counts=[1]), r"must be 2 numbers.*got \[1\]"),
        (lambda f: GroupLossBounds(f, [f], np.nan), "has a value that is not finite"),
    ],
)
def test_bounds_that_cannot_be_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make(Quadratic(np.eye(1), np.zeros(1)))


@pytest.mark.parametrize(
    ("make", "constraints", "words"),
    [
        (
            lambda f: [GroupLossBounds(f, [f], 0.3)] * 2,
            "each",
            r"constraint_sums\) of clients a, b",
        ),
        (lambda f: [GroupLossBounds(f, [f], 0.3), f], "mean", 'of client a: give .*="groups"'),
        (lambda f: [LossBound(f, 0.3)] * 2, "groups", r'value\) of clients a, b: .*="each" or'),
        (lambda f: [LossBound(f, 0.3), f], "mean", r"all 2 clients or of none, got .*client a"),
        (lambda f: [f, f], "each", "of at least one client, got none"),
        (lambda f: [f, f], "groups", "needs constraint_sums of every objective, client a"),
        (
            lambda f: [GroupLossBounds(f, [f, f], bound) for bound in ([0.5, 0.6], [0.5, 0.7])],
            "groups",
            "the group 1 needs one bound for all clients, got 0.6 of client a and 0.7 of client b",
        ),
    ],
)
def test_no_bound_is_left_out_or_averaged_in_silence(make, constraints, words):
    clients = make(Quadratic(np.eye(1), np.zeros(1)))
    with pytest.raises(ConfigError, match=words):
        FederatedProblem(clients, constraints=constraints, names=["a", "b"])


def test_a_client_without_rows_of_a_group_has_no_say_in_its_bound():
    f = Quadratic(np.eye(1), np.ones(1))
    clients = [GroupLossBounds(f, [f, f], 0.5), GroupLossBounds(f, [f, None], [0.5, 0.9])]
    problem = FederatedProblem(clients, constraints="groups")
    assert problem.constraint_values(np.zeros(1)).tolist() == [-0.5, -0.5]


def test_private_examples_have_no_bounded_loss():
    dp = ExampleDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    f = neyman_pearson(clients=3).objectives[0]
    with pytest.raises(ConfigError, match="would reveal the loss of private examples"):
        LossBound(PrivateObjective(f, dp), 1.0)


@pytest.mark.parametrize("settings", [{"bound": 0}, {"groups": "rows"}, {"l2": 0.0}], ids=str)
def test_problems_refuse(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        fair_digits(**settings)


def test_no_solver_is_at_hand_beside_a_regularizer():
    f = LossBound(Quadratic(np.eye(1), np.ones(1)), 0.5)
    problem = FederatedProblem([f], constraints="each", regularizer=L1(0.1))
    with pytest.raises(ConfigError, match="give optimum=, or run without F"):
        _ = problem.optimum
