"""FedNewton: what the contract test holds it to."""

from __future__ import annotations

import numpy as np
from by_card import START
from contract import Case, Contract, Loop
from problems import HALF, q6, q6_l1, q6_objectives, two_clients

from flower_fedcon import Available, Bernoulli, Cyclic, FederatedProblem, Only
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedNewton


def fednewton():
    # m_1 = x^2 - 4x and m_2 = x^2/2 + x are the objectives: m = 3/4 x^2 - 3/2 x;
    # with .3 |x|: 3/2 x - 3/2 + .3 = 0
    problem = two_clients(regularizer=L1(0.3))
    return FedNewton(problem.regularizer), problem, [0.8, 0.8]


def one_after_the_other():
    # x stays at 1 until both have replied; then 3/2 x - 3/2 + .3 = 0
    problem = two_clients(regularizer=L1(0.3))
    return FedNewton(problem.regularizer, participation=Cyclic(2)), problem, [1.0, 0.8, 0.8]


def one_of_two():
    # m = m_2 alone: x = -1, and again
    return FedNewton(participation=Only(1)), two_clients(), [-1.0, -1.0]


def one_of_two_by_a_trace():
    # the other client never comes, and is not waited for
    return FedNewton(participation=Available([[0, 1]])), two_clients(), [-1.0, -1.0]


def invariant(run):
    """Under sampling m is the mean of the m_i of all clients that have replied."""
    server = run.state
    if server.mirror is not None:
        heard = server.mirror.rows["m"][server.heard > 0]
        np.testing.assert_allclose(server.m, heard.mean(axis=0), rtol=1e-12, atol=1e-12)


class Quartic:
    """A quadratic, plus the sum of x^4/4."""

    def __init__(self, plain):
        self.plain, self.shape = plain, plain.b.shape

    def value(self, x):
        return self.plain.value(x) + (x**4).sum() / 4

    def gradient(self, x):
        return self.plain.gradient(x) + x**3

    def hessian(self, x):
        return self.plain.Q + np.diag(3 * x**2)


def quartics():
    return FederatedProblem([Quartic(f) for f in q6_objectives()], x0=START)


def by_card(problem, cohorts):
    clients, x, models = problem.objectives, problem.start, {}
    for cohort in cohorts:
        for i in cohort:
            H = clients[i].hessian(x)
            models[i] = H, H @ x - clients[i].gradient(x)
        if len(models) == len(clients):
            x = np.linalg.solve(*(sum(parts) for parts in zip(*models.values(), strict=True)))
    return x


# With L1 the independent solver is 1.4e-11 off.
CONTRACT = Contract(
    cases=[
        Case("smooth", q6, {}, 2, 0, 1e-14),
        Case("composite", q6_l1, {}, 2, 0, 5e-11),
    ],
    sampled=[
        Case("half", q6_l1, HALF, 20, 0, 5e-11),
        Case("coin", q6, {"participation": Bernoulli(0.5)}, 20, 0, 1e-13),
    ],
    first_rounds=[fednewton, one_after_the_other, one_of_two, one_of_two_by_a_trace],
    loops=[Loop("quartics", quartics, {}, by_card)],
    small={},
    oracle="regularizer",
    invariant=invariant,
)
