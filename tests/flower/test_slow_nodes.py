"""Nodes that are slow, silent or away: how long a run waits, for whom, and what it says."""

from __future__ import annotations

import re
import threading
import time

import pytest
from fake_grid import FakeGrid, asked, on_grid
from problems import avg, q6, q6_objectives

from flower_fedcon import Sample, simulate
from flower_fedcon.engines import grid as grids
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.flower import mail
from flower_fedcon.strategies import CompositeFL

pytestmark = on_grid


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that only waiting moves: these tests take no time, on any machine."""

    class Clock:
        now = 0.0

        def sleep(self, seconds):
            if threading.current_thread() is threading.main_thread():
                self.now += max(seconds, 1e-3)
            else:  # Flower's threads have their own time
                real(seconds)

    clock, real = Clock(), time.sleep
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


class Hung(FakeGrid):
    """Client 2 takes every message of these kinds, and answers none of them."""

    kinds = ("train",)

    def replies_to(self, message):
        sent = asked(message)
        hung = sent["action"] in self.kinds and sent["client"] == 2
        return [] if hung else super().replies_to(message)


def test_a_start_that_waits_says_every_minute_for_whom_and_how_long(monkeypatch, log):
    monkeypatch.setattr(mail, "POLL", (0.0, 5.0))
    grid, limits = FakeGrid(q6_objectives()), {"start_timeout": 200, "min_clients_to_start": 2}
    del grid.nodes[998]
    avg().start(grid, num_rounds=1, **limits)
    told = [m for m in log.messages if m.startswith("5 of 6 clients have answered")]
    assert told[0] == "5 of 6 clients have answered; missing: client 2"
    assert told[1].startswith(
        f"{told[0]}. Waiting for 135 s more (start_timeout=200); then 2 suffice (min_clients_to_"
    )
    assert len(told) == 4
    with pytest.raises(ConfigError, match="min_clients_to_start is 9"):
        avg().start(grid, num_clients=6, min_clients_to_start=9)


def trained(grid):
    """Return what client 2 was asked for in training."""
    sent = map(asked, grid.pushed)
    return [one for one in sent if (one["action"], one.get("client")) == ("train", 2)]


def test_a_client_that_hangs_is_left_out_for_a_while_and_named(log):
    grid = Hung(q6_objectives())
    options = {"timeout": 0.02, "quarantine_after": 2, "quarantine_rounds": 3, "evaluate_every": 0}
    avg().start(grid, num_rounds=12, **options)
    rounds = [asked["round"] for asked in trained(grid)]
    assert rounds == [1, 2, 6]  # left out of 3 to 5, then of 7 to 12
    assert any("client 2 has failed repeatedly (now: no reply in" in m for m in log.messages)
    assert any("[ROUND 4/12] 5 of 6 replies" in m and "client 2 (it is left out until round 6" in m
               for m in log.messages)  # fmt: skip


def test_a_round_that_needs_everyone_asks_those_in_quarantine_too():
    grid = Hung(q6_objectives())
    grid.kinds = ()
    strategy = CompositeFL(None, client_lr=1 / 80, local_steps=2)

    def hang(record):
        grid.kinds = ("train",) if record["round"] == 2 else ()

    options = {"timeout": 0.01, "quarantine_after": 1, "evaluate_every": 1, "callbacks": [hang]}
    with pytest.raises(RoundError, match=r"round 3: 5 usable .* \(client 2: no reply in"):
        strategy.start(grid, num_rounds=5, max_retries=2, **options)


def test_a_round_is_asked_again_until_its_deadline(monkeypatch, tmp_path):
    monkeypatch.setattr(grids, "PAUSE", (0.01, 0.04))
    grid = Hung(q6_objectives())
    options = {"timeout": 0.001, "round_deadline": 0.3, "run_dir": tmp_path}
    words = (
        r"^round 1: 5 usable replies of 6, and 6 are needed, after \d+ attempts and a "
        r"round_deadline of 0\.3 s \(client \d: .*\)\. The run is complete up to .* "
        r"continue with resume=True"
    )
    with pytest.raises(RoundError, match=words):
        avg(min_replies=6).start(grid, num_rounds=1, **options)
    assert 5 <= len(trained(grid)) <= 12  # pauses of 10, 20, 40, 40, ... ms


def test_a_hung_evaluation_ends_and_names_its_client(log):
    grid = Hung(q6_objectives())
    grid.kinds = ("evaluate",)
    for options in ({"evaluate_timeout": 0.02}, {"grace": 0.0}):
        rows = avg().start(grid, num_rounds=2, evaluate_every=1, **options).history.rows
        assert ["objective" in row for row in rows] == [False, False]
        assert any(re.match(r"no objective in this record, without client 2 \(no reply in", m)
                   for m in log.messages)  # fmt: skip
        log.clear()


def test_an_offline_client_does_not_go_into_quarantine():
    grid = FakeGrid(q6_objectives())

    def leave(record):
        if record["round"] == 1:
            away[998] = grid.nodes.pop(998)
        if record["round"] == 6:
            grid.nodes |= away

    away = {}
    options = {"evaluate_every": 1, "callbacks": [leave], "quarantine_after": 2}
    history = avg().start(grid, num_rounds=8, **options).history
    assert history["replies"].tolist() == [6, 5, 5, 5, 5, 5, 6, 6]


def test_a_client_on_a_new_node_is_forgiven():
    grid = Hung(q6_objectives())

    def restart(record):
        if record["round"] == 3:
            grid.nodes[7], grid.kinds = grid.nodes.pop(998), ()

    options = {"evaluate_every": 1, "callbacks": [restart], "timeout": 0.01, "quarantine_after": 2}
    history = avg().start(grid, num_rounds=5, **options).history
    assert history["replies"].tolist() == [5, 5, 5, 6, 6]


def test_seconds_are_those_of_the_clock_on_the_wall(clock):
    options = {"evaluate_every": 1, "callbacks": [lambda record: clock.sleep(1.0)]}
    rows = avg().start(FakeGrid(q6_objectives()), num_rounds=4, **options).history
    assert rows["seconds"].tolist() == pytest.approx([0, 1, 2, 3], abs=0.1)
    here = simulate(avg(), q6(), 4, **options)
    assert here["seconds"].tolist() == [0, 0, 0, 0]


def test_clients_evaluate_every_tenth_round_and_after_the_last(log):
    grid = FakeGrid(q6_objectives())
    history = avg(participation=Sample(count=2)).start(grid, num_rounds=12).history
    assert history["round"].tolist() == [10, 12]
    assert sum(asked(m)["action"] == "evaluate" for m in grid.pushed) == 12
    assert sum(bool(re.match(r"\[ROUND \d+/12\] 2 of 2 replies; \d+ s so far", m))
               for m in log.messages) == 12  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value"),
    [("timeout", 0), ("round_deadline", float("nan")), ("grace", -1), ("max_retries", -1),
     ("min_clients_to_start", 0), ("quarantine_rounds", 0), ("evaluate_timeout", "1"),
     ("start_timeout", -5), ("quarantine_after", 1.5)],
)  # fmt: skip
def test_options_are_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=f"{option} must be .*, got {value!r}"):
        avg().start(FakeGrid(()), **{option: value})
