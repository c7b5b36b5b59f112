"""FedDualAvg: what the contract test holds it to."""

from __future__ import annotations

import math

from contract import Case, Contract, about
from problems import HALF, q6_l1, two_clients

from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedDualAvg

ONE, FIVE = {"client_lr": 1 / 40, "local_steps": 1}, {"client_lr": 1 / 400, "local_steps": 5}


def feddualavg():
    # k=0: w = z = 1.  1: z = 1.2, w = soft(1.2, .05) = 1.15, z = 1.2 + .17 = 1.37
    #                  2: z = .8,  w = .75,               z = .8 - .175 = .625
    # z = (1.37 + .625)/2 = .9975, e = .2, output soft(.9975, .1) = .8975.
    # Round 2, from e = .2.  1: w = .8975, z = .9975 + .2205 = 1.218, w = soft(1.218, .15) = 1.068,
    #   z = 1.4044.  2: w = .8975, z = .9975 - .18975 = .80775, w = .65775, z = .641975
    # z = 1.0231875, output minus .5 * .4
    problem = two_clients(regularizer=L1(0.5))
    strategy = FedDualAvg(problem.regularizer, client_lr=0.1, local_steps=2)
    return strategy, problem, [0.8975, 0.8231875]


def feddualavg_server_prox_only():
    # w = prox(1, 0) = 1, plain steps: deltas .36 and -.38; z = .99, output soft(.99, .1)
    problem = two_clients(regularizer=L1(0.5))
    strategy = FedDualAvg(problem.regularizer, client_lr=0.1, local_steps=2, server_prox_only=True)
    return strategy, problem, [0.89]


def feddualavg_entropy():
    # z = log 1 = 0. Client 1: w = 1, z = .2; then w = e^(.2 - .05), z = .2 - .1 (2 w - 4).
    # Client 2: w = 1, z = -.2; then w = e^(-.2 - .05), z = -.2 - .1 (w + 1).
    # z is their mean, e = .2, and the output e^(z - .1)
    problem = two_clients(regularizer=L1(0.5))
    z = (0.2 - 0.1 * (2 * math.exp(0.15) - 4) - 0.2 - 0.1 * (math.exp(-0.25) + 1)) / 2
    given = {"client_lr": 0.1, "local_steps": 2, "distance": "entropy"}
    return FedDualAvg(problem.regularizer, **given), problem, [math.exp(z - 0.1)]


CONTRACT = Contract(
    cases=[
        Case("dual averaging", q6_l1, ONE, 6000, 0, 1e-10),
        Case("five steps", q6_l1, FIVE, 6000, **about(1.46e-2)),
    ],
    sampled=[Case("half", q6_l1, {**ONE, **HALF}, 4000, 0, 0.2)],
    first_rounds=[feddualavg, feddualavg_server_prox_only, feddualavg_entropy],
    small={"client_lr": 0.1, "local_steps": 2},
    oracle="regularizer",
)
