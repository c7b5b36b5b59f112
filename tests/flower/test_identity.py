"""A client's name belongs to one node: for as long as the node is there, or to its key."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from fake_grid import FakeGrid, asked, on_grid, open_app
from flwr.app import Context, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from problems import avg, q6, q6_objectives
from strangers import STRANGER, says, silence, with_stranger

from flower_fedcon import Policy, simulate
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.engines.patience import Patience
from flower_fedcon.flower import nodes
from flower_fedcon.flower.stores import FileStore
from flower_fedcon.layout import Layout

pytestmark = on_grid


class Keys(FakeGrid):
    """A SuperLink that knows its nodes by their keys."""

    def get_nodes(self):
        key = {STRANGER: b"stranger", 7: b"client 2"}
        return [NodeInfo(node_id=n, public_key=key.get(n, b"%d" % n)) for n in self.get_node_ids()]


def later(make=FakeGrid, said=None, successor=False):
    """Return a grid, and what has a stranger join after round 1, perhaps in client 2's place.

    It describes itself as client 2, with what is `said` of its data; a successor to whom nothing
    is said has the same data.
    """
    grid = with_stranger(silence, make=make)
    stranger = grid.nodes.pop(STRANGER)
    stranger.node_config.update({"partition-id": 2, "num-partitions": 6} if successor else {})
    grid.replies_to = lambda message: (
        says(name="2", **said)(grid, message)
        if said is not None and message.metadata.dst_node_id == STRANGER
        else FakeGrid.replies_to(grid, message)
    )

    def join(record):
        if record["round"] == 1:
            if successor:
                del grid.nodes[998]
            grid.nodes[STRANGER] = stranger

    return grid, join


@pytest.mark.parametrize("authenticated", [False, True])
def test_a_second_claimant_of_a_name_is_refused_and_counted(authenticated, log):
    """It poisons what it is asked, and is asked nothing."""
    grid, join = later(Keys, said={})
    options = {"evaluate_every": 1, "callbacks": [join], "authenticated": authenticated}
    history = avg().start(grid, num_rounds=4, **options).history
    assert history.x.tobytes() == simulate(avg(), q6(), 4).x.tobytes()
    assert history["refused"].tolist() == [0, 1, 1, 1]
    claimed = "node 5 cannot take part: it claims to be client 2, which is on node 998"
    assert claimed in log.messages
    trained = [m for m in grid.pushed if asked(m)["action"] in ("train", "evaluate")]
    assert STRANGER not in {m.metadata.dst_node_id for m in trained}


@pytest.mark.parametrize("authenticated", [False, True])
def test_a_name_is_free_when_its_node_has_gone_unless_nodes_have_keys(authenticated, log):
    grid, move = later(Keys, successor=True)
    options = {"evaluate_every": 1, "callbacks": [move], "authenticated": authenticated}
    history = avg().start(grid, num_rounds=3, **options).history
    assert history["replies"].tolist() == ([6, 5, 5] if authenticated else [6, 6, 6])
    told = "node 5 cannot take part: it claims to be client 2, which has another key"
    assert (told in log.messages) == authenticated
    assert ("client 2 is on another node now: 5" in log.messages) != authenticated


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"num-examples": 7}, ": 7 rows, then 1"),
        ({"digest": "f" * 64}, ": digest ffffffffffff, then "),
        ({}, ""),
    ],
)
def test_a_client_that_comes_back_with_other_data_is_refused(said, told, tmp_path, log):
    """As resuming refuses other data: the run goes on with the others."""
    grid, move = later(said=said or None, successor=True)
    options = {"evaluate_every": 1, "callbacks": [move], "run_dir": tmp_path}
    history = avg().start(grid, num_rounds=3, **options).history
    assert history["replies"].tolist() == ([6, 5, 5] if said else [6, 6, 6])
    line = f"client 2 came back with different data than at the start of this run{told}"
    assert any(line in message for message in log.messages) == bool(said)


class Registered(FakeGrid):
    """Node 1000 has a name with the SuperLink, 999 one of its own, 998 a partition-id."""

    def get_nodes(self):
        return [
            NodeInfo(node_id=n, name="lyon" if n == 1000 else None, public_key=b"%d" % n)
            for n in self.get_node_ids()
        ]


@pytest.mark.parametrize("authenticated", [False, True])
def test_a_client_is_called_as_registered_else_as_it_says_else_after_its_key(authenticated):
    objectives = q6_objectives()[:4]
    grid = Registered(objectives, make=lambda _: open_app(lambda c: objectives[1000 - c.node_id]))
    said = {1000: {"partition-id": 0}, 999: {"name": "oslo"}, 998: {"partition-id": 2}, 997: {}}
    for node, config in said.items():
        grid.nodes[node].node_config = config
    patience = Patience(num_clients=4, authenticated=authenticated)
    names = {info.name for info in GridEngine(avg(), grid, patience).describe()}
    key = sha256(b"997").hexdigest()[:12]
    assert names == {"lyon", "oslo", "2", f"node-{key if authenticated else 997}"}


def test_who_comes_later_is_for_a_later_run(log):
    grid = FakeGrid(q6_objectives())
    grid.nodes[STRANGER] = grid.nodes.pop(995)
    grid.hidden = {STRANGER: None}
    options = {"num_clients": 5, "evaluate_every": 1}
    history = avg().start(grid, num_rounds=8, **options).history
    assert set(history["cohort"].tolist()) == {5}
    told = "the run takes 5 clients (num_clients=5), and client 5 is one too many"
    assert any(told in message for message in log.messages)


def restarted(grid, tmp_path, *, keeps=True):
    """Return a grid whose client 2 comes back on node 7 while the SuperLink still lists 998."""
    for node in grid.nodes.values():
        folder = tmp_path / str(node.node_config["partition-id"])
        node.node_config["state-dir"] = str(folder)

    def restart(record):
        if record["round"] == 2:
            config = dict(grid.nodes[998].node_config)
            if not keeps:
                config["state-dir"] = str(tmp_path / "elsewhere")
            grid.nodes[7] = Context(1, 7, config, RecordDict(), {})
            dead.append(998)

    dead = []
    alive = grid.replies_to
    grid.replies_to = lambda m: [] if m.metadata.dst_node_id in dead else alive(m)
    options = {"evaluate_every": 1, "callbacks": [restart], "timeout": 0.01}
    return avg().start(grid, num_rounds=5, **options).history


@pytest.mark.parametrize("keeps", [True, False])
def test_a_client_that_kept_its_pass_is_known_again_at_once(keeps, tmp_path, log):
    """Without it, it waits until the SuperLink has given up the node that died."""
    history = restarted(FakeGrid(q6_objectives()), tmp_path, keeps=keeps)
    assert history["replies"].tolist() == ([6] * 5 if keeps else [6, 6, 5, 5, 5])
    assert ("client 2 is on another node now: 7" in log.messages) == keeps
    assert history["refused"][-1] == (not keeps)


def test_two_nodes_with_one_state_folder_are_counted(tmp_path, monkeypatch, log):
    """The later one serves; the earlier one is named, once it cannot be a dead one any more."""
    monkeypatch.setattr(nodes, "_GIVEN_UP", 0.0)
    history = restarted(FakeGrid(q6_objectives()), tmp_path)
    assert history["refused"][-1] == 1
    assert "node 998 cannot take part: client 2 is also on node 7" in log.messages


def test_a_pass_is_kept_and_read_with_care(tmp_path):
    store = FileStore(tmp_path, "a", Policy())
    run = RunInfo("fedavg", 0, Layout.of(np.zeros(2)), 1, run_id="0" * 32)
    assert store.known_pass("0" * 32) == store.known_pass("../..") == ""
    for word in ("ab" * 16, "x" * 32, "ab" * 17, "../../etc"):
        store.keep_pass(run, word)
    assert store.known_pass("0" * 32) == "ab" * 16
    for damage in (b"", b"ab" * 15, b"\xff" * 32, b"ab" * 40):
        (tmp_path / ("0" * 32) / store._name / "pass").write_bytes(damage)
        assert store.known_pass("0" * 32) == ""
