"""LoCoDL: what the contract test does not say."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.compressors import QSGD
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import LoCoDL


def test_quantised_messages_save_bytes_and_hardly_cost_rounds():
    """Of 200 entries, each in one byte instead of eight."""
    rng = np.random.default_rng(0)
    clients = [Quadratic(np.diag(rng.uniform(1, 5, 200)), rng.normal(size=200)) for _ in range(6)]
    problem = FederatedProblem(clients)
    x = sum(f.b for f in clients) / sum(np.diag(f.Q) for f in clients)
    sent = []
    for compressor in (None, QSGD(levels=64)):
        strategy = LoCoDL(uplink_compressor=compressor)
        history = simulate(strategy, problem, 70, evaluate_every=70)
        assert np.linalg.norm(history.x - x) < 1e-9
        sent.append(history["uplink_bytes"][-1])
    assert sent[1] < 0.3 * sent[0]


class Unknown:
    """A quadratic that states nothing."""

    def value(self, x):
        return float(x @ x)

    def gradient(self, x):
        return 2 * x


def test_constants_that_clients_do_not_state_can_be_given():
    problem = FederatedProblem([Unknown(), Unknown()], x0=np.ones(3))
    found = simulate(LoCoDL(strong_convexity=2.0, client_lr=0.4), problem, 60).x
    assert found == pytest.approx(np.zeros(3), abs=1e-12)
