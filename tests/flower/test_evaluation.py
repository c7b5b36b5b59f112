"""Evaluations, query answers and certificates from clients that send what nobody should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import MetricRecord
from problems import avg, q6, q6_limited, q6_objectives

from flower_fedcon import EarlyStopping, FederatedProblem, simulate
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.regularizers import Indicator
from flower_fedcon.sets import Box
from flower_fedcon.strategies import FedMiD, FedSGM

pytestmark = on_grid


class Telling(Quadratic):
    """Says what it is told to say of its value and its metrics."""

    def __init__(self, like, losses=None, metrics=None):
        super().__init__(like.Q, like.b)
        self.losses, self.told = losses, metrics

    def value(self, x):
        return super().value(x) if self.losses is None else self.losses.pop(0)

    def metrics(self, x):
        return self.told or {}


def grid(**clients):
    """Return Q6 on a grid, with `c1=(losses, metrics)` in place of client 1."""
    told = {int(name[1:]): what for name, what in clients.items()}
    objectives = [Telling(o, *told.get(j, ())) for j, o in enumerate(q6_objectives())]
    return FakeGrid(objectives)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1.7e308])
def test_a_loss_that_is_no_number_costs_one_value(loss, caplog):
    """It is one client's fault: no objective in that record, and the run goes on."""
    plain = simulate(avg(), q6(), 3)
    liars = grid(c1=([0.5, loss, 0.5],), c4=([0.5, loss, 0.5],))
    stop = EarlyStopping(0.0, "objective")
    stop.tolerance = -1e9
    history = avg().start(liars, num_rounds=3, evaluate_every=1, callbacks=[stop]).history
    assert history.x.tobytes() == plain.x.tobytes()
    assert np.isnan(history["objective"]).tolist() == [False, True, False]
    told = f"no objective in this record, without client 1, 4 (its objective is {loss!r})"
    assert told in caplog.text


def test_a_client_that_fails_to_evaluate_leaves_what_the_others_have_measured(caplog):
    """Their own values, the violation, and how many are missing; nothing that is pooled."""

    class Weighed(Telling):
        def metrics(self, x):
            return {"mae": (self.told, 2.0), "size": self.told}

    objectives = [Weighed(o, None, float(j)) for j, o in enumerate(q6_objectives())]
    objectives[1].losses = [0.5, math.nan, 0.5]
    strategy = FedMiD(Indicator(Box(-1.0, 1.0)), client_lr=0.01, local_steps=1)
    rows = strategy.start(FakeGrid(objectives), num_rounds=3, evaluate_every=1).history.rows
    each = {f"mae/{j}": float(j) for j in range(6)}
    pooled = {"objective", "mae", "size", "mae/1"}
    assert {name: rows[0][name] for name in each} == each
    assert rows[0]["mae"] == rows[0]["size"] == 2.5
    assert rows[0].keys() - rows[1].keys() == pooled
    assert rows[1].keys() - rows[0].keys() == {"unheard"}
    assert rows[1]["unheard"] == 1
    assert rows[1]["violation"] == 0.0
    assert rows[1]["mae/2"] == 2.0
    assert rows[2].keys() == rows[0].keys()
    assert "no objective in this record, without client 1 (its objective is nan" in caplog.text


def test_losses_of_all_clients_that_are_no_numbers_end_the_run():
    told = {f"c{j}": ([math.inf],) for j in range(6)}
    with pytest.raises(FedConError, match="round 1: the objective is nan: the run diverges"):
        avg().start(grid(**told), num_rounds=3, evaluate_every=1)


COLUMN = "a metric cannot be called {!r}, which is a column"
LETTERS = "a metric's name must have 1 to 100 printable letters, got '"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, COLUMN.format(name)) for name in ("objective", "round", "local_iterations")),
        ("a\x1b[2J", LETTERS + r"a\x1b[2J'"),
        ("a" * 1000, f"{LETTERS}aaa"),
    ],
    ids=lambda text: text[:20],
)
def test_a_metric_cannot_take_the_place_of_a_column(name, words, caplog):
    history = avg().start(grid(c2=(None, {name: 7.0})), num_rounds=2, evaluate_every=1).history
    assert "objective" not in history
    assert history["round"].tolist() == [1, 2]
    assert f"without client 2 ({words}" in caplog.text
    assert len(caplog.text) < 10_000


def evaluated(**metrics):
    problem = FederatedProblem(q6_objectives(), metrics=metrics)
    return problem.evaluate(problem.start)


