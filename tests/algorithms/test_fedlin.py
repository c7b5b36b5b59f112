"""FedLin: what the contract test does not say."""

from __future__ import annotations

import pytest
from problems import q6

from flower_fedcon import simulate
from flower_fedcon.strategies import FedAvg, FedLin


def test_one_step_is_gradient_descent_in_pairs_of_rounds():
    plain = simulate(FedAvg(client_lr=0.02, local_steps=1), q6(), 10).x
    assert simulate(FedLin(client_lr=0.02, local_steps=1), q6(), 20).x == pytest.approx(
        plain, rel=1e-13
    )
