"""Whatever stands in a file, or in a message of a node or a server: it is read, or refused.

In a sentence; and a fault in a node's words is that node's. `make fuzz` tries many damaged files
and messages of each kind, in place of the few that every test run bears.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import json
import logging
import random
import re
import warnings
from collections import Counter
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import EACH, FIRST
from contract import strategy as build
from fake_grid import asked, on_grid
from fake_grid import identity as identity
from flwr.app import Context, RecordDict
from fuzzing import CASES, VALUES, cases, ends, refused, trees
from harness import OpenRun
from hypothesis import given
from hypothesis import strategies as st
from mutants import kind_of, mutant, mutate_request, odd, record
from problems import avg, l1ls, q6
from strangers import described, silence, with_stranger

from flower_fedcon import Policy, Sample, server_app, simulate
from flower_fedcon.clients.scaffold import ScaffoldClientState
from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.protocol import Reply, RunInfo, Setup
from flower_fedcon.core.round import Round
from flower_fedcon.core.start import common_layout
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.errors import FedConError
from flower_fedcon.flower import incoming, messages
from flower_fedcon.flower.codec import RequestEncoder
from flower_fedcon.flower.incoming import Description, Fault, Parts
from flower_fedcon.flower.nodes import natural
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
BOTH = {True, False}


# --- what a run leaves ----------------------------------------------------------------------------


def fedfw():
    problem = l1ls(4)
    return FedFW(problem.constraint, penalty=0.1, participation=Sample(count=2)), problem


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run that stopped after 6 of 12 rounds, with the checkpoint of round 6."""
    path = tmp_path_factory.mktemp("run")
    simulate(*fedfw(), 6, run_dir=path)
    (path / "result.json").write_text(json.dumps({"error": "", "optimum": 0.5}) + "\n")
    return path


@pytest.fixture
def read_checkpoint(tmp_path):
    """Read a checkpoint as far as a resumption does."""
    strategy, problem = fedfw()
    engine = LocalEngine(problem)
    setup = Setup.of(engine.describe(), 7, problem.layout, strategy.participation, 0)
    now = checkpoint.fingerprint(strategy, setup, problem.start, engine)
    return lambda: checkpoint.load(tmp_path, strategy, setup, now)


def test_fuzz_histories(folder, tmp_path):
    """Also through what `fedcon plot` reads, and cut to the rows of a checkpoint."""
    whole, file = (folder / "history.csv").read_bytes(), tmp_path / "history.csv"
    read = lambda: History.read_rows(file)  # noqa: E731
    others = [b"", b"round,objective\r\n1,2\r\n"]
    assert ends(file, [whole, *others], 0, read, lambda: histories_of([tmp_path])) == BOTH
    assert ends(file, [whole], 12, lambda: HistoryFile(file, keep=4).close()) == BOTH


def test_fuzz_checkpoints(folder, tmp_path, read_checkpoint):
    """Some through the whole of a resumption."""
    whole, history = (folder / "checkpoint").read_bytes(), (folder / "history.csv").read_bytes()

    def resume():
        (tmp_path / "history.csv").write_bytes(history)
        simulate(*fedfw(), 6, run_dir=tmp_path, resume=True)

    ends(tmp_path / "checkpoint", [whole], 1, read_checkpoint)
    ends(tmp_path / "checkpoint", [whole], 11, resume, share=0.1)


def resigned(data, text):
    """Return a state file whose text is changed, with its checksum."""
    _, _, payload = data.partition(b"\n")
    with np.load(io.BytesIO(payload)) as content:
        arrays: dict[str, Any] = dict(content)
    changed = text(arrays["json"].tobytes().decode()).encode()
    body = io.BytesIO()
    np.savez(body, **{**arrays, "json": np.frombuffer(changed, np.uint8)})
    digest = hashlib.sha256(body.getvalue()).hexdigest().encode()
    return b"fedcon state 3 " + digest + b"\n" + body.getvalue()


