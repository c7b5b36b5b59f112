"""Whatever stands in a file of a run, a node or a user: it is read, or refused in a sentence.

`make fuzz` tries many damaged files of each kind.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import fuzzing
import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from problems import l1ls

from flower_fedcon import FederatedProblem, Sample, server_app, simulate
from flower_fedcon.clients.scaffold import ScaffoldClientState
from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.protocol import RunInfo, Setup
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.errors import FedConError
from flower_fedcon.flower.policy import Policy
from flower_fedcon.flower.stores import FileStore
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.folders import labels_of
from flower_fedcon.lab.experiments.histories import histories_of
from flower_fedcon.lab.experiments.runner import Job, _ended
from flower_fedcon.layout import Layout
from flower_fedcon.problems.files import load_file
from flower_fedcon.problems.papers.image_files import read_cifar, read_idx
from flower_fedcon.problems.papers.movielens import movielens
from flower_fedcon.registry import client_class
from flower_fedcon.runs import checkpoint
from flower_fedcon.runs.history import History, HistoryFile
from flower_fedcon.strategies import FedFW
from flower_fedcon.wire import settings as wire_settings
from flower_fedcon.wire import state_files
from flower_fedcon.wire.payloads import load_array

pytestmark = pytest.mark.fuzz

SIMS = Path(__file__).parents[1] / "sims"
RUN = RunInfo("scaffold", 0, Layout(((3,),), "float64", layered=False), 2, run_id="ab" * 16)


def refused(read: Callable[[], Any]) -> bool:
    """Return whether reading was refused; any other error is a failure of the test."""
    try:
        read()
    except FedConError:
        return True
    return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run that stopped after 6 of 12 rounds, with the checkpoint of round 6."""
    path = tmp_path_factory.mktemp("run")
    simulate(*fedfw(), 6, run_dir=path)
    (path / "result.json").write_text(json.dumps({"error": "", "optimum": 0.5}) + "\n")
    return path


def fedfw() -> tuple[FedFW, FederatedProblem]:
    problem = l1ls(4)
    return FedFW(problem.constraint, penalty=0.1, participation=Sample(count=2)), problem


# --- what a run leaves ----------------------------------------------------------------------------


def test_fuzz_histories(folder, tmp_path):
    """Also through what `fedcon plot` reads."""
    whole, file = (folder / "history.csv").read_bytes(), tmp_path / "history.csv"
    seen = set()
    for data in fuzzing.cases([whole, b"", b"round,objective\r\n1,2\r\n"], seed=0):
        file.write_bytes(data)
        seen.add(refused(lambda: History.read_rows(file)))
        refused(lambda: histories_of([tmp_path]))
    assert seen == {True, False}


def test_fuzz_checkpoints(folder, tmp_path):
    """As far as a resumption reads them; some through the whole of it."""
    whole, history = (folder / "checkpoint").read_bytes(), (folder / "history.csv").read_bytes()
    strategy, problem = fedfw()
    setup, now = described(strategy, problem)
    for data in fuzzing.cases([whole], seed=1):
        (tmp_path / "checkpoint").write_bytes(data)
        refused(lambda: checkpoint.load(tmp_path, strategy, setup, now))
    for data in fuzzing.cases([whole], seed=11, share=0.1):
        (tmp_path / "checkpoint").write_bytes(data)
        (tmp_path / "history.csv").write_bytes(history)
        refused(lambda: simulate(strategy, problem, 6, run_dir=tmp_path, resume=True))


def described(strategy: FedFW, problem: FederatedProblem) -> tuple[Setup, checkpoint.Fingerprint]:
    """Return what a checkpoint is compared with."""
    engine = LocalEngine(problem)
    setup = Setup.of(engine.describe(), 7, problem.layout, strategy.participation, 0)
    return setup, checkpoint.fingerprint(strategy, setup, problem.start, engine)


def test_fuzz_resumed_histories(folder, tmp_path):
    """What is cut to the rows of a checkpoint."""
    whole, file = (folder / "history.csv").read_bytes(), tmp_path / "history.csv"
    seen = set()
    for data in fuzzing.cases([whole], seed=12):
        file.write_bytes(data)
        seen.add(refused(lambda: HistoryFile(file, keep=4).close()))
    assert seen == {True, False}


