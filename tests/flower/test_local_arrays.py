"""Arrays that stay with each client, over rounds, repeats and restarts."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_fedcon import keep_local, train_step
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies import FedAvg

SEEN: list[tuple[str, int, float]] = []


def make(load):
    """Each client adds its place + 1 to its own count; the model moves by 1."""
    app = ClientApp()

    def reply(message, context, content):
        return Message(RecordDict(content), reply_to=message)

    @app.train()
    @train_step
    @keep_local("count*")
    def train(message, context, method):
        arrays = {k: a.numpy() for k, a in message.content["arrays"].items()}
        place = context.node_config["partition-id"]
        SEEN.append(("train", place, float(arrays["counts"])))
        arrays["counts"] = arrays["counts"] + place + 1
        arrays["w"] = arrays["w"] + 1
        record = ArrayRecord({k: _array(a) for k, a in arrays.items()})
        return reply(message, context, {"a": record, "m": MetricRecord({"num-examples": 1})})

    @app.evaluate()
    @keep_local("count*")
    def evaluate(message, context):
        count = float(message.content["arrays"]["counts"].numpy())
        metrics = MetricRecord({"num-examples": 1, "own": count})
        return reply(message, context, {"m": metrics})

    return app


def _array(a):
    from flwr.app import Array

    return Array(np.asarray(a))


def run(grid, rounds, strategy=None, **options):
    SEEN.clear()
    start = ArrayRecord({"w": _array(np.zeros(2)), "counts": _array(np.zeros(()))})
    strategy = strategy or FedAvg()
    return strategy.start(grid, start, rounds, buffers=["counts"], evaluate_every=1, **options)


@on_grid
@pytest.mark.parametrize("restarted", [False, True])
def test_each_client_goes_on_from_its_own(tmp_path, restarted):
    grid = FakeGrid([None] * 3, make=make)
    if restarted:  # a node that starts anew has an empty context, and its folder
        for context in grid.nodes.values():
            context.node_config["state-dir"] = str(tmp_path)
        push = grid.push_messages

        def forget(messages):
            for context in grid.nodes.values():
                context.state = RecordDict()
            return push(messages)

        grid.push_messages = forget
    history = run(grid, 3).history
    for place in range(3):
        own = [count for kind, j, count in SEEN if j == place]
        assert own == [0, place + 1, 2 * (place + 1)]
        assert history[f"own/{place}"].tolist() == [(place + 1) * r for r in (1, 2, 3)]
    assert history.x[0].tolist() == [3, 3]


@on_grid
def test_a_repeated_round_starts_from_the_one_before():
    dropped = []

    grid = FakeGrid([None] * 2, make=make)
    push = grid.push_messages

    def lose(messages):
        """Lose client 0's first reply in round 2."""
        configs = [m.content.get("fitins.config", {}) for m in messages]
        rounds = [config.get("round") for config in configs]
        ids = push(messages)
        if 2 in rounds and not dropped:
            place = [m.metadata.dst_node_id for m in messages].index(1000)
            dropped.append(grid.replies.pop(ids[place]))
        return ids

    grid.push_messages = lose
    run(grid, 3, FedAvg(min_replies=2), timeout=0.5)
    assert [count for _, place, count in SEEN if place == 0] == [0, 1, 1, 2]
    assert [count for _, place, count in SEEN if place == 1] == [0, 2, 4]


def test_where_it_does_not_belong():
    with pytest.raises(ConfigError, match="needs names or patterns"):
        keep_local()
