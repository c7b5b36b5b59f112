"""What a node can do to a server: nothing but fail to take part itself."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
from fake_grid import FakeGrid, asked, on_grid
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from problems import avg, q6, q6_objectives

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.engines import grid as grids
from flower_fedcon.errors import ConfigError, FedConError, RoundError
from flower_fedcon.flower import nodes
from flower_fedcon.strategies import CompositeFL, FedDyn

STRANGER = 5
SIX = {"num_clients": 6}


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="flwr")
    return caplog


def with_stranger(says, objectives=None, make=FakeGrid, **node):
    """Return a grid with one more node, that answers every message as `says` does."""

    class Grid(make):
        def replies_to(self, message):
            if message.metadata.dst_node_id != STRANGER:
                return super().replies_to(message)
            return says(self, message)

    grid = Grid(objectives or q6_objectives())
    grid.nodes = {STRANGER: Context(1, STRANGER, node, RecordDict(), {}), **grid.nodes}
    return grid


def silence(grid, message):
    return []


def error(grid, message):
    return [Message(Error(2, "Traceback ...\n\x1b[31mno file data.npz"), reply_to=message)]


def garbage(grid, message):
    return [Message(RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=message)]


def says(**fields):
    """Return a stranger that describes itself so, beside what is right."""

    def answer(grid, message):
        right = {"num-examples": 1, "name": "stranger"}
        config = {k: v for k, v in {**right, **fields}.items() if v is not None}
        return [described(message, config)]

    return answer


def described(message, config):
    content = RecordDict(
        {
            "fitres.parameters": ArrayRecord({}),
            "fitres.num_examples": ConfigRecord({"num_examples": 1}),
            "fitres.metrics": ConfigRecord(config),
            "fitres.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )
    return Message(content, reply_to=message)


MALFORMED = {
    "num-examples": [float("inf"), [1, 2], "many", -1, True, 1.5, None],
    "num-partitions": [float("nan"), [3], "3", 10**9, 0, -1],
    "layout": ["[" * 9000, "5", "[[[8]], 3, false]", "[[[-1]], \"float64\", false]", 3.0,
               "[[[4000000000, 4000000000]], \"float64\", false]", "[[], \"float64\", false]"],
    "name": ["7" * 5000, "a\nb", b"7", 3, [1.0]],
    "smoothness": [-1.0, float("inf"), float("nan"), "big", 1e300],
    "strong_convexity": [-1e-9, [1.0]],
    "error": ["out of memory", "\x00" * 10],
}  # fmt: skip


@on_grid
@pytest.mark.parametrize("answer", [silence, error, garbage], ids=lambda f: f.__name__)
def test_a_node_that_fails_its_handshake_ends_nothing(answer, log):
    grid, calm = with_stranger(answer), simulate(avg(), q6(), 3)
    history = avg().start(grid, num_rounds=3, **SIX).history
    assert history.x.tobytes() == calm.x.tobytes()
    assert history["refused"][-1] == (answer is not silence)
    if answer is error:  # as one line, without control characters
        told = "node 5 cannot take part: the client failed: Traceback ... [31mno file data.npz"
        assert told in log.messages


@on_grid
def test_malformed_descriptions_are_faults_of_their_node():
    for field, values in MALFORMED.items():
        for value in values:
            if field == "error" and not str(value).strip("\x00"):
                continue
            grid = with_stranger(says(**{field: value}))
            history = avg().start(grid, num_rounds=1, **SIX).history
            assert history["refused"][-1] == 1, (field, value)
            assert history.rows[-1]["cohort"] == 6


@on_grid
def test_names_of_any_form_are_sorted():
    grid, options = with_stranger(says(name="²")), {"num_clients": 7, "num_rounds": 1}
    history = avg().start(grid, max_retries=0, **options).history
    assert history.rows[-1]["cohort"] == 7  # it takes part, as any client may


@on_grid
def test_a_broken_node_in_the_middle_of_a_run_is_left_out_and_asked_again(monkeypatch, log):
    """Killed, restarted before its data is there, then well: the others never wait for it."""
    monkeypatch.setattr(nodes, "_AGAIN", (0.0, 0.0))
    broken = []

    class Grid(FakeGrid):
        def replies_to(self, message):
            if asked(message)["action"] == "describe" and message.metadata.dst_node_id in broken:
                return [Message(Error(2, "no file data.npz"), reply_to=message)]
            return super().replies_to(message)

    def disturb(record):
        if record["round"] == 2:  # client 2, at first on node 998
            broken.append(7)
            grid.nodes[7] = grid.nodes.pop(998)
        if record["round"] == 4:
            broken.clear()

    grid, replies = Grid(q6_objectives()), []
    options = {"evaluate_every": 1, "callbacks": [disturb, lambda r: replies.append(r["replies"])]}
    avg().start(grid, num_rounds=6, **options)
    assert replies == [6, 6, 5, 5, 6, 6]
    assert "node 7 cannot take part: the client failed: no file data.npz" in log.messages
    assert any(re.search(r"\[ROUND 3/6\] 5 of 6.* without client 2 \(its node is not online\)", m)
               for m in log.messages)  # fmt: skip


@on_grid
def test_the_run_starts_with_the_minimum_asked_for(log):
    objectives = q6_objectives()
    grid = with_stranger(error, objectives[:4])
    for node in grid.nodes.values():
        node.node_config["num-partitions"] = 6
    options = {"start_timeout": 0.01, "num_rounds": 2}
    history = avg().start(grid, min_clients_to_start=4, **options).history
    assert history.x.tobytes() == simulate(avg(), FederatedProblem(objectives[:4]), 2).x.tobytes()
    told = "starting without client 4, 5; node 5: the client failed: Traceback"
    assert any(told in message for message in log.messages)
    with pytest.raises(FedConError, match=r"4 of 6 clients are online .*\(0, 1, 2, 3\); node 5: "):
        avg().start(grid, min_clients_to_start=5, **options)
    with pytest.raises(ConfigError, match="min_clients_to_start is 7, more than num_clients, 6"):
        avg().start(grid, min_clients_to_start=7, **SIX)


@on_grid
def test_a_wrong_number_of_partitions_does_not_decide_how_long_to_wait():
    grid = with_stranger(says(**{"num-partitions": 10**6}))
    assert avg().start(grid, num_rounds=1).history.rows[-1]["cohort"] >= 6


@on_grid
def test_another_model_than_most_have_stays_outside(log):
    grid = with_stranger(says(layout='[[[9]], "float64", false]', name="six"))
    options = {"num_clients": 7, "num_rounds": 1}
    with pytest.raises(ConfigError, match="client six has a model of shape"):
        avg().start(grid, **options)
    history = avg().start(grid, min_clients_to_start=6, **options).history
    assert history.rows[-1]["cohort"] == 6
    assert any("starting without client six" in message for message in log.messages)


# --- identity ----------------------------------------------------------------------------------


class Keys(FakeGrid):
    """A SuperLink that knows its nodes by their keys."""

    def get_nodes(self):
        key = {STRANGER: b"stranger", 7: b"client 2"}
        return [NodeInfo(node_id=n, public_key=key.get(n, b"%d" % n)) for n in self.get_node_ids()]


@on_grid
@pytest.mark.parametrize("authenticated", [False, True])
def test_a_second_claimant_of_a_name_is_refused_and_counted(authenticated, log):
    """It poisons what it is asked, and is asked nothing."""
    grid = with_stranger(silence, make=Keys)
    stranger = grid.nodes.pop(STRANGER)

    def join(record):
        grid.nodes[STRANGER] = stranger

    grid.replies_to = lambda message: (
        says(name="2")(grid, message)
        if message.metadata.dst_node_id == STRANGER
        else FakeGrid.replies_to(grid, message)
    )
    options = {"evaluate_every": 1, "callbacks": [join], "authenticated": authenticated}
    history = avg().start(grid, num_rounds=4, **options).history
    assert history.x.tobytes() == simulate(avg(), q6(), 4).x.tobytes()
    assert history["refused"].tolist() == [0, 1, 1, 1]
    claimed = "node 5 cannot take part: it says it is client 2, which is on node 998"
    assert claimed in log.messages
    trained = [m for m in grid.pushed if asked(m)["action"] in ("train", "evaluate")]
    assert STRANGER not in {m.metadata.dst_node_id for m in trained}


@on_grid
@pytest.mark.parametrize("authenticated", [False, True])
def test_a_name_is_free_when_its_node_has_gone_unless_nodes_have_keys(authenticated, log):
    grid = with_stranger(silence, make=Keys)
    stranger = grid.nodes.pop(STRANGER)
    stranger.node_config.update({"partition-id": 2, "num-partitions": 6})
    grid.replies_to = lambda message: FakeGrid.replies_to(grid, message)

    def move(record):
        if record["round"] == 1:
            del grid.nodes[998]
            grid.nodes[STRANGER] = stranger

    options = {"evaluate_every": 1, "callbacks": [move], "authenticated": authenticated}
    history = avg().start(grid, num_rounds=3, **options).history
    assert history["replies"].tolist() == ([6, 5, 5] if authenticated else [6, 6, 6])
    told = "node 5 cannot take part: it says it is client 2, which has another key"
    assert (told in log.messages) == authenticated
    assert ("client 2 is on another node now: 5" in log.messages) != authenticated


@on_grid
def test_who_comes_later_is_for_a_later_run(log):
    grid = FakeGrid(q6_objectives())
    grid.nodes[STRANGER] = grid.nodes.pop(995)
    grid.hidden = {STRANGER: None}
    options = {"num_clients": 5, "evaluate_every": 1}
    history = avg().start(grid, num_rounds=8, **options).history
    assert set(history["cohort"].tolist()) == {5}
    told = "client 5 was not there when this run began"
    assert any(told in message for message in log.messages)


# --- replies -----------------------------------------------------------------------------------


def disturbed(change, strategy=None, rounds=3, hit=((2, 1),), **options):
    """Return a run in which client 1's replies are changed in the rounds that are hit."""
    left = list(hit)

    def alter(message, reply):
        sent = message.content["fitins.config"]
        if (sent["round"], sent["client"]) not in left:
            return [reply]
        left.remove((sent["round"], sent["client"]))
        return change(message, reply)

    strategy = avg(min_replies=6) if strategy is None else strategy
    grid = FakeGrid(q6_objectives(), alter=alter)
    return strategy.start(grid, num_rounds=rounds, evaluate_every=1, **options).history