def reported():
    problem = FederatedProblem(q6_limited().objectives, metrics={"sigma": lambda x: 7.0})
    simulate(FedSGM(client_lr=0.01, local_steps=1, tolerance=0.1), problem, 1)


def central():
    three = lambda number, arrays: MetricRecord({"round": 3})  # noqa: E731
    avg().start(FakeGrid(q6_objectives()), num_rounds=2, evaluate_fn=three)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: evaluated(objective=float), "a metric cannot be called 'objective'"),
        (
            lambda: evaluated(moved=lambda x: x - 1.0),
            r"metric .moved. is array\(.*, expected a number",
        ),
        (central, "a metric cannot be called 'round'"),
        (reported, "a metric cannot be called 'sigma', which FedSGM reports"),
    ],
)
def test_so_are_those_of_a_problem_and_of_a_server(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_the_server_checks_metrics_whatever_the_node_does(caplog):
    """A node without this package's client sends any number of them, of any size."""

    class Odd(FakeGrid):
        def replies_to(self, message):
            (reply,) = super().replies_to(message)
            if "evaluateres.metrics" in reply.content and reply.metadata.src_node_id == 999:
                reply.content["evaluateres.metrics"].update(self.odd)
            return [reply]

    for odd, words in (
        ({f"m{i}": 1.0 for i in range(101)}, "it has 101 metrics, and at most 100"),
        ({"m": math.nan}, "its m is nan, not a usable number"),
        ({"m": [1.0, 2.0]}, "its m is [1.0, 2.0], not a usable number"),
        ({"m": "a" * 10**6}, "its m is 'aaaa"),
        ({"objective": 0.0}, "a metric cannot be called 'objective'"),
    ):
        caplog.clear()
        liars = Odd(q6_objectives())
        liars.odd = odd
        avg().start(liars, num_rounds=1)
        assert f"without client 1 ({words}" in caplog.text
        assert len(caplog.text) < 10_000


def test_an_absent_client_costs_a_certificate_and_no_run(caplog):
    class Silent(FakeGrid):
        def replies_to(self, message):
            sent = message.content.get("fitins.config", {})
            place = tuple(sent.get(key) for key in ("action", "round", "client"))
            return [] if place == ("certify", 2, 3) else super().replies_to(message)

    options = {"certificates": True, "timeout": 0.2, "evaluate_every": 1}
    history = avg().start(Silent(q6_objectives()), num_rounds=3, **options).history
    assert np.isnan(history["kkt"]).tolist() == [False, True, False]
    assert "no certificate: no usable answer from 3" in caplog.text
    assert history.x.tobytes() == simulate(avg(), q6(), 3).x.tobytes()


def test_two_huge_answers_to_a_query_are_dropped():
    """Their sum is no number."""
    strategy = FedSGM(client_lr=1 / 40, local_steps=2, tolerance=0.1)
    objectives = list(q6_limited().objectives)
    for j in (1, 2):
        objectives[j].constraint_value = lambda x: 1.7e308
    history = strategy.start(FakeGrid(objectives), num_rounds=2, evaluate_every=0).history
    assert history["replies"].tolist() == [4]
    assert history["dropped"].tolist() == [4]
    assert np.isfinite(history.x).all()


def test_what_a_client_says_is_bounded(caplog):
    """Its error text in the log and in the run's error; its words for work in the history."""

    def alter(message, reply):
        sent = message.content["fitins.config"]
        config = reply.content["fitres.metrics"]
        if sent["client"] == 1 and sent["round"] == 2 and "work.iterations" not in config:
            for name, value in (("iterations", 3.0), ("x" * 99, 1.0), ("evaluations", math.inf)):
                config[f"work.{name}"] = value
            config.update({f"work.{i}": 1.0 for i in range(50)} | {"work.unconverged": -5.0})
        if sent["client"] == 2 and sent["round"] == 2:
            config["error"] = "\x1b[2J" + "disk full\n" * 10**6
        return [reply]

    altered = FakeGrid(q6_objectives(), alter=alter)
    history = avg().start(altered, num_rounds=3, evaluate_every=1).history
    extra = [name for name in history.columns if name.startswith("local_")]
    assert extra == ["local_iterations"]
    assert history["local_iterations"][-1] == 3
    assert history["dropped"].tolist() == [0, 1, 1]
    (line,) = [r.getMessage() for r in caplog.records if "dropped the reply" in r.getMessage()]
    assert line.startswith(r"round 2: dropped the reply of client 2: \x1b[2Jdisk full\n")
    assert line.endswith("(10000004 characters)")
    assert "\x1b" not in line
    assert len(line) < 1500
