"""FedProxAL: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from contract import Case, Contract
from harness import OpenRun
from problems import HALF, q6_walls, two_limited, two_walls

from flower_fedcon import Bernoulli, FederatedProblem
from flower_fedcon.strategies import FedProxAL

GIVEN = {"penalty": 10.0, "coupling": 3.0}


def each_limited() -> FederatedProblem:
    """f_1 = x^2 - 4x with x <= 1/2, f_2 = x^2/2 + x with 3x <= 2.5, from x0 = 1."""
    return FederatedProblem(two_limited().objectives, x0=np.ones(1), constraints="each")


def first_of_a_stage():
    # beta = 1, kappa = 1/3: grad P_1(1) = -1 + .5 = -.5, z_1 = 1.5;  grad P_2(1) = 1 + 1.5 = 2.5,
    # z_2 = -1.5;  w = (1/3 + 1.5 - 1.5)/(1/3 + 2)
    return FedProxAL(penalty=1.0, coupling=1.0), each_limited(), [1 / 7]


def multipliers_are_nonnegative(run: OpenRun) -> None:
    assert run.state.multipliers.min() >= 0


CONTRACT = Contract(
    cases=[
        Case("two walls", two_walls, {"penalty": 10.0, "coupling": 1.0}, 60, 1e-4, 6e-3),
        Case("six walls", q6_walls, GIVEN, 100, 1e-4, 3e-3, at_night=True),
    ],
    sampled=[],
    first_rounds=[first_of_a_stage],
    small={"penalty": 10.0, "coupling": 1.0},
    lost="heals",
    refuses=[HALF["participation"], Bernoulli(0.5)],
    invariant=multipliers_are_nonnegative,
)
