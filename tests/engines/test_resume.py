"""An interrupted run goes on to the bytes of a run that was never interrupted."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import COUNTED, flat, interrupted, near, squares, untimed
from agreement import StopError as StopError  # other tests take it from here
from agreement import stop_at as stop_at
from contract import CONTRACTS, build
from nightly import nightly
from problems import l1ls
from test_contract import rules
from test_stacked import STACKS, made, objectives

from flower_fedcon import FederatedProblem, Full, History, Sample, simulate
from flower_fedcon.clients.fedfw import FedFWClientState
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower.policy import Policy
from flower_fedcon.flower.stores import FileStore, Versions
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import LeastSquares, ManyClients
from flower_fedcon.registry import algorithms
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedAvg, FedFW, Scaffold
from flower_fedcon.wire import state_files

ROUNDS = 14


def fedfw(**more):
    return FedFW(l1ls(4).constraint, penalty=0.1, participation=Sample(count=2), **more)


@pytest.mark.parametrize("name", algorithms())
@pytest.mark.parametrize("sampled", [False, True])
def test_same_bytes(name, sampled, tmp_path):
    contract = CONTRACTS[name]
    if sampled and not contract.sampled:
        pytest.skip("refuses cohorts")
    case = contract.sampled[0] if sampled else contract.cases[0]
    problem = case.problem()
    strategy = build(name, problem, **case.settings)
    calm = simulate(strategy, problem, ROUNDS)
    options = {"run_dir": tmp_path, "checkpoint_every": 4, "resume": True}
    for stop in (6, 11):
        interrupted(strategy, problem, stop, ROUNDS, **options)
    resumed = simulate(strategy, problem, ROUNDS, **options)
    assert np.asarray(resumed.x).tobytes() == np.asarray(calm.x).tobytes()
    assert untimed(resumed) == untimed(calm)
    assert History.read_rows(tmp_path / "history.csv") == resumed.rows
    assert {k: v.tobytes() for k, v in resumed.outputs.items()} == {
        k: v.tobytes() for k, v in calm.outputs.items()
    }


# --- what runs hold, and where they go on ---------------------------------------------------------


def sampled(name: str) -> Any:
    """Return a method on cohorts, if it takes them."""
    (rule,) = [r for r in rules(name) if isinstance(r, Sample)] or [Full()]
    return made(name, objectives("least squares"), participation=rule)


def by_rounds(name: str) -> Any:
    """Return a method whose number of rounds is a setting: it has stages."""
    return made(name, objectives("least squares"), stages=[(2.0, None, 9), (1.0, None, 9)])


def one_array(name: str, rule: Any) -> Any:
    A, b = np.random.default_rng(0).standard_normal((2, 7, 5, 6))
    return made(name, ManyClients(LeastSquares, A, b[:, :, 0]), participation=rule)


STEPS = {"client_lr": 0.05, "local_steps": 3}
ORDERED = {**STEPS, "batch_size": 2, "batch_order": "epoch"}
BALL = L1Ball(1.0)
HELD = {
    **{name: lambda name=name: by_rounds(name) if name == "mcfedda" else sampled(name)
       for name in STACKS},
    **{f"{name} of one array, {rule}": lambda name=name, rule=rule: one_array(name, rule)
       for name in ("feddualavg", "fedfw", "scaffold") for rule in (Full(), Sample(count=3))},
    "unequal": lambda: (Scaffold(**STEPS), squares((7, 3, 7, 5), 4)),
    "batches": lambda: (FedAvg(**ORDERED), squares((7,) * 3)),
    "batches, state": lambda: (Scaffold(**ORDERED), squares((7,) * 3)),
    "batches, vertices": lambda: (
        FedFW(BALL, penalty=1.0, gradient="stochastic", batch_size=2, batch_order="epoch"),
        squares((7,) * 3, constraint=BALL)),
    "noise": lambda: (FedAvg(**STEPS), squares((7,) * 3).with_noise(0.3)),
    "batches of a permutation": lambda: made("scaffold", objectives("logistic"), batch_size=5),
}  # fmt: skip
SAME = [("stacked", "stacked"), ("local", "stacked")]
EACH_WAY = [*SAME, ("stacked", "local"), ("local", "local")]
COMPILED = [("jax", "local"), ("local", "jax"), ("jax", "jax")]
PROCESSES = [("3 workers", "2 workers")]
BLOCKS = [(f"ray {k}", f"ray {n}") for k in (1, 3) for n in (1, 4)]
GOES_ON = [
    *((name, *way) for name in STACKS for way in SAME),
    *((name, *way) for name in HELD if "array" in name for way in EACH_WAY),
    *((name, *way) for name in HELD if "batches" in name for way in [("local", "local")]),
    *(("fedfw", *way) for way in COMPILED),
    *(nightly(name, *way) for name in ("compositefl", "unequal") for way in COMPILED),
    *(("fedfw", *way) for way in PROCESSES),
    *(("fedfw", *way) for way in BLOCKS),
    ("noise", "local", "local"),
    ("batches of a permutation", "jax", "jax"),
    *(nightly(name, *way) for name in ("dualfl", "scaffnew") for way in PROCESSES),
]


def place(name: str) -> dict[str, Any]:
    if name == "jax":
        pytest.importorskip("jax")
    if name.startswith("ray "):
        return {"engine": "ray", "clients_per_message": int(name[4:])}
    return {"workers": int(name[0])} if name.endswith("workers") else {"engine": name}


@pytest.mark.parametrize(("name", "first", "then"), GOES_ON)
def test_a_run_goes_on_wherever_it_was_interrupted(name, first, then, tmp_path, fake_ray):
    """To the same bytes by the same engine; the checkpoints of all are the same."""
    strategy, problem = HELD[name]()
    whole = simulate(strategy, problem, ROUNDS, seed=2, **place(then))
    options = {"run_dir": tmp_path, "checkpoint_every": 4, "seed": 2}
    interrupted(strategy, problem, 10, ROUNDS, **place(first), **options)
    rest = simulate(strategy, problem, ROUNDS, resume=True, **place(then), **options)
    near(rest.x, whole.x, 1e-12)
    assert (tmp_path / "model.npz").exists()
    if first == then or not {first, then} & {"stacked", "jax"}:
        assert flat(rest.x).tobytes() == flat(whole.x).tobytes()
        assert untimed(rest) == untimed(whole)
    for column in COUNTED:
        assert rest[column].tolist() == whole[column].tolist()


@pytest.mark.parametrize("cut", [7, 11])
@pytest.mark.parametrize("name", ["scaffold", "compositefl", "fedfw", "fedfwplus"])
def test_sampled_cohorts_resume_to_the_same_bytes(name, cut, tmp_path):
    """Whatever the clients' states were stored like when the run was cut."""
    strategy, problem = made(name, objectives("logistic"), participation=Sample(fraction=0.5))
    for seed in range(6):
        options = {"engine": "stacked", "seed": seed}
        whole = simulate(strategy, problem, 20, **options)
        options["run_dir"] = tmp_path / str(seed)
        simulate(strategy, problem, cut, **options)
        rest = simulate(strategy, problem, 20, **options, resume=True)
        assert rest.x.tobytes() == whole.x.tobytes()


