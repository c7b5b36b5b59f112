"""FedLin: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from contract import Case, Contract
from problems import HALF, q6, two_clients

from flower_fedcon import Bernoulli, FederatedProblem
from flower_fedcon.strategies import FedLin


def fedlin():
    # x = 3: gradients 2 and 4, g = 3.  1: 2.7 -> 2.7 - .1(1.4 - 2 + 3) = 2.46
    #        2: 2.7 -> 2.7 - .1(3.7 - 4 + 3) = 2.43;  x = 2.445
    # x = 2.445: .89 and 3.445, g = 2.1675.  1: 2.22825 -> 2.05485;  2: 2.22825 -> 2.033175
    problem = FederatedProblem(two_clients().objectives, x0=np.array([3.0]))
    return FedLin(client_lr=0.1, local_steps=2), problem, [3.0, 2.445, 2.445, 2.0440125]


CONTRACT = Contract(
    cases=[
        Case("five steps", q6, {"local_steps": 5, "client_lr": 1 / 100}, 600, 0, 3e-15),
        Case("default", q6, {"local_steps": 5}, 2500, 0, 3e-15),
        Case("gradient descent", q6, {"local_steps": 1, "client_lr": 1 / 20}, 600, 0, 3e-15),
    ],
    sampled=[],
    first_rounds=[fedlin],
    small={"client_lr": 0.1, "local_steps": 2},
    refuses=[HALF["participation"], Bernoulli(0.5)],
)
