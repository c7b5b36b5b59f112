"""FedAvg: what the contract test holds it to."""

from __future__ import annotations

from contract import Case, Contract, about
from problems import HALF, q6, q6_l1, two_clients

from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg

FIVE = {"client_lr": 1 / 400, "local_steps": 5}
SLOW = {"client_lr": 1 / 400, "local_steps": 1}


def fedavg():
    # client 1: 1 -> 1 - .1(-2) = 1.2 -> 1.2 - .1(-1.6) = 1.36;  client 2: 1 -> .8 -> .62
    # w = 1 + 2 * ((.36 - .38)/2) = .98
    return FedAvg(client_lr=0.1, local_steps=2, server_lr=2.0), two_clients(), [0.98]


def fedavg_momentum():
    # m = -.01, w = .99; then 1: .99 -> 1.192 -> 1.3536;  2: .99 -> .791 -> .6119
    # m = -.005 + (.3636 - .3781)/2
    strategy = FedAvg(client_lr=0.1, local_steps=2, server_momentum=0.5)
    return strategy, two_clients(), [0.99, 0.97775]


def fedavg_window():
    # rounds 1 and 2: w = .99, then .99 + (.3636 - .3781)/2 = .98275, amplified .9655
    # 1: .9655 -> 1.1724 -> 1.33792;  2: .9655 -> .76895 -> .592055
    strategy = FedAvg(client_lr=0.1, local_steps=2, window=2, amplification=2.0)
    return strategy, two_clients(), [0.99, 0.9655, 0.9649875]


def fedavg_subgradient():
    # with .5 sign(v):  1: 1 -> 1.15 -> 1.15 - .1(-1.7 + .5) = 1.27;  2: 1 -> .75 -> .525
    problem = two_clients(regularizer=L1(0.5))
    strategy = FedAvg(client_lr=0.1, local_steps=2, regularizer=L1(0.5))
    return strategy, problem, [1 + (0.27 - 0.475) / 2]


CONTRACT = Contract(
    cases=[
        Case("gradient descent", q6, SLOW, 16000, 0, 1e-13),
        Case("momentum", q6, {**SLOW, "server_momentum": 0.5}, 8000, 0, 1e-13),
        Case("drift floor", q6, FIVE, 4000, **about(2.56e-2)),
        Case("windows", q6, {**FIVE, "window": 5, "amplification": 1.5}, 4000, **about(2.56e-2)),
        Case("oscillates", q6_l1, SLOW, 6000, 1e-4, 4e-3),
        Case("subgradient floor", q6_l1, FIVE, 6000, **about(3.46e-2)),
    ],
    sampled=[Case("half", q6, {**SLOW, **HALF}, 4000, 0, 0.1)],
    first_rounds=[fedavg, fedavg_momentum, fedavg_window, fedavg_subgradient],
    small={"client_lr": 0.1, "local_steps": 2},
    oracle="regularizer",
)
