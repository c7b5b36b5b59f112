"""Checks with lost or wrong replies, and lost client states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flower_fedcon.core.participation import Full
from flower_fedcon.core.protocol import TRAIN, Reply
from flower_fedcon.errors import (
    RoundError,
    StateLostError,
)
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.registry import client_class
from flower_fedcon.testing.expect import (
    CheckError,
    Strategy,
    changed,
    expect,
    forms,
    same,
)
from flower_fedcon.testing.open_run import Asked, OpenRun


def lost_replies(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that lost replies change nothing: state waits until the server uses the reply."""
    for made in forms(strategy, problem):
        draws = np.random.default_rng(5)

        def lose(asked: Asked, reply: Reply, draws: Any = draws) -> list[Reply]:
            return [] if draws.random() < 0.3 else [reply]

        calm = OpenRun(made, problem)
        whole = changed(made, min_replies=problem.num_clients)
        faulty = OpenRun(whole, problem, alter=lose)
        faulty.server.max_retries = 100  # with two clients, one may be drawn often
        calm.play(30)
        faulty.play(30)
        expect(faulty.server.counts["retries"], "no lost reply was asked for again")
        expect(same(faulty.x, calm.x), "a reply that was lost and repeated changes the iterates")


FAULTS = "nan", "shape", "dtype", "extra key", "stale", "weight", "twice"


def bad_replies(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that a bad reply is counted and treated like a missing one."""
    full = changed(strategy, participation=Full(), min_replies=problem.num_clients)
    calm = OpenRun(changed(full, min_replies=None), problem).play(8)
    for fault in FAULTS:
        waiting = {2: 1, 5: 0}  # round: client

        def spoil(
            asked: Asked, reply: Reply, fault: str = fault, waiting: dict[int, int] = waiting
        ) -> list[Reply]:
            due = asked.phase == TRAIN and waiting.get(asked.round) == asked.client
            if not due or not reply.payload:  # or a round without uploads
                return [reply]
            del waiting[asked.round]
            return corrupt(reply, fault)

        run = OpenRun(full, problem, alter=spoil).play(8)
        spoilt = 2 - len(waiting)
        counts = run.server.counts
        expect(counts["dropped"] == spoilt, f"{fault}: {counts['dropped']} of {spoilt} dropped")
        again = 0 if fault == "twice" else spoilt
        expect(counts["retries"] == again, f"{fault}: {counts['retries']} of {again} asked again")
        expect(same(run.x, calm.x), f"a reply with a wrong {fault} changes the iterates")


def corrupt(reply: Reply, fault: str) -> list[Reply]:
    """Return the message that arrives instead of a reply."""
    name, (value,) = next(iter(reply.payload.items()))
    dense = value if isinstance(value, np.ndarray) else np.asarray(value.dense())
    wrong: dict[str, Any] = {
        "nan": {name: [np.full_like(dense, np.nan)]},
        "shape": {name: [np.zeros((*dense.shape, 1))]},
        "dtype": {name: [dense.astype(np.float16)]},
        "extra key": {"more": [dense]},
    }
    if fault in wrong:
        return [replace(reply, payload={**reply.payload, **wrong[fault]})]
    if fault == "stale":
        return [replace(reply, round=reply.round - 1)]
    if fault == "weight":
        return [replace(reply, num_examples=float("nan"))]
    return [reply, reply]


def too_few_replies(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that a round without any answer ends the run with the reason."""

    def silence(asked: Asked, reply: Reply) -> list[Reply]:
        return [] if asked.round > 3 else [reply]

    run = OpenRun(changed(strategy, participation=Full()), problem, alter=silence).play(3)
    before = run.x.copy()
    try:
        run.play()
    except RoundError as error:
        told = str(error)
        expect("round 4: 0 usable replies" in told and "no reply" in told, f"it says only: {told}")
    else:
        raise CheckError("a round without replies is applied")
    expect(same(run.x, before), "a round without replies changes the model")


def lost_state(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that a client that lost its state comes back, or the run ends with the reason."""
    if client_class(strategy.name).state_type is None:
        return
    run = OpenRun(changed(strategy, participation=Full()), problem).play(3)
    run.clients[1] = run.new_client(1)
    try:
        run.play(3)
    except StateLostError as error:
        expect(strategy.title in str(error), f"the reason does not name the algorithm: {error}")
        return
    expect(
        run.server.counts["lost"] == 1,
        "a client continues without its state, and the run does not report it",
    )
    expect(np.isfinite(run.x).all(), "after a client has lost its state the model is not finite")
