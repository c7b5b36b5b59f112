"""What FastFedDA, CFedDA and MCFedDA keep true, and the variants that they are not."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from harness import OpenRun
from problems import l1ls, q6, q6_l1
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares, Quadratic
from flower_fedcon.problems import low_rank, sparse_regression
from flower_fedcon.regularizers import (
    L1,
    ElasticNet,
    GroupLasso,
    L2Norm,
    L2Squared,
    NuclearNorm,
    Zero,
)
from flower_fedcon.regularizers.constrained import constrained_prox, norm_ball
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import CFedDA, FastFedDA, FedDualAvg, FedMiD, MCFedDA

MU, GAMMA = 1.0, 100.0
STEPS = {"strong_convexity": MU, "damping": GAMMA, "local_steps": 5}
ALL = pytest.mark.parametrize("kind", [FastFedDA, CFedDA, MCFedDA])


@cache
def q6_l1_optimum():
    """The minimiser to rounding: proximal gradient from the reference's."""
    problem = q6_l1()
    x = problem.optimum.x
    for _ in range(2000):
        x = problem.regularizer.prox(x - problem.gradient(x) / 20, 1 / 20)
    return x


def error(x):
    return float(np.linalg.norm(x - q6_l1_optimum()))


# --- the formulas of the paper, with G, W and w_0 apart -------------------------------------------


def fast_in_full(rounds, k_steps, *, strong=MU / 2, twice=False):
    """FastFedDA as printed; `twice` counts the server's step beside the client's last one."""
    problem = q6_l1()
    w = w_0 = problem.start
    G, W = np.zeros(8), w_0

    def prox_step(g, u, t):
        b = strong + GAMMA / t
        a = (g - strong * u - GAMMA * w_0) / t
        return problem.regularizer.prox(-a / b, 1 / b)

    for r in range(1, rounds + 1):
        uploads = []
        for f in problem.objectives:
            v, g, u = w, G, W
            for k in range(1, k_steps + 1):
                t = (r - 1) * k_steps + k
                g = g + f.gradient(v)
                if k < k_steps or twice:
                    v = prox_step(g, u, t)
                    u = u + v
            uploads.append((g, u))
        G, W = np.mean(uploads, axis=0)
        w = prox_step(G, W, r * k_steps)
        W = W + w
    return w


def constrained_in_full(rounds, k_steps, radius):
    problem = q6_l1()
    psi = problem.regularizer
    w = w_0 = problem.start
    G, W = np.zeros(8), w_0

    def prox_step(g, r):
        A = r * k_steps
        b = MU / 2 + GAMMA / A
        a = g / A - MU / 2 * W / r - GAMMA * w_0 / A
        return constrained_prox(psi, -a / b, 1 / b, w_0, radius)

    for r in range(1, rounds + 1):
        uploads = []
        for f in problem.objectives:
            v, g = w, G
            for _ in range(k_steps):
                g = g + f.gradient(v)
                v = prox_step(g, r)
            uploads.append(g)
        G = np.mean(uploads, axis=0)
        w = prox_step(G, r)
        W = W + w
    return w, W / (rounds + 1)


@pytest.mark.parametrize("k_steps", [1, 5])
def test_fast_form_is_the_paper_s(k_steps):
    strategy = FastFedDA(L1(0.6), **{**STEPS, "local_steps": k_steps})
    found = simulate(strategy, q6_l1(), 150, evaluate_every=0).x
    assert found == pytest.approx(fast_in_full(150, k_steps), abs=1e-13)


@pytest.mark.parametrize("radius", [0.1, 100.0])
def test_constrained_form_is_the_paper_s(radius):
    history = simulate(CFedDA(L1(0.6), **STEPS, radius=radius), q6_l1(), 50, evaluate_every=0)
    w, average = constrained_in_full(50, 5, radius)
    assert history.x == pytest.approx(w, abs=1e-13)
    assert history.outputs["average"] == pytest.approx(average, abs=1e-13)
    assert np.abs(average - w).max() > 1e-4


