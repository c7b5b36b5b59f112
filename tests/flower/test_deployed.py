"""One deployment on loopback serves five apps, and what befalls it changes no number.

A SuperLink and three SuperNodes that keep their clients' state. One app is that of the README, as
it stands there. Then a node hangs and is killed in the
middle of a round of sums, and comes back. In the minute that Flower takes to see that it is gone,
the ServerApp of another run is killed, and its run is resumed, stopped by `flwr stop`, and resumed.
Every run ends as the undisturbed one. What takes longer is nightly: more methods (test_engines.py),
the other quickstarts (test_quickstart.py), deaths at any moment (test_engines.py).
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from apps import written
from deployment import Deployment, DeploymentError
from pages import ON_NODES, app_files
from problems import l1ls
from processes import wait_until
from quickstart import app, model_here, needing_all, same_model
from row_nodes import APP, model_of, node_configs, run_config

from flower_fedcon import (
    Buffered,
    Clock,
    FederatedProblem,
    Full,
    History,
    Sample,
    __version__,
    simulate,
)
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import AREA, FedAvg, FedFW

pytest.importorskip("torch", reason="the quickstart is PyTorch's: pip install '.[torch]'")

CLIENTS, ROUNDS, RANGE = 3, 4, 8.0
FRANK_WOLFE = {"penalty": 0.1, "min_replies": 2}
AVERAGING = {"client_lr": 0.02, "local_steps": 2}
STEPS = 12
pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """What the three runs have left."""
    root = tmp_path_factory.mktemp("deployed")
    configs = node_configs(root, CLIENTS)
    hang, hanging = root / "hang", root / "hanging"
    configs[2]["hang"] = str(hang)
    quickstart = needing_all(app(root / "quickstart", "scaffold"))
    asked = {**FRANK_WOLFE, "oracle": "constraint", "sample": 2}
    every = {"evaluate_every": 2, "checkpoint_every": 1}
    vertices = run_config("FedFW", asked, ROUNDS, root / "fedfw" / "run", seed=3, **every)
    unhurried = {"oracle": "regularizer", "client_lr": 0.02, "buffer": 1}
    flowing = run_config("AREA", unhurried, STEPS, root / "area" / "run", evaluate_every=0)
    secured = {"secagg_clipping_range": RANGE, "evaluate_every": 0}
    sums = run_config("FedAvg", AVERAGING, 1, root / "sums", **secured)
    hold = root / "fedfw" / "hold"  # FedFW waits after its second round
    hold.parent.mkdir()
    hold.touch()
    shown = {page: written(root / str(n), app_files(page)) for n, page in enumerate(ON_NODES)}
    failed = {}
    with Deployment(root / "flower", configs) as deployment:
        wrong = run_config("FedFW", {**asked, "penalty": -1.0}, 1, root / "fedfw" / "no-run")
        refused = deployment.submit(APP, wrong)
        held = deployment.submit(APP, vertices)
        of_pages = {
            page: deployment.submit(
                folder, {"num-server-rounds": 2, "run-dir": str(folder / "run")}
            )
            for page, folder in shown.items()
        }
        trained = deployment.submit(
            quickstart, {"num-server-rounds": 2, "final-model": str(root / "model.pt")}
        )
        flowed = deployment.submit(APP, flowing)
        outputs = [trained.wait(600).output]
        flowed.wait(600)
        assert wait_until(lambda: not refused.alive(), 600), refused.output
        ending = refused.output, *refused.status()
        for page, run in of_pages.items():
            try:
                run.wait(600)
            except DeploymentError as error:  # which is that page's test
                failed[page] = error
        assert wait_until(lambda: f"[ROUND 2/{ROUNDS}] objective" in held.output, 600), held.output
        of_held = set(deployment.server_apps())
        secure = deployment.submit(APP, sums)
        began = "Secure aggregation commencing"
        assert wait_until(lambda: began in secure.output, 600), secure.output
        others = set(deployment.server_apps()) - of_held
        hang.touch()
        assert wait_until(hanging.exists, 600), secure.output
        deployment.kill_node(2)
        hang.unlink()
        deployment.restart_node(2)
        deployment.kill_server_apps(but=others)
        vertices["resume"] = True  # at once: Flower sees a minute later that it was killed
        held = deployment.submit(APP, vertices)
        assert wait_until(lambda: f"[ROUND 2/{ROUNDS}] objective" in held.output, 600), held.output
        deployment.stop_run(held)
        hold.unlink()
        ended = wait_until(lambda: not set(deployment.server_apps()) - others, 120)
        resumed = deployment.submit(APP, vertices).wait(600).output
        outputs += [secure.wait(600).output, resumed]
    names = ("quickstart", "sums", "fedfw")
    outputs = dict(zip(names, outputs, strict=True))
    return SimpleNamespace(
        root=root, outputs=outputs, ended=ended, ending=ending, shown=shown, failed=failed
    )


def test_an_error_that_the_user_can_mend_ends_the_stream_in_one_sentence(deployed):
    """And Flower counts the run as failed."""
    output, status, details = deployed.ending
    sentence = "penalty must be finite and > 0, got -1.0"
    assert output.splitlines()[-1].endswith(f"the run has failed: {sentence}")
    assert "Traceback" not in output
    assert "Exit Code" not in output
    assert (status, details) == ("finished:failed", f"ServerApp failed with exception: {sentence}")


@pytest.mark.parametrize("page", ON_NODES)
def test_a_page_s_app_finds_the_local_iterates(deployed, page):
    """As it stands there, on nodes whose configuration names their data."""
    if page in deployed.failed:
        raise deployed.failed[page]
    problem, rule = l1ls(CLIENTS), Full() if page == "README.md" else Sample(count=2)
    local = simulate(FedFW(problem.constraint, participation=rule), problem, 2)
    model = model_of(deployed.shown[page] / "run")
    np.testing.assert_allclose(model, local.x, rtol=1e-12, atol=0)


def test_a_round_of_sums_in_which_a_node_dies_is_asked_again(deployed):
    """A sum needs three clients."""
    (row,) = History.read_rows(deployed.root / "sums" / "history.csv")
    assert (row["replies"], row["lost"]) == (3, 0)
    assert row["retries"] >= 1
    plain = simulate(FedAvg(**AVERAGING), FederatedProblem(l1ls(CLIENTS).objectives), 1).x
    step = SecAggPlus(RANGE).step("delta", CLIENTS)
    assert np.abs(model_of(deployed.root / "sums") - plain).max() < step


def test_steps_that_do_not_wait_are_repeated_from_their_log(deployed):
    run, problem = deployed.root / "area" / "run", l1ls(CLIENTS)
    made = AREA(L1(weight=0.1), client_lr=0.02, participation=Buffered())
    clock = Clock(events=run / "events.jsonl")
    again = simulate(made, problem, STEPS, clock=clock, on_mismatch="warn", evaluate_every=0)
    np.testing.assert_allclose(model_of(run), again.x, rtol=1e-12, atol=1e-15)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [e["step"] for e in events if e.get("outcome") == "used"] == [*range(1, STEPS + 1)]


def test_a_killed_server_resumes_and_nodes_find_the_local_iterates(deployed):
    """One node was killed as well: each has kept its client's state."""
    problem = l1ls(CLIENTS)
    strategy = FedFW(problem.constraint, participation=Sample(count=2), **FRANK_WOLFE)
    local = simulate(strategy, problem, ROUNDS, seed=3)
    assert "[ROUND 1/" not in deployed.outputs["fedfw"]
    run = deployed.root / "fedfw" / "run"
    assert model_of(run).tobytes() == local.x.tobytes()
    rows = History.read_rows(run / "history.csv")
    assert [row["round"] for row in rows] == [2, 4]
    for row in rows:
        same = local.rows[int(row["round"]) - 1]
        assert row["objective"] == pytest.approx(same["objective"], rel=1e-12)
        for counted in ("uplink_bytes", "downlink_bytes", "cohort", "replies", "dropped", "lost"):
            assert row[counted] == same[counted]
    lines = [json.loads(line) for line in (run / "audit.jsonl").read_text().splitlines()]
    applied = [line["round"] for line in lines if line["event"] == "applied"]
    assert applied == [1, 2, 2, 3, 4]  # it was killed before the checkpoint of round 2
    assert "[ROUND 2/" not in deployed.outputs["fedfw"]  # and stopped after it
    assert len({client["data"] for client in lines[0]["clients"].values()} - {""}) == CLIENTS
    assert {client["version"] for client in lines[0]["clients"].values()} == {__version__}


def test_flwr_stop_ends_the_server_app_which_says_how_to_go_on(deployed):
    """In its audit log: a SuperLink that refuses its token takes no line of its log either.

    Flower's heartbeat may hear of it first: it then interrupts the server app.
    """
    assert deployed.ended
    lines = (deployed.root / "fedfw" / "run" / "audit.jsonl").read_text().splitlines()
    (told,) = [line["error"] for line in map(json.loads, lines) if line.get("error")]
    stopped = "accepts no further requests of this run: it was stopped (`flwr stop`)" in told
    assert stopped or told.startswith("signal 2 after round ")
    assert "resume=true" in told.lower()


def test_a_training_loop_with_state_finds_the_model_of_this_process(deployed, identity, tmp_path):
    quickstart, output = deployed.root / "quickstart", deployed.outputs["quickstart"]
    same_model(deployed.root / "model.pt", model_here(quickstart, tmp_path / "here.pt", 2))
    assert "eval_acc 0." in output  # the mean, not every client's
    assert "lost 0" in output
