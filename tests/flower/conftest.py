"""What the tests of Flower's side share."""

from __future__ import annotations

import logging

import pytest
from flwr.supercore.task_identity import TaskIdentity

from flower_fedcon.engines import grid
from flower_fedcon.flower import mail


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
