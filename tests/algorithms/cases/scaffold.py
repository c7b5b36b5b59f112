"""Scaffold: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import away, descended, gradient
from contract import Case, Contract, Loop
from harness import OpenRun, latest
from problems import q6, two_clients

from flower_fedcon import Cyclic, Sample
from flower_fedcon.server.windows import WindowMeans
from flower_fedcon.strategies import Scaffold

FIVE = {"client_lr": 1 / 400, "local_steps": 5}
WINDOW = {"window": 3, "amplification": 1.5}


def scaffold():
    # client 1: 1 -> 1.2 -> 1.36, c_1 = -.36/.2;  client 2: 1 -> .8 -> .62, c_2 = .38/.2
    # x = 1 + 2 * ((.36 - .38)/2) = .98,  c = (-1.8 + 1.9)/2 = .05
    # 1: .98 - .1(-2.04 + 1.85) = .999 -> .999 - .1(-2.002 + 1.85) = 1.0142
    # 2: .98 - .1(1.98 - 1.85) = .967 -> .967 - .1(1.967 - 1.85) = .9553
    # x = .98 + 2 * ((.0342 - .0247)/2)
    return Scaffold(client_lr=0.1, local_steps=2, server_lr=2.0), two_clients(), [0.98, 0.9895]


def scaffold_option_one():
    # round 1 as above, but c_1 = f_1'(1) = -2, c_2 = 2, c = 0
    # 1: .98 - .1(-2.04 + 2) = .984 -> .984 - .1(-2.032 + 2) = .9872
    # 2: .98 - .1(1.98 - 2) = .982 -> .982 - .1(1.982 - 2) = .9838;  x = .98 + .0072 + .0038
    strategy = Scaffold(client_lr=0.1, local_steps=2, server_lr=2.0, option="I")
    return strategy, two_clients(), [0.98, 0.991]


def scaffold_window():
    # rounds 1 and 2 with c = c_i = 0:
    # 1: 1 -> 1.2 -> 1.36, mean gradient -1.8;  2: 1 -> .8 -> .62, 1.9;  x = .99
    # 1: .99 -> 1.192 -> 1.3536, -1.818;  2: .99 -> .791 -> .6119, 1.8905
    # x = .99 + (.3636 - .3781)/2 = .98275, amplified 1 + 2 (-.01725) = .9655
    # c_1 = (-1.8 - 1.818)/2 = -1.809,  c_2 = 1.89525,  c = .043125
    # 1: .9655 - .1(-2.069 + 1.852125) = .9871875 - .1(-2.025625 + 1.852125) = 1.0045375
    # 2: .9655 - .1(1.9655 - 1.852125) = .9541625 - .1(1.9541625 - 1.852125) = .94395875
    strategy = Scaffold(client_lr=0.1, local_steps=2, window=2, amplification=2.0)
    return strategy, two_clients(), [0.99, 0.9655, 0.974248125]


def c_is_the_mean(run: OpenRun) -> None:
    """The server's c is the mean of the clients' c_i, and its mirror has them bit by bit.

    With windows so is m, of the m_i, and the mirror has all that clients keep.
    """
    mirror, windows = run.state.mirror.rows, run.state.window is not None
    names = WindowMeans._fields if windows else ("c",)
    for name in names:
        for j in range(run.problem.num_clients):
            state = latest(run, j)
            kept = np.zeros_like(mirror[name][j]) if state is None else getattr(state, name)
            assert kept.tobytes() == mirror[name][j].tobytes()
    if windows:
        assert np.allclose(run.state.m, mirror["mean"].mean(0), rtol=0, atol=1e-13)
        now = run.state.window.rounds // run.server.strategy.window
        held = WindowMeans(*(mirror[name] for name in names)).at(now)
        mirror = held._asdict()
    assert np.allclose(run.state.c, mirror["c"].mean(0), rtol=0, atol=1e-13)


def by_card(problem, cohorts, client_lr, local_steps, server_lr, option):
    clients, x = problem.objectives, problem.start
    c, own = 0 * x, np.zeros((len(clients), len(x)))
    for cohort in cohorts:
        moved, changed = 0 * x, 0 * x
        for i in cohort:
            change = descended(clients[i], x, client_lr, local_steps, c - own[i]) - x
            if option == "I":
                dc = gradient(clients[i], x) - own[i]
            else:
                dc = -c - change / (local_steps * client_lr)
            own[i] += dc
            moved, changed = moved + change / len(cohort), changed + dc / len(clients)
        x, c = x + server_lr * moved, c + changed
    return x


CONTRACT = Contract(
    cases=[
        Case("five steps", q6, FIVE, 500, 0, 3e-15),
        Case("option I", q6, {**FIVE, "option": "I"}, 500, 0, 3e-15),
        Case("without mirror", q6, {**FIVE, "mirror": False}, 500, 0, 3e-15),
        Case("on the way", q6, FIVE, 264, 0.9e-10, 1e-10),
        Case("windows", q6, {**FIVE, **WINDOW}, 600, 0, 3e-15),
    ],
    sampled=[
        Case("two", q6, {**FIVE, "participation": Sample(count=2)}, 500, 0, 3e-15),
        Case("one", q6, {**FIVE, "participation": Sample(count=1)}, 1000, 0, 3e-15),
        Case("turns", q6, {**FIVE, **WINDOW, "participation": Cyclic(groups=3)}, 600, 0, 3e-15),
    ],
    first_rounds=[scaffold, scaffold_option_one, scaffold_window],
    loops=[
        Loop(option, away, {**FIVE, "server_lr": 1.5, "option": option}, by_card)
        for option in ("I", "II")
    ],
    small={"client_lr": 0.1, "local_steps": 2},
    lost="exact",
    invariant=c_is_the_mean,
)
