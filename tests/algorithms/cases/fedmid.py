"""FedMiD: what the contract test holds it to."""

from __future__ import annotations

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


CONTRACT = Contract(
    cases=[
        Case("biased at one step", q6_l1, ONE, 4000, **about(4.90e-2)),
        Case("proximal gradient", q6_l1, {**ONE, **ONLY}, 6000, 0, 1e-10),
        Case("five steps", q6_l1, FIVE, 4000, **about(1.024e-1)),
        Case("server prox only", q6_l1, {**FIVE, **ONLY}, 4000, **about(1.78e-2)),
    ],
    sampled=[Case("half", q6_l1, {**ONE, **HALF}, 2000, 0, 0.3)],
    first_rounds=[fedmid, fedmid_server_prox_only],
    small={"client_lr": 0.1, "local_steps": 2},
    oracle="regularizer",
)
