"""CFedDA in a ball around its start, and the constrained prox that it needs."""

from __future__ import annotations

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.cfedda import ball_problem
from harness import OpenRun
from scipy.optimize import minimize

from flower_fedcon import simulate
from flower_fedcon.regularizers import L1, GroupLasso, L2Norm, L2Squared, NuclearNorm
from flower_fedcon.regularizers.constrained import constrained_prox, norm_ball
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import CFedDA

MU = 1.0
STEPS = {"strong_convexity": MU, "damping": 100.0, "local_steps": 5}


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
