"""The benchmarks run; what they measure is no test."""

from __future__ import annotations

import json
import statistics
from functools import partial

import numpy as np
import pytest
from nightly import at_night

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.cli import main
from flower_fedcon.lab.benchmarks import BENCHMARKS, Result, load, notebook_loops
from flower_fedcon.lab.benchmarks.in_process import small_clients
from flower_fedcon.problems import digits, lasso
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedFW, Scaffold

THROUGH_RAY = {"flower", "load", "ray"}
LONG = {"bandwidth", "compiled", "curves", "device", "networks", "solves"}
SHORT = BENCHMARKS.keys() - THROUGH_RAY - LONG


@pytest.mark.parametrize("name", at_night(sorted(SHORT | LONG), but=SHORT))
def test_bench(name, tmp_path, capsys):
    path = tmp_path / "bench.json"
    assert main(["bench", name, "--quick", "--output", str(path)]) == 0
    assert "Yardstick" in capsys.readouterr().out
    content = json.loads(path.read_text())
    assert content["results"]
    for line in content["results"]:
        assert 0 < line["low"] <= line["ratio"] <= line["high"]


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.parametrize("name", sorted(THROUGH_RAY))
def test_bench_through_ray(name, capsys):
    assert main(["bench", name, "--quick"]) == 0
    assert "Ray" in capsys.readouterr().out


def test_benchmarks_are_listed_and_judged(capsys):
    assert main(["bench", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(f" {name} " in said for name in BENCHMARKS)
    line = partial(Result, "a", "b", low=1.0, high=1.5, cost=1.0, unit="us")
    for ratio, target, judged in ((1.304, "<= 1.3", "<= 1.3"), (1.306, "<= 1.3", "<= 1.3, missed"),
                                  (1.0, "< 1", "< 1, missed"), (9.0, "", "")):  # fmt: skip
        assert line(ratio, target=target).judged == judged


def test_unknown_benchmarks_are_refused(capsys):
    assert main(["bench", "fedwf"]) == 2
    assert "did you mean 'fedfw'?" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_the_yardstick_is_the_same_algorithm(engine):
    problem = lasso(clients=5, rows=50, columns=30, nonzeros=4)
    A = np.stack([f.A for f in problem.objectives])
    b = np.stack([f.b for f in problem.objectives])
    expected = notebook_loops.fedfw_lasso(A, b, problem.constraint.radius, 0.5, 50)
    found = simulate(FedFW(problem.constraint, penalty=0.5), problem, 50, engine=engine).x
    assert found == pytest.approx(expected, abs=1e-12)


def test_fedavg_by_hand_is_the_same_algorithm():
    problem = FederatedProblem(small_clients(4, 6, rows=5).objectives)
    A, b = (np.stack([getattr(f, key) for f in problem.objectives]) for key in ("A", "b"))
    expected = notebook_loops.fedavg_least_squares(A, b, 0.1, 2, 20)
    found = simulate(FedAvg(client_lr=0.1, local_steps=2), problem, 20).x
    assert found == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedDualAvg", "FedFW"])
def test_jax_by_hand_is_the_same_algorithm(name):
    jax = pytest.importorskip("jax")
    from flower_fedcon.lab.benchmarks import jax_loops

    bounded, psi = small_clients(4, 6, rows=5), L1(0.05)
    A, b = (np.stack([getattr(f, key) for f in bounded.objectives]) for key in ("A", "b"))
    steps = {"client_lr": 0.1, "local_steps": 2}
    strategy, more = {
        "FedAvg": lambda: (FedAvg(**steps), {}),
        "Scaffold": lambda: (Scaffold(**steps), {}),
        "FedDualAvg": lambda: (FedDualAvg(psi, **steps), {"l1": 0.05}),
        "FedFW": lambda: (FedFW(bounded.constraint, penalty=0.5), {}),
    }[name]()
    settings = {"radius": 1.0, "penalty": 0.5} if name == "FedFW" else {"rate": 0.1, "steps": 2}
    problem = bounded
    if name != "FedFW":
        problem = FederatedProblem(
            bounded.objectives, regularizer=psi if name == "FedDualAvg" else None
        )
    with jax.enable_x64(True):
        loop = getattr(jax_loops, name.lower())
        expected = np.asarray(loop(A, b, rounds=20, **settings, **more))
    assert simulate(strategy, problem, 20).x == pytest.approx(expected, abs=1e-12)


def test_jax_by_hand_takes_minibatches_of_softmax_regression():
    """With batches of all rows, in whatever order."""
    jax = pytest.importorskip("jax")
    from flower_fedcon.lab.benchmarks import jax_loops

    problem = digits(l1=1e-2)
    A, y = (np.stack([getattr(f, key) for f in problem.objectives]) for key in ("A", "y"))
    strategy = FedDualAvg(problem.regularizer, client_lr=0.5, local_steps=1)
    with jax.enable_x64(True):
        settings = {"rate": 0.5, "l1": 1e-2, "steps": 1, "batch": A.shape[1], "rounds": 5}
        expected = np.asarray(jax_loops.feddualavg_softmax(A, y, **settings))
    found = simulate(strategy, problem, 5).x
    assert np.count_nonzero(found) > 20
    assert found == pytest.approx(expected, abs=1e-12)


# --- loads ----------------------------------------------------------------------------------------

MODEL = 4.0  # MB


def check_flat(rows, nodes):
    """Compare the last third of the rounds with the third before it.

    If each round left a model where it was held, that would be seen; allocators alone keep some.
    """
    third = len(rows) // 3
    left = third * MODEL
    for name, most in (("server", left / 2), ("nodes", nodes * left / 2), ("files", 2)):
        early, late = (
            statistics.median(row[name] for row in part)
            for part in (rows[third : 2 * third], rows[2 * third :])
        )
        assert late - early <= most, (name, [round(row[name], 1) for row in rows])


def rows(seconds, megabytes):
    """Return what is noted of rounds that take so long and hold so much."""
    each = enumerate(np.cumsum(seconds))
    held = {"files": 9.0, "nodes": 0.0, "nodes' files": 0.0}
    return [{"time": float(at), "server": megabytes + i, **held} for i, at in each]


def test_lines_by_thirds_of_the_rounds():
    told = {False: rows([9, 2, 2, 2, 2, 4, 4], 100), True: rows([1, 3, 3, 3, 3, 5, 5], 200)}
    lines = [line for line in load.compared("2 nodes", told) if ": rounds " in line.what]
    seconds = [line for line in lines if line.unit == "s"]
    assert [line.what for line in seconds] == [
        "2 nodes: rounds 2 to 3",
        "2 nodes: rounds 4 to 5",
        "2 nodes: rounds 6 to 7",
    ]
    assert [(line.cost, line.ratio) for line in seconds] == [(3, 1.5), (3, 1.5), (5, 1.25)]
    assert seconds[-1].yardstick == "Flower's FedAvg: 4 s"
    memory = [line for line in lines if line.unit == "MB of the server"]
    assert [(line.cost, line.yardstick) for line in memory] == [
        (201.5, "Flower's FedAvg: 102 MB"),
        (203.5, "Flower's FedAvg: 104 MB"),
        (205.5, "Flower's FedAvg: 106 MB"),
    ]
    assert len(lines) == 9  # no memory of nodes, where no such process is seen


@pytest.mark.nightly
@pytest.mark.ray
def test_a_long_run_in_the_simulation_is_flat():
    check_flat(load.in_simulation(True, 4, 60, MODEL), nodes=4)


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_long_run_on_nodes_is_flat():
    check_flat(load.on_loopback(True, 2, 30, MODEL), nodes=2)
