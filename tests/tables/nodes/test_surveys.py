"""Preparations that a node took no part in: refused, over restarts, in rounds and evaluations."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from table_nodes import write_rows

from flower_fedcon.clients import FedAvgClient
from flower_fedcon.core.protocol import PREPARE, Reply, Request, RunInfo
from flower_fedcon.flower import codec
from flower_fedcon.layout import Layout
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.agreeing import LIMIT, STAGES, Preparing
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.design import INTERVALS_OF
from flower_fedcon.tables.packed_text import packed_text
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.quantiles import INTERVALS
from flower_fedcon.tables.small_cells import of_enough_rows

LEAST = 20
STATED = {"target": "effect", "features": {"age": "numeric", "dx": "categorical"}}
SCHEMA = Schema.load(STATED)
BENT = Schema.load(STATED | {"terms": ["dx", "rcs(age, 3)"]})
NONE = np.zeros(1, dtype=np.int64)


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(1)
    rows = []
    for i in range(100):
        dx = "hiv" if i == 37 else "ab"[i % 2]
        age = "" if i == 50 else rng.integers(20, 90)
        rows.append(f"{age},{dx},{rng.normal():.3f}")
    return write_rows(tmp_path / "north.csv", "age,dx,effect", rows)


class Node:
    """A node, which a server asks what it likes; `again` is that after a restart."""

    def __init__(self, path, state=None, least=LEAST, schema=SCHEMA):
        self.path, self.state, self.least, self.schema = path, state, least, schema
        self.again()

    def again(self):
        config = {"partition-id": 0, "policy.min-rows": self.least}
        config |= {} if self.state is None else {"state-dir": str(self.state)}
        self.context = Context(1, 1, config, RecordDict(), {})

    def client(self):
        return FedAvgClient(read_table(self.path, self.schema), context=self.context)

    def ask(self, stage, down):
        """Ask what stands before round 1; return the reply."""
        (reply,) = self.answer(Request([0], stage, NONE, down, NONE, phase=PREPARE))
        return reply

    def answer(self, request):
        run = RunInfo("fedavg", 0, LIMIT, 1)
        arrays, config = codec.RequestEncoder(run).encode(request, 0)
        values, _, said = self.client().fit(list(arrays.values()), config)
        if "error" in said:
            return [Reply([0], request.round, error=said["error"])]
        found = codec.named(values, said["names"])
        found |= {k.removeprefix("scalar."): v for k, v in said.items() if k.startswith("scalar.")}
        return [Reply([0], request.round, {name: [value] for name, value in found.items()})]

    def prepare(self):
        """Play the honest exchanges."""
        preparing = Preparing(self.schema, ["north"], self.answer, max_retries=0)
        found = preparing.agree()
        info = self.client().describe()
        preparing.constants([info], found)
        return found

    def loss(self, preparation, x):
        arrays = codec.attached_arrays(preparation.payload)
        layout = Layout(((len(x),),), "float64", False).to_json()
        config = {"prepared": ",".join(arrays), "layout": layout, "client": 0}
        value, _, said = self.client().evaluate([np.array(x, float), *arrays.values()], config)
        return value, said.get("error", "")


def forged(means, scales=None, kept=(0, 2), names=("a", "b", "hiv")):
    """Return a preparation that a server has written itself: age, and the rare category."""
    about = {"schema": SCHEMA.digest, "categories": {"dx": list(names)}}
    scales = np.ones(len(means)) if scales is None else scales
    return Preparation.from_payload({
        "means": np.array(means, float), "scales": scales, "kept": np.array(kept),
        "about": packed_text(about),
    })  # fmt: skip


@pytest.mark.parametrize("durable", [False, True])
def test_a_server_s_own_preparation_is_refused(path, tmp_path, durable):
    node = Node(path, tmp_path / "state" if durable else None)
    for _ in range(2):
        value, why = node.loss(forged([0, 0]), [0, 1, 0])
        assert np.isnan(value)
        assert "not taken part in this preparation" in why
        honest = node.prepare()  # and so it is after another
    value, why = node.loss(honest, np.zeros(len(honest.names) + 1))
    assert np.isfinite(value)
    assert not why


def test_what_an_honest_server_agreed_on_stays_known_over_restarts_with_a_state_folder(
    path, tmp_path
):
    for state, known in ((tmp_path / "state", True), (None, False)):
        node = Node(path, state)
        honest = node.prepare()
        node.again()
        value, why = node.loss(honest, np.zeros(len(honest.names) + 1))
        assert np.isfinite(value) == known
        assert ("give nodes that may restart during a run a state-dir" in why) != known


@settings(max_examples=15, deadline=None)
@given(
    what=st.sampled_from(["means", "scales", "kept", "about"]),
    at=st.integers(0, 1),
    by=st.floats(-1e3, 1e3).filter(lambda v: abs(v) > 1e-6),
)
def test_no_number_of_it_can_be_changed_afterwards(tmp_path_factory, what, at, by):
    folder, rng = tmp_path_factory.mktemp("node"), np.random.default_rng(2)
    rows = [f"{rng.integers(20, 90)},{'ab'[i % 2]},{rng.normal():.3f}" for i in range(60)]
    file = write_rows(folder / "a.csv", "age,dx,effect", rows)
    node = Node(file, folder / "state")
    honest = node.prepare()
    payload = {k: np.array(v) for k, v in honest.payload.items()}
    if what == "about":
        about = {"schema": SCHEMA.digest, "categories": {"dx": ["a", "b", "c"]}}
        payload["about"] = packed_text(about)
    else:
        own = payload[what]
        own[at] = {"means": own[at] + by, "scales": abs(own[at] + by) + 1e-3, "kept": 1 - at}[what]
    changed = Preparation.from_payload(payload)
    assert "not taken part" in node.loss(changed, np.zeros(len(changed.names) + 1))[1]


def test_exchange_3_takes_only_what_exchange_2_was_about(path):
    node = Node(path)
    honest = node.prepare()
    other = honest.payload | {"means": honest.means + 1.0}
    assert "these means and categories were not prepared" in node.ask(3, other).error


def test_knots_and_fills_are_those_that_a_node_was_asked_about(path):
    """A server's own knots would make a column of the rows above one of them."""
    node = Node(path, schema=BENT)
    honest = node.prepare()
    for name, change in (("knots", (1.0, 2.0, 89.0)), ("fill", 3.0)):
        design = honest.design
        own = {**getattr(design, name)}
        own[next(iter(own))] = change
        other = replace(honest, design=replace(design, **{name: own}))
        assert "these means and categories were not prepared" in node.ask(3, other.payload).error


