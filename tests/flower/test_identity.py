"""A client's name belongs to one node: for as long as the node is there, or to its key."""

from __future__ import annotations

import pytest
from fake_grid import FakeGrid, asked, on_grid
from flwr.proto.node_pb2 import NodeInfo
from problems import avg, q6, q6_objectives
from strangers import STRANGER, says, silence, with_stranger

from flower_fedcon import simulate


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
