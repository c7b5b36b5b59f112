"""Runs on nodes that do not wait for their slowest, on a grid in memory whose nodes take time."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid, asked, on_grid
from flows import COMPOSITE, PLAIN, PSI, N
from flwr.app import Error, Message

from flower_fedcon import Buffered, Clock, EarlyStopping, simulate
from flower_fedcon.aggregation import TrimmedMean
from flower_fedcon.clients.area import AREAClientState
from flower_fedcon.core.flow import START
from flower_fedcon.core.infos import ClientInfo
from flower_fedcon.engines import node_flow
from flower_fedcon.errors import ConfigError, FedConError, ParticipationError, RoundError
from flower_fedcon.flower import mail
from flower_fedcon.flower.stores import ContextStore
from flower_fedcon.layout import Layout
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.runs import checkpoint
from flower_fedcon.schedules import Cosine
from flower_fedcon.strategies import AREA, CompositeFL, FedAvg, FedDR, FedDualAvg, Scaffold
from flower_fedcon.wire import state_files

pytestmark = on_grid
SECONDS = [0.004, 0.004, 0.006, 0.01, 0.02, 0.05]
MANY = 600  # steps in which the slowest client answers often enough, on any machine
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
    given = {"timeout": 0.2, "evaluate_every": 1}
    history = played(make(), grid, run_dir=tmp_path / "run", **given)
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
        played(strategy, grid, MANY, callbacks=[stop], **options | {"evaluate_every": 1})
    history = played(strategy, grid, MANY, resume=True, **options)
    assert COMPOSITE.objective(history.x) - COMPOSITE.optimum.value <= 1e-5
    assert history["lost"][-1] == 0
    used = [e["step"] for e in events(tmp_path / "run") if e.get("outcome") == "used"]
    assert used == list(range(1, MANY + 1))


def test_a_reply_that_stops_midway_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower waits minutes for its rest, in the one question for the replies of all."""
    monkeypatch.setattr(node_flow, "_STUCK", 0.02)
    released = threading.Event()

    class Halting(SlowGrid):
        halted: str | None = None
        over = False

        def pull_messages(self, message_ids: Any) -> Any:
            own = [k for k in message_ids if self.pushed[int(k[1:])].metadata.dst_node_id == 998]
            if self.halted is None and len(self.trained) > 30 and own:
                self.halted = own[0]
                released.wait(60)
                self.over = True
                return [Message(Error(12, "objects are unavailable"), reply_to=self.pushed[0])]
            return super().pull_messages([k for k in message_ids if k != self.halted])

    grid, steps, over = Halting(COMPOSITE.objectives), list[int](), list[bool]()

    def note(record: Any) -> None:
        steps.append(record["round"])
        if len(steps) == 90:
            over.append(grid.over)
            released.set()

    history = played(
        AREA(PSI, participation=Buffered()), grid, MANY, timeout=0.3, callbacks=[note],
        evaluate_every=1,
    )  # fmt: skip
    assert grid.halted is not None
    assert over == [False]  # steps went on meanwhile
    assert COMPOSITE.objective(history.x) - COMPOSITE.optimum.value <= 1e-3


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


class Queued(SlowGrid):
    """Client 5 says who it is once it is `free`, as where it is at work when it is asked."""

    free = True

    def pull_messages(self, message_ids: Any) -> Any:
        held = set[str]()
        if not self.free:
            held = {k for k in message_ids if self._asks_who(self.pushed[int(k[1:])])}
        return super().pull_messages([k for k in message_ids if k not in held])

    def _asks_who(self, message: Message) -> bool:
        return message.metadata.dst_node_id == 995 and asked(message).get("action") == "describe"


def stopped_and_resumed(grid: Queued, folder: Any, **options: Any) -> Any:
    """Return the history of a run that is killed, and goes on without waiting for client 5."""
    strategy = AREA(PSI, participation=Buffered(buffer=2))
    given: dict[str, Any] = {"run_dir": folder, "checkpoint_every": 1, "evaluate_every": 1}

    def stop(record: Any) -> None:
        if record["round"] == 30:
            raise KilledError

    with pytest.raises(KilledError):
        played(strategy, grid, MANY, callbacks=[stop], **given)
    grid.free = False

    def release(record: Any) -> None:
        grid.free = record["round"] >= 60

    return played(strategy, grid, MANY, resume=True, callbacks=[release], **given | options)


def test_a_resumed_run_does_not_wait_for_those_that_are_at_work(tmp_path: Any, log: Any) -> None:
    """Its checkpoint knows them; they take part once they have answered."""
    history = stopped_and_resumed(Queued(COMPOSITE.objectives), tmp_path / "run")
    assert any("going on with" in m and "client 5 will take part" in m for m in log.messages)
    steps = [
        event["step"]
        for event in events(tmp_path / "run")
        if event.get("outcome") == "used" and event["client"] == 5
    ]
    assert not [step for step in steps if 31 < step <= 60]
    assert [step for step in steps if step > 60]
    assert COMPOSITE.objective(history.x) - COMPOSITE.optimum.value <= 1e-5
    assert history["lost"][-1] == 0


def test_a_resumed_run_waits_for_min_clients_to_start(tmp_path: Any) -> None:
    grid, limits = Queued(COMPOSITE.objectives), {"min_clients_to_start": 6, "start_timeout": 0.3}
    with pytest.raises(FedConError, match=r"5 of 6 clients are online after 0.3 s"):
        stopped_and_resumed(grid, tmp_path / "run", **limits)


