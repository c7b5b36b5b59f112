"""Clients in worker processes: the same iterates as in this one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import untimed
from every_method import problem_of, strategy_of

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError, FedConError, RoundError
from flower_fedcon.strategies import FedAvg

# The objectives that Ray's nodes have too: with the functional constraint that FedSGM needs.
play = partial(simulate, on_mismatch="warn")


def case(name: str) -> tuple[Any, FederatedProblem]:
    return strategy_of(name, 6), problem_of(name, 6)


@pytest.mark.parametrize("name", ["fedfw", "dualfl", "fedsgm", "scaffnew"])
def test_processes_give_the_same_bytes(name):
    """A state on the client, a local solver, a query, a quantity that the server computes."""
    here, there = (play(*case(name), 12, seed=3, **more) for more in ({}, {"workers": 2}))
    assert there.x.tobytes() == here.x.tobytes()
    assert untimed(there) == untimed(here)


def test_no_process_is_left():
    strategy, problem = case("fedfw")
    before = children()
    play(strategy, problem, 2, workers=2)
    assert children() <= before


def children() -> set[str]:
    tasks = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    if not tasks.exists():
        pytest.skip("needs Linux' list of child processes")
    # joblib keeps one process that tracks temporary files.
    found = {p: Path(f"/proc/{p}/cmdline").read_bytes() for p in tasks.read_text().split()}
    return {p for p, command in found.items() if b"resource_tracker" not in command}


class Own:
    """An objective of one's own, which can go wrong."""

    def __init__(self, what: str) -> None:
        self.lock = threading.Lock() if what == "lock" else None
        self.what = what

    def value(self, x):
        return float(x @ x)

    def gradient(self, x):
        if self.what == "die":
            os._exit(3)
        if self.what == "raise":
            raise ZeroDivisionError("in the objective")
        return 2 * x


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("lock", ConfigError, r"cannot be sent to other processes \(cannot pickle '_thread.lock'"),
        ("die", FedConError, "a worker process ended unexpectedly"),
        ("raise", RoundError, r"clients 0, 1, 2: ZeroDivisionError: in the objective"),
    ],
)
def test_what_goes_wrong_in_a_process_is_said(what, error, words):
    problem = FederatedProblem([Own(what) for _ in range(3)], x0=np.ones(2))
    with pytest.raises(error, match=words):
        simulate(FedAvg(client_lr=0.1, local_steps=1), problem, 2, workers=2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, r"workers must be a whole number >= 1, got 0"),
        ({"workers": 2, "engine": "ray"}, "workers=2 is for .*local., not for 'ray"),
        ({"workers": 2, "engine": "stacked"}, "workers=2 is for .*local., not for 'stacked"),
    ],
)
def test_bad_numbers_of_workers_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        play(*case("fedfw"), 2, **options)


SCRIPT = """
import numpy as np, os, sys
from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import FedAvg
def told(record):
    if record["round"] == 1:
        print(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read(), flush=True)
problem = FederatedProblem([Quadratic(np.eye(2), np.ones(2))] * 2)
simulate(FedAvg(client_lr=0.1, local_steps=1), problem, 10**7, workers=2, callbacks=[told])
"""


def test_processes_end_with_a_killed_parent():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=environment
    )
    pids = parent.stdout.readline().split()
    assert len(pids) >= 2
    parent.kill()
    parent.communicate(timeout=30)
    deadline = time.monotonic() + 30
    while alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)
