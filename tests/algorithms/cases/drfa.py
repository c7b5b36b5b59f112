"""DRFA: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from contract import Case, Contract
from problems import HALF, q6_worst, two_clients, two_groups

from flower_fedcon import Bernoulli, Cyclic, Markov, Sample
from flower_fedcon.strategies import DRFA


def afl():
    # w = 1: losses -3 and 1.5, gradients -2 and 2;  w = 1 - .1 (.5 * -2 + .5 * 2) = 1
    #        lam = (.5 - .3, .5 + .15), and .075 more each: (.275, .725)
    # w = 1: w = 1 - .1 (.275 * -2 + .725 * 2) = .91;  lam = (-.025, .875) + .075 = (.05, .95)
    # w = .91: gradients -2.18 and 1.91;  w = .91 - .1 (.05 * -2.18 + .95 * 1.91)
    return DRFA(client_lr=0.1, weight_lr=0.1), two_clients(), [1.0, 0.91, 0.73945]


def drfa():
    # w = z = 1: 1 -> 1.2 -> 1.36 and 1 -> .8 -> .62;  w = 1 + .36/2 - .38/2 = .99
    #            z = 1 or .99;  gam K = .2: lam = (.5 - .6, .5 + .3) + .15 = (.05, .95)
    # w = .99: .99 -> 1.192 -> 1.3536 and .99 -> .791 -> .6119;
    #          w = .99 + .05 * .3636 - .95 * .3781 = .648985
    #          lam = (0, 1), since f_1 < -2.97 and f_2 > 1.48 at z
    # w = .648985 -> .4840865 -> .33567785
    strategy = DRFA(client_lr=0.1, weight_lr=0.1, local_steps=2)
    return strategy, two_clients(), [0.99, 0.648985, 0.33567785]


def groups():
    # w = 1: group 0 has (3/2 - 3/2)/4 = 0 with gradient w - 1/2, group 1 has w^2
    #        w = 1 - .1 (.5 * .5 + .5 * 2) = .875;  lam = (.5, .6) - .05
    # w = .875: losses -.0546875 and .765625, gradients .375 and 1.75
    #        w = .875 - .1 (.45 * .375 + .55 * 1.75) = .761875
    #        lam = (.44453125, .6265625) - .035546875 = (.408984375, .591015625)
    # w = .761875 - .1 (.408984375 * .261875 + .591015625 * 1.52375)
    strategy = DRFA(client_lr=0.1, weight_lr=0.1, groups=2)
    return strategy, two_groups([0.0, 0.0]), [0.875, 0.761875, 0.6611087158203125]


def alone():
    # One of two, lam = (.5, .5): the first alone moves by 2 * .5 * .2, the second by -2 * .5 * .2;
    # h = the cohort's loss for both, so that lam stays.
    problem = two_clients()
    strategy = DRFA(client_lr=0.1, weight_lr=0.1, participation=Sample(count=1))
    first = int(np.random.default_rng([0, 1, 1, 0]).choice(2, size=1, replace=False)[0])
    return strategy, problem, [1.2 if first == 0 else 0.8]


def invariant(run):
    """The weights are >= 0 and sum to 1; h are losses of z."""
    weights = run.state.weights
    assert weights.min() >= 0
    assert abs(weights.sum() - 1.0) < 1e-14


ONE = {"client_lr": 1 / 40, "weight_lr": 0.02}
FIVE = {"client_lr": 1 / 400, "weight_lr": 0.0025, "local_steps": 5}
SHORT = {"client_lr": 1 / 500, "weight_lr": 0.004, "output": "average"}

CONTRACT = Contract(
    cases=[
        Case("five steps", q6_worst, FIVE, 1000, 0.008, 0.025),
        Case("AFL", q6_worst, ONE, 1500, 0, 1e-8),
        Case("multiplicative", q6_worst, {**ONE, "weight_step": "multiplicative"}, 1500, 0, 1e-7),
        Case("average", q6_worst, {**ONE, "output": "average"}, 1500, 5e-4, 1e-3),
    ],
    sampled=[
        Case("half", q6_worst, {**SHORT, **HALF}, 1500, 1e-3, 0.02),
        Case("coin", q6_worst, {**SHORT, "participation": Bernoulli(0.5)}, 1500, 1e-3, 0.03),
        Case(
            "come and go", q6_worst, {**SHORT, "participation": Markov(0.8, 0.3)}, 1500, 3e-3, 0.06
        ),
        Case("turns", q6_worst, {**SHORT, "participation": Cyclic(groups=3)}, 1500, 0.01, 0.03),
    ],
    first_rounds=[afl, drfa, groups, alone],
    small={"client_lr": 0.1, "weight_lr": 0.01, "local_steps": 2},
    invariant=invariant,
)
