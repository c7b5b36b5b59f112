"""What every registered algorithm must do where replies, or clients' states, are lost or wrong."""

from __future__ import annotations

import numpy as np
import pytest
from contract import CONTRACTS, strategy
from harness import OpenRun


def losing(share: float, seed: int = 5):
    """Return an exchange's `alter` that loses replies."""
    lost = np.random.default_rng(seed)
    return lambda request, reply: [] if lost.random() < share else [reply]


@pytest.mark.parametrize("name", [n for n, c in CONTRACTS.items() if c.sampled])
def test_goes_on_without_a_missing_client(name):
    """Sampled forms apply what arrives, and end where the card says they do."""
    case = CONTRACTS[name].sampled[0]
    calm, run = (OpenRun(strategy(name, case), case.problem(), case.rounds) for _ in range(2))
    run.alter = losing(0.2)
    run.server.max_retries = 20
    calm.play(case.rounds)
    run.play(case.rounds)
    assert run.server.counts["dropped"] == 0
    assert case.error(run.x) <= 1.3 * max(case.high, case.error(calm.x))


STATES = {name: contract for name, contract in CONTRACTS.items() if contract.lost is not None}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("sampled", [False, True])
def test_a_client_that_lost_its_state_comes_back(name, sampled):
    contract = CONTRACTS[name]
    if sampled and not contract.sampled:
        pytest.skip("refuses cohorts")
    case = contract.sampled[0] if sampled else contract.cases[0]
    made = strategy(name, case)
    calm, run = (OpenRun(made, case.problem(), case.rounds) for _ in range(2))
    half = case.rounds // 2
    run.play(half)
    run.clients[1] = run.new_client(1)
    if contract.invariant is not None and not sampled:  # one round makes it whole
        contract.invariant(run.play())
    if contract.lost == "exact":
        calm.play(run.server.round + 20)
        run.play(20)
        assert run.x.tobytes() == calm.x.tobytes()
    else:
        run.play(case.rounds)
        assert case.low <= case.error(run.x) <= case.high
    assert run.server.counts["lost"] == 1
