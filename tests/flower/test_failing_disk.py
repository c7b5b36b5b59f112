"""A disk that is full, or fails, for servers and nodes: a sentence, and then the same bytes."""

from __future__ import annotations

import pytest
from contract import CONTRACTS, build
from failing_disk import FailingDisk
from fake_grid import FakeGrid, on_grid

from flower_fedcon import simulate
from flower_fedcon.errors import FedConError

ROUNDS, WELL = 10, 12  # from so many starts on the disk is well


@on_grid
@pytest.mark.parametrize("nodes", [True, False], ids=["nodes", "in process"])
@pytest.mark.parametrize("name", ["fedfw", "scaffold", "dualfl"])
def test_a_run_whose_disk_fails_ends_at_the_same_bytes(name, nodes, tmp_path):
    """It is resumed after each error, with whatever that has left."""
    case = CONTRACTS[name].cases[0]
    problem = case.problem()
    clients = problem.num_clients
    settings = {**case.settings, "min_replies": clients}
    disk = FailingDisk(tmp_path, seed=len(name))
    options = {"run_dir": tmp_path / "run", "checkpoint_every": 2, "audit": True}

    def play():
        strategy = build(name, problem, **settings)
        if not nodes:
            return simulate(strategy, problem, ROUNDS, resume=True, **options)
        grid = FakeGrid(problem.objectives)
        for node in grid.nodes.values():
            node.node_config["state-dir"] = str(tmp_path / "state")
        start = {"num_rounds": ROUNDS, "num_clients": clients, "resume": True, **options}
        return strategy.start(grid, problem.start, **start).history

    starts = 0
    while True:
        starts += 1
        try:
            with disk.failing(0.05 if starts < WELL else 0.0):
                history = play()
        except FedConError:
            assert starts < WELL
            continue
        break
    assert disk.failures > 2
    calm = simulate(build(name, problem, **settings), problem, ROUNDS)
    assert history.x.tobytes() == calm.x.tobytes()
