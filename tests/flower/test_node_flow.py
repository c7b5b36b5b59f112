"""Runs on nodes that do not wait for their slowest, on a grid in memory whose nodes take time."""

from __future__ import annotations

import json
import logging
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid, asked, on_grid
from flows import COMPOSITE, PLAIN, PSI, N
from flwr.app import Error, Message

from flower_fedcon import Buffered, Clock, simulate
from flower_fedcon.clients.area import AREAClientState
from flower_fedcon.core.flow import START
from flower_fedcon.engines import node_flow
from flower_fedcon.errors import ConfigError, ParticipationError, RoundError
from flower_fedcon.flower import mail
from flower_fedcon.flower.stores import ContextStore
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.runs import checkpoint
from flower_fedcon.strategies import AREA, FedAvg, FedDR, Scaffold
from flower_fedcon.wire import state_files

pytestmark = on_grid
SECONDS = [0.004, 0.004, 0.006, 0.01, 0.02, 0.12]
RULE = Buffered(buffer=2, concurrency=5)


class SlowGrid(FakeGrid):
    """Nodes whose replies come after their time; `mute` decides on those that never come."""

    def __init__(self, objectives: Any, mute: Any = None, **options: Any) -> None:
        super().__init__(objectives, **options)
        self.ready: dict[str, float] = {}
        self.trained: list[tuple[int, int]] = []  # (client, wave) of each training message
        self.mute = mute or (lambda client, count: False)

    def push_messages(self, messages: Any) -> Any:
        keys = super().push_messages(messages)
        for key, message in zip(keys, messages, strict=True):
            if asked(message).get("action") != "train":
                continue
            client = 1000 - message.metadata.dst_node_id
            self.trained.append((client, asked(message)["round"]))
            silent = self.mute(client, sum(c == client for c, _ in self.trained))
            self.ready[key] = time.monotonic() + (1e9 if silent else SECONDS[client])
        return keys

    def pull_messages(self, message_ids: Any) -> Any:
        now = time.monotonic()
        return super().pull_messages([k for k in message_ids if now >= self.ready.get(k, 0.0)])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll, look and pause in milliseconds."""
    monkeypatch.setattr(mail, "POLL", (0.002, 0.01))
    monkeypatch.setattr(node_flow, "_LOOK", 0.02)
    monkeypatch.setattr(node_flow, "PAUSE", (0.05, 0.4))


def played(strategy: Any, grid: SlowGrid, steps: int = 40, **options: Any) -> Any:
    given = {"seed": 3, "num_clients": N, "timeout": 20.0, "evaluate_every": 0} | options
    return strategy.start(grid, num_rounds=steps, **given).history


def events(folder: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("silent", [False, True])
def test_a_run_on_nodes_is_repeated_from_its_log(silent: bool, tmp_path: Any) -> None:
    """To the same bytes, with minibatches, also if a node did not answer for a while."""
    mute = (lambda client, count: client == 3 and 2 < count < 6) if silent else None
    make = lambda: AREA(PSI, batch_size=4, client_lr=0.01, participation=RULE)  # noqa: E731
    grid = SlowGrid(COMPOSITE.objectives, mute)
    history = played(make(), grid, timeout=0.2, run_dir=tmp_path / "run")
    log = tmp_path / "run" / "events.jsonl"
    again = simulate(make(), COMPOSITE, 40, seed=3, clock=Clock(events=log), evaluate_every=0)
    assert history.x.tobytes() == again.x.tobytes()
    found = events(tmp_path / "run")
    assert any(event.get("outcome") == "silent" for event in found) == silent
    assert history["most_staleness"].max() > 0
    counts = np.bincount([e["client"] for e in found if e.get("outcome") == "used"], minlength=N)
    assert counts[0] > counts[5]  # nobody waits for the slowest


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: AREA(PSI, participation=Buffered()), COMPOSITE),
        (lambda: FedDR(PSI, participation=Buffered(buffer=2)), COMPOSITE),
        (lambda: Scaffold(participation=Buffered(buffer=2, max_staleness=60)), PLAIN),
    ],
    ids=["AREA", "FedDR", "Scaffold"],
)
def test_broken_replies_do_not_move_the_optimum(make: Any, problem: Any) -> None:
    """Errors, replies twice, in place of another node, and of an earlier wave: none counts."""
    draws, before = np.random.default_rng(0), dict[int, Message]()

    def break_some(message: Message, reply: Message) -> list[Message]:
        chance, node = draws.random(), message.metadata.dst_node_id
        old, before[node] = before.get(node), reply
        if chance < 0.05:
            return [Message(Error(2, "the node's disk is full"), reply_to=message)]
        if chance < 0.10:
            return [reply, reply]
        if chance < 0.13:
            reply.metadata.__dict__["_src_node_id"] = 994
        if chance < 0.16 and old is not None:
            return [Message(old.content, reply_to=message)]
        return [reply]

    grid = SlowGrid(problem.objectives, alter=break_some)
    history = played(make(), grid, 200, timeout=0.3)
    assert history["dropped"][-1] > 3
    assert problem.objective(history.x) - problem.optimum.value <= 1e-3


def test_a_reply_with_another_client_s_content_is_dropped(caplog: Any) -> None:
    """Also of the same wave, and under its own node's name."""
    replies: dict[tuple[int, int], Message] = {}

    def swap(message: Message, reply: Message) -> list[Message]:
        if asked(message).get("action") != "train":
            return [reply]
        client, wave = asked(message)["client"], asked(message)["round"]
        replies[client, wave] = reply
        other = replies.get((0, wave)) if client == 1 else None
        return [reply if other is None else Message(other.content, reply_to=message)]

    grid = SlowGrid(COMPOSITE.objectives, alter=swap)
    history = played(FedDR(PSI, participation=RULE), grid, 20)
    assert history["dropped"][-1] >= 1
    assert "it is a reply of client number 0, not of this one" in caplog.text


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("at", [8, 23])
def test_a_killed_run_goes_on_with_the_same_nodes(at: int, tmp_path: Any) -> None:
    """Their states are those of the checkpoint, or of the steps after it; none is lost."""
    strategy = AREA(PSI, participation=Buffered())
    grid = SlowGrid(COMPOSITE.objectives)
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "checkpoint_every": 5}

    def stop(record: Any) -> None:
        if record["round"] == at:
            raise KilledError

    with pytest.raises(KilledError):
        played(strategy, grid, 250, callbacks=[stop], **options | {"evaluate_every": 1})
    history = played(strategy, grid, 250, resume=True, **options)
    assert COMPOSITE.objective(history.x) - COMPOSITE.optimum.value <= 1e-5
    assert history["lost"][-1] == 0
    used = [e["step"] for e in events(tmp_path / "run") if e.get("outcome") == "used"]
    assert used == list(range(1, 251))


