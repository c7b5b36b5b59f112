"""Every registered algorithm under faults of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from contract import CONTRACTS, build
from faults import CORRUPT, Faults
from harness import OpenRun

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.clients.fedavg import FedAvgClient
from flower_fedcon.core.protocol import TRAIN
from flower_fedcon.engines.local import _in_columns as in_columns
from flower_fedcon.errors import RoundError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.registry import algorithms
from flower_fedcon.strategies import FedAvg


@pytest.mark.parametrize("name", algorithms())
def test_ends_where_it_should(name):
    """200 rounds of lost, late, doubled and corrupt replies and two clients that forget."""
    contract = CONTRACTS[name]
    case = contract.sampled[0] if contract.sampled else contract.cases[0]
    problem = case.problem()
    faults = Faults(seed=11, lost=0.2, late=0.1, twice=0.05, corrupt=0.05)
    run = OpenRun(build(name, problem, **case.settings), problem, case.rounds, alter=faults)
    run.server.max_retries = 60
    for played in range(200):
        if played in (67, 131):
            run.clients[played % problem.num_clients] = run.new_client(played % problem.num_clients)
        run.play()
        assert np.isfinite(run.x).all()
    counted = run.server.counts["dropped"]
    corrupt = sum(faults.counts[fault] for fault in CORRUPT)
    # A late reply is dropped when it comes, unless it is asked for again at that moment.
    assert corrupt + faults.counts["twice"] <= counted
    assert counted <= corrupt + faults.counts["twice"] + faults.counts["late"]
    assert min(faults.counts[kind] for kind in ("lost", "late", "twice")) > 0
    faults.active = False
    run.play(case.rounds)
    assert case.error(run.x) <= 1.3 * case.high


@pytest.mark.parametrize("name", algorithms())
@pytest.mark.parametrize("fault", CORRUPT)
def test_each_corruption_is_dropped_and_changes_nothing(name, fault):
    contract = CONTRACTS[name]
    case = contract.cases[0]
    problem = case.problem()
    hit = {2, 5}

    def alter(request, reply):
        first = request.phase == TRAIN and reply.payload and request.client == 1
        if not first or request.round not in hit:
            return [reply]
        hit.remove(request.round)
        return [CORRUPT[fault](reply)]

    made = build(name, problem, **{**case.settings, "min_replies": problem.num_clients})
    run = OpenRun(made, problem, case.rounds, alter=alter).play(7)
    calm = OpenRun(made, problem, case.rounds).play(7)
    assert not hit
    assert run.x.tobytes() == calm.x.tobytes()
    assert run.server.counts["dropped"] == 2
    assert run.server.counts["retries"] == 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_that_uploads_no_array_is_told(monkeypatch, dtype):
    """By a client of this process, whose replies nobody decodes."""
    told = ({"delta": [0.0, 0.0]}, None)
    monkeypatch.setattr(FedAvgClient, "upload", lambda self, state, down, done: told)
    problem = FederatedProblem([Quadratic(np.eye(2, dtype=dtype), np.ones(2, dtype=dtype))])
    with pytest.raises(RoundError, match=r"'delta' is \[0\.0, 0\.0\], expected an array"):
        simulate(FedAvg(client_lr=0.1, local_steps=1), problem, 2)


# --- answers in columns ---------------------------------------------------------------------------


def test_alike_payloads_are_one_reply():
    (reply,) = in_columns([1, 4], 3, [{"a": 1.0, "b": 2.0}, {"b": 4.0, "a": 3.0}], ())
    assert (reply.clients, reply.round) == ([1, 4], 3)
    assert reply.payload == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


@pytest.mark.parametrize("other", [{"b": 2.0}, {"a": 2.0, "b": 2.0}, {}])
def test_payloads_of_other_names_are_replies_of_their_own(other):
    """The gate names the one that differs."""
    replies = in_columns([0, 1], 3, [{"a": 1.0}, other], ({"evaluations": 1.0}, {}))
    assert [reply.clients for reply in replies] == [[0], [1]]
    assert [reply.payload for reply in replies] == [
        {"a": [1.0]},
        {name: [value] for name, value in other.items()},
    ]
    assert [list(reply.work) for reply in replies] == [[{"evaluations": 1.0}], [{}]]
