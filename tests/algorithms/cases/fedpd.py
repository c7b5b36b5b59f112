"""FedPD: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from contract import Case, Contract
from harness import client_states
from problems import q6, two_clients

from flower_fedcon import Bernoulli, Sample
from flower_fedcon.strategies import FedPD


def fedpd():
    # eta = 1/3.  1: 2x - 4 + l + 3 (x - x_0) = 0, x = (4 - l + 3 x_0)/5;  2: x = (3 x_0 - 1 - l)/4
    # t=1: x = 1.4, l = 1.2, u = 1.8;  x = .5, l = -1.5, u = 0;  x_0 = .9
    # t=2: x = 1.1, l = 1.8, u = 1.7;  x = .8, l = -1.8, u = .2;  x_0 = .95
    return FedPD(step_size=1 / 3), two_clients(), [0.9, 0.95]


def fedpd_that_skips():
    # The coins of seed 0 are .72, .497, .283, .96: round 3 is skipped.  On from above, x_0 = .95:
    # t=3: x = 1.01, l = 1.98, u = 1.67;  x = .9125, l = -1.9125, u = .275;  x_0 stays
    # t=4, from x_01 = 1.67: x = 1.406, l = 1.188, u = 1.802;
    #      from x_02 = .275: x = .434375, l = -1.434375, u = -.04375;  x_0 = .879125
    strategy = FedPD(step_size=1 / 3, skip_probability=0.45)
    return strategy, two_clients(), [0.9, 0.95, 0.95, 0.879125]


def invariant(run):
    """After an exact solve lambda_i = -grad f_i(x_i)."""
    for f, state in zip(run.problem.objectives, client_states(run), strict=True):
        assert np.abs(state.dual + f.gradient(state.x)).max() < 1e-12


SIZE = {"step_size": 0.1}

CONTRACT = Contract(
    cases=[
        Case("never skips", q6, SIZE, 300, 0, 1e-15),
        Case("skips", q6, {**SIZE, "skip_probability": 0.3}, 1500, 1e-2, 1.5),
        Case("skips more", q6, {**SIZE, "skip_probability": 0.7}, 1500, 5e-2, 2.0),
    ],
    sampled=[],
    first_rounds=[fedpd, fedpd_that_skips],
    small={"step_size": 0.5, "skip_probability": 0.3},
    lost="heals",
    refuses=[Sample(fraction=0.5), Bernoulli(0.5)],
    invariant=invariant,
)