def test_fuzz_signed_checkpoints(folder, tmp_path, read_checkpoint):
    """With a checksum that fits: another program's, say."""
    whole, rng = (folder / "checkpoint").read_bytes(), random.Random(2)
    values = (
        "null", "-1", "1e999", "[]", "{}", '""', '"x"', '{"a": 0}', '{"a": 99}', '{"d": 3}',
        '{"n": "Versions", "f": {}}', '{"o": "Mirror", "f": 0}', "9" * 30, "true", "0.5",
    )  # fmt: skip

    def change(text):
        pattern = r': ("[^"]*"|-?[0-9.]+|\[\]|null|\{"a": \d+\})'
        start, end = rng.choice([m.span(1) for m in re.finditer(pattern, text)])
        return text[:start] + rng.choice(values) + text[end:]

    for _ in range(CASES):
        (tmp_path / "checkpoint").write_bytes(resigned(whole, change))
        refused(read_checkpoint)


def test_fuzz_results(folder, tmp_path):
    job, seen = Job("experiment", (folder / "config.toml").read_text()), set()
    for name in ("config.toml", "result.json"):
        for other in ("history.csv", "config.toml", "result.json"):
            (tmp_path / other).write_bytes((folder / other).read_bytes())
        whole = [(folder / name).read_bytes()]
        read = lambda: _ended(tmp_path, job)  # noqa: E731
        seen |= ends(tmp_path / name, whole, 3, read, lambda: labels_of(tmp_path), share=0.5)
    assert seen == BOTH


@given(trees(*"adtnofx"))
def test_fuzz_trees(tree):
    types = {"Versions": Versions, "ScaffoldClientState": ScaffoldClientState}
    arrays = {"0": np.zeros(3)}
    refused(lambda: state_files.unpack(json.dumps(tree), arrays, types))
    refused(lambda: wire_settings.decode(json.dumps(tree), arrays))


# --- what a node keeps, and its configuration -----------------------------------------------------


def test_fuzz_client_states(tmp_path):
    store, state = FileStore(tmp_path, "0", Policy.open()), ScaffoldClientState(np.ones(3), 0.0)
    store.save(RUN, Versions(3, state, 4, state))
    file = store.path(RUN)
    for data in cases([file.read_bytes()], seed=4):
        file.write_bytes(data)
        refused(lambda: store.load(RUN, ScaffoldClientState))
        file.with_name("pass").write_bytes(data[:33])
        assert store.known_pass(RUN.run_id) == ""


KEYS = [f"policy.{f.name.replace('_', '-')}" for f in fields(Policy)]


@given(st.dictionaries(st.sampled_from([*KEYS, "policy.x", "name", "partition-id"]), VALUES))
def test_fuzz_node_configurations(config):
    """Of what a node's operator writes, a client that describes itself, or a sentence."""
    context = Context(1, 1, config, RecordDict(), {})

    def answer():
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
        def start(self, grid, x0, **options):
            told.update(options)

    app = server_app(Strategy)
    if not refused(lambda: app(None, Context(1, 1, {}, RecordDict(), config))):
        assert type(told["num_rounds"]) is type(told["seed"]) is int
        assert type(told["resume"]) is type(told["authenticated"]) is bool


# --- what users write -----------------------------------------------------------------------------


def test_fuzz_experiment_files(tmp_path):
    files = [path.read_bytes() for path in sorted(SIMS.glob("*.toml")) if "tool" not in path.name]
    file = tmp_path / "experiment.toml"
    assert ends(file, files, 6, lambda: Experiment.load(file)) == BOTH


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
    """Rows of clients; images, whole and zipped; ratings."""
    file = tmp_path / "client.npz"
    np.savez(file, A=np.ones((3, 2)), b=np.ones(3))
    whole = [file.read_bytes()]
    np.savez_compressed(file, A=np.ones((3, 2)), y=np.array([1.0, -1.0, 1.0]))
    ends(file, [*whole, file.read_bytes()], 7, lambda: load_file(file))
    images = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(2 * 28 * 28)
    file = tmp_path / "images"
    both = [images, gzip.compress(images)]
    assert ends(file, both, 9, lambda: read_idx(file, (28, 28))) == BOTH
    ends(file, [b"\x03" + bytes(3072)], 10, lambda: read_cifar(file), share=0.1)
    ratings = "".join(f"{user}\t{item}\t4\t881250949\n" for user in (1, 2) for item in (1, 2, 3))
    read = lambda: movielens(data=str(file), radius=1.0, clients=2)  # noqa: E731
    assert ends(file, [ratings.encode()], 13, read) == BOTH
    file.write_text("1 1 4 0\n900000000000 2 3 0\n3 800000000000 3 0\n")
    assert refused(read)


