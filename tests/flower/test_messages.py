"""Requests, replies and state: what is encoded comes back as it was."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from harness import OpenRun, arrived, reply, request

from flower_fedcon import FederatedProblem
from flower_fedcon.clients import FedAvgClient, FedFWClient
from flower_fedcon.core.protocol import ClientInfo, Request, RunInfo
from flower_fedcon.errors import ConfigError
from flower_fedcon.flower import codec, incoming, messages
from flower_fedcon.flower.incoming import Parts
from flower_fedcon.flower.stores import ContextStore, Versions
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import Quadratic
from flower_fedcon.regularizers import ElasticNet
from flower_fedcon.sets import Box, CoordinateAtom, L1Ball
from flower_fedcon.strategies import FedFW

# --- requests and replies -------------------------------------------------------------------------

LAYOUT = Layout.of(np.zeros(3))


def run_info(**given: Any) -> RunInfo:
    return RunInfo("fedavg", 2**63 - 1, LAYOUT, 7, given)


def travel(run: RunInfo, request: Request, own: Any = None) -> tuple[RunInfo, Request]:
    """Take a request through Flower's records."""
    arrays, config = codec.RequestEncoder(run).encode(request, 0)
    message = RecordDict({"a": messages.to_record(arrays.values())})
    context = Context(0, 0, {}, RecordDict(), dict(config))  # the types that Flower lets through
    return codec.decode_request(messages.from_record(message["a"]), context.run_config, own)


@pytest.mark.parametrize("restore", [None, {}, {"x": np.full(3, 2.0), "age": 0.1}])
def test_requests(restore):
    down = {"w": np.array([0.1, -0.0, 1e-308]), "step": 0.1, "tiny": math.nextafter(0, 1)}
    box = Box(np.array([-1.0, 0, 0]), np.array([1.0, 2, 3]))
    run, got = travel(
        run_info(constraint=box, regularizer=ElasticNet(0.1, 0.3), k=3, on=True, none=None),
        request(4, 9, 8, down, restore),
    )
    assert (run.algorithm, run.seed, run.num_clients) == ("fedavg", 2**63 - 1, 7)
    assert run.layout == LAYOUT
    assert (got.clients, got.round, got.acknowledged.tolist()) == ([4], 9, [8])
    assert got.broadcast.keys() == down.keys()
    assert got.broadcast["w"].tobytes() == down["w"].tobytes()
    assert (got.broadcast["step"], got.broadcast["tiny"]) == (0.1, math.nextafter(0, 1))
    if restore is None:
        assert got.restore == {}
    else:
        given = got.restore[4]
        assert given.keys() == restore.keys()
        assert not restore or (given["age"], given["x"].tolist()) == (0.1, [2, 2, 2])
    found = dict(run.settings)
    assert np.array_equal(found["constraint"].lower, box.lower)
    assert np.array_equal(found["constraint"].upper, box.upper)
    assert found["regularizer"] == ElasticNet(0.1, 0.3)
    assert (found["k"], found["on"], found["none"]) == (3, True, None)


@pytest.mark.parametrize("lost", [False, True])
def test_replies(lost):
    atom = CoordinateAtom(-3, 2.0, (9,), np.dtype(np.float64))
    payload = {"atom": atom, "delta": np.ones((2, 2)), "gap": 0.1}
    one = reply(3, 5, payload, num_examples=40, lost=lost)
    got = arrived(3, LAYOUT, *codec.encode_reply(one))
    assert (got.clients, got.round, got.num_examples, got.lost) == ([3], 5, 40, lost)
    assert got.remote
    assert list(got.payload) == ["atom.code", "delta", "gap"]
    assert got.payload["gap"] == [0.1]
    again = L1Ball(2.0).decode_atom({"code": got.payload["atom.code"][0]}, (9,), atom.dtype)
    assert again.dense().tobytes() == atom.dense().tobytes()
    failed = codec.encode_reply(reply(3, 5, error="why"))
    assert arrived(3, LAYOUT, *failed).error == "why"


