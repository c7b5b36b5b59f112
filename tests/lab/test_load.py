"""A run with many rounds of a large model stays flat: memory, open files, threads."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from flower_fedcon.lab.benchmarks import load

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
