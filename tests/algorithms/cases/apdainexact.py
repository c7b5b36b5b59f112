"""APDAInexact: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from contract import Case, Contract
from harness import OpenRun, settled
from problems import HALF, q6, two_clients

from flower_fedcon import Bernoulli
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import APDAInexact

SLOW = {"primal_lr": 0.1, "dual_damping": 1 / 20}
TWENTY = {"local_solver": GradientDescent(steps=20)}


def apdainexact():
    # mu = 1: theta = max(2/2.5, 1 - 1/8) = 7/8
    # 1: 2x - 4 + 2(x - 1) = 0: x = 3/2, G = -1, u = 3/2 + 1/2 = 2
    # 2: x + 1 + 2(x - 1) = 0: x = 1/3, G = 4/3, u = 1/3 - 2/3 = -1/3;  m = 5/6
    # y_1 = (2 - 5/6)/4 = 7/24, ybar_1 = 7/24 * 15/8 = 35/64;  y_2, ybar_2 their negatives
    # 1: 4x = 4 + 2(3/2 - 35/128): x = 413/256, G = -99/128,
    #    u = 413/256 - (7/24 - 99/128)/2 + 7/6 = 145/48
    # 2: 3x = -1 + 2(1/3 + 35/128): x = 41/576, G = 617/576,
    #    u = 41/576 - (-7/24 + 617/576)/2 - 7/6 = -1711/1152;  m = 1769/2304
    strategy = APDAInexact(primal_lr=0.5, dual_lr=0.25, dual_damping=0.5)
    return strategy, two_clients(), [5 / 6, 1769 / 2304]


def duals_sum_to_zero(run: OpenRun) -> None:
    y = settled(run, "y")
    assert np.allclose(y.sum(0), 0, rtol=0, atol=1e-13 * max(1.0, np.abs(y).max()))


CONTRACT = Contract(
    cases=[
        Case("exact", q6, SLOW, 2000, 0, 5e-15),
        Case("twenty steps", q6, {**SLOW, **TWENTY}, 2000, 0, 5e-15, at_night=True),
        Case("longer steps", q6, {**SLOW, "primal_lr": 0.2}, 3000, 1e-13, 2e-12),
        Case("on the way", q6, SLOW, 1164, 0.9e-10, 1e-10),
    ],
    sampled=[],
    first_rounds=[apdainexact],
    small={"primal_lr": 0.1, "dual_damping": 0.25},
    lost="heals",
    refuses=[HALF["participation"], Bernoulli(0.5)],
    invariant=duals_sum_to_zero,
)