# --- what a node says -----------------------------------------------------------------------------

FIELDS = ["name", "num-examples", "num-partitions", "layout", "smoothness", "strong_convexity",
          "error", "digest", "version", "own-loop", "pass"]  # fmt: skip
WORDS = ["round", "names", "lost", "error", "scalar.a", "work.iterations"]
CONFIGS = st.one_of(
    st.dictionaries(st.one_of(st.sampled_from(FIELDS), st.text(max_size=9)), VALUES),
    st.dictionaries(st.sampled_from(FIELDS), VALUES).map(
        lambda some: {"num-examples": 3, "name": "7", **some}
    ),
)
LAYOUTS = st.one_of(
    st.text(),
    trees().map(json.dumps),
    st.tuples(trees(), st.sampled_from(["float64", "float32", 3]), st.booleans()).map(json.dumps),
)


@given(config=CONFIGS)
def test_descriptions(config):
    found = incoming.description(lambda: Parts([], 1, None, config), 5)
    if isinstance(found, Fault):
        assert 0 < len(found.reason) < 2000
        assert found.reason.isprintable()
        return
    info = found.info
    assert sorted([info.name, "10", "x"], key=natural)
    assert info.num_examples >= 1
    assert found.partitions is None or 1 <= found.partitions <= 10**6
    try:
        layout = common_layout([info.layout, Layout.of(np.zeros(8))], [info.name, "0"], None)
    except FedConError:
        return
    assert layout.shape == (8,)


@given(text=LAYOUTS)
def test_layouts(text):
    try:
        layout = Layout.from_json(text)
    except FedConError:
        return
    assert layout.size >= 1
    assert Layout.from_json(layout.to_json()) == layout


@given(
    config=st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=9)), VALUES),
    examples=VALUES,
    tensors=st.lists(st.one_of(st.binary(max_size=200), VALUES), max_size=3),
)
def test_replies_of_any_parts(config, examples, tensors):
    for given_round in ({}, {"round": 2}):
        parts = Parts(tensors, examples, None, {**config, **given_round})
        found = incoming.reply(3, 8, lambda parts=parts: parts)
        assert isinstance(found, Reply | Fault)
    found = incoming.evaluation(lambda: Parts([], examples, examples, config))
    assert isinstance(found, dict | Fault)


def test_fuzz_arrays_and_settings():
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6.0).reshape(2, 3))
    for data in cases([buffer.getvalue()], seed=8):
        refused(partial(load_array, data))
    own = {"constraint": l1ls(4).constraint, "weights": np.ones(2), "name": "x", "p": 0.5}
    text, arrays = wire_settings.encode(own)
    for data in cases([text.encode()], seed=5):
        refused(partial(wire_settings.decode, data.decode(errors="replace"), arrays))


