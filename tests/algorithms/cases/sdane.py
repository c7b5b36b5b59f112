"""S-DANE: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from contract import Case, Contract
from problems import HALF, q6, q6_shared, two_clients

from flower_fedcon import FederatedProblem
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import SDANE

RELATIVE = {"stopping": "relative", "local_solver": "aogm"}


def from_three() -> FederatedProblem:
    return FederatedProblem(two_clients().objectives, x0=np.array([3.0]))


def plain():
    # y = 3: gradients 2 and 4, g = 3.  1: 2z - 4 + 1 + z - 3 = 0, z = 2;  2: z + 1 - 1 + z - 3 = 0,
    # z = 1.5;  x = 1.75, h = (0 + 2.5)/2 = 1.25, s = 1, v = (3 + 1.75 - 1.25)/2 = 1.75
    # y = 1.75: -.5 and 2.75, g = 1.125.  1: 3z = 4 - 1.625 + 1.75;  2: 2z = 1.625 - 1 + 1.75
    strategy = SDANE(form="plain", proximal=1.0, strong_convexity=1.0)
    return strategy, from_three(), [3.0, 1.75, 1.75, 1.28125]


def accelerated():
    # One local step of 1/4 leads everyone to y - g/4.  y = 3, g = 3: x = 2.25, gradients .5 and
    # 3.25, h = 1.875, s = 1, v = (3 + 2.25/3 - 1.875)/(4/3) = 1.40625, alpha = 1/(4/3) = .75
    # s = .5 + sqrt(.25 + .75) = 1.5, y = (.75 * 2.25 + 1.5 * 1.40625)/2.25 = 1.6875, g = 1.03125
    # x = 1.6875 - g/4 = 1.4296875, gradients -1.140625 and 2.4296875, h = .64453125
    # v = (1.40625 + x/2 - 1.5 h)/1.5 = .76953125, alpha = 2.25/1.5 = 1.5, s = .5 + sqrt(1.75)
    step = GradientDescent(steps=1, lr=0.25)
    strategy = SDANE(form="accelerated", proximal=1.0, strong_convexity=1 / 3, local_solver=step)
    s = 0.5 + np.sqrt(1.75)
    y = (1.5 * 1.4296875 + s * 0.76953125) / (1.5 + s)
    third = y - (1.5 * y - 1.5) / 4  # g = ((2y - 4) + (y + 1))/2
    return strategy, from_three(), [3.0, 2.25, 2.25, 1.4296875, 1.4296875, third]


CONTRACT = Contract(
    cases=[
        Case("accelerated", q6, {}, 120, 0, 1e-15),
        Case("plain", q6, {"form": "plain"}, 120, 0, 1e-15),
        Case("inexact", q6, RELATIVE, 200, 0, 1e-14),
        Case("inexact, plain", q6, {**RELATIVE, "form": "plain"}, 200, 0, 1e-12),
    ],
    sampled=[
        Case("half, one minimiser", q6_shared, HALF, 120, 0, 1e-15),
        Case("half, accelerated", q6_shared, {**HALF, "form": "accelerated"}, 120, 0, 1e-15),
        Case("half, floor", q6, HALF, 300, 0.05, 1.0),
        Case("half, far from alike", q6, {**HALF, "proximal": 100.0}, 600, 0.01, 0.3),
    ],
    first_rounds=[plain, accelerated],
    small={"proximal": 1.0},
)