@pytest.mark.parametrize("kind", [FastFedDA, CFedDA])
def test_one_step_is_centralised_dual_averaging(kind):
    problem = q6_l1()
    gradients, points, w = np.zeros(8), np.zeros(8), np.zeros(8)
    for t in range(1, 101):
        gradients, points = gradients + problem.gradient(w), points + w
        c = GAMMA + MU / 2 * t
        w = problem.regularizer.prox((MU / 2 * points - gradients) / c, t / c)
    strategy = kind(problem.regularizer, **{**STEPS, "local_steps": 1})
    assert simulate(strategy, problem, 100).x == pytest.approx(w, abs=1e-13)


def test_exact_at_one_step():
    for kind in (FastFedDA, CFedDA):
        strategy = kind(L1(0.6), **{**STEPS, "local_steps": 1})
        assert error(simulate(strategy, q6_l1(), 2000, evaluate_every=0).x) < 3e-14


@pytest.mark.parametrize("kind", [FastFedDA, CFedDA])
def test_several_steps_come_near_like_1_over_t(kind):
    """At 20,000 rounds they are at 2.0e-4 and 2.3e-4."""
    strategy = kind(L1(0.6), strong_convexity=MU, local_steps=5)
    early, late = (error(simulate(strategy, q6_l1(), r, evaluate_every=0).x) for r in (1000, 3000))
    assert 2 < early / late < 3.5


def test_counting_the_server_s_point_twice_leaves_a_floor():
    """The authors' code: K + 1 points for K gradients. It stays at 1.5e-2, and 2.9e-3 for K = 5."""
    assert error(fast_in_full(1000, 1, twice=True)) == pytest.approx(1.47e-2, rel=0.01)
    assert error(fast_in_full(2000, 5, twice=True)) == pytest.approx(3.75e-3, rel=0.01)
    assert error(fast_in_full(2000, 5)) < 1.6e-3


def test_all_of_mu_is_another_method():
    assert error(fast_in_full(200, 1, strong=MU)) == pytest.approx(9.7e-4, rel=0.01)
    assert error(fast_in_full(200, 1)) == pytest.approx(3.85e-4, rel=0.01)


@ALL
def test_who_is_sampled_does_not_matter_among_equals(kind):
    one = q6().objectives[0]
    problem = FederatedProblem([one] * 5, regularizer=L1(0.6))
    full, sampled = (
        simulate(kind(L1(0.6), **STEPS, participation=rule), problem, 40).x
        for rule in (None, Sample(count=2))
    )
    assert sampled == pytest.approx(full, abs=1e-14)


# --- the ball -------------------------------------------------------------------------------------


