"""FedProx: what the contract test holds it to."""

from __future__ import annotations

from contract import Case, Contract, about
from problems import HALF, q6, two_clients

from flower_fedcon.strategies import FedProx


def fedprox():
    # 1: 2v - 4 + 3 (v - w) = 0, v = (4 + 3w)/5: 1.4, 1.37;  2: v = (3w - 1)/4: .5, .4625
    return FedProx(proximal=3.0), two_clients(), [0.95, 0.91625]


def fedprox_of_minimisers():
    # mu = 0: 2 and -1
    return FedProx(proximal=0.0), two_clients(), [0.5, 0.5]


CONTRACT = Contract(
    cases=[
        Case("near", q6, {"proximal": 10.0}, 300, **about(0.356)),
        Case("free", q6, {"proximal": 1.0}, 300, **about(1.34)),
        Case("tied", q6, {"proximal": 100.0}, 1000, **about(4.8e-2)),
    ],
    sampled=[Case("half", q6, {"proximal": 10.0, **HALF}, 300, 0.1, 1.0)],
    first_rounds=[fedprox, fedprox_of_minimisers],
    small={"proximal": 1.0},
)
