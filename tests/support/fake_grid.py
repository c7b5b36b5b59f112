"""A Flower grid in memory: nodes that answer at once, and no process."""

from __future__ import annotations

import logging

import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from flower_fedcon import Policy, client_app, train_step
from flower_fedcon.engines import grid
from flower_fedcon.flower import mail

on_grid = pytest.mark.usefixtures("identity")
"""Marks a test that plays a run on a `FakeGrid`."""


@pytest.fixture
def identity(monkeypatch):
    """Be a running task, which Flower's messages need, and wait for nothing."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(mail, "POLL", (0.0, 0.0))
    monkeypatch.setattr(grid, "PAUSE", (0.0, 0.0))
    monkeypatch.setattr(grid, "_RETURN", 0.0)


@pytest.fixture
def log(caplog):
    """What Flower's log is told."""
    caplog.set_level(logging.INFO, logger="flwr")
    return caplog


def open_app(load):
    """Return a client app whose nodes refuse nothing."""
    return client_app(load, policy=Policy.open())


class FakeGrid(Grid):
    """Nodes in memory: each a client app and its context, by node id."""

    run = None

    def __init__(self, objectives, *, make=open_app, alter=None, hidden=()):
        self.app = make(lambda context: objectives[context.node_config["partition-id"]])
        self.nodes = {}
        for j in range(len(objectives)):
            node = {"partition-id": j, "num-partitions": len(objectives)}
            self.nodes[1000 - j] = Context(1, 1000 - j, node, RecordDict(), {})
        self.alter, self.hidden = alter, dict.fromkeys(hidden)
        self.looks, self.replies, self.pushed = 0, {}, []

    def set_run(self, run): ...

    def create_message(self, *_): ...

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))

    def get_node_ids(self):
        self.looks += 1
        return [n for n in self.nodes if n not in self.hidden or self.looks > 3]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(f"m{len(self.pushed)}")
            self.pushed.append(message)
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.replies[ids[-1]] = self.replies_to(message)
        return ids

    def replies_to(self, message):
        """Return what comes back: one reply, unless a test has it otherwise."""
        try:
            reply = self.app(message, self.nodes[message.metadata.dst_node_id])
        except Exception as error:  # as Flower does
            reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        altered = self.alter is not None and asked(message).get("action") == "train"
        return self.alter(message, reply) if altered else [reply]

    def pull_messages(self, message_ids):
        return [r for key in message_ids for r in self.replies.pop(key, [])]


class Forgetful(FakeGrid):
    """A grid that does not keep the messages that it has sent."""

    def replies_to(self, message):
        replies = super().replies_to(message)
        self.pushed[-1] = None
        return replies


def echo(load):
    """Return an app whose train function takes no step, as small as Flower's own."""
    app = ClientApp()

    @app.train()
    @train_step
    def train(message, context, method):
        model = [a.numpy() for a in message.content["arrays"].values()]
        method.begin(model).apply_gradients(model, model)
        return _echoed(message, model)

    return app


def plain_echo(load):
    """Return the same app for Flower's own strategies."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        return _echoed(message, [a.numpy() for a in message.content["arrays"].values()])

    return app


def _echoed(message, model):
    arrays = ArrayRecord({"w": Array(model[0])})
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"a": arrays, "m": metrics}), reply_to=message)


class FailingGrid(FakeGrid):
    """A grid whose every call begins with `call`, which a subclass has raise what it likes."""

    def call(self):
        raise NotImplementedError

    def get_node_ids(self):
        self.call()
        return super().get_node_ids()

    def push_messages(self, messages):
        self.call()
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        self.call()
        return super().pull_messages(message_ids)


class Late(FakeGrid):
    """One client's answers to one action come at each third look only."""

    action, client, looks_for_replies = "train", 2, 0

    def pull_messages(self, message_ids):
        self.looks_for_replies += 1
        asks = {m: asked(self.pushed[int(m[1:])]) for m in message_ids}
        wanted = self.action, self.client
        late = {m for m, ask in asks.items() if (ask.get("action"), ask.get("client")) == wanted}
        ready = [m for m in message_ids if m not in late or self.looks_for_replies % 3 == 0]
        return super().pull_messages(ready)


def hitting(change, *places):
    """Return what alters replies of (round, client) places, once each, and the list of those left.

    `change` is given the message and its reply, and returns what comes back.
    """
    left = list(places)

    def alter(message, reply):
        sent = message.content["fitins.config"]
        place = sent["round"], sent["client"]
        if place not in left:
            return [reply]
        left.remove(place)
        return change(message, reply)

    return alter, left


def with_config(**fields):
    """Return what changes the configuration of a reply."""

    def change(message, reply):
        old = dict(reply.content["fitres.metrics"])
        reply.content["fitres.metrics"] = ConfigRecord({**old, **fields})
        return [reply]

    return change


def asked(message):
    """Return the configuration in a message to a node: of training, or of an evaluation."""
    content = message.content
    of_evaluation = content.get("evaluateins.config", {})  # none in a question to an app's function
    return content.get("fitins.config") or {"action": "evaluate", **of_evaluation}