def with_config(**fields):
    def change(message, reply):
        old = dict(reply.content["fitres.metrics"])
        reply.content["fitres.metrics"] = ConfigRecord({**old, **fields})
        return [reply]

    return change


@on_grid
@pytest.mark.parametrize(
    "fields",
    [{"round": float("inf")}, {"round": [1, 2]}, {"round": "2"}, {"round": -1}, {"round": True},
     {"names": 3}, {"names": "x," * 9000}, {"lost": 1}, {"lost": "yes"}, {"work.iterations": "a"},
     {"work.iterations": float("nan")}, {"work.iterations": -1.0}, {"scalar.a": [1.0]},
     {"scalar.a": b"1"}, {"error": "x" * 10**7}, {"error": [1, 2]}],
    ids=lambda fields: f"{fields}"[:40],
)  # fmt: skip
def test_malformed_replies_are_dropped_and_asked_again(fields, log):
    history = disturbed(with_config(**fields))
    assert history.x.tobytes() == simulate(avg(), q6(), 3).x.tobytes()
    assert history["dropped"][-1] == history["retries"][-1] == 1
    assert max(map(len, log.messages)) < 1000


@on_grid
def test_a_client_index_in_a_reply_means_nothing():
    history = disturbed(with_config(client=float("inf")))
    assert history["dropped"][-1] == 0


