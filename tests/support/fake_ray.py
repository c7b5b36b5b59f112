"""Flower's simulation without Ray: each message is answered at once, in this process."""

from __future__ import annotations

import pytest
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flower_fedcon.engines import grid, ray
from flower_fedcon.flower import virtual_nodes


class FakeRay:
    """What stands in for `run_simulation`.

    Attributes
    ----------
    sent : list of (Message, node)
        Of the last simulation.
    meddle : callable, optional
        (number of the message, message, its replies) -> the replies that come back.
    """

    def __init__(self):
        self.sent, self.meddle = [], None

    def __call__(self, *, server_app, client_app, num_supernodes, backend_config):
        fake = self
        self.sent = []

        class Nodes(FakeGrid):
            def replies_to(self, message):
                fake.sent.append(message)
                replies = super().replies_to(message)
                meddle = fake.meddle
                return replies if meddle is None else meddle(len(fake.sent), message, replies)

        self.supernodes = num_supernodes
        nodes = Nodes(range(num_supernodes), make=lambda load: client_app)
        server_app(nodes, Context(1, 1, {}, RecordDict(), {}))


@pytest.fixture
def fake_ray(monkeypatch, request):
    """Run Flower's simulation in this process, on two workers of one machine.

    Tests with the mark `ray` start it, whatever the other tests of their file use.
    """
    if request.node.get_closest_marker("ray"):
        return None
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    fake = FakeRay()
    monkeypatch.setattr(virtual_nodes, "run_simulation", fake)
    monkeypatch.setattr(ray, "_workers", lambda: (2, 1))
    monkeypatch.setattr(grid, "PAUSE", (0.0, 0.0))
    return fake
