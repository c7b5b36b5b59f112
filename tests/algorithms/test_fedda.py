"""FastFedDA, CFedDA and MCFedDA by the paper's formulas, and the constrained prox in a ball."""

from __future__ import annotations

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.cfedda import ball_problem
from harness import OpenRun
from problems import q6_l1
from scipy.optimize import minimize

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import Quadratic
from flower_fedcon.regularizers import (
    L1,
    GroupLasso,
    L2Norm,
    L2Squared,
    NuclearNorm,
)
from flower_fedcon.regularizers.constrained import constrained_prox, norm_ball
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import CFedDA, FastFedDA, MCFedDA

MU, GAMMA = 1.0, 100.0
STEPS = {"strong_convexity": MU, "damping": GAMMA, "local_steps": 5}


# --- the formulas of the paper, with G, W and w_0 apart -------------------------------------------


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


def weighted_in_full(rounds, k_steps, q, a, gamma):
    """The weights of Remark 2.1, with G, U and their sum apart; return w and the average."""
    problem, t = q6_l1(), 0
    w = w_0 = problem.start
    G, U, total = np.zeros(8), np.zeros(8), 0.0

    def prox_step(g, u, total):
        b = MU / 2 + gamma / total
        return problem.regularizer.prox((MU / 2 * u - g + gamma * w_0) / total / b, 1 / b)

    for _ in range(rounds):
        uploads, start = [], (t, total)
        for f in problem.objectives:
            (t, total), v, g, u = start, w, G, U
            for k in range(1, k_steps + 1):
                t += 1
                alpha = (t + a) ** q
                total += alpha
                g, u = g + alpha * f.gradient(v), u + alpha * v
                if k < k_steps:
                    v = prox_step(g, u, total)
            uploads.append((g, u))
        G, U = np.mean(uploads, axis=0)
        w = prox_step(G, U, total)
    return w, U / total


@pytest.mark.parametrize(("q", "a"), [(0.0, 0.0), (1.0, 3.0), (2.0, None)])
def test_fast_form_with_weights(q, a):
    """The default is a = 2 q L/mu = 40 q and gamma = 5 L (1 + a)^q."""
    shift = 40 * q if a is None else a
    options = {"strong_convexity": MU, "local_steps": 5, "weight_power": q, "weight_shift": a}
    found = [simulate(FastFedDA(L1(0.6), **options, output=output), q6_l1(), 40, evaluate_every=0)
             for output in ("last", "average")]  # fmt: skip
    for history, expected in zip(
        found, weighted_in_full(40, 5, q, shift, 100 * (1 + shift) ** q), strict=True
    ):
        assert history.x == pytest.approx(expected, rel=1e-10, abs=1e-13)
    sent = [history["uplink_bytes"][-1] for history in found]
    assert sent[1] == 2 * sent[0]


@pytest.mark.parametrize("radius", [0.1, 100.0])
def test_constrained_form_is_the_paper_s(radius):
    history = simulate(CFedDA(L1(0.6), **STEPS, radius=radius), q6_l1(), 50, evaluate_every=0)
    w, average = constrained_in_full(50, 5, radius)
    assert history.x == pytest.approx(w, abs=1e-13)
    assert history.outputs["average"] == pytest.approx(average, abs=1e-13)
    assert np.abs(average - w).max() > 1e-4


# --- stages ---------------------------------------------------------------------------------------


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


def test_radius_of_a_squared_norm():
    objectives = [Quadratic(np.eye(2), np.array([3.0, 4.0]))]
    problem = FederatedProblem(objectives, regularizer=L2Squared(0.1))
    strategy = CFedDA(L2Squared(0.1), strong_convexity=1.0, local_steps=1, radius=2.0)
    found = simulate(strategy, problem, 300).x
    assert found == pytest.approx([1.2, 1.6], abs=1e-9)


# --- in a ball around the start -------------------------------------------------------------------


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


def test_without_a_ball_and_with_a_huge_one():
    problem = ball_problem()
    free, huge = (
        simulate(CFedDA(L1(0.6), **STEPS, radius=radius), problem, 60) for radius in (None, 1e9)
    )
    assert free.x.tobytes() == huge.x.tobytes()
    assert free["downlink_bytes"][-1] < huge["downlink_bytes"][-1]