def test_descriptions():
    nodes = [{"partition-id": 3, "num-partitions": 8}, {"name": "site", "partition-id": 3}, {}]
    contexts = [Context(0, 0, node, RecordDict(), {}) for node in nodes]
    objective = Quadratic(2 * np.eye(3), np.ones(3))

    def describe(context: Context, **more: str) -> tuple[ClientInfo, int | None]:
        client = FedAvgClient(objective, context=context, **more)
        config = client.fit([], {"action": "describe"})[2]
        found = incoming.description(lambda: Parts([], 1, None, config), 77)
        return found.info, found.partitions

    decoded = [describe(context) for context in contexts]
    assert [(i.name, n) for i, n in decoded] == [("3", 8), ("site", None), ("node-77", None)]
    layout = Layout(((3,),), "float64", layered=False)
    facts = (1, layout, 2.0, 2.0)
    for i, _ in decoded:
        assert (i.num_examples, i.layout, i.smoothness, i.strong_convexity) == facts
    assert describe(contexts[0], name="own")[0].name == "own"


@pytest.mark.parametrize(
    "change",
    [{"names": None}, {"names": "w,w"}, {"names": "w,v"}, {"layout": "5"}, {"settings": "[]"},
     {"settings": "{"}, {"settings": '{"a": {"array": "b"}}'}, {"round": "x"}, {"client": None}],
    ids=str,
)  # fmt: skip
def test_foreign_messages(change):
    arrays, config = codec.RequestEncoder(run_info()).encode(request(0, 1, 0, {"w": np.ones(3)}), 0)
    config = {k: v for k, v in {**config, **change}.items() if v is not None}
    words = "not from a flower_fedcon strategy|came under the names|cannot be read|not the layout"
    with pytest.raises(ConfigError, match=words):
        codec.decode_request(list(arrays.values()), config, None)
    client = FedAvgClient(Quadratic(np.eye(3), np.ones(3)))
    answer = client.fit([], {})[2]  # the server gets to read the reason
    assert "not from a flower_fedcon strategy" in answer["error"]


# --- state in Flower's context --------------------------------------------------------------------


class Kept(NamedTuple):
    x: Any
    d: Any
    age: Any


def new_context() -> Context:
    return Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})


def test_state_round_trip():
    context, run = new_context(), run_info()
    assert ContextStore(context).load(run, Kept) == Versions()
    kept = Kept(np.array([0.1, -0.0]), None, 3), Kept(np.zeros((2, 1), np.float32), np.ones(1), 0.1)
    for versions in (Versions(4, kept[0], 6, kept[1]), Versions(6, kept[1])):
        ContextStore(context).save(run, versions)
        got = ContextStore(context).load(run, Kept)
        assert (got.round, got.pending_round) == (versions.round, versions.pending_round)
        both = (got.acknowledged, versions.acknowledged), (got.pending, versions.pending)
        for new, old in both:
            if old is None:
                assert new is None
                continue
            assert (new.x.tobytes(), new.x.dtype) == (old.x.tobytes(), old.x.dtype)
            assert (new.age, type(new.age)) == (old.age, type(old.age))
            assert (new.d is None) == (old.d is None)
    other = RunInfo("fedfw", 0, LAYOUT, 7)
    assert ContextStore(context).load(other, Kept) == Versions()


def test_a_state_is_pending_until_it_is_acknowledged():
    """The same round asked twice gives the same reply; the next one builds on what was used."""
    problem = FederatedProblem([Quadratic(np.eye(3), np.arange(3.0))], constraint=L1Ball(1.0))
    context, run = new_context(), OpenRun(FedFW(problem.constraint, penalty=1.0), problem)

    def ask(server_round: int, ack: int) -> dict[str, Any]:
        down = {"x_bar": np.full(3, 0.1), "step_size": 0.5, "penalty": 1.0}
        sent = request(0, server_round, ack, down)
        arrays, config = codec.RequestEncoder(run.server.info).encode(sent, 0)
        client = FedFWClient(problem.objectives[0], context=context)
        return client.fit(list(arrays.values()), config)[2]

    def versions() -> Versions:
        return ContextStore(context).load(run.server.info, FedFWClient.state_type)

    ask(1, 0)
    first = versions()
    ask(1, 0)
    assert versions().pending.x.tobytes() == first.pending.x.tobytes()
    ask(2, 1)
    assert versions().acknowledged.x.tobytes() == first.pending.x.tobytes()
    ask(3, 1)  # the reply of round 2 was not used
    assert versions().acknowledged.x.tobytes() == first.pending.x.tobytes()
    assert (versions().round, versions().pending_round) == (1, 3)
    assert "round 2" in ask(2, 1)["error"]  # it comes after round 3
    assert versions().pending_round == 3
    assert ask(4, 2)["lost"] is True
