"""Fuzzing what parses the words of a node: a value, a fault of that node, or a FedConError.

`make fuzz` mutates many recorded messages, in place of the few that every test run bears.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections import Counter

import numpy as np
import pytest
from fake_grid import asked, on_grid
from fuzzing import CASES
from hypothesis import given
from hypothesis import strategies as st
from mutants import kind_of, mutant, odd, record
from problems import avg, q6
from strangers import described, silence, with_stranger

from flower_fedcon import simulate
from flower_fedcon.core.protocol import Reply
from flower_fedcon.core.round import Round
from flower_fedcon.core.start import common_layout
from flower_fedcon.errors import FedConError
from flower_fedcon.flower import incoming, messages
from flower_fedcon.flower.incoming import Description, Fault, Parts
from flower_fedcon.flower.nodes import natural
from flower_fedcon.layout import Layout
from flower_fedcon.registry import algorithms

pytestmark = pytest.mark.fuzz

NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.sampled_from([0, 1, 3, 10**9, float("inf"), float("nan"), -1, 1e300]),
)
VALUES = st.one_of(
    NUMBERS, st.text(max_size=50), st.booleans(), st.binary(max_size=20), st.lists(NUMBERS),
    st.sampled_from(["²", "7" * 5000, "[" * 10**5, "5", "null", '[[[8]], "float64", false]']),
    st.lists(st.text(max_size=5)),
)  # fmt: skip
FIELDS = ["name", "num-examples", "num-partitions", "layout", "smoothness", "strong_convexity",
          "error", "digest", "version", "own-loop", "pass"]  # fmt: skip
WORDS = ["round", "names", "lost", "error", "scalar.a", "work.iterations"]
CONFIGS = st.one_of(
    st.dictionaries(st.one_of(st.sampled_from(FIELDS), st.text(max_size=9)), VALUES),
    st.dictionaries(st.sampled_from(FIELDS), VALUES).map(
        lambda some: {"num-examples": 3, "name": "7", **some}
    ),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=9), st.just("float64")),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner)),
    max_leaves=12,
)
LAYOUTS = st.one_of(
    st.text(),
    JSON.map(json.dumps),
    st.tuples(JSON, st.sampled_from(["float64", "float32", 3]), st.booleans()).map(json.dumps),
)


@given(config=CONFIGS)
def test_descriptions(config):
    found = incoming.description(lambda: Parts([], 1, None, config), 5)
    if isinstance(found, Fault):
        assert 0 < len(found.reason) < 2000
        assert found.reason.isprintable()
        return
    assert isinstance(found, Description)
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


@pytest.fixture(scope="module")
def tame():
    """Silence: a hundred thousand warnings of dropped replies are no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@on_grid
@pytest.mark.usefixtures("tame")
@pytest.mark.parametrize("name", algorithms())
def test_mutated_messages_of_a_run(name):
    """Through parser, gate, decoders and round; of what passes, aggregation makes a model."""
    rng = np.random.default_rng([7, len(name), *name.encode()])
    recorded = record(name)
    run = recorded.run
    server, most = run.server, run.server.strategy.most_entries(run.server.setup.layout)
    training = [pair for pair in recorded.replies if kind_of(pair[0]) != "describe"]
    ends = Counter()
    for case in range(max(150, CASES // len(algorithms()))):
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
        if isinstance(found, Reply):
            end = judged(server, found, kind, rng)
        ends[end] += 1
    assert min(ends[end] for end in ("Fault", "refused", "used")) > 0, ends


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
    rng = np.random.default_rng(3)
    said = []

    def says(grid, message):
        config = {"num-examples": 1, "name": f"s{len(said)}"}
        for _ in range(3):
            config[FIELDS[rng.integers(len(FIELDS))]] = odd(rng)
        said.append(config)
        return [described(message, config)] if rng.random() < 0.9 else silence(grid, message)

    calm = simulate(avg(), q6(), 1).x.tobytes()
    for _ in range(max(20, CASES // 400)):
        run = avg().start(with_stranger(says), num_rounds=1, num_clients=6, timeout=1.0)
        history = run.history
        if history.rows[-1]["cohort"] == 6:
            assert history.x.tobytes() == calm or claimed(said[-1])


def claimed(config):
    """Whether a stranger was the first to claim a client's name, which nobody could know."""
    return config.get("name") in {str(j) for j in range(6)}
