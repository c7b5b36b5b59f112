"""CFedDA: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from contract import Case, Contract, about
from problems import HALF, q6, q6_l1, two_clients

from flower_fedcon import FederatedProblem
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import CFedDA

# damping 5 L K = 100, 500
ONE, FIVE = ({"strong_convexity": 1.0, "local_steps": k} for k in (1, 5))
TWO = {"strong_convexity": 1.0, "damping": 10.0, "local_steps": 2}


def cfedda():
    # mu = 1, gamma = 10, K = 2: z = (10 + 1) w_0 = 11, A = 2, c = 11, psi = .5 |w|.
    # 1: g = -2, v = soft(13, 1)/11 = 12/11, g = -2 - 20/11 = -42/11
    # 2: g = 2,  v = soft(9, 1)/11 = 8/11,   g = 2 + 19/11 = 41/11
    # z = 11 + 1/22, w = (10 + 1/22)/11 = 221/242
    problem = two_clients(regularizer=L1(0.5))
    return CFedDA(problem.regularizer, **TWO), problem, [221 / 242]


def cfedda_in_a_ball():
    # Within [.95, 1.05].  1: v = 1.05, g = -2 - 1.9;  2: v = .95, g = 2 + 1.95
    # z = 11 - .025, w = 9.975/11 = .9068 -> .95
    # round 2: z = 10.975 + .95 = 11.925, A = 4, c = 12.  1: g = -2.1, v = soft(14.025, 2)/12 =
    # 1.0021, g = -2.1 + 2 (12.025/12) - 4;  2: g = 1.95, v = soft(9.975, 2)/12 -> .95, g = 3.9
    # w = soft(11.925 - .0979, 2)/12 = .8189 -> .95
    problem = two_clients(regularizer=L1(0.5))
    return CFedDA(problem.regularizer, **TWO, radius=0.05), problem, [0.95, 0.95]


def ball_problem():
    """Q6 from a start away from 0, where the prox and the ball pull apart."""
    start = np.array([0.3, -0.2, 0.1, 0.0, 0.2, 0.0, -0.1, 0.1])
    return FederatedProblem(list(q6().objectives), regularizer=L1(0.6), x0=start)


def invariant(run):
    """The model minimises P, W sums the iterates, and all of them are in the ball."""
    s, (w, z, total, anchor, r) = run.server.strategy, run.state
    assert r == run.server.round + 1
    mu, k, steps = s.strong_convexity, s.local_steps, (r - 1) * s.local_steps
    curvature = s.damping + mu / 2 * steps
    found = s.regularizer.prox((z - mu / 2 * k * w) / curvature, steps / curvature)
    assert abs(w - found).max() < 1e-14
    seen = run.__dict__.setdefault("seen", [anchor])
    seen.append(w)
    assert abs(total - sum(seen)).max() < 1e-12
    assert (s.outputs(run.state)["average"] == total / len(seen)).all()


CONTRACT = Contract(
    cases=[
        Case("one step", q6_l1, ONE, 2000, 0, 1e-10),
        Case("one step, early", q6_l1, ONE, 200, **about(3.9e-4)),
        Case("five steps, early", q6_l1, FIVE, 200, **about(7.7e-3)),
        Case("five steps", q6_l1, FIVE, 2000, **about(1.8e-3)),
    ],
    sampled=[Case("half", q6_l1, {**ONE, **HALF}, 2000, 0, 0.05)],
    first_rounds=[cfedda, cfedda_in_a_ball],
    small={"strong_convexity": 1.0, "damping": 30.0, "local_steps": 2},
    oracle="regularizer",
    invariant=invariant,
)
