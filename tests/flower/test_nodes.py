"""What a node can do to a server: nothing but fail to take part itself."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fake_grid import FailingGrid, FakeGrid, asked, on_grid
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message
from problems import avg, q6, q6_objectives
from strangers import error, garbage, says, silence, with_stranger

from flower_fedcon import FederatedProblem, __version__, simulate
from flower_fedcon.engines import grid as grids
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower import mail, nodes
from flower_fedcon.strategies import FedDyn, FedProx

SIX = {"num_clients": 6}


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
        told = (
            r"node 5 cannot take part: the client failed: Traceback ...\n\x1b[31mno file data.npz"
        )
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
def test_a_node_with_another_version_takes_part_and_is_named_before_round_1(log):
    class Older(FakeGrid):
        def replies_to(self, message):
            (reply,) = super().replies_to(message)
            if asked(message)["action"] == "describe" and message.metadata.dst_node_id == 998:
                reply.content["fitres.metrics"]["version"] = "0.0.9"
            return [reply]

    history = avg().start(Older(q6_objectives()), num_rounds=2).history
    assert history.x.tobytes() == simulate(avg(), q6(), 2).x.tobytes()
    told = f"this server runs flower-fedcon {__version__}, others client 2 (version 0.0.9). "
    assert sum(message.startswith(told) for message in log.messages) == 1


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
def test_nothing_is_counted_before_a_node_has_said_how_many_there_are(log):
    grid = FakeGrid(q6_objectives(), hidden=range(990, 1001))
    FedProx(proximal=1.0).start(grid, num_rounds=1)
    assert "no client has answered yet" in log.messages
    assert not any(
        "0 of 1" in message or "missing: client 0" in message for message in log.messages
    )
    assert any("local_solver: Exact() (of clients with an objective)" in m for m in log.messages)


@on_grid
def test_silent_nodes_are_counted_in_one_line(monkeypatch, log):
    """Where simulated clients start slowly, each of a thousand nodes is silent at first."""
    monkeypatch.setattr(nodes, "_SILENCE", 0.2)
    grid = with_stranger(silence)
    first = grid.replies_to
    silent = {5: grid.nodes[5], 6: grid.nodes[5], 7: grid.nodes[5]}
    grid.nodes = {**silent, **grid.nodes}
    grid.replies_to = lambda m: [] if m.metadata.dst_node_id in silent else first(m)
    options = {"start_timeout": 0.5, "min_clients_to_start": 6, "num_clients": 7}
    avg().start(grid, num_rounds=1, **options)
    told = [message for message in log.messages if "have not answered" in message]
    assert told == ["3 of 9 nodes have not answered in 0 s, and may still be starting: 5, 6, 7"]


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
     {"names": 3}, {"names": "x," * 9000}, {"lost": 1}, {"lost": "yes"}, {"scalar.a": [1.0]},
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
    monkeypatch.setattr(
        grids.incoming, "load_array", lambda d, **own: seen.append(len(d)) or load(d, **own)
    )
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


@on_grid
@pytest.mark.parametrize("how", ["none", "some", "missing"])
def test_messages_that_cannot_be_sent(how, log):
    """Flower sends nothing of what is too large at once, and tells in two ways of single ones."""

    class Grid(FakeGrid):
        def push_messages(self, messages):
            trained = asked(messages[0])["action"] == "train"
            if how == "none":
                return [] if len(messages) > 1 else super().push_messages(messages)
            out = [m for m in messages if trained and asked(m)["client"] == 2]
            ids = dict(zip(map(id, messages), super().push_messages(messages), strict=True))
            kept = [None if m in out else ids[id(m)] for m in messages]
            return kept if how == "missing" else [key for key in kept if key is not None]

    history = avg().start(Grid(q6_objectives()), num_rounds=2, evaluate_every=1).history
    assert history["replies"].tolist() == ([6, 6] if how == "none" else [5, 5])
    told = "round 1: nothing from client 2 (the message to it could not be sent"
    assert any(told in message for message in log.messages) == (how != "none")


@on_grid
def test_a_moments_failure_of_everyone_does_not_end_a_run(monkeypatch):
    """More failures in a row than a fixed number of attempts would bear."""
    failures = [0]

    def alter(message, reply):
        failures[0] += 1
        return [Message(Error(0, "restarting"), reply_to=message)] if failures[0] < 60 else [reply]

    history = avg(min_replies=6).start(FakeGrid(q6_objectives(), alter=alter), num_rounds=2).history
    assert history.x.tobytes() == simulate(avg(), q6(), 2).x.tobytes()


# --- the SuperLink -----------------------------------------------------------------------------


class Restarting(FailingGrid):
    """A grid whose SuperLink fails five calls in a row, time and again."""

    calls = 0

    def call(self):
        self.calls += 1
        if self.calls % 13 > 7:
            raise ConnectionError("502 Bad Gateway")


@on_grid
def test_a_superlink_that_restarts_is_waited_for(monkeypatch, log):
    """Whatever is under way: the handshake, a look at who is there, sending, or collecting."""
    monkeypatch.setattr(mail, "OUTAGE", (0.0, 0.0))
    grid, options = Restarting(q6_objectives()), {"num_rounds": 6, "evaluate_every": 1}
    history = avg().start(grid, **options).history
    assert grid.calls > 60
    calm = avg().start(FakeGrid(q6_objectives()), **options).history
    assert history.x.tobytes() == calm.x.tobytes()
    for column in ("objective", "replies", "dropped", "retries"):
        assert history[column].tolist() == calm[column].tolist()
    told = "waiting for the SuperLink, at most 3600 s: ConnectionError('502 Bad Gateway')"
    assert told in log.messages
    assert "the SuperLink answers again" in log.messages


@on_grid
def test_a_superlink_that_stays_away_ends_the_run_at_the_deadline():
    grid, rounds = FakeGrid(q6_objectives()), []

    def disturb(record):
        rounds.append(record["round"])
        if record["round"] == 2:
            grid.get_node_ids = lambda: 1 / 0

    with pytest.raises(FedConError, match=r"the SuperLink has not answered for .* \(ZeroDivision"):
        avg().start(grid, num_rounds=4, evaluate_every=1, round_deadline=0.3, callbacks=[disturb])
    assert rounds == [1, 2]


@on_grid
def test_a_run_that_is_stopped_ends_at_once():
    """Flower then raises what is no Exception."""
    grid = FakeGrid(q6_objectives())

    def stopped(messages):
        raise SystemExit

    grid.pull_messages = stopped
    with pytest.raises(SystemExit):
        avg().start(grid, num_rounds=2)
