"""Checks with replies to earlier models (`Buffered`)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.flow import Event
from flower_fedcon.core.participation import Full
from flower_fedcon.core.protocol import Reply
from flower_fedcon.errors import ParticipationError, StateLostError
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.testing.expect import CheckError, Strategy, changed, expect, same
from flower_fedcon.testing.faults import corrupt
from flower_fedcon.testing.open_run import Asked, OpenRun

_LOST, _BROKEN, _GONE = 0.1, 0.15, 0.18  # shares of replies: lost; with NaN; clients without state


def earlier_models(strategy: Strategy, problem: FederatedProblem) -> None:
    """Check that replies to earlier models are refused with the reason, or used once each.

    Steps that wait for everyone must be rounds; the others are played with clients whose speeds
    differ by 1000, and with lost replies, NaN and lost states.
    """
    n = problem.num_clients
    waits = changed(strategy, participation=Buffered(buffer=n, concurrency=n, dispatch=n))
    try:
        control = OpenRun(waits, problem)
    except ParticipationError as error:
        reason = strategy.needs_fresh and (strategy.needs_everyone or strategy.needs_fresh)
        expect(not reason or reason in str(error), f"the reason is missing in: {error}")
        return
    expect(not strategy.needs_fresh, f"it plays although {strategy.needs_fresh}")
    rounds = OpenRun(changed(strategy, participation=Full()), problem)
    for _ in range(6):
        control.play()
        rounds.play()
        expect(same(control.x, rounds.x), "steps that wait for everyone differ from rounds")
    for rule in (Buffered(), Buffered(buffer=min(2, n), max_staleness=2 * n, discount=0.5)):
        _harsh(changed(strategy, participation=rule), problem)


def _harsh(strategy: Strategy, problem: FederatedProblem) -> None:
    """Play 60 steps with faults; each upload counts at most once."""
    draws, used = np.random.default_rng(7), Counter[tuple[int, int]]()

    def spoil(asked: Asked, reply: Reply) -> list[Reply]:
        chance = draws.random()
        if chance < _LOST or not reply.payload:
            return [] if chance < _LOST else [reply]
        if chance < _BROKEN:
            return corrupt(reply, "nan")
        if chance < _GONE and run.server.strategy.clients_keep_state:
            run.clients[asked.client] = run.new_client(asked.client)
        return [reply]

    def note(event: Event) -> None:
        if event.outcome == "used":
            used[event.wave, event.clients[0]] += 1

    run = OpenRun(strategy, problem, alter=spoil)
    run.steps.note = note
    try:
        run.play(60)
    except StateLostError:  # it has said that it has no way back
        return
    expect(np.isfinite(run.x).all(), "with replies to earlier models the model is not finite")
    most = max(used.values(), default=0)
    if most > 1:
        raise CheckError(f"an upload is used {most} times")
