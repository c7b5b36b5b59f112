"""What a node can do to a server: nothing but fail to take part itself."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fake_grid import FailingGrid, FakeGrid, asked, hitting, on_grid, with_config
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from problems import avg, q6, q6_ball, q6_limited, q6_objectives
from strangers import error, garbage, says, silence, with_stranger

from flower_fedcon import FederatedProblem, Sample, __version__, simulate
from flower_fedcon.compressors import TopK
from flower_fedcon.engines import grid as grids
from flower_fedcon.errors import ConfigError, FedConError, RoundError, StorageError
from flower_fedcon.flower import mail, messages, nodes
from flower_fedcon.sets import L1Ball, L2Ball
from flower_fedcon.strategies import FedDyn, FedFW, FedProx, FedSGM
from flower_fedcon.wire.whole_files import FolderLock

pytestmark = on_grid

SIX = {"num_clients": 6}
MALFORMED = {
    "num-examples": [float("inf"), [1, 2], "many", -1, True, 1.5, None],
    "num-partitions": [float("nan"), [3], "3", 10**9, 0, -1],
    "layout": ["[" * 9000, "5", "[[[8]], 3, false]", "[[[-1]], \"float64\", false]", 3.0,
               "[[[4000000000, 4000000000]], \"float64\", false]", "[[], \"float64\", false]"],
    "name": ["7" * 5000, "a\nb", b"7", 3, [1.0]],
    "smoothness": [-1.0, float("inf"), float("nan"), "big", 1e300],
    "strong_convexity": [-1e-9, [1.0]],
    "error": ["out of memory"],
}  # fmt: skip


def same(history, rounds):
    """The run has the bytes of this process."""
    assert history.x.tobytes() == simulate(avg(), q6(), rounds).x.tobytes()


def described(log, words):
    return any(words in message for message in log.messages)


# --- the handshake -----------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [silence, error, garbage], ids=lambda f: f.__name__)
def test_a_node_that_fails_its_handshake_ends_nothing(answer, log):
    history = avg().start(with_stranger(answer), num_rounds=3, **SIX).history
    same(history, 3)
    assert history["refused"][-1] == (answer is not silence)
    # As one line, without control characters.
    told = r"node 5 cannot take part: the client failed: Traceback ...\n\x1b[31mno file data.npz"
    assert (told in log.messages) == (answer is error)


@pytest.mark.parametrize("field", MALFORMED)
def test_malformed_descriptions_are_faults_of_their_node(field):
    for value in MALFORMED[field]:
        grid = with_stranger(says(**{field: value}))
        history = avg().start(grid, num_rounds=1, **SIX).history
        assert (history["refused"][-1], history["cohort"][-1]) == (1, 6), value


def test_a_node_with_another_version_takes_part_and_is_named_before_round_1(log):
    class Older(FakeGrid):
        def replies_to(self, message):
            (reply,) = super().replies_to(message)
            if asked(message)["action"] == "describe" and message.metadata.dst_node_id == 998:
                reply.content["fitres.metrics"]["version"] = "0.0.9"
            return [reply]

    same(avg().start(Older(q6_objectives()), num_rounds=2).history, 2)
    told = f"this server runs flower-fedcon {__version__}, others client 2 (version 0.0.9). "
    assert sum(message.startswith(told) for message in log.messages) == 1


def test_names_of_any_form_are_sorted():
    grid, options = with_stranger(says(name="²")), {"num_clients": 7, "num_rounds": 1}
    history = avg().start(grid, max_retries=0, **options).history
    assert history.rows[-1]["cohort"] == 7  # it takes part, as any client may


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

    grid = Grid(q6_objectives())
    history = avg().start(grid, num_rounds=6, evaluate_every=1, callbacks=[disturb]).history
    assert history["replies"].tolist() == [6, 6, 5, 5, 6, 6]
    assert "node 7 cannot take part: the client failed: no file data.npz" in log.messages
    words = r"\[ROUND 3/6\] 5 of 6.* without client 2 \(its node is not online\)"
    assert any(re.search(words, message) for message in log.messages)
    told = "2 rounds went on without clients that were asked: client 2 in rounds 3, 4"
    assert told in log.messages


def test_a_folder_with_a_run_is_refused_before_nodes_are_asked(tmp_path):
    """One in which another process is at work is left alone, not to be removed."""
    (tmp_path / "history.csv").write_text("round\n")
    grid = FakeGrid(q6_objectives())
    with pytest.raises(ConfigError, match="already holds a run: continue it with resume=True"):
        avg().start(grid, num_rounds=1, run_dir=tmp_path)
    assert not grid.pushed
    with FolderLock(tmp_path), pytest.raises(StorageError, match="is in use by another process"):
        avg().start(grid, num_rounds=1, run_dir=tmp_path)


def test_the_run_starts_with_the_minimum_asked_for(log):
    objectives = q6_objectives()
    grid = with_stranger(error, objectives[:4])
    for node in grid.nodes.values():
        node.node_config["num-partitions"] = 6
    options = {"start_timeout": 0.01, "num_rounds": 2}
    history = avg().start(grid, min_clients_to_start=4, **options).history
    assert history.x.tobytes() == simulate(avg(), FederatedProblem(objectives[:4]), 2).x.tobytes()
    assert described(log, "starting without client 4, 5; node 5: the client failed: Traceback")
    with pytest.raises(FedConError, match=r"4 of 6 clients are online .*\(0, 1, 2, 3\); node 5: "):
        avg().start(grid, min_clients_to_start=5, **options)
    with pytest.raises(ConfigError, match="min_clients_to_start is 7, more than num_clients, 6"):
        avg().start(grid, min_clients_to_start=7, **SIX)


def test_nothing_is_counted_before_a_node_has_said_how_many_there_are(log):
    grid = FakeGrid(q6_objectives(), hidden=range(990, 1001))
    FedProx(proximal=1.0).start(grid, num_rounds=1)
    assert "no client has answered yet" in log.messages
    assert not described(log, "0 of 1")
    assert not described(log, "missing: client 0")
    assert described(log, "local_solver: Exact() (of clients with an objective)")


def test_silent_nodes_are_counted_in_one_line(monkeypatch, log):
    """Where simulated clients start slowly, each of a thousand nodes is silent at first."""
    monkeypatch.setattr(nodes, "_SILENCE", 0.2)
    grid = with_stranger(silence)
    first, silent = grid.replies_to, dict.fromkeys((5, 6, 7), grid.nodes[5])
    grid.nodes = {**silent, **grid.nodes}
    grid.replies_to = lambda m: [] if m.metadata.dst_node_id in silent else first(m)
    options = {"start_timeout": 0.5, "min_clients_to_start": 6, "num_clients": 7}
    avg().start(grid, num_rounds=1, **options)
    told = [message for message in log.messages if "have not answered" in message]
    assert told == ["3 of 9 nodes have not answered in 0 s, and may still be starting: 5, 6, 7"]


def test_a_wrong_number_of_partitions_does_not_decide_how_long_to_wait():
    grid = with_stranger(says(**{"num-partitions": 10**6}))
    assert avg().start(grid, num_rounds=1).history.rows[-1]["cohort"] >= 6


def test_another_model_than_most_have_stays_outside(log):
    grid = with_stranger(says(layout='[[[9]], "float64", false]', name="six"))
    options = {"num_clients": 7, "num_rounds": 1}
    with pytest.raises(ConfigError, match="client six has a model of shape"):
        avg().start(grid, **options)
    history = avg().start(grid, min_clients_to_start=6, **options).history
    assert history.rows[-1]["cohort"] == 6
    assert described(log, "starting without client six")


# --- replies -----------------------------------------------------------------------------------


def disturbed(change, strategy=None, hit=((2, 1),), objectives=None, **options):
    """Return a run of three rounds in which replies of (round, client) places are changed."""
    alter, left = hitting(change, *hit)
    grid = FakeGrid(objectives or q6_objectives(), alter=alter)
    made, options = strategy or avg(min_replies=6), {"evaluate_every": 1} | options
    history = made.start(grid, num_rounds=3, **options).history
    assert not left
    return history


def changing(record=None, **config):
    """Return what puts another record of arrays, and another configuration, into a reply."""

    def change(message, reply):
        reply.content["fitres.parameters"] = messages.to_record([]) if record is None else record
        return with_config(**config)(message, reply)

    return change


def bad_header(message, reply):
    reply.content["fitres.parameters"]["0"].data = b"\x93NUMPY\x01\x00\x02\x00(\n"
    return [reply]


def failed(code, words, source=None):
    def change(message, reply):
        lost = Message(Error(code, words), reply_to=message)
        if source is not None:
            lost.metadata.__dict__["_src_node_id"] = source
        return [lost]

    return change


def formless(message, reply):
    return [Message(RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=message)]


CHANGED = {
    **{f"{fields}"[:40]: with_config(**fields) for fields in (
        {"round": float("inf")}, {"round": [1, 2]}, {"round": "2"}, {"round": -1}, {"round": True},
        {"names": 3}, {"names": "x," * 9000}, {"lost": 1}, {"lost": "yes"}, {"scalar.a": [1.0]},
        {"scalar.a": b"1"}, {"error": "x" * 10**7}, {"error": [1, 2]},
    )},
    "a bad header": bad_header,
    "a number for an array": changing(names="", **{"scalar.delta": 0.5}),
    "an error": failed(0, "broken"),
    "no form": formless,
    # The SuperLink answers in a killed node's place: there is no unknown client -1.
    "a killed node": failed(5, "Error: Node Unavailable", source=1),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_malformed_replies_are_dropped_and_asked_again(case, log):
    history = disturbed(CHANGED[case])
    same(history, 3)
    assert history["dropped"][-1] == history["retries"][-1] == 1
    assert max(map(len, log.messages)) < 1000
    assert not described(log, "unknown client")
    told = "round 2: dropped the reply of client 1: the client failed: Error: Node Unavailable"
    assert (told in log.messages) == (case == "a killed node")


def strayed(message, reply):
    stray = Message(reply.content, reply_to=message)
    stray.metadata.__dict__["_src_node_id"] = 5
    return [stray, reply]


@pytest.mark.parametrize(
    "change",
    [strayed, with_config(client=4), with_config(client=float("inf")),
     with_config(**{f"work.{j}": 1.0 for j in range(50)})],
    ids=["unknown node", "another index", "no index", "work"],
)  # fmt: skip
def test_replies_of_which_something_means_nothing(change):
    """Work of other names makes no columns."""
    history = disturbed(change)
    same(history, 3)
    assert (history["dropped"][-1], history["retries"][-1]) == (0, 0)
    assert not [name for name in history.columns if name.startswith("local_")]


@pytest.mark.parametrize("sampled", [{}, {"participation": Sample(fraction=0.9)}])
def test_a_dense_point_is_no_atom(sampled):
    """Any vector would be taken for a vertex: outside the ball, the model leaves it."""
    ball, dense = q6_ball().constraint, messages.to_record([np.full(8, 1e6)])
    made = FedFW(ball, penalty=1.0, **sampled)
    history = disturbed(changing(dense, names="atom"), made, seed=2, evaluate_every=10)
    assert history["dropped"][-1] == 1
    assert ball.contains(history.x)


@pytest.mark.parametrize(
    "strategy",
    [
        FedFW(L1Ball(1.0), penalty=1.0),
        FedFW(L2Ball(1.0), penalty=1.0),
        FedSGM(client_lr=0.1, local_steps=1, tolerance=0.1, uplink=TopK(fraction=0.5)),
        avg(),
    ],
    ids=["coordinate", "dense", "compressed", "plain"],
)
def test_numbers_where_arrays_are_expected(strategy):
    """Its parts come as scalars of the configuration: that reply is dropped, whoever repeats it."""
    done = []

    def alter(message, reply):
        sent = message.content["fitins.config"]
        if (sent["round"], sent["client"], sent["action"]) != (2, 1, "train"):
            return [reply]
        done.append(1)
        names = str(reply.content["fitres.metrics"]["names"]).split(",")
        return changing(names="", **{f"scalar.{name}": 0.5 for name in names})(message, reply)

    limited = q6_limited() if strategy.queries else q6()
    strategy.min_replies = 6
    with pytest.raises(RoundError, match=r"client 1: '\S+' is 0\.5, expected an array"):
        strategy.start(FakeGrid(list(limited.objectives), alter=alter), num_rounds=3, max_retries=3)
    assert len(done) == 4  # asked again as often as a client is


def test_an_array_larger_than_the_model_is_not_loaded(monkeypatch):
    large, seen = Array("f8", (), "numpy", np.zeros(10**6).tobytes()), []
    load = grids.incoming.load_array
    note = lambda data, **own: seen.append(len(data)) or load(data, **own)  # noqa: E731
    monkeypatch.setattr(grids.incoming, "load_array", note)
    assert disturbed(changing(ArrayRecord({"0": large})))["dropped"][-1] == 1
    assert max(seen) < 10**4


@pytest.mark.parametrize("stateful", [False, True])
def test_a_state_cannot_be_lost_that_there_never_was(stateful):
    """Of an algorithm without state, and of one with state in a client's first round."""
    strategy, hit = (FedDyn(proximal=1.0, min_replies=6), (1, 1)) if stateful else (None, (2, 1))
    history = disturbed(with_config(lost=True), strategy, [hit])
    assert (history["dropped"][-1], history["lost"][-1]) == (1, 0)