@on_grid
def test_work_of_other_names_makes_no_columns():
    history = disturbed(with_config(**{f"work.{j}": 1.0 for j in range(50)}))
    assert not [name for name in history.columns if name.startswith("local_")]
    assert history["dropped"][-1] == 0


@on_grid
def test_an_array_larger_than_the_model_is_not_loaded(monkeypatch):
    def large(message, reply):
        data = np.zeros(10**6).tobytes()
        reply.content["fitres.parameters"] = ArrayRecord({"0": Array("f8", (), "numpy", data)})
        return [reply]

    seen = []
    load = grids.incoming.load_array
    monkeypatch.setattr(grids.incoming, "load_array", lambda d: seen.append(len(d)) or load(d))
    assert disturbed(large)["dropped"][-1] == 1
    assert max(seen) < 10**4


@on_grid
def test_a_state_cannot_be_lost_that_there_never_was():
    """An algorithm without state, and one with state in a client's first round."""
    history = disturbed(with_config(lost=True))
    assert (history["dropped"][-1], history["lost"][-1]) == (1, 0)
    first = disturbed(with_config(lost=True), FedDyn(proximal=1.0, min_replies=6), hit=[(1, 1)])
    assert (first["dropped"][-1], first["lost"][-1]) == (1, 0)


@on_grid
def test_a_reply_that_flower_cannot_read_is_its_nodes_fault(log):
    """Flower raises where the objects of a message do not fit together."""

    class Grid(FakeGrid):
        def pull_messages(self, message_ids):
            for key in message_ids:
                sent = asked(self.pushed[int(key[1:])])
                if (sent["action"], sent["client"]) == ("train", 1) and sent["round"] == 2:
                    if key in self.replies and not bad:
                        bad.append(key)
                    if key in bad:
                        raise ValueError("cannot inflate")
            return super().pull_messages(message_ids)

    bad = []
    history = (
        avg(min_replies=6).start(Grid(q6_objectives()), num_rounds=3, evaluate_every=1).history
    )
    assert history.x.tobytes() == simulate(avg(), q6(), 3).x.tobytes()
    assert history["dropped"][-1] == 1


