"""CompositeFL: what it keeps true, and what breaks it.

Its lost states are in test_conserved_sums.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from harness import OpenRun
from problems import q6_l1
from q6_runs import PSI, STEPS, cohort, gradients, played, ten_digits

from flower_fedcon import Full, Sample, simulate
from flower_fedcon.clients.compositefl import CompositeFLClient
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.strategies import CompositeFL

SIMS = Path(__file__).parents[2] / "sims"


@pytest.mark.parametrize(
    ("settings", "tenth", "slack"),
    [(STEPS, 229, 1), (cohort(3), 222, 45), (cohort(2), 221, 45)],
    ids=["full", "three", "two"],
)
def test_rounds_to_ten_digits(settings, tenth, slack):
    """The first round with an error below 1e-10, and the error in the end."""
    first, last = ten_digits(CompositeFL(PSI, **settings), q6_l1(), 4000)
    assert abs(first - tenth) <= slack
    assert last < 2e-14


def test_composite_ends_with_one_vector_for_all():
    run = played(CompositeFL(PSI, **cohort(2), server_lr=2.0), 1000, q6_l1)
    sums = gradients(run) + run.state.mirror.rows["c"]
    assert sums == pytest.approx(np.tile(gradients(run).mean(0), (6, 1)), abs=1e-11)


def test_composite_moves_c_as_the_paper_writes_it(monkeypatch):
    """c_i = (P - x_bar(new))/(eta_g eta K) - (1/K) sum of the round's gradients, + their mean."""
    seen = {}
    gradient = CompositeFLClient.gradient

    def watched(client, v):
        g = gradient(client, v)
        seen.setdefault(client._index, []).append(g)
        return g

    monkeypatch.setattr(CompositeFLClient, "gradient", watched)
    run = OpenRun(CompositeFL(PSI, **STEPS, server_lr=2.0), q6_l1())
    for _ in range(5):
        seen.clear()
        p = run.x
        run.play()
        common = (p - run.state.x_bar) / (2.0 * STEPS["client_lr"] * 5)
        for i, c in enumerate(run.state.mirror.rows["c"]):
            assert c == pytest.approx(common - np.mean(seen[i], axis=0), abs=1e-12)


@pytest.mark.parametrize(("rule", "vectors"), [(Full(), 6 * 1), (Sample(count=3), 3 * 2)])
def test_composite_sends_c_to_cohorts_alone(rule, vectors):
    run = played(CompositeFL(PSI, **STEPS, participation=rule), 4, q6_l1)
    assert run.server.downlink_bytes == 4 * vectors * (128 + 8 * 8)


def test_composite_has_no_floor_on_digits():
    """Clients with few labels each: FedDualAvg stops at 1.27e-2, after 8,000 rounds."""
    experiment = Experiment.load(SIMS / "composite_digits.toml")
    problem, best = experiment.problem(), experiment.problem().optimum.value
    history = simulate(experiment.strategy(), problem, 500, evaluate_every=100)
    errors = (np.array(history["objective"]) - best) / best
    assert all(np.diff(errors) < 0)
    assert errors[2] < 1e-2
    assert errors[-1] == pytest.approx(4.34e-4, rel=0.05)
