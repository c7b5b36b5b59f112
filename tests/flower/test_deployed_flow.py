"""Runs that do not wait, on processes: everything that carries one is killed, and it ends right.

One SuperLink, four SuperNodes, and two runs beside each other. A node is killed in the middle of
its work; the SuperLink goes away for a while, and both ServerApps wait for it; they are killed;
the machine of the server goes down with all that is on it; a node leaves and comes back, and a
stranger joins. What a supervisor does is done here: what died is started again, and a run that
ended is submitted again with ``resume=true``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from deployment import Deployment, Run
from pace import paced
from processes import FlowerProcess, free_ports, key_value_pairs, wait_until
from row_nodes import APP, model_of, node_configs, run_config

from flower_fedcon import FederatedProblem, History
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.regularizers import L1
from flower_fedcon.runs import checkpoint
from flower_fedcon.strategies import AREA
from flower_fedcon.wire import state_files

CLIENTS, D, SLOW = 4, 5, 3
RATE = 2 / 2.02  # of AREA: 2 / (L + mu), by which the distance shrinks to a hundredth
PSI = L1(weight=0.1)  # as in the app
STEPS, MORE = {"run": 12, "beside": 8}, 2
ARGUMENTS: dict[str, dict[str, Any]] = {
    "run": {"oracle": "regularizer", "client_lr": RATE, "buffer": 2},
    "beside": {"client_lr": RATE, "buffer": 2},
}
PATIENCE = 900.0  # seconds for what takes some ten, on a machine that has other work
pytestmark = [pytest.mark.nightly, pytest.mark.deployment]


def rows(clients: int) -> list[dict[str, Any]]:
    """Return least squares with mu = 1 and L = 1.02, and minimisers of their own."""
    found = []
    for j in range(clients):
        rng = np.random.default_rng(j)
        left, right = (np.linalg.qr(rng.standard_normal((n, D)))[0] for n in (20, D))
        A = np.sqrt(20) * left @ np.diag(np.sqrt(np.linspace(1, 1.02, D))) @ right
        found.append({"A": A, "b": A @ (1 + rng.standard_normal(D))})
    return found


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a run so far."""
    try:
        lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def used(folder: Path) -> list[dict[str, Any]]:
    return [event for event in events(folder) if event.get("outcome") == "used"]


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """What the two runs have left, and what was seen meanwhile."""
    root = tmp_path_factory.mktemp("disturbed")
    configs = node_configs(root, CLIENTS, data=rows(CLIENTS))
    for config in configs:
        config["seconds"] = 5.0 if config["partition-id"] == SLOW else 0.5
    database = ["--database", str(root / "superlink.db")]
    folders = {name: root / name / "run" for name in ARGUMENTS}
    given = {
        name: run_config(
            "AREA", ARGUMENTS[name], STEPS[name], folders[name], evaluate_every=0,
            checkpoint_every=1,
        )
        for name in ARGUMENTS
    }  # fmt: skip
    started: dict[str, Run] = {}
    outliving: set[int] = set()  # ServerApps of a SuperLink that was killed
    began = time.monotonic()

    def note(text: str) -> None:
        print(f"{time.monotonic() - began:.0f} s: {text}", flush=True)

    with Deployment(root / "flower", configs, database, apart=True) as deployment:
        stranger = FlowerProcess(
            deployment.root,
            "stranger",
            [
                "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{deployment.port}",
                "--host", "127.0.0.1", "--port", str(free_ports(1)[0]),
                "--node-config", key_value_pairs({**configs[0], "partition-id": CLIENTS}),
            ],
        )  # fmt: skip

        def submit() -> None:
            """Start what is not running and has not ended, as a supervisor does."""
            if outliving & {*deployment.server_apps()}:  # though nobody follows them any more
                return
            deployment.start_apps_again()
            for name in ARGUMENTS:
                alive = name in started and started[name].alive()
                if not alive and len(used(folders[name])) < 2 * STEPS[name]:
                    more = {"resume": name in started}
                    started[name] = deployment.submit(APP, given[name] | more)

        def supervised(done: Callable[[], bool]) -> None:
            def looked() -> bool:
                submit()
                return done()

            assert wait_until(looked, PATIENCE), [run.output[-3000:] for run in started.values()]

        def further(steps: int) -> None:
            """Wait until the run has done so many more steps."""
            goal = len(used(folders["run"])) // 2 + steps
            supervised(lambda: len(used(folders["run"])) >= 2 * goal)
            note(f"{goal} steps are done")

        try:
            further(2)
            note("a node is killed at work")
            deployment.kill_node(1)
            deployment.restart_node(1)
            further(1)
            note("the SuperLink goes away")
            outliving |= {*deployment.server_apps()}
            deployment.kill_superlink()
            time.sleep(20.0)
            deployment.restart_superlink()
            further(1)
            waited = outliving & {*deployment.server_apps()}
            note(f"{len(waited)} of {len(outliving)} ServerApps have waited for it")
            deployment.kill_server_apps()
            note("the ServerApps are killed")
            further(1)
            note("the machine of the server goes down")
            deployment.kill_server_machine()
            deployment.restart_superlink()
            further(1)
            note("a node leaves, and a stranger joins")
            deployment.kill_node(2)
            stranger.start()
            further(2)
            alone = used(folders["run"])[-4:]
            note("the node comes back")
            deployment.restart_node(2)
            ends = {n: 2 * steps for n, steps in STEPS.items()}
            supervised(lambda: all(len(used(folders[n])) >= end for n, end in ends.items()))
            for run in started.values():
                run.wait(PATIENCE)
            note("both runs have ended")
            stranger.kill()  # a fifth client would make it another run
            models = {name: model_of(folder) for name, folder in folders.items()}
            more = {"num-server-rounds": STEPS["run"] + MORE, "resume": True}
            deployment.submit(APP, given["run"] | more).wait(PATIENCE)
            note("one has gone on")
        finally:
            stranger.kill()
    return SimpleNamespace(
        root=root, folders=folders, models=models, waited=len(waited), alone=alone
    )


