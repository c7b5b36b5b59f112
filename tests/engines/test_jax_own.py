"""What is from another package is not compiled: its lines may mean something else when traced."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from own_algorithm import PAIR, Own

from flower_fedcon import FederatedProblem, register, registry, simulate
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedMiD

pytest.importorskip("jax")


class OwnL1(L1):
    """A regularizer of one's own."""


def problem(**psi):
    rng = np.random.default_rng(0)
    return FederatedProblem(
        [LeastSquares(rng.normal(size=(9, 4)), rng.normal(size=9)) for _ in range(5)], **psi
    )


def stacked_instead(strategy, given, caplog, name):
    with caplog.at_level(logging.WARNING, "flwr"):
        found = simulate(strategy, given, 20, engine="jax", evaluate_every=10)
    assert f"{name} is from another package" in caplog.text
    assert "running on the stacked engine" in caplog.text
    there = simulate(strategy, given, 20, engine="stacked", evaluate_every=10)
    assert found.x.tobytes() == there.x.tobytes()


def test_an_algorithm_of_ones_own_runs_on_the_stacked_engine(monkeypatch, caplog):
    monkeypatch.setattr(registry, "_own", {})
    register(*PAIR)
    stacked_instead(Own(client_lr=0.05, local_steps=2), problem(), caplog, "Own")


def test_so_does_a_regularizer_of_ones_own(caplog):
    psi = OwnL1(0.1)
    strategy = FedMiD(psi, client_lr=0.05, local_steps=2)
    stacked_instead(strategy, problem(regularizer=psi), caplog, "OwnL1")
