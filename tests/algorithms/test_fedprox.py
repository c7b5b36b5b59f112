"""FedProx: where it ends, and what it agrees with."""

from __future__ import annotations

import numpy as np
import pytest
from problems import q6

from flower_fedcon import simulate
from flower_fedcon.strategies import FedProx


def test_fedprox_ends_where_its_fixed_point_is():
    problem = q6()
    for mu in (1.0, 10.0):
        solved = [np.linalg.inv(f.Q + mu * np.eye(8)) for f in problem.objectives]
        system = np.eye(8) - mu * np.mean(solved, axis=0)
        shares = [s @ f.b for s, f in zip(solved, problem.objectives, strict=True)]
        fixed = np.linalg.solve(system, np.mean(shares, axis=0))
        x = simulate(FedProx(proximal=mu), problem, 500, evaluate_every=0).x
        assert x == pytest.approx(fixed, abs=1e-13)