def split_solution(fun, jac, weight, center, radius):
    """Minimise fun + weight ||.||_1 over an l1 ball by SLSQP, every |.| split into two parts."""
    d = center.size

    def parts(u):
        p, q, r, s = u.reshape(4, d)
        return p, q, r, s

    def value(u):
        p, q, _, _ = parts(u)
        return fun(p - q) + weight * (p + q).sum()

    def slope(u):
        p, q, _, _ = parts(u)
        g = jac(p - q)
        return np.concatenate([g + weight, weight - g, np.zeros(2 * d)])

    eye = np.eye(d)
    linked = np.hstack([eye, -eye, -eye, eye])  # p - q - center = r - s
    budget = np.concatenate([np.zeros(2 * d), -np.ones(2 * d)])
    found = minimize(
        value,
        np.concatenate([np.maximum(center, 0), np.maximum(-center, 0), np.zeros(2 * d)]),
        jac=slope,
        method="SLSQP",
        bounds=[(0, None)] * (4 * d),
        constraints=[
            {"type": "eq", "fun": lambda u: linked @ u - center, "jac": lambda u: linked},
            {"type": "ineq", "fun": lambda u: budget @ u + radius, "jac": lambda u: budget},
        ],
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    p, q, _, _ = parts(found.x)
    return p - q


@pytest.mark.parametrize("seed", range(6))
def test_constrained_prox_of_l1_against_a_solver(seed):
    rng = np.random.default_rng(seed)
    v, center = 2 * rng.standard_normal(8), rng.standard_normal(8) * (rng.random(8) < 0.7)
    weight, step, radius = rng.uniform(0.1, 1), rng.uniform(0.3, 2), rng.uniform(0.2, 2)
    found = constrained_prox(L1(weight), v, step, center, radius)
    expected = split_solution(
        lambda x: ((x - v) ** 2).sum() / (2 * step),
        lambda x: (x - v) / step,
        weight,
        center,
        radius,
    )
    assert np.abs(found - center).sum() == pytest.approx(radius, rel=1e-14)
    assert np.abs(found - expected).max() < 2e-6


def test_constrained_prox_at_its_edges():
    v, center = np.array([3.0, -2.0, 0.5, 0.0]), np.array([1.0, 1.0, -1.0, 0.0])
    psi = L1(0.5)
    free = psi.prox(v, 1.0)
    reach = float(np.abs(free - center).sum())
    assert (constrained_prox(psi, v, 1.0, center, reach) == free).all()
    assert constrained_prox(psi, v, 1.0, center, reach * (1 - 1e-15)) == pytest.approx(free)
    assert constrained_prox(psi, v, 1.0, center, 1e-12) == pytest.approx(center, abs=2e-12)
    # an entry whose way to its center crosses 0 rests there: theta from 1/2 on both sides of it
    crossing = constrained_prox(psi, np.array([-2.0]), 1.0, np.array([2.0]), 2.0)
    assert crossing == pytest.approx([0.0], abs=1e-15)
    # without a weight it is the projection
    flat = constrained_prox(L1(0.0), v, 1.0, center, 2.0)
    assert flat == pytest.approx(center + L1Ball(2.0).project(v - center), abs=1e-14)
    single = constrained_prox(psi, v.astype(np.float32), 1.0, center.astype(np.float32), 2.0)
    assert single.dtype == np.float32
    assert single == pytest.approx(constrained_prox(psi, v, 1.0, center, 2.0), abs=1e-6)
    stacked = constrained_prox(psi, v.reshape(2, 2), 1.0, center.reshape(2, 2), 2.0)
    assert (stacked.ravel() == constrained_prox(psi, v, 1.0, center, 2.0)).all()


def test_constrained_prox_of_a_squared_norm():
    """psi plus the quadratic is round: its minimiser in the ball is a projection."""
    rng = np.random.default_rng(0)
    v, center = 3 * rng.standard_normal(5), rng.standard_normal(5)
    found = constrained_prox(L2Squared(0.7), v, 2.0, center, 0.4)
    middle = v / (1 + 2.0 * 0.7)
    expected = center + 0.4 * (middle - center) / np.linalg.norm(middle - center)
    assert found == pytest.approx(expected, abs=1e-13)


def test_dykstra_and_the_exact_prox_agree():
    from flower_fedcon.regularizers.constrained import _dykstra

    rng = np.random.default_rng(1)
    for _ in range(50):
        v, center = 3 * rng.standard_normal(6), rng.standard_normal(6)
        psi, radius = L1(rng.uniform(0, 2)), rng.uniform(0.05, 3)
        exact = constrained_prox(psi, v, 0.8, center, radius)
        if np.abs(psi.prox(v, 0.8) - center).sum() > radius:
            found = _dykstra(psi, norm_ball(psi, radius), v, 0.8, center)
            assert found == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize(
    ("psi", "shape"),
    [(L2Norm(0.7), (6,)), (GroupLasso(0.5, 2), (6,)), (NuclearNorm(0.5), (4, 3))],
)
def test_constrained_prox_of_other_norms(psi, shape):
    """No feasible point near the solution is better, however near."""
    rng = np.random.default_rng(2)
    for _ in range(10):
        v, center = 3 * rng.standard_normal(shape), rng.standard_normal(shape)
        ball = norm_ball(psi, rng.uniform(0.1, 2))

        def value(w, v=v):
            return psi.value(w) + ((w - v) ** 2).sum() / 1.6

        found = constrained_prox(psi, v, 0.8, center, ball.radius)
        assert ball.excess(found - center) < 1e-12
        once = center + ball.project(psi.prox(v, 0.8) - center)
        assert value(found) <= value(once)
        for size in 10.0 ** rng.uniform(-6, 0, 100):
            near = found + size * rng.standard_normal(shape)
            near = center + ball.project(near - center)
            assert value(near) >= value(found) - 1e-11


def ball_problem():
    """Q6 from a start away from 0, where the prox and the ball pull apart."""
    start = np.array([0.3, -0.2, 0.1, 0.0, 0.2, 0.0, -0.1, 0.1])
    return FederatedProblem(list(q6().objectives), regularizer=L1(0.6), x0=start)


def test_a_small_ball_against_a_solver():
    problem, radius = ball_problem(), 0.4
    strategy = CFedDA(problem.regularizer, strong_convexity=MU, local_steps=1, radius=radius)
    run = OpenRun(strategy, problem)
    for _ in range(1500):
        run.play()
        assert np.abs(run.x - problem.x0).sum() <= radius * (1 + 1e-12)
    expected = split_solution(
        lambda x: problem.objective(x) - problem.regularizer(x),
        problem.gradient,
        0.6,
        problem.start,
        radius,
    )
    assert np.abs(expected - problem.optimum.x).sum() > 0.3
    assert run.x == pytest.approx(expected, abs=1e-6)
    assert problem.objective(run.x) <= problem.objective(expected) + 1e-9


def test_a_projection_after_the_prox_is_another_point(monkeypatch):
    """The authors' code; exact only where the ball is inactive."""
    problem, radius = ball_problem(), 0.4
    strategy = CFedDA(problem.regularizer, strong_convexity=MU, local_steps=1, radius=radius)
    right = simulate(strategy, problem, 500, evaluate_every=0).x

    def projected(psi, v, step, center, radius):
        return center + L1Ball(radius).project(psi.prox(v, step) - center)

    monkeypatch.setattr("flower_fedcon.solvers.dual_averaging.constrained_prox", projected)
    wrong = simulate(strategy, problem, 500, evaluate_every=0).x
    assert problem.objective(wrong) > problem.objective(right) + 1e-3


def test_without_a_ball_and_with_a_huge_one():
    problem = ball_problem()
    free, huge = (
        simulate(CFedDA(L1(0.6), **STEPS, radius=radius), problem, 60) for radius in (None, 1e9)
    )
    assert free.x.tobytes() == huge.x.tobytes()
    assert free["downlink_bytes"][-1] < huge["downlink_bytes"][-1]


# --- stages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [None, 0.2])
def test_one_stage_is_cfedda_bit_for_bit(radius):
    problem = ball_problem()
    common = {**STEPS, "participation": Sample(count=3)}
    plain = simulate(CFedDA(L1(0.6), **common, radius=radius), problem, 50)
    staged = simulate(MCFedDA(L1(0.6), **common, stages=[(1, radius, 20)]), problem, 50)
    assert staged.x.tobytes() == plain.x.tobytes()
    assert staged.outputs["average"].tobytes() == plain.outputs["average"].tobytes()


def test_a_stage_is_cfedda_from_the_last_one_s_model():
    problem = q6_l1()
    stages = [(4.0, 0.1, 15), (2.0, math.inf, 10), (1.0, 0.3, 5)]
    found = simulate(MCFedDA(L1(0.6), **STEPS, stages=stages), problem, 42).x
    x = problem.start
    for multiple, radius, rounds in [(4.0, 0.1, 15), (2.0, None, 10), (1.0, 0.3, 17)]:
        part = FederatedProblem(list(problem.objectives), regularizer=L1(0.6), x0=x)
        x = simulate(CFedDA(L1(0.6 * multiple), **STEPS, radius=radius), part, rounds).x
    assert found.tobytes() == x.tobytes()


@pytest.mark.parametrize(("rounds", "lengths"), [(80, [10, 10, 60]), (5, [1, 1, 3])])
def test_default_stages(rounds, lengths):
    problem = q6_l1()
    run = OpenRun(MCFedDA(L1(0.6), strong_convexity=MU, local_steps=2), problem, rounds)
    seen = []
    for _ in range(rounds):
        seen.append(run.server.strategy.broadcast(run.state)["multiple"])
        run.play()
    assert [seen.count(multiple) for multiple in (4.0, 2.0, 1.0)] == lengths
    assert seen == sorted(seen, reverse=True)


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "multiple"), [(FastFedDA, 5), (CFedDA, 15), (MCFedDA, 15)])
def test_damping_comes_from_the_handshake(kind, multiple):
    problem = q6_l1()
    strategy = kind(L1(0.6), strong_convexity=MU, local_steps=3)
    smoothness = max(f.smoothness for f in problem.objectives)
    given = kind(L1(0.6), strong_convexity=MU, local_steps=3, damping=multiple * smoothness)
    found, expected = (simulate(s, problem, 20).x for s in (strategy, given))
    assert found.tobytes() == expected.tobytes()
    assert strategy.damping is None  # the caller's object stays as it is

    class Unknown:
        shape = (8,)
        value, gradient = problem.objectives[0].value, problem.objectives[0].gradient

    with pytest.raises(ConfigError, match=f"is unknown: give damping, about {multiple} L"):
        simulate(strategy, FederatedProblem([Unknown()], regularizer=L1(0.6)), 1)