@on_grid
def test_a_killed_node_is_named(log):
    """The SuperLink answers in its place: there is no unknown client -1."""

    def gone(message, reply):
        lost = Message(Error(5, "Error: Node Unavailable"), reply_to=message)
        lost.metadata.__dict__["_src_node_id"] = 1
        return [lost]

    disturbed(gone)
    told = "round 2: dropped the reply of client 1: the client failed: Error: Node Unavailable"
    assert told in log.messages
    assert not any("unknown client" in message for message in log.messages)


# --- slow and absent nodes ---------------------------------------------------------------------


class Hung(FakeGrid):
    """Client 2 takes every message of these kinds, and answers none of them."""

    kinds = ("train",)

    def replies_to(self, message):
        sent = asked(message)
        hung = sent["action"] in self.kinds and sent["client"] == 2
        return [] if hung else super().replies_to(message)


@on_grid
def test_a_client_that_hangs_is_left_out_for_a_while_and_named(log):
    grid = Hung(q6_objectives())
    options = {"timeout": 0.02, "quarantine_after": 2, "quarantine_rounds": 3, "evaluate_every": 0}
    avg().start(grid, num_rounds=12, **options)
    rounds = [asked(m)["round"] for m in grid.pushed
              if asked(m)["action"] == "train" and asked(m)["client"] == 2]  # fmt: skip
    assert rounds == [1, 2, 6]  # left out of 3 to 5, then of 7 to 12
    assert any("client 2 has failed again and again (now: no reply in" in m for m in log.messages)
    assert any("[ROUND 4/12] 5 of 6 replies" in m and "client 2 (it is left out until round 6" in m
               for m in log.messages)  # fmt: skip


@on_grid
def test_a_round_that_needs_everyone_asks_those_in_quarantine_too():
    grid = Hung(q6_objectives())
    grid.kinds = ()
    strategy = CompositeFL(None, client_lr=1 / 80, local_steps=2)

    def hang(record):
        grid.kinds = ("train",) if record["round"] == 2 else ()

    options = {"timeout": 0.01, "quarantine_after": 1, "evaluate_every": 1, "callbacks": [hang]}
    with pytest.raises(RoundError, match=r"round 3: 5 usable .* \(client 2: no reply in"):
        strategy.start(grid, num_rounds=5, max_retries=2, **options)