def test_a_client_that_comes_later_with_other_data_is_refused(tmp_path: Any, log: Any) -> None:
    class Changed(Queued):
        def replies_to(self, message: Message) -> list[Message]:
            (reply,) = super().replies_to(message)
            if self._asks_who(message) and not self.free:
                reply.content["fitres.metrics"]["digest"] = 64 * "0"
            return [reply]

    history = stopped_and_resumed(Changed(COMPOSITE.objectives), tmp_path / "run")
    assert "client 5 came back with different data" in log.text
    assert history["refused"][-1] == 1


def test_a_checkpoint_knows_clients_of_any_kind(tmp_path: Any) -> None:
    infos = [
        ClientInfo("a", 0, None, own_loop="app"),
        ClientInfo("b", 20, Layout(((3, 2), (2,)), "float32", True, ("w", "b")), 2.5, 0.0, "12"),
    ]
    checkpoint.save(tmp_path, checkpoint.with_clients(infos))
    assert checkpoint.known_clients(tmp_path) == infos
    assert checkpoint.known_clients(tmp_path / "none") == []


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
    history = played(AREA(PSI, participation=Buffered()), grid, MANY)
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
        played(strategy, grid, MANY, **options)
    assert grid.calls == after + 1  # it is asked nothing more
    grid.after = 10**9
    history = played(strategy, grid, MANY, resume=True, **options)
    assert COMPOSITE.objective(history.x) - COMPOSITE.optimum.value <= 1e-5
    used = [e["step"] for e in events(tmp_path / "run") if e.get("outcome") == "used"]
    assert used == list(range(1, MANY + 1))


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


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FedAvg(min_replies=2, participation=RULE), "no min_replies=2"),
        (lambda: FedAvg(aggregation=TrimmedMean(0.2), participation=RULE), "no aggregation="),
        (lambda: FedDualAvg(PSI, client_lr=Cosine(0.1, 9), participation=RULE),
         "no client_lr=Cosine.*Give client_lr as a number"),
        (lambda: FedAvg(client_lr="auto", participation=RULE), 'no client_lr="auto"'),
        (lambda: AREA(PSI, participation=Buffered(2, concurrency=9)), "more than the 6 clients"),
        (lambda: CompositeFL(PSI, participation=RULE), "cannot use replies to earlier models"),
    ],
)  # fmt: skip
def test_what_the_arguments_rule_out_is_refused_before_nodes_are_asked(
    make: Any, says: str
) -> None:
    grid = SlowGrid(COMPOSITE.objectives)
    with pytest.raises(FedConError, match=says):
        played(make(), grid, 5)
    assert not grid.looks


def test_the_log_says_how_far_a_run_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        played(FedAvg(client_lr=0.01, participation=RULE), SlowGrid(COMPOSITE.objectives), 3)
    assert "[STEP 3/3] 2 of 2 replies" in caplog.text
    assert "Number of steps: 3" in caplog.text
    assert "In step 1 each client uploads" in caplog.text
    assert "train metrics, step 3" in caplog.text
    assert not re.search(r"\brounds?\b(?!':)", caplog.text, re.IGNORECASE)  # but for the column


def test_the_log_says_at_which_step_a_run_stops(log: Any) -> None:
    strategy, grid = FedAvg(client_lr=0.01, participation=RULE), SlowGrid(COMPOSITE.objectives)
    played(strategy, grid, 30, callbacks=[EarlyStopping(2.0, "replies")], evaluate_every=3)
    assert [m for m in log.messages if "stopped at" in m] == [
        "stopped at step 3: replies 2 is at most 2"
    ]


@pytest.mark.parametrize("ends", ["as planned", "by a callback", "by a kill", "exact"])
def test_the_log_names_whom_a_run_favours(ends: str, log: Any) -> None:
    """On the way and at the end, whatever ends it; an exact method favours nobody."""

    def stop(record: Any) -> bool:
        if record["round"] == 38 and ends == "by a kill":
            raise KilledError
        return bool(record["round"] == 38 and ends == "by a callback")

    rule = Buffered(buffer=2)
    strategy = FedAvg(client_lr=0.01, participation=rule)
    if ends == "exact":
        strategy = AREA(PSI, participation=rule)
    options: dict[str, Any] = {"callbacks": [stop], "evaluate_every": 1}
    with pytest.raises(KilledError) if ends == "by a kill" else nullcontext():
        played(strategy, SlowGrid(COMPOSITE.objectives), 40, **options)
    told = [m for m in log.messages if "The model favours the former" in m]
    assert [m.startswith("after 60 uploads: ") for m in told] == [True, False] * (ends != "exact")


@pytest.mark.parametrize(
    ("buffer", "gone", "told"),
    [
        (N, 0, "6 clients are here, and buffer=6: each step waits for all 6"),
        (2, 4, "2 clients are here, and buffer=2: each step waits for both"),
        (3, 4, "2 clients are here, and buffer=3: a step waits until 1 more is"),
        (2, 3, ""),
    ],
)
def test_the_log_says_if_steps_wait_for_everyone(
    buffer: int, gone: int, told: str, log: Any
) -> None:
    grid, strategy = SlowGrid(COMPOSITE.objectives), AREA(PSI, participation=Buffered(buffer))

    def leave(record: Any) -> None:
        for node in [*grid.nodes][:gone] if record["round"] == 20 else []:
            del grid.nodes[node]

    options: dict[str, Any] = {"callbacks": [leave], "evaluate_every": 1, "round_deadline": 0.5}
    with pytest.raises(RoundError) if gone and buffer > N - gone else nullcontext():
        played(strategy, grid, 40, **options)
    assert [m for m in log.messages if "here, and buffer=" in m] == [told] * bool(told)
