"""What all tests share. No test leaves a process or a file behind, or reaches the network."""

from __future__ import annotations

import fcntl
import gc
import os
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

# Before NumPy, Flower or Ray is imported by any test. With one thread, as on the nodes, sums are
# the same, bit for bit; and two workers on two cores are not in each other's way.
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import pytest
import wings
from fuzzing import CASES
from hypothesis import HealthCheck, settings

# Else each worker compiles all tests anew, and each process that a test starts the package.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
sys.dont_write_bytecode = False

DURATIONS = Path(__file__).with_name("durations.txt")
# Seconds of a test's longest case: above the first it is slow, and `make quick` runs none above
# the second, and no file that begins with an import of what takes a second to import.
SLOW, QUICK = 0.1, 0.02
HEAVY = re.compile(
    r"^(from|import|(\w+ = )?pytest\.importorskip\()"
    r".*\b(torch|jax|statsmodels|sites|apps|fake_ray|virtual_nodes)\b",
    re.MULTILINE,
)
ALONE = {"ray", "deployment"}

# The same cases in every run, so that what fails is the change; `make fuzz` draws its own.
settings.register_profile(
    "fedcon",
    max_examples=max(50, CASES // 50),
    deadline=None,
    derandomize="FEDCON_FUZZ" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("fedcon")


def pytest_addoption(parser):
    parser.addoption(
        "--measure", action="store_true", help="write how long tests take to tests/durations.txt"
    )


def pytest_configure(config):
    config.pluginmanager.register(wings)
    if config.option.measure and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measured())


@cache
def durations():
    """Return seconds: of a file's tests together, and of the longest case of a test."""
    lines = DURATIONS.read_text().splitlines() if DURATIONS.exists() else []
    return {name: float(seconds) for seconds, name in map(str.split, lines)}


def test_of(case):
    """Return the test of a case, by its place below tests/."""
    return case.removeprefix("tests/").partition("[")[0]


def file_of(case):
    """Return the file of a case."""
    return test_of(case).partition("::")[0]


class Measured:
    """Writes how long the tests have taken; a part of them, by ``-m``, adds to what is there.

    The fast part is measured alone, too: what slow tests have computed, imported or prepared for
    others counts there.
    """

    def __init__(self):
        self.cases = Counter()

    def pytest_runtest_logreport(self, report):
        self.cases[report.nodeid] += report.duration

    def pytest_sessionfinish(self, session):
        files, longest = Counter(), Counter()
        for case, seconds in self.cases.items():
            files[file_of(case)] += seconds
            longest[test_of(case)] = max(longest[test_of(case)], seconds)
        listed = {name: s for name, s in files.items() if s > 1}
        listed |= {name: s for name, s in longest.items() if s > QUICK}
        if session.config.option.markexpr:
            for name, before in durations().items():
                listed[name] = max(before, listed.get(name, 0.0))
        DURATIONS.write_text("".join(f"{listed[name]:.2f} {name}\n" for name in sorted(listed)))


def pytest_ignore_collect(collection_path, config):
    """Do not even import, for `-m quick`, files of which it runs nothing."""
    if config.option.markexpr == "quick" and collection_path.name.startswith("test_"):
        return HEAVY.search(collection_path.read_text("utf-8")) is not None or None
    return None


def pytest_pycollect_makeitem(collector, name):
    """Nor make cases, for `-m quick`, of tests that took longer."""
    test = test_of(f"{collector.nodeid}::{name}")
    if collector.config.option.markexpr == "quick" and durations().get(test, 0.0) > QUICK:
        return []
    return None


def pytest_collection_modifyitems(config, items):
    """Mark tests, leave out the nightly ones unless ``-m`` names them, and sort files.

    The longest files come first, so that two workers end together; Ray's come last, since they
    would wait for the deployment's.
    """
    seconds, kept, nightly = durations(), [], []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("fuzz")
        engine = (
            item.callspec.params.get("engine", "local") if hasattr(item, "callspec") else "local"
        )
        longest = seconds.get(test_of(item.nodeid), 0.0)
        if longest > SLOW or marks & {*ALONE, "nightly"} or engine != "local":
            item.add_marker("slow")
        elif longest <= QUICK:
            item.add_marker("quick")
        left_out = "nightly" in marks and "nightly" not in config.option.markexpr
        (nightly if left_out else kept).append(item)
    config.hook.pytest_deselected(items=nightly)

    def order(item):
        ray = item.get_closest_marker("ray") is not None
        return ray, -seconds.get(file_of(item.nodeid), 0.0)

    items[:] = sorted(kept, key=order)


def pytest_collection_finish():
    """Leave what is imported and collected out of each later search for garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """With several workers (-n 2) one test at a time starts Ray or a deployment."""
    if not ALONE & {mark.name for mark in item.iter_markers()}:
        return (yield)
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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


@pytest.fixture(autouse=True, scope="session")
def _no_width():
    """Print as into a pipe: a worker of several (-n 2) says that it has 80 columns."""
    os.environ.pop("COLUMNS", None)


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