def test_a_killed_run_uses_no_wave_s_number_again_and_is_repeated_from_its_log(
    tmp_path: Any,
) -> None:
    """A node that gets back its state of a lost wave has none that the server refers to."""
    make = lambda: FedDR(PSI, participation=Buffered(max_staleness=30))  # noqa: E731
    grid, ends = SlowGrid(COMPOSITE.objectives), [18, 31, 80]
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "checkpoint_every": 10}
    for start, end in enumerate(ends):

        def stop(record: Any, end: int = end) -> None:
            if record["round"] == end < ends[-1]:
                raise KilledError

        given = options | {"resume": start > 0, "callbacks": [stop], "evaluate_every": 1}
        if end < ends[-1]:
            with pytest.raises(KilledError):
                played(make(), grid, 80, **given)
        else:
            history = played(make(), grid, 80, **given)
    assert len(grid.trained) == len({*grid.trained})
    assert {wave // START for _, wave in grid.trained} == {0, 1, 2}
    assert history["waves"][-1] < START
    log = tmp_path / "run" / "events.jsonl"
    again = simulate(make(), COMPOSITE, 80, seed=3, clock=Clock(events=log))
    assert history.x.tobytes() == again.x.tobytes()
    assert np.array_equal(history["waves"], again["waves"])


class Failing(SlowGrid):
    """Its calls fail from `after` to `until`, as `error` says."""

    calls, after, until = 0, 10**9, 10**9

    def call(self) -> None:
        self.calls += 1
        if self.after < self.calls <= self.until:
            raise self.error()

    error: Any = ConnectionError

    def get_node_ids(self) -> Any:
        self.call()
        return super().get_node_ids()

    def push_messages(self, messages: Any) -> Any:
        self.call()
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Any) -> Any:
        self.call()
        return super().pull_messages(message_ids)