# --- bounds ---------------------------------------------------------------------------------------
#
# The paper's constants were not available, so these are derived, for K = 1 and everyone present.
# w_{t+1} minimises a model that is c_t = gamma + mu t/2 strongly convex, and the models' least
# values build on each other, so that for phi = F + psi, any gamma > L and D = ||w_0 - w*||
#     sum_{s <= T} E[phi(w_{s+1}) - phi*] + (c_T/2) E||w_{T+1} - w*||^2
#         <= (gamma/2) D^2 + sum_{s < T} (noise/N) / (2 (c_s - L)),
# within a ball, too. It is the paper's 1/T, and 1/(N T) for the noise, up to a logarithm.


def stated(problem, gamma, rounds, noise=0.0):
    """Return the right-hand side, mu and phi*."""
    L = max(f.smoothness for f in problem.objectives)
    far = np.sum((problem.start - problem.optimum.x) ** 2)
    c = gamma + MU / 2 * np.arange(rounds)
    return gamma / 2 * far + np.sum(noise / problem.num_clients / 2 / (c - L))


@pytest.mark.parametrize("gamma", [25.0, 100.0])
@pytest.mark.parametrize("method", [FastFedDA, CFedDA])
def test_distance_and_average_are_within_the_bound(method, gamma):
    problem = q6_l1()
    steps = {"strong_convexity": MU, "damping": gamma, "local_steps": 1}
    run, total = OpenRun(method(problem.regularizer, **steps), problem), 0.0
    for t in range(1, 300):
        total += problem.objective(run.play().x) - problem.optimum.value
        away = (gamma + MU / 2 * t) / 2 * np.sum((run.x - problem.optimum.x) ** 2)
        assert total + away <= stated(problem, gamma, t)


