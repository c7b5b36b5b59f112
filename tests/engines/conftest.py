"""What the tests of engines share."""

from __future__ import annotations

import logging
import sys

import pytest
from fake_ray import fake_ray as fake_ray


@pytest.fixture
def log(caplog):
    """What is said, from warnings on."""
    caplog.set_level(logging.WARNING, logger="flwr")
    return caplog


@pytest.fixture
def done(monkeypatch) -> list[int]:
    """The numbers of rounds that were compiled."""
    from flower_fedcon.engines.jax.program import JaxEngine

    found: list[int] = []
    advance = JaxEngine.advance

    def counted(self, server, rounds):
        found.append(advance(self, server, rounds))
        return found[-1]

    monkeypatch.setattr(JaxEngine, "advance", counted)
    return found


@pytest.fixture(params=[0, sys.maxsize], ids=["threads", "one thread"])
def always(request, monkeypatch):
    """Use the kernels for arrays of any size, in the form for several threads or for one."""
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    from flower_fedcon import compiled as door
    from flower_fedcon.compiled import calls

    monkeypatch.setattr(door, "WORTHWHILE", 0)
    monkeypatch.setattr(calls, "FEW", request.param)
