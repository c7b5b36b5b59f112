"""FastFedDA: what the contract test holds it to."""

from __future__ import annotations

from contract import Case, Contract, about
from problems import HALF, q6_l1, two_clients

from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FastFedDA

ONE, FIVE = ({"strong_convexity": 1.0, "local_steps": k} for k in (1, 5))  # damping 5 L = 100


def fastfedda():
    # mu = 1, gamma = 5 L = 10, K = 2: z = 10 w_0 = 10, c = 10.5, then 11; psi = .5 |w|.
    # 1: z = 10 + 2 + .5 = 12.5, v = soft(12.5, .5)/10.5 = 8/7, z = 12.5 - (-12/7) + 4/7 = 207/14
    # 2: z = 10 - 2 + .5 = 8.5, v = 8/10.5 = 16/21, z = 8.5 - 37/21 + 8/21 = 299/42
    # z = 460/42, w = soft(230/21, 1)/11 = 209/231 = 19/21
    problem = two_clients(regularizer=L1(0.5))
    return FastFedDA(problem.regularizer, strong_convexity=1.0, local_steps=2), problem, [19 / 21]


def fastfedda_one_step():
    # K = 1: z = 10 - (-2 + 2)/2 + .5 = 10.5, w = soft(10.5, .5)/10.5 = 20/21
    # round 2: mean gradient 1.5 (20/21) - 1.5 = -1.5/21, z = 10.5 + 1.5/21 + 10/21 = 232/21
    # c = 11, w = (232/21 - 1)/11 = 211/231
    problem = two_clients(regularizer=L1(0.5))
    strategy = FastFedDA(problem.regularizer, strong_convexity=1.0, damping=10.0, local_steps=1)
    return strategy, problem, [20 / 21, 211 / 231]


def invariant(run):
    """The model is the minimiser P(z, t), at t = K times the rounds done."""
    s, (w, z, r, A, _) = run.server.strategy, run.state
    assert r == run.server.round + 1
    steps = (r - 1) * s.local_steps
    assert steps == A or s.weight_power
    curvature = s.damping + s.strong_convexity / 2 * steps
    assert abs(w - s.regularizer.prox(z / curvature, steps / curvature)).max() < 1e-15


CONTRACT = Contract(
    cases=[
        Case("one step", q6_l1, ONE, 2000, 0, 1e-10),
        Case("one step, early", q6_l1, ONE, 200, **about(3.9e-4)),
        Case("five steps, early", q6_l1, FIVE, 200, **about(1.1e-2)),
        Case("five steps", q6_l1, FIVE, 2000, **about(1.5e-3)),
    ],
    sampled=[Case("half", q6_l1, {**ONE, **HALF}, 2000, 0, 0.05)],
    first_rounds=[fastfedda, fastfedda_one_step],
    small={"strong_convexity": 1.0, "damping": 15.0, "local_steps": 2},
    oracle="regularizer",
    invariant=invariant,
)