@pytest.fixture(scope="module")
def tame():
    """Silence: a hundred thousand warnings of dropped replies are no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@on_grid
@pytest.mark.usefixtures("tame")
@EACH
def test_mutated_messages_of_a_run(name):
    """Through parser, gate, decoders and round; of what passes, aggregation makes a model."""
    rng = np.random.default_rng([7, len(name), *name.encode()])
    recorded = record(name)
    server = recorded.run.server
    most = server.strategy.most_entries(server.setup.layout)
    training = [pair for pair in recorded.replies if kind_of(pair[0]) != "describe"]
    seen = Counter()
    for case in range(max(150, CASES // len(FIRST))):
        sent, reply = recorded.replies[rng.integers(len(recorded.replies))]
        if case % 4:  # mostly those with much in them
            sent, reply = training[rng.integers(len(training))]
        kind, parts = kind_of(sent), parts_of(mutant(sent, reply, rng))
        if kind == "describe":
            found = incoming.description(parts, 5)
            assert isinstance(found, Description | Fault)
        elif kind == "evaluate":
            found = incoming.evaluation(parts)
            assert isinstance(found, dict | Fault)
        else:
            found = incoming.reply(asked(sent)["client"], most, parts)
            assert isinstance(found, Reply | Fault)
        end = type(found).__name__
        seen[judged(server, found, kind, rng) if isinstance(found, Reply) else end] += 1
    assert min(seen[end] for end in ("Fault", "refused", "used")) > 0, seen


def parts_of(message):
    """Return what reads the parts of a reply, of whatever form it is."""
    kind = "evaluate" if message.metadata.message_type == "evaluate" else "train"
    return lambda: messages.reply_parts(message, kind)


def judged(server, reply, kind, rng):
    """Take a reply as the round that asked for it would, and return what became of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            if kind == "certify":
                optional = ("distance", "spread")
                names = ("gradient", *(n for n in optional if n in reply.payload))
                server.gate.check_round(reply, 2)
                server.gate.admit(reply, kind, names)
                return "used"
            round_ = opened(server, reply, kind)
            round_.take([reply])
            if not len(round_.uploads()):
                return "refused"
            if kind == "train" and rng.random() < 0.2:
                state = copy.deepcopy(server.state)
                state = server.strategy.aggregate(state, round_.uploads())
                server.gate.check_state(state, reply.round)
                assert np.isfinite(server.strategy.model(state)).all()
            return "used"
        except FedConError:
            return "refused"


def opened(server, reply, kind):
    """Return a round of the reply's number that has asked its client, in the reply's phase."""
    state, server.round = server.state, 2
    round_ = Round(server, list(reply.clients))
    round_.dispatch.phase = kind
    server.state = state
    round_.next_request()
    return round_


@on_grid
@pytest.mark.usefixtures("tame")
def test_a_run_among_strangers_that_say_anything():
    """Strangers describe themselves by chance; the run's clients and bytes are what they were."""
    rng, said = np.random.default_rng(3), []

    def says(grid, message):
        config = {"num-examples": 1, "name": f"s{len(said)}"}
        for _ in range(3):
            config[FIELDS[rng.integers(len(FIELDS))]] = odd(rng)
        said.append(config)
        return [described(message, config)] if rng.random() < 0.9 else silence(grid, message)

    calm = simulate(avg(), q6(), 1).x.tobytes()
    for _ in range(max(20, CASES // 400)):
        run = avg().start(with_stranger(says), num_rounds=1, num_clients=6, timeout=1.0)
        # A stranger may be the first to claim a client's name, which nobody could know.
        claimed = any(said[-1].get("name") == str(j) for j in range(6))
        if run.history.rows[-1]["cohort"] == 6:
            assert run.history.x.tobytes() == calm or claimed


# --- what a server says to a node -----------------------------------------------------------------


@EACH
@pytest.mark.usefixtures("tame")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_node_answers_whatever_it_is_sent(name):
    case, rng = FIRST[name], random.Random(name)
    run = OpenRun(build(name, case), case.problem()).play()
    request = Round.begin(run.server).next_request()
    whole, common = RequestEncoder(run.server.info).encode(request, 0)
    policy = Policy(phases="train,query,certify,evaluate", max_seconds=5)
    answers, count = [], max(80, CASES // 20)  # for each of the algorithms
    for _ in range(count):
        arrays, config = [a.copy() for a in whole.values()], dict(common)
        mutate_request(rng, arrays, config)
        context = Context(1, 1, {}, RecordDict(), {})
        client = client_class(name)(run.problem.objectives[0], context=context, policy=policy)
        answers.append(client.fit(arrays, config)[2])
        loss, _, said = client.evaluate([np.zeros(8)], config)
        assert ("error" in said) == (loss != loss)
    failed = [answer for answer in answers if "error" in answer]
    assert all(answer["error"] for answer in failed)
    assert count / 8 < len(failed) < count