def test_a_reply_that_flower_cannot_read_is_its_nodes_fault():
    """Flower raises where the objects of a message do not fit together."""
    bad = []

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

    grid = Grid(q6_objectives())
    history = avg(min_replies=6).start(grid, num_rounds=3, evaluate_every=1).history
    same(history, 3)
    assert history["dropped"][-1] == 1


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
    assert described(log, told) == (how != "none")


def test_a_moments_failure_of_everyone_does_not_end_a_run():
    """More failures in a row than a fixed number of attempts would bear."""
    left = [1] * 59

    def alter(message, reply):
        return failed(0, "restarting")(message, reply) if left and left.pop() else [reply]

    grid = FakeGrid(q6_objectives(), alter=alter)
    same(avg(min_replies=6).start(grid, num_rounds=2).history, 2)


# --- the SuperLink -----------------------------------------------------------------------------


class Restarting(FailingGrid):
    """A grid whose SuperLink fails five calls in a row, time and again."""

    calls = 0

    def call(self):
        self.calls += 1
        if self.calls % 13 > 7:
            raise ConnectionError("502 Bad Gateway")


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


def test_a_superlink_that_stays_away_ends_the_run_at_the_deadline():
    grid, rounds = FakeGrid(q6_objectives()), []

    def disturb(record):
        rounds.append(record["round"])
        if record["round"] == 2:
            grid.get_node_ids = lambda: 1 / 0

    with pytest.raises(FedConError, match=r"the SuperLink has not answered for .* \(ZeroDivision"):
        avg().start(grid, num_rounds=4, evaluate_every=1, round_deadline=0.3, callbacks=[disturb])
    assert rounds == [1, 2]


def test_a_run_that_is_stopped_ends_at_once():
    """Flower then raises what is no Exception."""

    class Stopped(FakeGrid):
        def pull_messages(self, message_ids):
            raise SystemExit

    with pytest.raises(SystemExit):
        avg().start(Stopped(q6_objectives()), num_rounds=2)
