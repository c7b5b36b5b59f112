"""Private examples on nodes: what they count over rounds, restarts, names and studies, and tell."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from fake_grid import FakeGrid, asked, on_grid
from flwr.app import Context, RecordDict
from private_rows import LOUD, regression

from flower_fedcon import Policy, client_app
from flower_fedcon.clients import FedAvgClient
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import LeastSquares, LogisticRegression, PrivateObjective
from flower_fedcon.strategies import FedAvg, Scaffold
from flower_fedcon.wire.ledgers import SPENT, FileLedger, key_of

pytestmark = on_grid

STEPS = FedAvg(client_lr=0.5, local_steps=3)


def private_app(load):
    return client_app(load, policy=Policy.open(), privacy=LOUD)


def grid_of(folder, objectives=None, make=private_app, kind=FakeGrid, **config):
    """Return nodes that keep their ledgers in a folder; by default two."""
    grid = kind(objectives or [regression(seed=j) for j in range(2)], make=make)
    for context in grid.nodes.values():
        context.node_config.update({"state-dir": str(folder), **config})
    return grid


def ledgers(folder):
    found = sorted((folder / "privacy").glob("*/spent.json"))
    return [{r: n for _, r, n in json.loads(path.read_text())["gradients"]} for path in found]


def drawing(draw):
    """Return a client app whose load draws rows for every message."""
    rng = np.random.default_rng(0)

    def make(load):
        def drawn(context):
            whole = load(context)
            rows = draw(rng, whole.num_examples)
            return LogisticRegression(whole.A[rows], whole.targets[rows])

        return private_app(drawn)

    return make


def test_nodes_count_over_rounds_restarts_and_runs(tmp_path, log):
    first = STEPS.start(grid_of(tmp_path), num_rounds=2)
    assert ledgers(tmp_path) == [{1.0: 6}] * 2
    again = STEPS.start(grid_of(tmp_path), num_rounds=1, seed=1)  # new nodes, another run
    assert ledgers(tmp_path) == [{1.0: 9}] * 2
    assert f"epsilon {LOUD.epsilon({1.0: 9}):.4g} at delta 1e-05, for 9 gradients" in log.text
    assert "objective" not in again.history.columns  # a loss is told nobody
    assert "this node's examples are private, and so is its loss" in log.text
    assert not np.array_equal(first.history.x, again.history.x)


def test_nodes_tell_a_noisy_loss_where_they_say_so(tmp_path):
    grid = grid_of(tmp_path, **{"privacy.loss-clip": 2.0})
    history = STEPS.start(grid, num_rounds=2, evaluate_every=1).history
    assert np.isfinite(history["objective"]).all()
    assert ledgers(tmp_path) == [{1.0: 6 + 2}] * 2  # two evaluations


def test_a_node_without_budget_refuses_and_says_so(tmp_path):
    grid = grid_of(tmp_path, **{"privacy.budget": 9.0})
    with pytest.raises(FedConError, match=r"spent epsilon .* of privacy.budget = 9, and one more"):
        STEPS.start(grid, num_rounds=9, max_retries=0)
    spent = ledgers(tmp_path)[0][1.0]
    assert LOUD.epsilon({1.0: spent}) <= 9.0 < LOUD.epsilon({1.0: spent + 1})


def test_no_state_is_kept_of_a_step_that_is_not_counted(tmp_path, monkeypatch):
    """A server that called such a step used would have the next upload tell its gradient."""
    kept = []

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    def states():
        return {
            p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and SPENT not in p.name
        }

    class FullDisk(FakeGrid):
        def replies_to(self, message):
            if asked(message).get("round") != 2:
                return super().replies_to(message)
            before = states()
            with monkeypatch.context() as patch:
                patch.setattr(FileLedger, "_write", full_disk)
                replies = super().replies_to(message)
            kept.append((before, states()))
            return replies

    grid = grid_of(tmp_path, [regression()], kind=FullDisk)
    made = Scaffold(client_lr=0.1, local_steps=1, mirror=False)
    with pytest.raises(FedConError, match="the client failed: OSError"):
        made.start(grid, num_rounds=3, max_retries=0, evaluate_every=0)
    ((before, after),) = kept
    assert before
    assert after == before


# --- which rows they are -------------------------------------------------------------------------


def test_rows_in_another_order_go_on_with_their_ledger(tmp_path):
    make = drawing(lambda rng, m: rng.permutation(m))
    FedAvg(client_lr=0.5).start(grid_of(tmp_path, make=make), num_rounds=3)
    assert ledgers(tmp_path) == [{1.0: 3}] * 2


def test_other_rows_for_every_message_are_refused(tmp_path):
    """Each choice would begin a ledger at 0, and no budget would ever be spent."""
    make = drawing(lambda rng, m: rng.choice(m, 40, replace=False))
    with pytest.raises(FedConError, match="rows have changed during the run"):
        FedAvg(client_lr=0.5).start(grid_of(tmp_path, make=make), num_rounds=3, max_retries=0)


def test_evaluations_of_other_rows_are_refused_too(tmp_path):
    """A budget would never be spent: each choice of rows would have its own."""
    whole, context = regression(), Context(7, 1000, {}, RecordDict(), {})
    context.node_config.update({"state-dir": str(tmp_path), "name": "ward"})

    def answer(rows):
        some = LogisticRegression(whole.A[rows], whole.targets[rows])
        client = FedAvgClient(some, context=context, privacy=replace(LOUD, loss_clip=5.0))
        layout = Layout.for_objective(some).to_json()
        return client.evaluate([np.zeros(4)], {"layout": layout, "client": 0})

    value, _, said = answer(np.arange(40))
    assert np.isfinite(value)
    assert "error" not in said
    value, _, said = answer(np.random.default_rng(0).choice(50, 40, replace=False))
    assert np.isnan(value)
    assert "rows have changed during the run" in said["error"]


def test_a_ledger_that_begins_beside_others_says_so(tmp_path, log):
    FedAvg(client_lr=0.5).start(grid_of(tmp_path), num_rounds=1)
    some = drawing(lambda rng, m: np.arange(40))
    FedAvg(client_lr=0.5).start(grid_of(tmp_path, make=some), num_rounds=1)
    assert "begins at 0, beside" in log.text
    assert len(ledgers(tmp_path)) == 4


def test_another_name_or_study_on_the_same_rows_goes_on_with_their_ledger(tmp_path):
    """Another l2, an intercept or a loss began a ledger anew before; what that counts is added."""
    old = tmp_path / "privacy" / key_of(regression(l2=0.1))
    old.mkdir(parents=True)
    (old / "spent.json").write_text('{"gradients": [[2.0, 1.0, 7]]}')
    rows = regression()
    studies = [
        rows, regression(l2=0.1), regression(intercept=True), LeastSquares(rows.rows, rows.targets),
    ]  # fmt: skip
    for j, f in enumerate(studies):
        STEPS.start(grid_of(tmp_path, [f], name=f"north {j}"), num_rounds=1)
    assert ledgers(tmp_path) == [{1.0: 4 * 3 + 7}]
    STEPS.start(grid_of(tmp_path, [regression(seed=1)]), num_rounds=1)
    assert sorted(n for own in ledgers(tmp_path) for n in own.values()) == [3, 4 * 3 + 7]


# --- what they tell ------------------------------------------------------------------------------


def test_a_node_needs_a_place_for_its_ledger():
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    with pytest.raises(ConfigError, match="ExampleDP needs a state-dir"):
        FedAvgClient(regression(), context=context, privacy=LOUD)
    with pytest.raises(ConfigError, match="a node keeps the ledger of its private examples itself"):
        FedAvgClient(PrivateObjective(regression(), LOUD), context=context)


def test_a_node_tells_no_constants_and_no_digest_of_its_rows(tmp_path):
    node = {"partition-id": 0, "state-dir": str(tmp_path)}
    infos = [
        FedAvgClient(f, context=Context(1, 1, node, RecordDict(), {}), privacy=LOUD).describe()
        for f in (regression(), regression(seed=1))
    ]
    assert infos[0] == infos[1]
    assert infos[0].smoothness is None
    open_info = FedAvgClient(LeastSquares(np.eye(2), np.ones(2)), name="0").describe()
    assert open_info.smoothness is not None