@pytest.mark.parametrize("clients", [6, 24])
def test_noise_of_gradients_is_within_the_bound(clients):
    """The mean over runs; each client's gradient has noise of variance 0.3^2 in each entry."""
    std, gamma, rounds, runs = 0.3, 40.0, 100, 10
    whole = FederatedProblem(q6_l1().objectives * (clients // 6), regularizer=q6_l1().regularizer)
    bound = stated(whole, gamma, rounds, noise=8 * std**2)
    steps = {"strong_convexity": MU, "damping": gamma, "local_steps": 1}
    found = []
    for seed in range(runs):
        method = FastFedDA(whole.regularizer, **steps)
        history = simulate(method, whole.with_noise(std), rounds, seed=seed)
        away = np.sum((history.x - whole.optimum.x) ** 2)
        gaps = np.sum(history["objective"][-rounds:] - whole.optimum.value)
        found.append(gaps + (gamma + MU / 2 * rounds) / 2 * away)
    assert np.mean(found) <= bound


def test_stages_are_within_the_bound_one_by_one():
    """MCFedDA: a stage of R rounds brings w to its optimum by the square root of gamma/c_R."""
    problem, gamma, rounds = q6_l1(), 25.0, 200
    multiples = 4.0, 2.0, 1.0
    stages = [(multiple, None, rounds) for multiple in multiples]
    steps = {"strong_convexity": MU, "damping": gamma, "local_steps": 1, "stages": stages}
    run, w = OpenRun(MCFedDA(problem.regularizer, **steps), problem, 3 * rounds), problem.start
    for multiple in multiples:
        weighed = FederatedProblem(
            problem.objectives, regularizer=L1(0.6 * multiple), x0=problem.start
        )
        at = weighed.optimum.x
        before, w = np.sum((w - at) ** 2), run.play(rounds).x
        assert np.sum((w - at) ** 2) <= gamma / (gamma + MU / 2 * rounds) * before


def test_bound_holds_in_a_ball_that_is_active():
    """CFedDA: u is the optimum in the ball, since its multiplier adds to the weight of psi."""
    problem, gamma, heavier = q6_l1(), 25.0, 0.9
    u = FederatedProblem(problem.objectives, regularizer=L1(heavier)).optimum.x
    radius = np.abs(u).sum()
    assert radius < 0.8 * np.abs(problem.optimum.x).sum()
    steps = {"strong_convexity": MU, "damping": gamma, "local_steps": 1}
    run, total = OpenRun(CFedDA(problem.regularizer, radius=radius, **steps), problem), 0.0
    least, far = problem.objective(u), np.sum((problem.start - u) ** 2)
    for t in range(1, 300):
        total += problem.objective(run.play().x) - least
        away = (gamma + MU / 2 * t) / 2 * np.sum((run.x - u) ** 2)
        assert total + away <= gamma / 2 * far
    assert np.abs(run.x).sum() == pytest.approx(radius)


def test_stages_with_halved_balls_are_within_the_bound():
    """MCFedDA: in each stage for any point u of its ball, with phi(u) in place of phi*."""
    problem, gamma, rounds, rng = q6_l1(), 25.0, 60, np.random.default_rng(0)
    stages = [(4.0, 0.2, rounds), (2.0, 0.1, rounds), (1.0, 0.05, rounds)]
    steps = {"strong_convexity": MU, "damping": gamma, "local_steps": 1, "stages": stages}
    run = OpenRun(MCFedDA(problem.regularizer, **steps), problem, 3 * rounds)
    active = []
    for multiple, radius, _ in stages:
        weighed = FederatedProblem(problem.objectives, regularizer=L1(0.6 * multiple))
        w, values = run.x, []
        for _ in range(rounds):
            values.append(weighed.objective(run.play().x))
        active.append(np.abs(run.x - w).sum() > radius * (1 - 1e-9))
        away = rng.dirichlet(np.ones(8), 200) * rng.choice([-1, 1], (200, 8))
        for u in [*(w + radius * away), run.x]:
            left = np.sum(values) - rounds * weighed.objective(u)
            left += (gamma + MU / 2 * rounds) / 2 * np.sum((run.x - u) ** 2)
            assert left <= gamma / 2 * np.sum((w - u) ** 2)
    assert any(active)


@pytest.mark.parametrize("k_steps", [2, 5])
def test_several_local_steps_are_within_the_bound(k_steps):
    """FastFedDA, gamma >= 2 L: the left-hand side is at most (gamma/2) D^2 + L sum_{s <= T} V_s.

    V_s is the mean square of ||w_s^i - w_s||, w_s^i the clients' points in step s, and w_s the
    point of the mean z. It is at most (delta_s/c)^2, delta_s the same of the z_i, which a step of
    length h_i(w_s^i), h_i = grad f_i - mu/2, raises to at most (1 + L/c) delta_s + zeta(w_s). The
    clients' heterogeneity is zeta(w_s) <= zeta(w*) + zeta' ||w_s - w*||, and the bound after s - 1
    steps holds for ||w_s - w*||. So all is known before the run.
    """
    problem, gamma, rounds = q6_l1(), 100.0 * k_steps, 400
    at, L = problem.optimum.x, max(f.smoothness for f in problem.objectives)
    assert gamma >= 2 * L
    slopes = np.array([f.gradient(at) for f in problem.objectives])
    Q = np.array([f.Q for f in problem.objectives])
    zeta = np.sqrt(np.mean(np.sum((slopes - slopes.mean(axis=0)) ** 2, axis=1)))
    apart = np.sqrt(np.mean(np.linalg.norm(Q - Q.mean(axis=0), 2, axis=(1, 2)) ** 2))
    steps = {"strong_convexity": MU, "damping": gamma, "local_steps": k_steps}
    run = OpenRun(FastFedDA(problem.regularizer, **steps), problem)
    bound, total, c = gamma / 2 * np.sum((problem.start - at) ** 2), 0.0, gamma
    for _ in range(rounds):
        delta = 0.0
        for _ in range(k_steps):
            far = np.sqrt(2 * bound / c)
            bound += L * (delta / c) ** 2
            delta += L / c * delta + zeta + apart * far
            c += MU / 2
        total += problem.objective(run.play().x) - problem.optimum.value
        assert total + c / 2 * np.sum((run.x - at) ** 2) <= bound
    mean = bound / (rounds * k_steps)  # of the gaps
    assert mean < problem.objective(problem.start) - problem.optimum.value  # it says something
