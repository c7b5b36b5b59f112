"""A run with many rounds of a large model stays flat: memory, open files, threads."""

from __future__ import annotations

import statistics

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


@pytest.mark.nightly
@pytest.mark.ray
def test_a_long_run_in_the_simulation_is_flat():
    check_flat(load.in_simulation(True, 4, 60, MODEL), nodes=4)


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_long_run_on_nodes_is_flat():
    check_flat(load.on_loopback(True, 2, 30, MODEL), nodes=2)
