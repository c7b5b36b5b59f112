"""Replies of loops of one's own that state what nobody should: bounds and sentences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_fedcon import FederatedProblem, train_step
from flower_fedcon.core.evaluation import MOST_METRICS
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import FedAvg, FedExProx

pytestmark = on_grid
EVIL = 999  # the node of client 1


def app_of(told):
    """Return an app whose functions reply what `told` has for "train" and "evaluate"."""

    def make(load):
        app = ClientApp()

        @app.train()
        @train_step(num_examples=told.get("stated", lambda context: 10))
        def train(message, context):
            place = context.node_config["partition-id"]
            moved = {k: 0.9 * v.numpy() + place for k, v in message.content["arrays"].items()}
            own = told.get("train", {}) if place == 1 else {}
            content = {
                "arrays": ArrayRecord({k: Array(v) for k, v in moved.items()}),
                "metrics": MetricRecord({"num-examples": 10, "loss": 1.0, **own}),
            }
            return Message(RecordDict(content), reply_to=message)

        @app.evaluate()
        def evaluate(message, context):
            own = told.get("evaluate", {}) if context.node_id == EVIL else {}
            own = own() if callable(own) else own
            metrics = MetricRecord({"num-examples": 10, "accuracy": 0.5, **own})
            return Message(RecordDict({"m": metrics}), reply_to=message)

        return app

    return make


def played(strategy=None, *, alter=None, **told):
    class Nodes(FakeGrid):
        def replies_to(self, message):
            replies = super().replies_to(message)
            if alter is not None and message.metadata.dst_node_id == EVIL:
                for reply in replies:
                    if "num-examples" not in reply.content.get("fitres.metrics", {"num-examples"}):
                        alter(reply.content)
            return replies

    grid = Nodes([None] * 3, make=app_of(told))
    options = {"evaluate_every": 1, "round_deadline": 2.0}
    return (strategy or FedAvg()).start(grid, {"w": np.zeros(3)}, 3, **options).history


@pytest.mark.parametrize("place", ["train", "evaluate"])
@pytest.mark.parametrize(
    "many",
    [{f"m{i}": 1.0 for i in range(20_000)}, {"m": [1.0] * 20_000},
     {f"m{i}": math.nan for i in range(20_000)}],
    ids=["names", "a list", "no numbers"],
)  # fmt: skip
def test_20000_metrics_flood_neither_log_nor_history(place, many, log):
    history = played(**{place: many})
    assert len({name for row in history.rows for name in row}) <= 20 + 2 * MOST_METRICS
    assert len(log.text) < 15_000
    assert max(len(line.getMessage()) for line in log.records) < 1500
    assert "client 1: its metric m" in log.text
    assert "client 1: more of its metrics are left out" in log.text
    assert history.rows[-1]["accuracy/0"] == 0.5


def test_new_names_in_each_round_do_not_make_new_columns_for_ever(log):
    rounds = iter(range(99))

    def fresh():
        number = next(rounds)
        return {f"m{number}_{i}": 1.0 for i in range(90)}

    history = played(evaluate=fresh)
    assert len({name for row in history.rows for name in row}) <= 20 + 2 * MOST_METRICS
    assert "it is one of more than 100" in log.text


@pytest.mark.parametrize("examples", [1e30, 10**15, math.nan, math.inf, [1, 2], -5, 1e-300])
def test_what_is_no_number_of_examples_decides_no_mean(examples, log):
    history = played(evaluate={"num-examples": examples, "accuracy": 0.0})
    assert history["accuracy"].tolist() == [0.5] * 3
    assert history["unheard"].tolist() == [1] * 3
    assert f"client 1 (its num-examples is {examples!r}, expected a number above 0" in log.text


@pytest.mark.parametrize("examples", [1e30, math.nan, [1.0, 2.0], 1e-320])
def test_nor_does_it_in_training(examples, log):
    def alter(content):
        content["fitres.num_examples"]["num_examples"] = examples

    history = played(alter=alter)
    assert history["dropped"].tolist() == [1, 2, 3]
    assert "dropped the reply of client 1: its num-examples is" in log.text


@pytest.mark.parametrize("examples", [math.nan, [1, 2], math.inf, 1e30, -1])
def test_a_node_names_the_number_that_its_app_states(examples, log):
    """In the words of this package, not of Python's conversions."""
    history = played(train={"num-examples": examples})
    assert history["replies"].tolist() == [2, 2, 2]
    assert "num-examples is " in log.text
    assert "expected a whole number of examples, at most 1e+12" in log.text
    assert "float" not in log.text
    assert "int()" not in log.text


def test_a_client_that_outweighs_all_others_is_named_once(log):
    played(evaluate={"num-examples": 10**6})
    said = [r.getMessage() for r in log.records if "of the weight in the means" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("client 1 has 100.0% of the weight")


def test_a_metric_is_no_column_of_another_client(log):
    history = played(evaluate={"accuracy/0": 7.0, "loss": 2.0, "train_loss": 3.0})
    assert history.rows[-1]["accuracy/0"] == 0.5
    assert history.rows[-1]["train_loss"] == 1.0
    assert "client 1: its metric accuracy/0 is left out: it is the name of one" in log.text


def test_counts_of_work_that_are_not_exact_are_no_costs():
    def alter(content):
        content["fitres.metrics"].update({"work.gradients": 1e102, "work.proxes": 2.0})

    history = played(alter=alter)
    assert history.rows[-1]["proxes"] == 6.0
    assert "gradients" not in history.columns


class Telling(Quadratic):
    """Has metrics with weights: each client's own value is a column."""

    told = None

    def metrics(self, x):
        return next(self.told) if self.told is not None else {"mae": (0.5, 1.0)}


def test_nodes_with_objectives_have_the_same_bounds(log):
    objectives = [Telling(np.eye(2), np.ones(2)) for _ in range(3)]
    objectives[1].told = (
        {"mae": (0.5, 1.0), "mae/0": (9.0, 1.0)} | {f"m{t}_{i}": (1.0, 1.0) for i in range(90)}
        for t in range(9)
    )
    options = {"evaluate_every": 1, "num_rounds": 3}
    history = FedAvg(client_lr=0.1, local_steps=1).start(FakeGrid(objectives), **options).history
    assert history.rows[-1]["mae/0"] == 0.5
    assert not math.isnan(history.rows[-1]["objective"])
    assert len({name for row in history.rows for name in row}) <= 20 + 2 * MOST_METRICS
    assert log.text.count("client 1: metrics after its first 100, by name, are left out") == 1
    assert max(len(line.getMessage()) for line in log.records) < 3000
    plain = [Quadratic(np.eye(2), np.ones(2)) for _ in range(3)]
    assert FederatedProblem(plain).evaluate(history.x)["objective"] == pytest.approx(
        history["objective"][-1]
    )


def test_a_metric_called_as_what_the_method_reports_ends_no_run(log):
    objectives = [Telling(np.eye(2), np.ones(2)) for _ in range(3)]
    objectives[1].told = ({"mae": (0.5, 1.0), "extrapolation": (9.0, 1.0)} for _ in range(9))
    strategy, options = FedExProx(step_size=0.1), {"evaluate_every": 1, "num_rounds": 3}
    history = strategy.start(FakeGrid(objectives), **options).history
    assert history["extrapolation"][-1] != 9.0
    assert "the clients' metric extrapolation is left out: FedExProx reports" in log.text