@on_grid
def test_a_round_is_asked_again_until_its_deadline(monkeypatch):
    waits = []
    monkeypatch.setattr(grids, "PAUSE", (0.01, 0.04))
    monkeypatch.setattr(grids.time, "sleep", waits.append)
    grid = Hung(q6_objectives())
    options = {"timeout": 0.001, "round_deadline": 0.3}
    with pytest.raises(
        RoundError, match=r"round 1: 5 usable replies of 6, 6 needed, after \d+ att"
    ):
        avg(min_replies=6).start(grid, num_rounds=1, **options)
    attempts = sum(asked(m)["action"] == "train" and asked(m)["client"] == 2 for m in grid.pushed)
    assert 5 <= attempts <= 12  # pauses of 10, 20, 40, 40, ... ms


@on_grid
def test_a_moments_failure_of_everyone_does_not_end_a_run(monkeypatch):
    """More failures in a row than a fixed number of attempts would bear."""
    failures = [0]

    def alter(message, reply):
        failures[0] += 1
        return [Message(Error(0, "restarting"), reply_to=message)] if failures[0] < 60 else [reply]

    history = avg(min_replies=6).start(FakeGrid(q6_objectives(), alter=alter), num_rounds=2).history
    assert history.x.tobytes() == simulate(avg(), q6(), 2).x.tobytes()


@on_grid
def test_a_hung_evaluation_ends_and_names_its_client(log):
    grid = Hung(q6_objectives())
    grid.kinds = ("evaluate",)
    for options in ({"evaluate_timeout": 0.02}, {"grace": 0.0}):
        rows = avg().start(grid, num_rounds=2, evaluate_every=1, **options).history.rows
        assert ["objective" in row for row in rows] == [False, False]
        assert any(re.match(r"no objective in this record, without client 2 \(no reply in", m)
                   for m in log.messages)  # fmt: skip
        log.clear()


@on_grid
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


@on_grid
def test_a_client_on_a_new_node_is_forgiven():
    grid = Hung(q6_objectives())

    def restart(record):
        if record["round"] == 3:
            grid.nodes[7], grid.kinds = grid.nodes.pop(998), ()

    options = {"evaluate_every": 1, "callbacks": [restart], "timeout": 0.01, "quarantine_after": 2}
    history = avg().start(grid, num_rounds=5, **options).history
    assert history["replies"].tolist() == [5, 5, 5, 6, 6]


@on_grid
def test_seconds_are_those_of_the_clock_on_the_wall(monkeypatch):
    import time

    slow = lambda record: time.sleep(0.05)  # noqa: E731
    rows = avg().start(FakeGrid(q6_objectives()), num_rounds=4, evaluate_every=1, callbacks=[slow])
    assert rows.history["seconds"][-1] > 3 * 0.05
    here = simulate(avg(), q6(), 4, callbacks=[slow])
    assert here["seconds"][-1] < 3 * 0.05


@on_grid
def test_clients_evaluate_every_tenth_round_and_after_the_last(log):
    grid = FakeGrid(q6_objectives())
    history = avg(participation=Sample(count=2)).start(grid, num_rounds=12).history
    assert history["round"].tolist() == [10, 12]
    assert sum(asked(m)["action"] == "evaluate" for m in grid.pushed) == 12
    assert sum(bool(re.match(r"\[ROUND \d+/12\] 2 of 2 replies; \d+ s so far, about", m))
               for m in log.messages) == 12  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value"),
    [("timeout", 0), ("round_deadline", float("nan")), ("grace", -1), ("max_retries", -1),
     ("min_clients_to_start", 0), ("quarantine_rounds", 0), ("evaluate_timeout", "1"),
     ("start_timeout", -5), ("quarantine_after", 1.5)],
)  # fmt: skip
def test_options_are_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=f"{option} must be"):
        avg().start(FakeGrid(()), **{option: value})
