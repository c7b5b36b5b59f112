"""lambda and the rounds in S-DANE's claims are those of its page's theorem."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pages import ROOT

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.claims import Claims
from flower_fedcon.problems.papers.quadratics import quadratics


def dissimilarity(problem):
    """delta, of clients whose Hessians are Q_i: the root of |mean (Q_i - Q)^2|."""
    Q = np.array([f.Q for f in problem.objectives])
    apart = Q - Q.mean(axis=0)
    return math.sqrt(np.linalg.eigvalsh((apart @ apart).mean(axis=0))[-1])


@pytest.mark.parametrize(
    ("name", "label", "power"),
    [("sdane", "accelerated", 0.5), ("sdane_plain", "plain", 1.0), ("sdane_condition", "", 0.0)],
)
def test_constants(name, label, power):
    claims = Claims(ROOT / "sims" / "claims" / f"{name}.toml")
    seen = set()
    for (found, seed, *_), experiment in claims.runs():
        if found != label if label else not found.startswith("acc"):
            continue
        settings = experiment.settings(found)
        problem = experiment.problem()
        at = settings["proximal"]
        assert problem.optimum.value < 0 == abs(problem.x0).max()  # |F*| = F(x0) - F*
        assert 2 * dissimilarity(problem) <= at
        if power:
            steps = 1 + math.log(1e6 * at) / math.log1p(at**-power)
            assert (
                2 * math.floor(steps) <= experiment.run_options.rounds <= 2 * math.ceil(steps) + 2
            )
        seen.add(seed)
    assert seen == set(range(5))


def test_clients_that_are_alike():
    apart = quadratics(condition=50.0, directions="aligned", seed=3)
    for share in (0.0, 0.01, 0.3):
        problem = quadratics(condition=50.0, directions="aligned", alike=share, seed=3)
        first, *others = (np.sort(np.linalg.eigvalsh(f.Q)) for f in problem.objectives)
        assert np.allclose(problem.objectives[0].Q, apart.objectives[0].Q)
        for each in others:
            assert (abs(each / first - 1) <= share + 1e-9).all() or share > 0.1  # else they cross
            assert each[0] >= 1 - 1e-9
            assert each[-1] <= 50 * (1 + 1e-9)
        assert dissimilarity(problem) <= share * 50 + 1e-9


@pytest.mark.parametrize(
    "options",
    [
        {"alike": -0.1},
        {"alike": 1.0},
        {"directions": "mixed"},
        {"shared": False},
        {"smallest": 0.0},
    ],
)
def test_alike_is_refused_with(options):
    with pytest.raises(ConfigError, match="alike"):
        quadratics(**{"directions": "aligned", "alike": 0.1} | options)