def resigned(data: bytes, text: Callable[[str], str]) -> bytes:
    """Return a state file whose text is changed, with its checksum."""
    _, _, payload = data.partition(b"\n")
    with np.load(io.BytesIO(payload)) as content:
        arrays: dict[str, Any] = dict(content)
    changed = text(arrays["json"].tobytes().decode()).encode()
    body = io.BytesIO()
    np.savez(body, **{**arrays, "json": np.frombuffer(changed, np.uint8)})
    digest = hashlib.sha256(body.getvalue()).hexdigest().encode()
    return b"fedcon state 3 " + digest + b"\n" + body.getvalue()


def test_fuzz_signed_checkpoints(folder, tmp_path):
    """With a checksum that fits: another program's, say."""
    whole = (folder / "checkpoint").read_bytes()
    strategy, problem = fedfw()
    setup, now = described(strategy, problem)
    rng = random.Random(2)
    values = (
        "null", "-1", "1e999", "[]", "{}", '""', '"x"', '{"a": 0}', '{"a": 99}', '{"d": 3}',
        '{"n": "Versions", "f": {}}', '{"o": "Mirror", "f": 0}', "9" * 30, "true", "0.5",
    )  # fmt: skip

    def change(text: str) -> str:
        pattern = r': ("[^"]*"|-?[0-9.]+|\[\]|null|\{"a": \d+\})'
        places = [m.span(1) for m in re.finditer(pattern, text)]
        start, end = rng.choice(places)
        return text[:start] + rng.choice(values) + text[end:]

    for _ in range(fuzzing.CASES):
        (tmp_path / "checkpoint").write_bytes(resigned(whole, change))
        refused(lambda: checkpoint.load(tmp_path, strategy, setup, now))


def test_fuzz_results(folder, tmp_path):
    job = Job("experiment", (folder / "config.toml").read_text())
    seen = set()
    for name in ("config.toml", "result.json"):
        for data in fuzzing.cases([(folder / name).read_bytes()], seed=3, share=0.5):
            for other in ("history.csv", "config.toml", "result.json"):
                (tmp_path / other).write_bytes((folder / other).read_bytes())
            (tmp_path / name).write_bytes(data)
            seen.add(refused(lambda: _ended(tmp_path, job)))
            labels_of(tmp_path)
    assert seen == {True, False}


# --- what a node keeps ----------------------------------------------------------------------------


def test_fuzz_client_states(tmp_path):
    store = FileStore(tmp_path, "0", Policy.open())
    state = ScaffoldClientState(c=np.ones(3), resets=0.0)
    store.save(RUN, Versions(3, state, 4, state))
    file = store.path(RUN)
    whole = file.read_bytes()
    for data in fuzzing.cases([whole], seed=4):
        file.write_bytes(data)
        refused(lambda: store.load(RUN, ScaffoldClientState))
        file.with_name("pass").write_bytes(data[:33])
        assert store.known_pass(RUN.run_id) == ""


KEYS = [f"policy.{f.name.replace('_', '-')}" for f in fields(Policy)]
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.text(max_size=20),
    st.sampled_from(["train", "train,query", "private", 0, 1, 32, 0.5]),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from([*KEYS, "policy.x", "name", "partition-id"]), VALUES))
def test_fuzz_node_configurations(config):
    """Of what a node's operator writes, a client that describes itself, or a sentence."""
    context = Context(1, 1, config, RecordDict(), {})

    def answer() -> None:
        client = client_class("scaffold")(l1ls(1).objectives[0], context=context)
        told = client.fit([], {"action": "describe", "algorithm": "scaffold"})[2]
        assert told.get("error", "refused").startswith("refused")

    refused(answer)


OPTIONS = [
    "num-server-rounds", "seed", "evaluate-every", "run-dir", "weighting", "num-clients", "timeout",
    "resume", "checkpoint-every", "allow-changes", "certificates", "audit", "grace",
    "min-clients-to-start", "start-timeout", "evaluate-timeout", "round-deadline", "max-retries",
    "quarantine-after", "quarantine-rounds", "authenticated",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(OPTIONS), VALUES, min_size=1))
