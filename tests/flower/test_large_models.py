"""Models of many entries through messages: the numbers by hand, few copies, none left over."""

from __future__ import annotations

import gc
import time
import tracemalloc

import numpy as np
import pytest
from fake_grid import FakeGrid, Forgetful, echo, on_grid
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_fedcon import train_step
from flower_fedcon.runs import kept
from flower_fedcon.strategies import FedAvg, Scaffold
from flower_fedcon.validation import largest_entry
from flower_fedcon.wire import state_files

pytestmark = on_grid
ENTRIES, CLIENTS = 600_001, 3  # more than two pieces of a pass
RATE = np.float32(0.25)
TARGETS = [np.float32(j + 1) * np.linspace(-1, 1, ENTRIES, dtype=np.float32) for j in range(3)]


def quadratics(load):
    """One gradient step of each client towards its target."""
    app = ClientApp()

    @app.train()
    @train_step
    def train(message, context, method):
        (x,) = (a.numpy() for a in message.content["arrays"].values())
        correction = method.begin([x])
        target = TARGETS[context.node_config["partition-id"]]
        (step,) = correction.apply_gradients([x], [x - target])
        x -= RATE * step
        arrays = ArrayRecord({"w": Array(x)})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"a": arrays, "m": metrics}), reply_to=message)

    return app


def played(strategy, rounds, make, **options):
    first = {"w": np.zeros(ENTRIES, np.float32)}
    grid = Forgetful([None] * CLIENTS, make=make)
    return strategy.start(grid, first, rounds, evaluate_every=0, **options)


def test_fedavg_of_a_large_model_by_hand():
    x = np.zeros(ENTRIES, np.float32)
    for _ in range(3):
        deltas = [(x - RATE * (x - target)) - x for target in TARGETS]
        total = deltas[0].copy()
        for delta in deltas[1:]:
            total += delta
        x = x + total / 3
    found = played(FedAvg(), 3, quadratics).history.x
    np.testing.assert_array_equal(found[0], x)
    assert found[0].dtype == np.float32


@pytest.mark.parametrize("mirror", [True, False])
def test_scaffold_of_a_large_model_by_hand(mirror):
    x, c = np.zeros(ENTRIES, np.float32), np.zeros(ENTRIES, np.float32)
    own = [np.zeros(ENTRIES, np.float32) for _ in TARGETS]
    for _ in range(3):
        gradients = [x - target for target in TARGETS]
        ends = [x - RATE * (g + (c - c_i)) for g, c_i in zip(gradients, own, strict=True)]
        deltas = [end - x for end in ends]
        changes = [g - c_i for g, c_i in zip(gradients, own, strict=True)]
        own = [c_i + dc for c_i, dc in zip(own, changes, strict=True)]
        x = x + (deltas[0] + deltas[1] + deltas[2]) / 3
        c = c + (changes[0] + changes[1] + changes[2]) / 3
    found = played(Scaffold(mirror=mirror), 3, quadratics).history.x
    np.testing.assert_array_equal(found[0], x)


@pytest.mark.parametrize(("kind", "models"), [(FedAvg, 10), (Scaffold, 24.5)])
def test_a_round_holds_few_copies_of_the_model_and_leaves_none(kind, models):
    """Server, messages and three clients together; Flower's own FedAvg holds 11 models.

    Python collects no cycles here: what a round left in one would add up.
    """
    played(kind(), 2, echo)  # what is imported and kept once
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        played(kind(), 6, echo)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert most < models * 4 * ENTRIES


def test_the_largest_entry_is_found_in_any_piece():
    x = np.zeros(ENTRIES, np.float32)
    for place, value in ((0, 2.0), (ENTRIES - 1, -3.0), (300_000, -5.0)):
        x[place] = value
        assert largest_entry(x) == -value or largest_entry(x) == value
    x[400_000] = np.nan
    assert np.isnan(largest_entry(x))
    assert largest_entry(np.full((3, 4), -np.inf).T) == np.inf


def test_what_one_entry_that_is_not_finite_does_to_a_long_upload(log):
    """It is refused by the client itself, in whichever piece it is."""

    def broken(load):
        app = quadratics(load)
        TARGETS[1][ENTRIES - 2] = np.nan
        return app

    before = TARGETS[1].copy()
    try:
        strategy = FedAvg(min_replies=2)
        result = played(strategy, 1, broken)
    finally:
        TARGETS[1][:] = before
    assert result.history["replies"].tolist() == [2]
    assert "not finite" in log.text


def test_a_state_file_is_written_from_start_to_end_and_read_again(tmp_path):
    tree = {"x": TARGETS[0], "n": 3}
    state_files.write(tmp_path / "state", tree)
    found = state_files.read(tmp_path / "state", {})
    np.testing.assert_array_equal(found["x"], tree["x"])
    content = bytearray((tmp_path / "state").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(state_files.DamagedError, match="checksum"):
        state_files.read(tmp_path / "state", {})


@pytest.mark.parametrize(("seconds", "checkpoints"), [(0.0, 7), (0.2, 3)])
def test_checkpoints_that_take_long_are_written_less_often(
    seconds, checkpoints, tmp_path, monkeypatch
):
    """At the start, after the first round, and at the end: nine times as long lies between."""
    monkeypatch.setattr(kept, "_CHECKPOINT_SECONDS", -1.0)
    written = []

    def save(folder, content):
        written.append(content["rows"])
        time.sleep(seconds)

    monkeypatch.setattr(kept.checkpoint, "save", save)
    first = {"w": np.zeros(3, np.float32)}
    grid = FakeGrid([None] * CLIENTS, make=echo)
    Scaffold().start(grid, first, 5, evaluate_every=0, run_dir=tmp_path / "run")
    assert len(written) <= checkpoints