@pytest.mark.parametrize("psi", [Zero(), ElasticNet(1.0, 1.0), L1Ball(1.0), L1([1.0, 2.0])])
def test_radius_needs_a_norm(psi):
    with pytest.raises(ConfigError, match="a radius needs a regularizer with a norm ball"):
        CFedDA(psi, **STEPS, radius=1.0)
    with pytest.raises(ConfigError, match="or leave the radius out"):
        MCFedDA(psi, **STEPS, stages=[(1, 1.0, 3)])
    assert CFedDA(psi, **STEPS).radius is None


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([], "must be a list of"),
        ("4, 2, 1", "must be a list of"),
        ([4, 2, 1], r"1 must be \(multiple, radius, rounds\), got 4"),
        ([(1, None)], r"1 must be \(multiple, radius, rounds\)"),
        ([(2, None, 5)], r"must end in 1.*got \[2.0\]"),
        ([(1, None, 5), (2, None, 5), (1, None, 5)], "must not increase"),
        ([(2, None, 5), (0.5, None, 5)], "must end in 1"),
        ([(0, None, 5), (1, None, 5)], "multiple 1 must be finite and > 0"),
        ([(2, -1, 5), (1, None, 5)], "radius 1 must be finite and > 0, got -1"),
        ([(2, None, 5), (1, None, 0)], "rounds 2 must be a whole number >= 1"),
    ],
)
def test_stages_that_are_refused(stages, words):
    with pytest.raises(ConfigError, match=words):
        MCFedDA(L1(0.6), **STEPS, stages=stages)


