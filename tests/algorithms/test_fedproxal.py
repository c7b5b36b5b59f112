"""FedProxAL: what the contract test does not say."""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun
from problems import Walled, two_limited, two_walls

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import Quadratic
from flower_fedcon.regularizers import L1, Separable
from flower_fedcon.sets import HalfSpace
from flower_fedcon.strategies import FedProxAL


def test_second_round():
    # w = 1/7.  1: u - 2 + u - .5 + (u - 1)/3 + .5 + u - 1/7 = 0: u = 26/35, z = 129/70
    # 2: (u + 1)/2 + 9u - 7.5 + (u - 1)/3 - 2.5 + u - 1/7 = 0: u = 419/455, z = 773/455 - 5/2
    problem = FederatedProblem(two_limited().objectives, x0=np.ones(1), constraints="each")
    found = simulate(FedProxAL(penalty=1.0, coupling=1.0), problem, 2).x
    assert found == pytest.approx([1877 / 3185], rel=1e-10)


def test_multipliers_are_those_of_the_optimum():
    run = OpenRun(FedProxAL(penalty=10.0, coupling=1.0), two_walls()).play(400)
    assert run.x == pytest.approx([0.5, 1.0], abs=2e-4)
    assert run.state.multipliers == pytest.approx([0.75, 0.5], abs=1e-2)
    report = run.server.strategy.report(run.state)
    assert report["stage"] > 3
    assert abs(report["worst_constraint"]) < 1e-3


def test_clients_without_a_constraint_are_not_bound_and_psi_is_the_servers():
    """x^2/2 - 3x and x^2/2 - x, with |x|/2: 1.5; the second client demands x <= 1."""
    clients = [Quadratic([[1.0]], [3.0]), Walled(Quadratic([[1.0]], [1.0]), [1.0], 1.0)]
    psi = L1(0.5)
    for objectives, x, kind in ((clients[:1] * 2, 2.5, "mean"), (clients, 1.0, "each")):
        problem = FederatedProblem(objectives, regularizer=psi, constraints=kind)
        found = simulate(FedProxAL(psi, coupling=0.5), problem, 300).x
        assert found == pytest.approx([x], abs=1e-3)


class Lifted:
    """f_j of [w, z], with c_j(w) - z_j."""

    def __init__(self, objective, j):
        self.objective, self.j, self.shape = objective, j, [(1,), (2,)]

    def value(self, x):
        return self.objective.value(x[0])

    def gradient(self, x):
        return [self.objective.gradient(x[0]), np.zeros(2)]

    def constraint_value(self, x):
        return self.objective.constraint_value(x[0]) - x[1][self.j]

    def constraint_gradient(self, x):
        return [self.objective.constraint_gradient(x[0]), -np.eye(2)[self.j]]


def test_a_shared_constraint_is_each_client_s_with_numbers_that_sum_to_0():
    """F = (3/4) x^2 - (3/2) x, 1 if it were free, with x - .5 + 3x - 2.5 <= 0: 3/4."""
    psi = Separable([(None, (1,)), (HalfSpace(np.ones(2), 0.0), (2,))])
    clients = [Lifted(f, j) for j, f in enumerate(two_limited().objectives)]
    start = [np.zeros(1), np.zeros(2)]
    problem = FederatedProblem(clients, regularizer=psi, constraints="each", x0=start)
    x, z = simulate(FedProxAL(psi, coupling=1.0), problem, 300).x
    assert x == pytest.approx([0.75], abs=1e-3)
    assert z == pytest.approx([0.25, -0.25], abs=1e-3)