# --- what is refused ------------------------------------------------------------------------------


def test_damaged_and_newer_checkpoints(tmp_path):
    problem = l1ls(4)
    simulate(fedfw(), problem, 5, run_dir=tmp_path, audit=True)
    file = tmp_path / "checkpoint"
    whole = file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def refused(data: bytes, words: str) -> None:
        file.write_bytes(data)
        with pytest.raises(FedConError, match=words):
            simulate(fedfw(), problem, 8, run_dir=tmp_path, resume=True)

    refused(whole[:-1], "altered: its checksum does not fit. Start again in another")
    refused(whole[:500] + b"x" + whole[501:], "truncated or altered")
    refused(b"", "not a state file")
    assert whole.startswith(b"fedcon state 3 ")
    refused(whole.replace(b"state 3 ", b"state 4 ", 1), "has format 4, .*the newer version")
    refused(whole.replace(b"state 3 ", b"state 1 ", 1), "has format 1, .*the earlier version")
    file.write_bytes(whole)
    simulate(fedfw(), problem, 5, run_dir=tmp_path / "another")
    refused((tmp_path / "another" / "checkpoint").read_bytes(), "of another run than .*audit.jsonl")
    file.write_bytes(whole)
    (tmp_path / "history.csv").write_text("round\n1\n")
    with pytest.raises(FedConError, match=r"holds 1 row, and its checkpoint was written after 5"):
        simulate(fedfw(), problem, 8, run_dir=tmp_path, resume=True)


SCRIPT = """
import sys
sys.path[:0] = [{support!r}]
from problems import l1ls
from flower_fedcon import Sample, simulate
from flower_fedcon.strategies import FedFW
made = FedFW(l1ls(4).constraint, penalty=0.1, participation=Sample(count=2))
simulate(made, l1ls(4), {rounds}, run_dir={folder!r}, resume=True, checkpoint_every=50)
"""


