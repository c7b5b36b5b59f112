"""State folders and disks: odd files, two processes at one state, disks that are full or fail."""

from __future__ import annotations

import os
import threading
import time

import pytest
from contract import CONTRACTS, build
from failing_disk import FailingDisk
from fake_grid import FakeGrid, asked, on_grid
from harness import OpenRun
from problems import q6, q6_objectives
from test_resume import StopError, stop_at

from flower_fedcon import simulate
from flower_fedcon.clients import ScaffoldClient
from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.core.round import Round
from flower_fedcon.errors import FedConError, StorageError
from flower_fedcon.flower import codec, stores
from flower_fedcon.flower.policy import Policy
from flower_fedcon.flower.stores import FileStore
from flower_fedcon.layout import Layout
from flower_fedcon.strategies import Scaffold

RUN = RunInfo("scaffold", 0, Layout(((8,),), "float64", layered=False), 1, run_id="ab" * 16)


def client(folder) -> ScaffoldClient:
    return ScaffoldClient(q6_objectives()[0], state_dir=folder, name="0")


def scaffold() -> Scaffold:
    return Scaffold(client_lr=0.01, local_steps=2, min_replies=6)


def store(folder) -> FileStore:
    return FileStore(folder, "0", Policy.open())


def folder(path) -> None:
    path.mkdir()


def link(path) -> None:
    path.with_name("other").write_bytes(b"")
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize(
    ("make", "kind"), [(folder, "a folder"), (link, "a symbolic link"), (os.mkfifo, "a pipe")]
)
def test_what_is_no_file_is_refused(make, kind, tmp_path):
    path = store(tmp_path).path(RUN)
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises(StorageError, match=f"state is {kind}, expected a file: move it away"):
        store(tmp_path).load(RUN, None)


def test_an_unusable_state_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot keep state in .*file: Not a directory"):
        store(tmp_path / "file").locked(RUN)
    with pytest.raises(StorageError, match=r"cannot read .*file.*: Not a directory"):
        store(tmp_path / "file").load(RUN, None)


def test_what_a_killed_writer_left_goes_away(tmp_path):
    own = store(tmp_path)
    own.save(RUN, Versions())
    left = own.path(RUN).with_name(".abc.fedcon-part")
    left.write_bytes(b"half a state")
    with own.locked(RUN):
        assert [p.name for p in own.path(RUN).parent.iterdir()] == ["state"]


def test_one_message_at_a_time(tmp_path, monkeypatch):
    """A second process at the same state waits for the first, and says so if it does not end."""
    run = OpenRun(Scaffold(client_lr=0.01, local_steps=1), q6())
    encoder = codec.RequestEncoder(run.server.info)
    arrays, config = encoder.encode(Round.begin(run.server).next_request(), 0)
    answers = []

    def answer() -> None:
        answers.append(client(tmp_path).fit(list(arrays.values()), config)[2])

    with store(tmp_path).locked(run.server.info):
        waiting = threading.Thread(target=answer)
        waiting.start()
        time.sleep(0.2)
        assert answers == []
    waiting.join(30)
    assert "error" not in answers[0], answers
    monkeypatch.setattr(stores, "_WAIT", 0.05)
    with store(tmp_path).locked(run.server.info):
        answer()
    assert "is in use by another process" in answers[1]["error"]
    answer()
    assert "error" not in answers[2]


@on_grid
def test_a_node_that_cannot_write_its_state_is_named_and_the_others_go_on(log):
    """Its folder is read-only, whoever writes: the run ends as one in which it is silent."""
    grid = FakeGrid(q6_objectives())
    grid.nodes[998].node_config["state-dir"] = "/proc/fedcon"
    strategy = Scaffold(client_lr=0.01, local_steps=2)
    history = strategy.start(grid, num_rounds=3, evaluate_every=1).history
    assert history["replies"].tolist() == [5, 5, 5]
    told = "round 1: dropped the reply of client 2: cannot keep state in /proc/fedcon"
    assert any(message.startswith(told) for message in log.messages)


@on_grid
def test_a_run_directory_that_cannot_be_written_is_told_before_anybody_trains():
    grid = FakeGrid(q6_objectives())
    with pytest.raises(StorageError, match=r"cannot make the run directory /proc/fedcon"):
        scaffold().start(grid, num_rounds=3, run_dir="/proc/fedcon")
    assert {asked(message)["action"] for message in grid.pushed} == {"describe"}


@on_grid
def test_starts_between_two_checkpoints_are_told_apart(tmp_path):
    """Each goes back to the same checkpoint, from which nodes have gone further each time."""
    grid, options = FakeGrid(q6_objectives()), {"num_rounds": 12, "checkpoint_every": 4}
    calm = scaffold().start(FakeGrid(q6_objectives()), **options).history
    options |= {"run_dir": tmp_path, "resume": True, "evaluate_every": 1}
    for stop in (6, 7, 5, 7):
        with pytest.raises(StopError):
            scaffold().start(grid, callbacks=[stop_at(stop)], **options)
    history = scaffold().start(grid, **options).history
    assert history.x.tobytes() == calm.x.tobytes()
    assert history["dropped"][-1] == history["lost"][-1] == 0


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
