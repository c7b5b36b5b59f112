"""Replies on a grid that no client of this package would send."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from problems import avg, q6, q6_ball, q6_limited, q6_objectives

from flower_fedcon import Sample, simulate
from flower_fedcon.compressors import TopK
from flower_fedcon.errors import RoundError
from flower_fedcon.flower import messages
from flower_fedcon.sets import L1Ball, L2Ball
from flower_fedcon.strategies import FedFW, FedSGM


@on_grid
@pytest.mark.parametrize("fault", ["unknown node", "another index", "error", "no form"])
def test_strange_replies_on_a_grid(fault):
    def alter(message, reply):
        sent = message.content["fitins.config"]
        if (sent["round"], sent["client"]) != (2, 1) or done:
            return [reply]
        done.append(1)
        if fault == "unknown node":
            stray = Message(reply.content, reply_to=message)
            stray.metadata.__dict__["_src_node_id"] = 5
            return [stray, reply]
        if fault == "another index":
            reply.content["fitres.metrics"]["client"] = 4
            return [reply]
        if fault == "error":
            return [Message(Error(0, "broken"), reply_to=message)]
        return [Message(RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=message)]

    done = []
    strategy, grid = avg(min_replies=6), FakeGrid(q6_objectives(), alter=alter)
    history = strategy.start(grid, num_rounds=3).history
    assert done
    assert history.x.tobytes() == simulate(strategy, q6(), 3).x.tobytes()
    assert history["dropped"][-1] == (1 if fault in ("error", "no form") else 0)
    assert history["retries"][-1] == (1 if fault in ("error", "no form") else 0)


def hostile(strategy, change):
    """Return a run in which client 1's second reply is changed before it is read."""

    def alter(message, reply):
        sent = message.content["fitins.config"]
        if (sent["round"], sent["client"]) == (2, 1) and not done:
            done.append(change(reply.content))
        return [reply]

    done = []
    history = strategy.start(FakeGrid(q6_objectives(), alter=alter), num_rounds=3, seed=2).history
    assert done
    return history


def bad_header(content):
    header = b"\x93NUMPY\x01\x00\x02\x00(\n"
    content["fitres.parameters"]["0"].data = header


def scalar_for_array(content):
    content["fitres.parameters"] = messages.to_record([])
    content["fitres.metrics"] = ConfigRecord(
        {**content["fitres.metrics"], "names": "", "scalar.delta": 0.5}
    )


def dense_for_atom(content):
    content["fitres.parameters"] = messages.to_record([np.full(8, 1e6)])
    content["fitres.metrics"] = ConfigRecord({**content["fitres.metrics"], "names": "atom"})


@on_grid
@pytest.mark.parametrize("change", [bad_header, scalar_for_array])
def test_hostile_replies_are_dropped(change):
    history = hostile(avg(min_replies=6), change)
    assert history["dropped"][-1] == 1
    assert history.x.tobytes() == simulate(avg(), q6(), 3).x.tobytes()


@on_grid
@pytest.mark.parametrize("sampled", [{}, {"participation": Sample(fraction=0.9)}])
def test_a_dense_point_is_no_atom(sampled):
    """Any vector would be taken for a vertex: outside the ball, the model leaves it."""
    problem = q6_ball()
    history = hostile(FedFW(problem.constraint, penalty=1.0, **sampled), dense_for_atom)
    assert history["dropped"][-1] == 1
    assert problem.constraint.contains(history.x)


@on_grid
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
    """Its parts come as scalars of the configuration: that reply is dropped, the run goes on."""

    def alter(message, reply):
        sent = message.content["fitins.config"]
        if (sent["round"], sent["client"], sent["action"]) == (2, 1, "train"):
            config = reply.content["fitres.metrics"]
            for name in str(config["names"]).split(","):
                config[f"scalar.{name}"] = 0.5
            config["names"] = ""
            reply.content["fitres.parameters"] = ArrayRecord({})
            done.append(1)
        return [reply]

    done = []
    limited = q6_limited() if strategy.queries else q6()
    grid = FakeGrid(list(limited.objectives), alter=alter)
    strategy.min_replies = 6
    with pytest.raises(RoundError, match=r"client 1: '\S+' is 0\.5, expected an array"):
        strategy.start(grid, num_rounds=3, max_retries=3)
    assert len(done) == 4  # asked again as often as a client is
