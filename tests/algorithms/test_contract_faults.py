"""What every registered algorithm must do where replies, or clients' states, are lost or wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contract import CONTRACTS, EACH, EACH_RULE, FIRST, strategy
from harness import OpenRun

from flower_fedcon.core.protocol import TRAIN, Reply
from flower_fedcon.errors import RoundError


def losing(share: float, seed: int = 5):
    """Return an exchange's `alter` that loses replies."""
    lost = np.random.default_rng(seed)
    return lambda request, reply: [] if lost.random() < share else [reply]


@EACH_RULE
def test_lost_replies_are_asked_for_again(name, participation):
    """Replies that are lost at first move nothing: state waits for the server's word."""
    case = FIRST[name]
    n = case.problem().num_clients
    calm = OpenRun(strategy(name, case, participation=participation), case.problem())
    faulty = OpenRun(
        strategy(name, case, participation=participation, min_replies=n),
        case.problem(),
        alter=losing(0.3),
    )
    faulty.server.max_retries = 100  # one client in two can be unlucky often
    calm.play(30)
    faulty.play(30)
    assert faulty.x.tobytes() == calm.x.tobytes()
    assert faulty.server.counts["retries"] > 0


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
    if contract.lost == "exact":
        calm.play(half + 20)
        run.play(20)
        assert run.x.tobytes() == calm.x.tobytes()
    else:
        run.play(case.rounds)
        assert case.low <= case.error(run.x) <= case.high
    assert run.server.counts["lost"] == 1


@EACH
@pytest.mark.parametrize(
    "fault", ["nan", "shape", "dtype", "extra key", "stale", "weight", "twice"]
)
def test_the_gate(name, fault):
    """A bad reply is dropped, counted and named; the round goes on as if it had not come."""
    case = FIRST[name]
    problem = case.problem()
    bad = {2: 1, 5: 0}  # round: client

    def alter(request, reply):
        if request.phase != TRAIN or waiting.get(request.round) != request.client:
            return [reply]
        if not reply.payload:  # a round in which nothing is uploaded
            return [reply]
        del waiting[request.round]
        return corrupt(reply, fault)

    waiting = dict(bad)
    full = strategy(name, case, min_replies=problem.num_clients)
    run = OpenRun(full, problem, alter=alter).play(8)
    calm = OpenRun(strategy(name, case), problem).play(8)
    assert run.x.tobytes() == calm.x.tobytes()
    assert run.server.counts["dropped"] == len(bad)
    assert run.server.counts["retries"] == (0 if fault == "twice" else len(bad))


def corrupt(reply: Reply, fault: str) -> list[Reply]:
    name, (value,) = next(iter(reply.payload.items()))
    dense = value if isinstance(value, np.ndarray) else value.dense()
    changed = replace(reply, payload=dict(reply.payload))
    if fault == "nan":
        changed.payload[name] = [np.full_like(dense, np.nan)]
    elif fault == "shape":
        changed.payload[name] = [np.zeros((*dense.shape, 1))]
    elif fault == "dtype":
        changed.payload[name] = [dense.astype(np.float16)]
    elif fault == "extra key":
        changed.payload["more"] = [dense]
    elif fault == "stale":
        changed.round -= 1
    elif fault == "weight":
        changed.num_examples = float("nan")
    else:
        return [reply, reply]
    return [changed]


@EACH
def test_too_few_replies_end_the_run_with_the_reasons(name):
    case = FIRST[name]

    def alter(request, reply):
        return [] if request.round > 3 else [reply]

    run = OpenRun(strategy(name, case), case.problem(), alter=alter).play(3)
    before = run.x.copy()
    with pytest.raises(RoundError, match=r"round 4: 0 usable replies .*clients 0, 1.*: no reply"):
        run.play()
    assert run.x.tobytes() == before.tobytes()
