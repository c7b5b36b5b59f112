"""Workers whose machines are lost, and come back; the last test kills one of two Ray nodes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from flower_fedcon.flower import lasting_workers
from flower_fedcon.flower.lasting_workers import NoWorkerError, Workers


class Machines:
    """Which workers answer."""

    def __init__(self, *there):
        self.there, self.asked = {*there}, []

    def __call__(self, worker, seconds):
        self.asked.append((worker, seconds))
        return worker in self.there


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(lasting_workers, "_NOBODY", 0.05)
    monkeypatch.setattr(lasting_workers, "_LOOK", 0.01)


def test_a_lost_worker_takes_no_message_until_it_is_back(soon, log):
    machines = Machines("a", "b")
    workers = Workers(["a", "b"], machines)
    assert workers.take() == "b"
    machines.there.remove("b")
    assert workers.has_lost("b")
    assert "the machine of a worker is lost: 1 of 2 workers go on" in log.text
    for _ in range(3):
        assert workers.take() == "a"
        workers.put_back("a")
    machines.there.add("b")
    assert {workers.take(), workers.take()} == {"a", "b"}
    assert "a worker that was lost is back" in log.text


def test_a_worker_that_died_and_lives_again_has_lost_nothing(soon):
    workers = Workers(["a"], Machines("a"))
    assert not workers.has_lost(workers.take())


def test_a_message_waits_for_a_worker_that_is_at_work(soon):
    workers = Workers(["a", "b"], Machines("a"))
    assert workers.has_lost(workers.take())
    busy = workers.take()
    threading.Timer(0.3, workers.put_back, [busy]).start()  # longer than for nobody
    assert workers.take() == busy


def test_without_a_worker_the_wait_ends(soon):
    workers = Workers(["a"], Machines())
    assert workers.has_lost(workers.take())
    with pytest.raises(NoWorkerError, match="no machine with a worker is left"):
        workers.take()


SLOW = """
import time
from flower_fedcon.objectives import Quadratic
class Slow(Quadratic):
    def gradient(self, x):
        time.sleep(0.1)
        return super().gradient(x)
"""
LOST = """
import os, subprocess, sys, threading, time
from pathlib import Path
import numpy as np
import ray
from ray.cluster_utils import Cluster
from slow_quadratic import Slow
from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.strategies import Scaffold

def problem():
    rng = np.random.default_rng(0)
    matrices = rng.normal(size=(10, 4, 4))
    return FederatedProblem([Slow(q @ q.T + np.eye(4), rng.normal(size=4)) for q in matrices])

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = cluster.address

started = []

def lose_and_return():
    time.sleep(0.3)  # within the round
    cluster.remove_node(second, allow_graceful=False)
    time.sleep(20.0)
    ray_here = str(Path(sys.executable).with_name("ray"))
    start = [ray_here, "start", "--address", cluster.address, "--num-cpus", "1"]
    started.append(subprocess.Popen([*start, "--disable-usage-stats", "--block"]))

def evaluate(number, x):
    if number == 2:
        threading.Thread(target=lose_and_return, daemon=True).start()
    return {}

strategy = Scaffold(client_lr=0.05, local_steps=2)
there = simulate(strategy, problem(), 40, engine="ray", evaluate=evaluate)
here = simulate(strategy, problem(), 40)
assert there.x.tobytes() == here.x.tobytes()
assert there["replies"].tolist() == 40 * [10]
assert there["dropped"][-1] == there["retries"][-1] == 0
for node in started:
    node.terminate()
ray.shutdown()
cluster.shutdown()
print("the same iterates")
"""


@pytest.mark.ray
@pytest.mark.nightly
def test_a_lost_ray_node_changes_no_iterate(tmp_path):
    (tmp_path / "slow_quadratic.py").write_text(SLOW)
    script = tmp_path / "lost.py"
    script.write_text(textwrap.dedent(LOST))
    played = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False
    )
    assert "the same iterates" in played.stdout, played.stderr[-3000:]
    said = played.stderr + played.stdout
    assert "the machine of a worker is lost: 1 of 2 workers go on" in said
    assert "a worker that was lost is back" in said
