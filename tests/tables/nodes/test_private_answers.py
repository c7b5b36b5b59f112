"""What a server may ask of a node with private rows, and that no answer but a noisy sum tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from private_tables import CATEGORIES, PRIVACY, stated
from table_nodes import write_rows

from flower_fedcon.clients import FedAvgClient
from flower_fedcon.core.exchange import known, phases
from flower_fedcon.core.protocol import CERTIFY, PREPARE, QUERY, STATISTICS, Request, RunInfo
from flower_fedcon.flower import codec
from flower_fedcon.layout import Layout
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.tables import read_table
from flower_fedcon.tables.agreeing import LIMIT, STAGES
from flower_fedcon.tables.packed_text import packed_text
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.quantiles import INTERVALS

SCHEMA = stated(test_fraction=0.3)
EXTREMES = np.array([0.0, 1.0, -1.0, 1e12, -1e12, 1e-300, 60.0])
NONE = np.zeros(1, dtype=np.int64)


class Node:
    """A node that answers all that a policy can list."""

    def __init__(self, folder, rng):
        rows = [
            f"{rng.choice(['', '0', '120', str(rng.integers(120))])},{rng.uniform(1, 100):.2f},"
            f"{rng.choice(['f', 'm', ''])},{rng.choice(list('abc'))},{rng.choice(['yes', 'no'])}"
            for _ in range(25)
        ]
        folder.mkdir()
        file = write_rows(folder / "rows.csv", "age,dose,sex,dx,ill", rows)
        self._table = read_table(file, SCHEMA)
        config = {
            **PRIVACY,
            "privacy.loss-clip": 5.0,
            "privacy.quality": True,
            "policy.max-parameters": 9.0,
            "partition-id": 0,
        }
        config |= {"policy.phases": ",".join(phases()), "state-dir": str(folder / "state")}
        self._context = Context(1, 1, config, RecordDict(), {})

    def answer(self, request, preparation=None, **settings):
        run = RunInfo(
            "fedavg", 0, LIMIT, 1, attached={} if preparation is None else preparation.payload
        )
        if preparation is not None:
            given = dict.fromkeys(FedAvgClient.fields) | {"client_lr": 0.1, "local_steps": 2}
            layout = Layout(((len(preparation.means) + 1,),), "float64", False)
            run = replace(run, layout=layout, settings=given | settings)
        arrays, config = codec.RequestEncoder(run).encode(request, 0)
        client = FedAvgClient(self._table, context=self._context)
        values, examples, said = client.fit(list(arrays.values()), config)
        return [np.asarray(value).tobytes() for value in values], examples, said

    def evaluate(self, preparation, x):
        arrays = codec.attached_arrays(preparation.payload)
        layout = Layout(((len(x),),), "float64", False).to_json()
        config = {"prepared": ",".join(arrays), "layout": layout, "client": 0}
        client = FedAvgClient(self._table, context=self._context)
        return client.evaluate([x, *arrays.values()], config)


def questions(rng, plain):
    """Yield (name, what asks a node)."""

    def ask(stage, down, phase=PREPARE, made=None, **settings):
        request = Request([0], stage, NONE, down, NONE, phase=phase)
        return lambda node: node.answer(request, made, **settings)

    means = rng.choice(EXTREMES, 2)
    yield "summary", ask(1, {})
    yield "spread", ask(2, {"means": means, "categories": packed_text(CATEGORIES)})
    kept = np.sort(rng.permutation(5)[: rng.integers(1, 6)])
    scales = np.ones(len(kept)) if plain else 10.0 ** rng.uniform(-60, 5, len(kept))
    sent = {
        "means": np.concatenate([means, rng.random(3)])[kept],
        "scales": scales, "kept": kept,
        "about": packed_text({"schema": SCHEMA.digest, "categories": CATEGORIES}),
    }  # fmt: skip
    yield "constants", ask(3, sent)
    for stage in range(4, len(STAGES) + 1):
        about = packed_text({"design": {}, "categories": CATEGORIES})
        down = {"categories": packed_text({}), "ends": np.arange(INTERVALS) * 1.0, "about": about}
        yield STAGES[stage - 1], ask(stage, down | {"means": np.zeros(3)})
    made = Preparation.from_payload(sent | {"scales": np.ones(len(kept))})
    made = replace(made, scales=scales)
    x = rng.choice(EXTREMES, len(kept) + 1)
    yield "evaluate", lambda node: node.evaluate(made, x)
    more = {
        "method": 1.0, "at": rng.normal(size=3), "entries": np.zeros(1), "transform": 0.0,
        "center": 0.0, "times": np.arange(1.0, 4.0), "nodes": 5.0, "ratio": 0.5, "sd": 1.0,
        "residual_sd": 1.0,
    }  # fmt: skip
    for name in (name for name, own in known().items() if own.phase == STATISTICS):
        own = more | ({"at": x[None]} if name == "apart" else {})
        yield name, ask(1, {"x": x, f"asks.{name}": 1.0, **own}, STATISTICS, made)
    for lr, size in ((0.1, None), (1e300, 4)):
        asked = Request([0], 1, NONE, {"w": x}, NONE)
        own = {"client_lr": lr, "batch_size": size}
        yield "train", lambda node, asked=asked, own=own: node.answer(asked, made, **own)
    yield "certify", ask(1, {"x": x, "units": np.ones(1)}, CERTIFY, made)
    yield "query", ask(1, {"x": x}, QUERY, made)


def hold_answers(folder, rng, patch, rounds):
    """Where noisy sums are zeros, two nodes answer alike, in results and in errors."""
    patch.setattr(Grid, "release", lambda grid, total: np.zeros(len(total)))
    nodes = [Node(folder / name, rng) for name in "ab"]
    told = set()
    for turn in range(rounds):
        for name, asked in questions(rng, plain=turn % 2 == 0):
            first, second = (asked(node) for node in nodes)
            assert first == second, name
            lacks = f"{name}: add what it is sent to `more` in `questions`"
            assert "without '" not in str(first[2].get("error", "")), lacks
            if "error" not in first[2]:
                told.add(name)
    return told


@pytest.mark.parametrize(
    ("seeds", "rounds"), [([1], 3), pytest.param([None] * 4, 8, marks=pytest.mark.nightly)]
)
def test_no_answer_tells_two_tables_apart(tmp_path, monkeypatch, seeds, rounds):
    for place, seed in enumerate(seeds):
        folder = tmp_path / str(place)
        folder.mkdir()
        told = hold_answers(folder, np.random.default_rng(seed), monkeypatch, rounds)
        assert seed is None or told == {
            "summary", "spread", "constants", "evaluate", "noisy_quality", "train", "certify",
        }  # fmt: skip