@pytest.mark.parametrize("after", [9, 40, 95])
def test_a_superlink_that_is_away_is_waited_for(
    after: int, monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    """Whatever it was asked; nothing is lost."""
    monkeypatch.setattr(mail, "OUTAGE", (0.01, 0.05))
    grid = Failing(COMPOSITE.objectives)
    grid.after, grid.until = after, after + 5
    history = played(AREA(PSI, participation=Buffered()), grid, 250)
    assert COMPOSITE.objective(history.x) - COMPOSITE.optimum.value <= 1e-5
    assert "the SuperLink answers again" in log.messages
    assert history["lost"][-1] == history["dropped"][-1] == 0


class RunNotRunningException(BaseException):
    """As Flower names it, and derives it."""


@pytest.mark.parametrize("after", [12, 60, 130])
def test_a_run_that_the_superlink_no_longer_takes_goes_on_later(after: int, tmp_path: Any) -> None:
    """It was stopped, or forgotten: the steps so far are in a checkpoint, and count once."""
    strategy, grid = AREA(PSI, participation=Buffered()), Failing(COMPOSITE.objectives)
    grid.after, grid.error = after, RunNotRunningException
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "checkpoint_every": 10**6}
    with pytest.raises(RoundError, match="with resume=true"):
        played(strategy, grid, 250, **options)
    assert grid.calls == after + 1  # it is asked nothing more
    grid.after = 10**9
    history = played(strategy, grid, 250, resume=True, **options)
    assert COMPOSITE.objective(history.x) - COMPOSITE.optimum.value <= 1e-5
    used = [e["step"] for e in events(tmp_path / "run") if e.get("outcome") == "used"]
    assert used == list(range(1, 251))


def test_late_replies_are_never_read(tmp_path: Any) -> None:
    """Not in the run, nor after it: a client's state is the server's mirror."""
    looked: list[str] = []  # for the replies to these messages, in this order

    class Noting(SlowGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            looked.extend(key for key in message_ids if key in self.ready)
            return super().pull_messages(message_ids)

    grid, folder = Noting(COMPOSITE.objectives, lambda client, count: client == 5), tmp_path / "run"
    strategy = AREA(PSI, participation=Buffered(buffer=2))
    played(strategy, grid, 60, timeout=0.06, run_dir=folder)
    assert sum(client == 5 for client, _ in grid.trained) > 1  # it has worked, and stays late
    grid.mute, grid.ready = (lambda client, count: False), dict.fromkeys(grid.ready, 0.0)
    before = {*grid.ready}
    again = len(looked)
    played(strategy, grid, 90, timeout=20.0, run_dir=folder, resume=True)
    assert not before & {*looked[again:]}
    for client in range(N):
        node = 1000 - client
        own = [k for k in looked if grid.pushed[int(k[1:])].metadata.dst_node_id == node]
        numbers = [int(key[1:]) for key in own]
        assert numbers == sorted(numbers)  # never for an older one again
    content = state_files.read(folder / checkpoint.NAME, checkpoint._types(strategy))["server"]
    run: Any = SimpleNamespace(run_id=content["run_id"], algorithm="area")
    for j, y in enumerate(content["state"].mirror.rows["y"]):
        versions = ContextStore(grid.nodes[1000 - j]).load(run, AREAClientState)
        assert versions.at(int(content["acknowledged"][j])).y.tobytes() == y.tobytes()


def test_a_run_without_replies_ends_by_its_deadline() -> None:
    grid = SlowGrid(COMPOSITE.objectives, lambda client, count: True)
    strategy = FedAvg(client_lr=0.01, participation=RULE)
    with pytest.raises(RoundError, match=r"step 1: no usable reply in 0 s \(.*no reply in 0.05 s"):
        played(strategy, grid, 5, timeout=0.05, round_deadline=0.4)


def test_what_nodes_cannot_be_asked_is_refused() -> None:
    grid = SlowGrid(COMPOSITE.objectives)
    strategy = FedAvg(client_lr=0.01, participation=Buffered(buffer=2))
    with pytest.raises(ParticipationError, match="secure aggregation takes no Buffered"):
        played(strategy, grid, 5, secure_aggregation=SecAggPlus(clipping_range=3.0))
    strategy.start(grid, num_rounds=0, num_clients=N)
    with pytest.raises(ConfigError, match="Flower's own loop waits for each round"):
        list(strategy.configure_train(1, None, None, grid))


def test_the_log_says_how_far_a_run_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        played(FedAvg(client_lr=0.01, participation=RULE), SlowGrid(COMPOSITE.objectives), 3)
    assert "[ROUND 3/3] 2 of 2 replies" in caplog.text