def distance(name: str, x: Any) -> float:
    """Return F - F* of a model of one of the runs."""
    objectives = [LeastSquares(**data) for data in rows(CLIENTS)]
    problem = FederatedProblem(objectives, regularizer=PSI if name == "run" else None)
    return float(problem.objective(x) - problem.optimum.value)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_each_run_ends_at_the_optimum_as_without(name: str, disturbed: SimpleNamespace) -> None:
    """Each upload counts once: one that is lost or counts twice would stay in the mean."""
    left = distance(name, disturbed.models[name])
    print(f"{name}: F - F* = {left:.2g}")
    assert left <= 1e-10
    rows = History.read_rows(disturbed.folders[name] / "history.csv")
    assert (rows[-1]["lost"], rows[0]["round"]) == (0, STEPS[name])


def test_each_step_is_in_the_log_once(disturbed: SimpleNamespace) -> None:
    for name, steps in {"run": STEPS["run"] + MORE, "beside": STEPS["beside"]}.items():
        found = [event["step"] for event in used(disturbed.folders[name])]
        assert found == sorted([*range(1, steps + 1)] * 2)


def test_the_server_apps_outlive_a_superlink_that_comes_back(disturbed: SimpleNamespace) -> None:
    assert disturbed.waited


def test_nobody_waits_for_a_node_that_leaves(disturbed: SimpleNamespace) -> None:
    assert len({event["client"] for event in disturbed.alone}) > 1
    later = used(disturbed.folders["run"])
    assert 2 in {event["client"] for event in later[2 * (STEPS["run"] - 4) :]}


def test_a_client_holds_what_the_server_has_used(disturbed: SimpleNamespace) -> None:
    """Its state on disk is the server's mirror, though it has worked on after the end."""
    folder, strategy = disturbed.folders["run"], AREA(PSI)
    server = state_files.read(folder / checkpoint.NAME, checkpoint._types(strategy))["server"]
    for j, y in enumerate(server["state"].mirror.rows["y"]):
        (path,) = (disturbed.root / f"state-{j}" / server["run_id"]).glob("*/state")
        versions = state_files.read(path, checkpoint._types(strategy))
        assert versions.at(int(server["acknowledged"][j])).y.tobytes() == y.tobytes()


def test_steps_do_not_wait_for_a_slow_node(tmp_path: Path) -> None:
    rounds, steps = paced(tmp_path, 240.0)
    print(f"{rounds} rounds, {steps} steps")
    assert steps >= 3 * rounds > 0
