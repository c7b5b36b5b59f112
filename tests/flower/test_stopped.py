"""`flwr stop`, and a SuperLink that has forgotten a run: it ends at once, and can go on."""

from __future__ import annotations

import re

import httpx
import numpy as np
import pytest
from fake_grid import FailingGrid, on_grid
from fuzzing import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import avg, q6_objectives

from flower_fedcon.errors import RoundError
from flower_fedcon.strategies import Scaffold

ROUNDS = 4


class RunNotRunningException(BaseException):
    """As Flower names it, and derives it."""


def refused(status):
    """Return what Flower raises of a SuperLink's answer; 403 is no Exception there."""
    if status == 403:
        return RunNotRunningException()
    request = httpx.Request("POST", "http://127.0.0.1/v1/runtime/get-nodes")
    return httpx.HTTPStatusError(
        str(status), request=request, response=httpx.Response(status, request=request)
    )


class Stopped(FailingGrid):
    """A grid that refuses every call from one on, whatever it is."""

    calls, last, status = 0, 10**9, 401

    def call(self):
        self.calls += 1
        if self.calls > self.last:
            raise refused(self.status)


def scaffold():
    return Scaffold(client_lr=0.01, local_steps=2, min_replies=6)


@pytest.fixture(scope="module")
def calm():
    """How many calls the undisturbed run takes, and its model."""
    found = []

    def play(identity):
        if not found:
            grid = Stopped(q6_objectives())
            found.append(scaffold().start(grid, num_rounds=ROUNDS).history.x)
            found.append(grid.calls)
        return found

    return play


@on_grid
@settings(max_examples=max(5, CASES // 500))
@given(stops=st.lists(st.tuples(st.floats(0.0, 1.0), st.sampled_from([401, 403])), max_size=2))
def test_a_run_stopped_at_any_call_goes_on_to_the_same_bytes(
    stops, calm, identity, tmp_path_factory
):
    """Without a checkpoint of its own, that of the last complete round is written."""
    x, calls = calm(identity)
    folder, grid = tmp_path_factory.mktemp("run"), Stopped(q6_objectives())
    options = {"num_rounds": ROUNDS, "run_dir": folder, "resume": True, "checkpoint_every": 10**6}
    for part, status in stops:
        grid.calls, grid.last, grid.status = 0, int(part * calls), status
        refusal = None
        try:
            scaffold().start(grid, **options)
        except RoundError as error:
            refusal = str(error)
        if grid.calls <= grid.last:  # resumed, it has fewer rounds to play
            assert refusal is None
            continue
        assert re.search(r"no further requests of this run: .* with resume=true", refusal)
        assert grid.calls == grid.last + 1  # it is asked nothing more
    grid.last = 10**9
    assert scaffold().start(grid, **options).history.x.tobytes() == x.tobytes()


@on_grid
def test_the_rounds_before_it_was_stopped_are_not_played_again(tmp_path, log):
    grid = Stopped(q6_objectives())

    def stop(record):
        if record["round"] == 3:
            grid.last = grid.calls

    options = {"run_dir": tmp_path, "evaluate_every": 1, "checkpoint_every": 10**6, "resume": True}
    with pytest.raises(RoundError, match="flwr stop"):
        avg().start(grid, num_rounds=ROUNDS, callbacks=[stop], **options)
    grid.last = 10**9
    history = avg().start(grid, num_rounds=ROUNDS, **options).history
    assert f"resuming {tmp_path} after round 3" in log.messages
    assert history["round"].tolist() == [1, 2, 3, 4]
    assert np.isfinite(history["objective"]).all()


@on_grid
@pytest.mark.parametrize("status", [400, 404, 503])
def test_other_answers_of_a_superlink_are_waited_for(status, log):
    grid = Stopped(q6_objectives())
    grid.last, grid.status = 0, status
    with pytest.raises(RoundError, match=f"has not answered for .*{status}"):
        avg().start(grid, num_rounds=1, round_deadline=0.3)
    assert any("waiting for the SuperLink" in message for message in log.messages)
