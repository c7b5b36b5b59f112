"""FedMLS: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from contract import Case, Contract, about
from kinks import absolute, hinge
from problems import q6

from flower_fedcon import Bernoulli, FederatedProblem, Sample
from flower_fedcon.objectives import LeastAbsoluteDeviations
from flower_fedcon.strategies import FedMLS


def fedmls():
    # |x - 3| and |2x|, from 1; lambda_0/(4N) = 1/2.  t=1, K = 1, c = 1:
    #   1: 1 - 2/3 (-1/2) = 4/3;  2: 1 - 2/3 = 1/3;  w_i = z_i = y_i, mean 5/6
    #   y = 1, z = 1 - 1/2 (1 - 5/6) = 11/12, w = 1/3 + 2/3 11/12 = 17/18
    # t=2, K = 2, c = 4/3 - 1/6 = 7/6 and 1/3 + 1/3 = 2/3:
    #   1: u = 14/9, 29/18;  ubar = (28/9 + 29/6)/5 = 143/90;  w_1 = 4/9 + 2/3 ubar = 203/135
    #   2: u = -1/9, 7/9;    ubar = (-2/9 + 7/3)/5 = 19/45;    w_2 = 1/9 + 2/3 ubar = 53/135
    #   y_i = (w_i + z_i)/2 = 841/540 and 316/540, mean 1157/1080;  y = (17/18 + 11/12)/2 = 67/72
    #   z = 11/12 - 3/4 (67/72 - 1157/1080) = 46/45,  w = (17/18 + 46/45)/2 = 59/60
    clients = [LeastAbsoluteDeviations([[a]], [b]) for a, b in ((1.0, 3.0), (2.0, 0.0))]
    problem = FederatedProblem(clients, x0=np.ones(1))
    return FedMLS(step_size=4.0), problem, [17 / 18, 59 / 60]


CONTRACT = Contract(
    cases=[
        Case("smooth", q6, {"step_size": 0.6}, 200, 0, 3e-5, "residual"),
        Case("absolute", absolute, {"step_size": 16.0}, 200, **about(1.078e-3), measure="residual"),
        Case("hinge", hinge, {"step_size": 16.0}, 200, **about(2.361e-3), measure="residual"),
    ],
    sampled=[],
    first_rounds=[fedmls],
    small={"step_size": 1.0},
    lost="heals",
    refuses=[Sample(fraction=0.5), Bernoulli(0.5)],
)
