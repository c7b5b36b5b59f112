"""What all tests share. No test leaves a process or a file behind, or reaches the network."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

# Before Flower or Ray is imported by any test.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import pytest
from threadpoolctl import threadpool_limits


def pytest_collection_modifyitems(config, items):
    """Mark what is slow, and leave out what is nightly, unless ``-m`` speaks of it."""
    nightly = []
    for item in items:
        names = {mark.name for mark in item.iter_markers()}
        if names & {"ray", "deployment", "nightly"}:
            item.add_marker("slow")
        if "nightly" in names and "nightly" not in config.option.markexpr:
            nightly.append(item)
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        left_out = set(nightly)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """With several workers (-n 2) a test that starts Ray or a deployment runs alone."""
    alone = any(item.iter_markers("ray")) or any(item.iter_markers("deployment"))
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:  # explicitly: a process that a test forked may still have the file open
            fcntl.flock(lock, fcntl.LOCK_UN)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace["np"] = np


@pytest.fixture(autouse=True, scope="session")
def _own_flwr_home(tmp_path_factory):
    """Keep Flower's files of tests in this process out of the user's home."""
    os.environ["FLWR_HOME"] = str(tmp_path_factory.mktemp("flwr"))


@pytest.fixture
def one_thread():
    """One BLAS thread, as on the nodes: sums are then the same, bit for bit."""
    with threadpool_limits(1):
        yield


@pytest.fixture
def run_command(tmp_path, monkeypatch, capsys):
    """Run `fedcon` in an empty folder."""
    from flower_fedcon.cli.command import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Return a working directory with the examples, as in a clone of the project."""
    (tmp_path / "examples").symlink_to(Path(__file__).parents[1] / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path