def start(folder: Path, rounds: int) -> subprocess.Popen[str]:
    """Start a run in a process of its own, and wait until it is under way."""
    support = str(Path(__file__).parents[1] / "support")
    script = SCRIPT.format(support=support, rounds=rounds, folder=str(folder))
    history = folder / "history.csv"
    before = history.stat().st_size if history.exists() else 0
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not history.exists() or history.stat().st_size <= before + 20_000:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_killed_and_terminated_processes(tmp_path):
    """SIGKILL at any moment, SIGTERM with a checkpoint: then on to the same bytes."""
    problem, rounds = l1ls(4), 3000
    killed = start(tmp_path, 10**6)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    rows = len(History.read_rows(tmp_path / "history.csv"))
    ended = start(tmp_path, 10**6)
    ended.send_signal(signal.SIGTERM)
    _, error = ended.communicate(timeout=30)
    assert ended.returncode != 0
    assert "KeyboardInterrupt: signal 15 after round" in error
    assert "resume=True goes on from here" in error
    done = History.read_rows(tmp_path / "history.csv")
    # what SIGTERM leaves is complete: the checkpoint is that of the last row
    reached = int(done[-1]["round"])
    assert rows - 50 <= len(done) == reached
    target = max(rounds, reached + 10)
    resumed = simulate(fedfw(), problem, target, run_dir=tmp_path, resume=True)
    assert f"after round {reached}" in error
    assert resumed.x.tobytes() == simulate(fedfw(), problem, target, evaluate_every=0).x.tobytes()


# --- a client's file ------------------------------------------------------------------------------

RUN = RunInfo("fedfw", 0, Layout(((3,),), "float64", layered=False), 2, run_id="ab" * 16)
OPEN = Policy.open()
STATE = FedFWClientState(x=np.array([0.1, -0.0, 3.0]), d=None)


def test_file_store(tmp_path):
    store = FileStore(tmp_path / "state", "a/../b c", OPEN)
    assert store.load(RUN, FedFWClientState) == Versions()
    store.save(RUN, Versions(3, STATE, 4, STATE._replace(d=np.ones(3)), kept_round=1, kept=STATE))
    found = FileStore(tmp_path / "state", "a/../b c", OPEN).load(RUN, FedFWClientState)
    assert (found.round, found.pending_round, found.kept_round) == (3, 4, 1)
    assert found.acknowledged.x.tobytes() == STATE.x.tobytes()
    assert found.acknowledged.d is None
    assert found.pending.d.tolist() == [1.0, 1.0, 1.0]
    path = store.path(RUN)
    assert (tmp_path / "state") in path.resolve().parents
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    assert [p.name for p in path.parent.iterdir()] == ["state"]
    assert FileStore(tmp_path / "state", "a/../b_c", OPEN).load(RUN, FedFWClientState) == Versions()
    for run_id in ("../../etc/passwd0000000000000000", "AB" * 16, "ab", ""):
        with pytest.raises(ConfigError, match="32 hexadecimal digits"):
            store.path(RunInfo("fedfw", 0, RUN.layout, 2, run_id=run_id))


@pytest.mark.parametrize("seed", range(3))
def test_damaged_client_files_count_as_lost(tmp_path, seed):
    rng = np.random.default_rng(seed)
    store = FileStore(tmp_path, "0", OPEN)
    store.save(RUN, Versions(3, STATE, 4, STATE))
    whole = store.path(RUN).read_bytes()
    for _ in range(1000):
        data = bytearray(whole)
        if rng.random() < 0.3:
            data = data[: rng.integers(len(data))]
        else:
            data[rng.integers(len(data))] ^= 1 + rng.integers(255)
        store.path(RUN).write_bytes(bytes(data))
        if re.match(rb"fedcon state [0-24-9] ", data):  # another format is refused, not lost
            with pytest.raises(ConfigError, match="has format"):
                store.load(RUN, FedFWClientState)
        else:
            assert store.load(RUN, FedFWClientState) == Versions()


def test_state_files_hold_no_foreign_objects(tmp_path):
    with pytest.raises(ConfigError, match="cannot hold object"):
        state_files.write(tmp_path / "file", {"x": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
@pytest.mark.parametrize("name", ["Scaffold", nightly("FedFW")])
def test_resume_in_ray(name, tmp_path):
    problem = l1ls(4)
    strategy = fedfw()
    if name == "Scaffold":
        problem = FederatedProblem(l1ls(4).objectives)
        strategy = Scaffold(client_lr=0.02, local_steps=2, participation=Sample(count=2))
    options = {"engine": "ray", "run_dir": tmp_path, "checkpoint_every": 2, "resume": True}
    interrupted(strategy, problem, 5, 8, **options)
    resumed = simulate(strategy, problem, 8, **options)
    calm = simulate(strategy, problem, 8)
    assert resumed.x.tobytes() == calm.x.tobytes()
    assert untimed(resumed) == untimed(calm)
    kept = list((tmp_path / "clients").rglob("state"))
    assert len(kept) == 4
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in kept)