def test_radius_of_a_squared_norm():
    problem = FederatedProblem([Quadratic(np.eye(2), np.array([3.0, 4.0]))])
    strategy = CFedDA(L2Squared(0.1), strong_convexity=1.0, local_steps=1, radius=2.0)
    found = simulate(strategy, problem, 300).x
    assert found == pytest.approx([1.2, 1.6], abs=1e-9)


# --- the paper's experiment -----------------------------------------------------------------------

# ||x - truth|| after 500 and 1,000 rounds, measured with batches that are drawn afresh each step.
# Ours do not repeat a row within a local pass: up to 12 % less at 500 rounds.
TABLE = {
    "FedMiD": (3.36, 0.919),
    "FedDualAvg": (3.85, 0.812),
    "FastFedDA": (1.75, 0.522),
    "CFedDA": (2.03, 0.559),
    "MCFedDA": (1.53, 0.453),
}
FAST = ("FastFedDA", "CFedDA", "MCFedDA")


@pytest.fixture(scope="module")
def replay():
    """The metrics at rounds 250, 500 and 1,000, by algorithm."""
    problem = sparse_regression()
    psi = problem.regularizer
    common = {"participation": Sample(count=10), "batch_size": 10, "local_steps": 10}
    stages = [(4, 5000, 250), (2, 2500, 250), (1, 1250, 1500)]
    strategies = {
        "FedMiD": FedMiD(psi, client_lr=1e-3, **common),
        "FedDualAvg": FedDualAvg(psi, client_lr=1e-3, **common),
        "FastFedDA": FastFedDA(psi, strong_convexity=0.1, damping=550, **common),
        "CFedDA": CFedDA(psi, strong_convexity=0.1, damping=600, **common),
        "MCFedDA": MCFedDA(psi, strong_convexity=0.1, damping=600, stages=stages, **common),
    }
    rows = {}
    with threadpool_limits(1):  # small products: more threads are slower
        for name, strategy in strategies.items():
            found = simulate(strategy, problem, 1000, evaluate_every=250).rows
            rows[name] = {int(row["round"]): row for row in found}
    return rows


@pytest.mark.parametrize("name", TABLE)
def test_sparse_regression_table(replay, name):
    for rounds, value in zip((500, 1000), TABLE[name], strict=True):
        assert replay[name][rounds]["error"] == pytest.approx(value, rel=0.15)