@pytest.mark.parametrize(("least", "cell"), [(1, 3), (5, 5)])
def test_intervals_of_the_server_s_choice_hold_no_single_row(path, least, cell):
    """Before, a node of the default policy told each of its ages, in one answer."""
    node = Node(path, least=least, schema=BENT)
    about = packed_text({"design": node.prepare().design.stated, "categories": {}})
    stage = STAGES.index(INTERVALS_OF) + 1
    for fine in (1.0, 40.0, 1000.0):
        down = {"about": about, "ends": 19.5 + np.arange(INTERVALS) / fine}
        counts = node.ask(stage, down).payload["counts"][0]
        assert counts.sum() == (99 if least == 1 else 100)  # one row has no age, or the mean
        assert counts[counts > 0].min() >= cell


def test_a_mean_of_the_server_s_choice_marks_no_row_that_lacks_a_value(path):
    """One patient without an age: before, its age was whatever the server said."""
    table = read_table(path, SCHEMA)
    known = np.delete(table.numeric[:, 0], 50)
    for least, expected in ((1, 1e6), (LEAST, known.mean())):
        found = table.matrix(forged([1e6, 0.0]), least)[50, 0] + 1e6
        assert found == pytest.approx(expected)


def test_a_sparse_column_of_one_row_is_unknown():
    rng = np.random.default_rng(0)
    A = (rng.random((40, 6)) < 0.5).astype(float)
    A[:, 1] = 0.0
    A[7, 1] = 3.0  # one row alone has it
    A[:, 2] = 1.0
    A[9, 2] = 0.0  # one row alone lacks it
    A[:, 3] = 2.0
    A[11, 3] = 5.0  # one row alone has another number
    found = of_enough_rows(csr_array(A), np.arange(40), 5).toarray()
    assert not found[:, 1:4].any()
    np.testing.assert_array_equal(found[:, [0, 4, 5]], A[:, [0, 4, 5]])
    np.testing.assert_array_equal(of_enough_rows(csr_array(A), np.arange(40), 1).toarray(), A)


def test_a_study_in_this_process_finds_what_nodes_find(path, tmp_path):
    problem = tables(data=[str(path)], schema=STATED, min_rows=LEAST)
    node = Node(path, tmp_path / "state")
    honest = node.prepare()
    x = np.linspace(-1, 1, len(honest.names) + 1)
    assert node.loss(honest, x)[0] == problem.objectives[0].value(x)
    (kept,) = (tmp_path / "state" / "prepared").glob("[0-9a-f]*")
    assert set(json.loads(kept.read_text())) == {"asked", "agreed"}
