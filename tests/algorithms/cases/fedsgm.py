"""FedSGM: what the contract test holds it to."""

from __future__ import annotations

from functools import cache

import numpy as np
from by_card import START, largest
from contract import Case, Contract, Loop, about
from harness import OpenRun
from problems import HALF, Limited, q6_limited, q6_objectives, two_limited

from flower_fedcon import FederatedProblem
from flower_fedcon.compressors import RandK, TopK
from flower_fedcon.problems import neyman_pearson
from flower_fedcon.strategies import FedSGM

STEPS = {"client_lr": 0.1, "local_steps": 2}
WORKSHOP = {"client_lr": 0.3, "local_steps": 5, "tolerance": 0.1}  # sharpness 2/eps = 20
LONG = {"client_lr": 0.1, "local_steps": 5, "tolerance": 0.05, "sharpness": 100.0}
TENTH = {"uplink": TopK(fraction=0.1), "downlink": TopK(fraction=0.1)}

cancer = cache(neyman_pearson)


def constraint(problem, x):
    return float(np.mean([f.constraint_value(x) for f in problem.objectives]))


def fedsgm_hard():
    # t=0: ghat = .5 > .25: v - .1 twice, v - .3 twice: .8 and .4, mean .6
    # t=1: ghat = -.3: sigma = 0, .8v + .4 twice: 1.104; .9v - .1 twice: .296; mean .7
    # t=2: ghat = -.1: 1.168 and .377, mean .7725;  t=3: ghat = .045: 1.2144 and .435725
    strategy = FedSGM(**STEPS, tolerance=0.25, switching="hard")
    return strategy, two_limited(), [0.6, 0.7, 0.7725, 0.8250625]


def fedsgm_soft():
    # t=0: z = .5 - .75, sigma = 1 + 2z = .5.  1: v - .1(v - 1.5) twice: 1.05, 1.095
    #      2: v - .1(.5v + 2) twice: .75, .5125;  Delta = -.95, 4.875; w = 1 - .1 * 1.9625
    # t=1: ghat = .1075, 1 + 2z < 0: sigma = 0, .8v + .4 twice: 1.2344; .9v - .1 twice: .4610375
    strategy = FedSGM(**STEPS, tolerance=0.75, sharpness=2.0)
    return strategy, two_limited(), [0.80375, 0.84771875]


def invariant(run: OpenRun) -> None:
    """The clients' w is the server's, bit for bit, and it stays near the exact one."""
    state, c = run.state, run.server
    for client, ack in zip(run.clients, run.acknowledged, strict=True):
        if ack == c.round:
            assert client.model(client.versions.pending, state.increment).tobytes() == (
                state.w.tobytes()
            )
    assert np.linalg.norm(state.x - state.w) < 0.5


HALF_UP = HALF_DOWN = TopK(fraction=0.5)
BOTH = {"uplink": HALF_UP, "downlink": HALF_DOWN}
FIVE = {"client_lr": 1 / 400, "local_steps": 5, "tolerance": 0.1}
ONE = {"client_lr": 1 / 40, "local_steps": 1, "tolerance": 0.1}


@cache
def away_limited():
    """Q6 with g_j = (the sum of x)/2 less a level of j's own, some of which bind."""
    levels = np.linspace(-0.1, 0.1, 6)
    clients = [Limited(f, 0.5, level) for f, level in zip(q6_objectives(), levels, strict=True)]
    return FederatedProblem(clients, x0=START)


def by_card(problem, cohorts, client_lr, local_steps, tolerance, switching, **compressors):
    """Hard switching with error feedback; half of the entries are sent."""
    clients, x = problem.objectives, problem.start
    w, e, kept = x, np.zeros((len(clients), len(x))), len(x) // 2
    for cohort in cohorts:
        ghat = np.mean([clients[j].constraint_value(w) for j in cohort])
        sent = 0 * x
        for j in cohort:
            v = w
            for _ in range(local_steps):
                g = clients[j].constraint_gradient(v)
                v = v - client_lr * (g if ghat > tolerance else clients[j].gradient(v))
            owed = e[j] + (w - v) / client_lr
            delta = largest(owed, kept)
            e[j], sent = owed - delta, sent + delta / len(cohort)
        x = x - client_lr * sent
        w = w + largest(x - w, kept)
    return w


CONTRACT = Contract(
    cases=[
        Case("error feedback", q6_limited, {**FIVE, **BOTH}, 1000, 2e-2, 5e-2),
        Case(
            "compressed down", q6_limited, {**FIVE, "downlink": HALF_DOWN}, 1000, **about(2.56e-2)
        ),
        Case("gradient descent", q6_limited, ONE, 1000, 0, 1e-13),
        Case("drift floor", q6_limited, {**FIVE, "switching": "hard"}, 1500, **about(2.56e-2)),
        Case(
            "unbiased noise", q6_limited, {**FIVE, "uplink": RandK(fraction=0.5)}, 1000, 3e-2, 0.2
        ),
    ],
    sampled=[
        Case("error feedback, half", q6_limited, {**FIVE, **BOTH, **HALF}, 1000, 3e-2, 0.4),
        Case("half", q6_limited, {**FIVE, **HALF}, 1000, 3e-2, 0.4),
    ],
    first_rounds=[fedsgm_hard, fedsgm_soft],
    loops=[
        Loop(
            "error feedback",
            away_limited,
            {"client_lr": 0.02, "local_steps": 3, "tolerance": 0.02, "switching": "hard", **BOTH},
            by_card,
        )
    ],
    small={**STEPS, "tolerance": 0.1, "uplink": RandK(count=3), "downlink": RandK(count=4)},
    lost="heals",
    invariant=invariant,
    wrap=lambda objective: Limited(objective, slope=0.5, level=0.2),
)