def test_sparse_regression_claims(replay):
    def by(rounds, metric):
        return {name: row[rounds][metric] for name, row in replay.items()}

    errors = by(500, "error")
    assert sorted(errors, key=errors.get) == sorted(TABLE, key=lambda name: TABLE[name][0])
    late, f1 = by(1000, "error"), by(1000, "f1")
    for name in FAST:
        assert late[name] < 0.6
        assert f1[name] > 0.99
    assert min(late["FedMiD"], late["FedDualAvg"]) > 0.7
    early = by(250, "f1")
    others = max(value for name, value in early.items() if name != "MCFedDA")
    assert early["MCFedDA"] > others + 0.1


def test_sparse_regression_data():
    problem = sparse_regression(clients=2, rows=4000, columns=4, nonzeros=2, seed=3)
    for f in problem.objectives:
        correlation = np.cov(f.A.T)
        expected = 0.5 ** np.abs(np.subtract.outer(range(4), range(4)))
        assert correlation == pytest.approx(expected, abs=0.08)
        assert np.std(f.b - f.A[:, :2].sum(axis=1)) == pytest.approx(1, abs=0.05)
    assert np.abs(problem.objectives[0].A.mean(axis=0)).max() > 0.3  # each client's own mean
    metrics = {name: metric(np.array([1.0, 0, 0.5, 0])) for name, metric in problem.metrics.items()}
    assert metrics["error"] == pytest.approx(math.sqrt(1.25))
    assert metrics["error_l1"] == 1.5
    assert metrics["f1"] == metrics["f1_exact"] == metrics["density"] == 0.5
    near = np.array([1.0, 1, 0.009, 0])  # the third entry counts as found in f1_exact alone
    assert problem.metrics["f1"](near) == 1.0
    assert problem.metrics["f1_exact"](near) == pytest.approx(2 * 2 / (3 + 2))
    x = np.array([1.0, 0, 0.5, 0])
    residuals = np.concatenate([f.A @ x - f.b for f in problem.objectives])
    assert metrics["mse"] == pytest.approx(np.mean(residuals**2))
    other = sparse_regression(clients=2, rows=5, columns=4, nonzeros=2, seed=4)
    assert not np.array_equal(other.x0, problem.x0)
    assert not sparse_regression(clients=2, rows=5, columns=4, nonzeros=2, start=0.0).x0.any()
    with pytest.raises(ConfigError, match="start must be"):
        sparse_regression(columns=4, nonzeros=2, start=-1.0)
    with pytest.raises(ConfigError, match="nonzeros must be at most columns = 4, got 5"):
        sparse_regression(columns=4, nonzeros=5)


def test_low_rank_data():
    problem = low_rank(clients=3, rows=4000, size=3, rank=2, seed=1)
    truth = np.diag([1.0, 1.0, 0.0])
    for f in problem.objectives:
        A, b = np.reshape(f.A, (4000, 3, 3)), f.b
        assert np.std(b - A[:, 0, 0] - A[:, 1, 1]) == pytest.approx(1, abs=0.05)
        assert A.std(axis=0) == pytest.approx(np.ones((3, 3)), abs=0.06)
    assert problem.metrics["error"](truth + np.eye(3)) == pytest.approx(math.sqrt(3))
    assert problem.metrics["rank"](truth) == 2.0
    assert problem.metrics["mse"](truth) == pytest.approx(1, abs=0.05)
    doubled = low_rank(clients=3, rows=5, size=3, rank=2, start=2.0)
    single = low_rank(clients=3, rows=5, size=3, rank=2)
    np.testing.assert_allclose(doubled.x0, 2 * single.x0)
    with pytest.raises(ConfigError, match="rank must be at most size = 3, got 4"):
        low_rank(size=3, rank=4)


def test_least_squares_without_strong_convexity():
    """Each client has 10 rows for 50 unknowns: mu is the restricted modulus, guessed."""
    problem = l1ls(l1=0.5)
    assert isinstance(problem.objectives[0], LeastSquares)
    strategy = FastFedDA(problem.regularizer, strong_convexity=0.1, local_steps=1)
    x = simulate(strategy, problem, 3000, evaluate_every=0).x
    assert np.linalg.norm(x - problem.optimum.x) < 1e-6