def test_fuzz_run_configurations(config):
    """What reaches a run is of the kind that it wants."""
    told: dict[str, Any] = {}

    class Strategy:
        def start(self, grid: None, x0: None, **options: Any) -> None:
            told.update(options)

    app = server_app(Strategy)
    if not refused(lambda: app(None, Context(1, 1, {}, RecordDict(), config))):  # type: ignore[arg-type]
        assert type(told["num_rounds"]) is type(told["seed"]) is int
        assert type(told["resume"]) is type(told["authenticated"]) is bool


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("adtnofx") | st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_fuzz_trees(tree):
    types = {"Versions": Versions, "ScaffoldClientState": ScaffoldClientState}
    arrays = {"0": np.zeros(3)}
    refused(lambda: state_files.unpack(json.dumps(tree), arrays, types))
    refused(lambda: wire_settings.decode(json.dumps(tree), arrays))
    refused(lambda: Layout.from_json(json.dumps(tree)))


def test_fuzz_settings():
    problem = l1ls(4)
    text, arrays = wire_settings.encode(
        {"constraint": problem.constraint, "weights": np.ones(2), "name": "x", "p": 0.5}
    )
    for data in fuzzing.cases([text.encode()], seed=5):
        refused(partial(wire_settings.decode, data.decode(errors="replace"), arrays))


# --- what users write -----------------------------------------------------------------------------


def test_fuzz_experiment_files(tmp_path):
    files = [path.read_bytes() for path in sorted(SIMS.glob("*.toml")) if "tool" not in path.name]
    file = tmp_path / "experiment.toml"
    seen = set()
    for data in fuzzing.cases(files, seed=6):
        file.write_bytes(data)
        seen.add(refused(lambda: Experiment.load(file)))
    assert seen == {True, False}


@given(st.text(max_size=60), st.text(max_size=60))
def test_fuzz_overrides(key, value):
    tables = {
        "problem": {"name": "counterexample"},
        "run": {"rounds": 5},
        "algorithm": {"name": "FedFW", "penalty": 1.0},
    }
    for text in (f"{key}={value}", f"penalty={value}", f"algorithm.{key}={value}", value):
        refused(lambda text=text: Experiment(tables, overrides=[text]))


def test_fuzz_data_files(tmp_path):
    file = tmp_path / "client.npz"
    np.savez(file, A=np.ones((3, 2)), b=np.ones(3))
    whole = file.read_bytes()
    np.savez_compressed(file, A=np.ones((3, 2)), y=np.array([1.0, -1.0, 1.0]))
    for data in fuzzing.cases([whole, file.read_bytes()], seed=7):
        file.write_bytes(data)
        refused(lambda: load_file(file))


def test_fuzz_image_files(tmp_path):
    images = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(2 * 28 * 28)
    file, seen = tmp_path / "file", set()
    for data in fuzzing.cases([images, gzip.compress(images)], seed=9):
        file.write_bytes(data)
        seen.add(refused(lambda: read_idx(file, (28, 28))))
    for data in fuzzing.cases([b"\x03" + bytes(3072)], seed=10, share=0.1):
        file.write_bytes(data)
        refused(lambda: read_cifar(file))
    assert seen == {True, False}


def test_fuzz_rating_files(tmp_path):
    table = "".join(f"{user}\t{item}\t4\t881250949\n" for user in (1, 2) for item in (1, 2, 3))
    file, seen = tmp_path / "u.data", set()
    for data in fuzzing.cases([table.encode()], seed=13):
        file.write_bytes(data)
        seen.add(refused(lambda: movielens(data=str(file), radius=1.0, clients=2)))
    file.write_text("1 1 4 0\n900000000000 2 3 0\n3 800000000000 3 0\n")
    assert refused(lambda: movielens(data=str(file), radius=1.0, clients=2))
    assert seen == {True, False}


def test_fuzz_arrays():
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6.0).reshape(2, 3))
    for data in fuzzing.cases([buffer.getvalue()], seed=8):
        refused(partial(load_array, data))
