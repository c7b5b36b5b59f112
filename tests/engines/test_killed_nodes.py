"""SuperNodes, SuperLink and ServerApps are killed while they work; nothing is lost or doubled.

The nodes keep their clients' state in a `state-dir`, the server its checkpoint in the run
directory. Every run ends at the bytes of the undisturbed one. `tests/support/chaos.py` does the
same for as long as one likes, at random.
"""

from __future__ import annotations

import pytest
from chaos import Chaos
from deployment import Deployment
from problems import l1ls
from processes import wait_until
from row_nodes import APP, model_of, node_configs, run_config

from flower_fedcon import FederatedProblem, History, Sample, simulate
from flower_fedcon.strategies import Scaffold


@pytest.mark.nightly
@pytest.mark.deployment
def test_every_run_ends_where_the_undisturbed_one_does(tmp_path):
    chaos = Chaos(tmp_path, seed=0, rounds=6)
    chaos.play(
        25,  # minutes at most: a machine may be slow
        misfortunes=[
            "a node dies twice",
            "a stranger joins",
            "the ServerApps die",
            "the server's machine goes down",
        ],
        pause=4,
    )
    assert chaos.wrong() == []


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_race_ends_where_the_undisturbed_one_does(tmp_path):
    """While values of client_lr race, a node dies and comes back, and then the ServerApp dies."""
    rounds, run = 14, tmp_path / "fedcon" / "run"
    problem = FederatedProblem(l1ls(3).objectives)
    alone = simulate(
        Scaffold(client_lr="auto", participation=Sample(count=2)), problem, rounds, seed=3
    )
    in_race = [int(row["round"]) for row in alone.rows][3]
    assert in_race == rounds - 2  # two values have a stage before them
    asked = {"client_lr": "auto", "sample": 2, "min_replies": 2}
    config = run_config(
        "Scaffold", asked, rounds, run, seed=3, evaluate_every=1, checkpoint_every=1
    )
    hold = run.parent / "hold"  # the server waits after the last four rounds
    run.parent.mkdir()
    hold.touch()
    with Deployment(tmp_path / "flower", node_configs(tmp_path, 3)) as deployment:
        held = deployment.submit(APP, config)
        told = f"[ROUND {in_race}/{rounds}] objective"
        assert wait_until(lambda: told in held.output, 1500), held.output
        deployment.kill_node(1)
        deployment.restart_node(1)
        deployment.kill_server_apps()
        hold.unlink()
        resumed = deployment.submit(APP, config | {"resume": True}).wait(1500).output
    assert model_of(run).tobytes() == alone.x.tobytes(), resumed
    rows = History.read_rows(run / "history.csv")
    assert [row["round"] for row in rows] == [row["round"] for row in alone.rows]
    for row, same in zip(rows, alone.rows, strict=True):
        assert (row["uplink_bytes"], row["lost"]) == (same["uplink_bytes"], same["lost"])
