"""AveragedFW: what the contract test holds it to. It does not reach the optimum."""

from __future__ import annotations

from contract import Case, Contract, about
from problems import HALF, l1ls, toy, two_clients

from flower_fedcon.sets import Box
from flower_fedcon.strategies import AveragedFW


def averagedfw():
    # D = [-1, 2], from 1. eta = 1, 2/3, 1/2: the atoms are 2 and -1 in each round.
    # t=1: g = -2, 2: x = 2, -1, mean .5;  t=2: g = -3, 1.5: x = 1.5, -.5, mean .5
    problem = two_clients(constraint=Box(-1.0, 2.0))
    return AveragedFW(problem.constraint), problem, [0.5, 0.5, 0.5]


def averagedfw_two_steps():
    # K = 2, eta = 1, 2/3, from 1 on [-1.5, 3]:
    # client 1: 3, then (3 - 2 * 1.5)/3 = 0; client 2: -1.5, g_2 = -.5 -> 3: (-1.5 + 6)/3 = 1.5
    problem = two_clients(constraint=Box(-1.5, 3.0))
    return AveragedFW(problem.constraint, local_steps=2), problem, [0.75]


CONTRACT = Contract(
    cases=[
        Case("toy", toy, {}, 1000, **about(1.0, 1e-12)),
        Case("lasso", l1ls, {}, 500, **about(1.40, 0.03), measure="residual"),
    ],
    sampled=[Case("half", l1ls, HALF, 500, 0, 10.0, measure="residual")],
    first_rounds=[averagedfw, averagedfw_two_steps],
    small={},
    oracle="constraint",
)
