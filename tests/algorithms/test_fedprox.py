"""FedProx: where it ends, and what it agrees with."""

from __future__ import annotations

import numpy as np
import pytest
from harness import OpenRun
from problems import q6
from q6_runs import prox

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.strategies import FedPD, FedProx


def test_fedprox_ends_where_its_fixed_point_is():
    problem = q6()
    for mu in (1.0, 10.0):
        solved = [np.linalg.inv(f.Q + mu * np.eye(8)) for f in problem.objectives]
        system = np.eye(8) - mu * np.mean(solved, axis=0)
        shares = [s @ f.b for s, f in zip(solved, problem.objectives, strict=True)]
        fixed = np.linalg.solve(system, np.mean(shares, axis=0))
        x = simulate(FedProx(proximal=mu), problem, 500, evaluate_every=0).x
        assert x == pytest.approx(fixed, abs=1e-13)


def test_fedprox_with_one_client_is_proximal_point():
    f = q6().objectives[0]
    run, x = OpenRun(FedProx(proximal=5.0), FederatedProblem([f])), np.zeros(8)
    for _ in range(20):
        x = prox(f, x, 1 / 5.0)
        assert run.play().x == pytest.approx(x, abs=1e-14)


def test_all_agree_on_a_first_round_with_fedprox():
    problem = q6()
    first = simulate(FedProx(proximal=10.0), problem, 1).x
    split = simulate(FedPD(step_size=0.1), problem, 1).x
    # From x0 = 0, u_i = 2 x_i.
    assert split == pytest.approx(2 * first, abs=1e-15)
