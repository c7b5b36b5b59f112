"""Whatever stands in a file of a run, a node or a user: it is read, or refused in a sentence.

`FEDCON_FUZZ=100000 pytest tests/test_fuzz_disk.py` tries as many damaged files of each kind.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fuzzing
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import l1ls

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.clients.scaffold import ScaffoldClientState
from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.protocol import RunInfo, Setup
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.errors import FedConError
from flower_fedcon.experiments.experiment import Experiment
from flower_fedcon.experiments.folders import labels_of
from flower_fedcon.experiments.histories import histories_of
from flower_fedcon.experiments.runner import Job, _ended
from flower_fedcon.flower.policy import Policy
from flower_fedcon.flower.stores import FileStore
from flower_fedcon.layout import Layout
from flower_fedcon.problems.files import load_file
from flower_fedcon.runs import checkpoint
from flower_fedcon.runs.history import History
from flower_fedcon.strategies import FedFW
from flower_fedcon.wire import settings as wire_settings
from flower_fedcon.wire import state_files
from flower_fedcon.wire.payloads import load_array

SIMS = Path(__file__).parents[1] / "sims"
RUN = RunInfo("scaffold", 0, Layout(((3,),), "float64", layered=False), 2, run_id="ab" * 16)
EXAMPLES = settings(
    max_examples=max(1, fuzzing.CASES // 4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


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
    """Damaged, and damaged with a checksum that fits: read as far as resuming goes."""
    whole = (folder / "checkpoint").read_bytes()
    (tmp_path / "history.csv").write_bytes((folder / "history.csv").read_bytes())
    strategy, problem = fedfw()
    for data in fuzzing.cases([whole], seed=1, share=0.3):
        (tmp_path / "checkpoint").write_bytes(data)
        refused(lambda: simulate(strategy, problem, 6, run_dir=tmp_path, resume=True))
        (tmp_path / "history.csv").write_bytes((folder / "history.csv").read_bytes())


def resigned(data: bytes, text: Callable[[str], str]) -> bytes:
    """Return a state file whose text is changed, with its checksum."""
    _, _, payload = data.partition(b"\n")
    with np.load(io.BytesIO(payload)) as content:
        arrays: dict[str, Any] = dict(content)
    changed = text(arrays["json"].tobytes().decode()).encode()
    body = io.BytesIO()
    np.savez(body, **{**arrays, "json": np.frombuffer(changed, np.uint8)})
    digest = hashlib.sha256(body.getvalue()).hexdigest().encode()
    return b"fedcon state 2 " + digest + b"\n" + body.getvalue()


def test_fuzz_signed_checkpoints(folder, tmp_path):
    """Another program's, say: what is written in them is no checkpoint of this run."""
    whole = (folder / "checkpoint").read_bytes()
    strategy, problem = fedfw()
    engine = LocalEngine(problem)
    setup = Setup.of(engine.describe(), 7, problem.layout, strategy.participation, 0)
    now = checkpoint.fingerprint(strategy, setup, problem.start, engine)
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

    for _ in range(max(1, int(fuzzing.CASES * 0.3))):
        (tmp_path / "checkpoint").write_bytes(resigned(whole, change))
        refused(lambda: checkpoint.load(tmp_path, strategy, setup, now))


def test_fuzz_results(folder, tmp_path):
    job = Job("experiment", (folder / "config.toml").read_text())
    seen = set()
    for name in ("config.toml", "result.json"):
        for data in fuzzing.cases([(folder / name).read_bytes()], seed=3, share=0.1):
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("adtnofx") | st.text(), inner),
    max_leaves=20,
)


@EXAMPLES
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


@EXAMPLES
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


def test_fuzz_arrays():
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6.0).reshape(2, 3))
    for data in fuzzing.cases([buffer.getvalue()], seed=8):
        refused(partial(load_array, data))
