"""FedMiD: what the contract test holds it to."""

from __future__ import annotations

import math

from contract import Case, Contract, about
from problems import HALF, q6_l1, two_clients

from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedMiD

ONE, FIVE = {"client_lr": 1 / 40, "local_steps": 1}, {"client_lr": 1 / 400, "local_steps": 5}
ONLY = {"server_prox_only": True}


def fedmid():
    # 1: soft(1.2, .05) = 1.15 -> soft(1.15 + .17, .05) = 1.27;  2: soft(.8, .05) = .75
    #    -> soft(.75 - .175, .05) = .525;  server: soft(1 + 2(.27 - .475)/2, .5 * 2 * .1 * 2) = .595
    problem = two_clients(regularizer=L1(0.5))
    strategy = FedMiD(problem.regularizer, client_lr=0.1, local_steps=2, server_lr=2.0)
    return strategy, problem, [0.595]


def fedmid_server_prox_only():
    # clients as in FedAvg: w = 1 - .01 = .99, then soft(.99, .5 * .1 * 2)
    problem = two_clients(regularizer=L1(0.5))
    strategy = FedMiD(problem.regularizer, client_lr=0.1, local_steps=2, server_prox_only=True)
    return strategy, problem, [0.89]


def fedmid_entropy():
    # Duals are z = log v, 0 at first. Client 1: z = .2 - .05 = .15; v = e^.15, gradient 2 v - 4, so
    # z = .15 - .1 (2 v - 4) - .05. Client 2: z = -.2 - .05 = -.25; v = e^-.25, gradient v + 1, so
    # z = -.25 - .1 (v + 1) - .05. Server: their mean, minus .5 * .1 * 2
    problem = two_clients(regularizer=L1(0.5))
    first, second = math.exp(0.15), math.exp(-0.25)
    mean = (0.1 - 0.1 * (2 * first - 4) - 0.3 - 0.1 * (second + 1)) / 2
    given = {"client_lr": 0.1, "local_steps": 2, "distance": "entropy"}
    return FedMiD(problem.regularizer, **given), problem, [math.exp(mean - 0.1)]


CONTRACT = Contract(
    cases=[
        Case("biased at one step", q6_l1, ONE, 4000, **about(4.90e-2)),
        Case("proximal gradient", q6_l1, {**ONE, **ONLY}, 6000, 0, 1e-10),
        Case("five steps", q6_l1, FIVE, 4000, **about(1.024e-1)),
        Case("server prox only", q6_l1, {**FIVE, **ONLY}, 4000, **about(1.78e-2)),
    ],
    sampled=[Case("half", q6_l1, {**ONE, **HALF}, 2000, 0, 0.3)],
    first_rounds=[fedmid, fedmid_server_prox_only, fedmid_entropy],
    small={"client_lr": 0.1, "local_steps": 2},
    oracle="regularizer",
)
