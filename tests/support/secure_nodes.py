"""Nodes in memory under SecAgg+: what reaches the server, who dies, and servers that ask oddly."""

from __future__ import annotations

import numpy as np
from fake_grid import FakeGrid
from flwr.app import Error, Message
from problems import q6_objectives

from flower_fedcon.objectives import LeastSquares
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.regularizers import Indicator
from flower_fedcon.sets import L2Ball
from flower_fedcon.strategies import FedAvg, FedMiD

SECURE = SecAggPlus(clipping_range=8.0)
STEPS = FedAvg(client_lr=0.1, local_steps=3)
STAGES = ("setup", "share_keys", "collect_masked_vectors", "unmask")
PROTOCOL = "secaggplus_configs"


def stage(message):
    """Return the stage of the protocol that a message asks for; None for another message."""
    configs = message.content.config_records.get(PROTOCOL)
    return None if configs is None else configs.get("stage")


class SecureGrid(FakeGrid):
    """Keeps what reaches the server: its `seen` has (client, stage, reply).

    Parameters
    ----------
    objectives : sequence
        By default Q6's.
    dies : sequence of (client, stage)
        Nodes that die, and when.
    asks : callable, optional
        Is given (stage, message, grid), and changes what a node is asked.
    tells : callable, optional
        Is given (client, stage, reply), and changes what comes back.
    """

    def __init__(self, objectives=None, dies=(), *, asks=None, tells=None, **more):
        super().__init__(objectives or q6_objectives(), **more)
        self.dies, self.asks, self.tells = list(dies), asks, tells
        self.seen, self.asked_for = [], []

    def replies_to(self, message):
        now, client = stage(message), 1000 - message.metadata.dst_node_id
        self.asked_for.append((client, now))
        if (client, now) in self.dies:
            self.dies.remove((client, now))
            return [Message(Error(0, "it has died"), reply_to=message)]
        if self.asks is not None:
            self.asks(now, message, self)
        found = super().replies_to(message)
        for reply in found if self.tells is not None else ():
            self.tells(client, now, reply)
        self.seen += [(client, now, reply) for reply in found]
        return found


def asking(when, record=PROTOCOL, **values):
    """Return a server that asks with other values at one stage; functions are given the old one."""

    def asks(now, message, grid):
        if now == when:
            config = message.content[record]
            for key, value in values.items():
                config[key] = value(config[key]) if callable(value) else value

    return asks


def start(made=STEPS, grid=None, rounds=1, *, secure=SECURE, retry=True, **options):
    """Return the history of a run under secure aggregation, by default of Q6's clients."""
    options |= {} if retry else {"max_retries": 0}
    grid = FakeGrid(q6_objectives()) if grid is None else grid
    return made.start(grid, num_rounds=rounds, secure_aggregation=secure, **options).history


def overflowing(privacy=None):
    """Return a method whose step fails on rows with a long gradient, and nodes: one has such."""
    shape = q6_objectives()[0].shape
    nothing = LeastSquares(np.zeros((1, *shape)), np.zeros(1))
    long = LeastSquares(np.full((1, *shape), 30.0), np.ones(1))
    made = FedMiD(
        Indicator(L2Ball(1.0)), client_lr=1.7e308, local_steps=1, server_prox_only=False,
        privacy=privacy, server_lr=1.0,
    )  # fmt: skip
    return made, SecureGrid([*[nothing] * 5, long])
