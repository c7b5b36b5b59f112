"""Train loops on arrays: what stays with each client, and what its number of examples weighs."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from pages import ROOT
from test_grid import ROWS, squares

from flower_fedcon import Buffered, FederatedProblem, Full, keep_local, train_step
from flower_fedcon.aggregation import TrimmedMean
from flower_fedcon.clients.families.declared import LocalPassClient
from flower_fedcon.errors import ConfigError
from flower_fedcon.registry import algorithms, client_class
from flower_fedcon.strategies import FedAvg, FedDyn, FedProx, Scaffold

pytestmark = on_grid


def reply(message, arrays=None, examples=1, **metrics):
    content = {"m": MetricRecord({"num-examples": examples, **metrics})}
    content |= {} if arrays is None else {"a": ArrayRecord(arrays)}
    return Message(RecordDict(content), reply_to=message)


# --- arrays that stay with each client -----------------------------------------------------------

SEEN: list[tuple[int, float]] = []


def counting(load):
    """Each client adds its place + 1 to its own count; the model moves by 1."""
    app = ClientApp()

    @app.train()
    @train_step
    @keep_local("count*")
    def train(message, context, method):
        arrays = {k: a.numpy() for k, a in message.content["arrays"].items()}
        place = context.node_config["partition-id"]
        SEEN.append((place, float(arrays["counts"])))
        moved = {"counts": arrays["counts"] + place + 1, "w": arrays["w"] + 1}
        return reply(message, {k: Array(np.asarray(moved[k])) for k in arrays})

    @app.evaluate()
    @keep_local("count*")
    def evaluate(message, context):
        return reply(message, own=float(message.content["arrays"]["counts"].numpy()))

    return app


def counted(grid, rounds, strategy=None, **options):
    SEEN.clear()
    first = ArrayRecord({"w": Array(np.zeros(2)), "counts": Array(np.zeros(()))})
    options |= {"buffers": ["counts"], "evaluate_every": 1}
    return (strategy or FedAvg()).start(grid, first, rounds, **options).history


@pytest.mark.parametrize("restarted", [False, True])
def test_each_client_goes_on_from_its_own(tmp_path, restarted):
    """A node that starts anew has an empty context, and its folder."""

    class Restarting(FakeGrid):
        def push_messages(self, messages):
            for context in self.nodes.values() if restarted else ():
                context.state = RecordDict()
            return super().push_messages(messages)

    grid = Restarting([None] * 3, make=counting)
    for context in grid.nodes.values() if restarted else ():
        context.node_config["state-dir"] = str(tmp_path)
    history = counted(grid, 3)
    for place in range(3):
        own = [count for j, count in SEEN if j == place]
        assert own == [0, place + 1, 2 * (place + 1)]
        assert history[f"own/{place}"].tolist() == [(place + 1) * r for r in (1, 2, 3)]
    assert history.x[0].tolist() == [3, 3]


def test_a_repeated_round_starts_from_the_one_before():
    """Client 0's first reply in round 2 is lost."""

    class Losing(FakeGrid):
        lost = False

        def replies_to(self, message):
            sent = dict(message.content.get("fitins.config", {}))
            found = super().replies_to(message)
            if self.lost or (sent.get("round"), sent.get("client")) != (2, 0):
                return found
            self.lost = True
            return []

    counted(Losing([None] * 2, make=counting), 3, FedAvg(min_replies=2), timeout=0.5)
    assert [count for place, count in SEEN if place == 0] == [0, 1, 1, 2]
    assert [count for place, count in SEEN if place == 1] == [0, 2, 4]


def test_where_it_does_not_belong():
    with pytest.raises(ConfigError, match="needs names or patterns"):
        keep_local()


# --- weights by numbers of examples --------------------------------------------------------------

RATE, ROUNDS = 0.1, 200  # to 1e-9 of the optimum
WEIGHTED = {"weighting": "examples"}


def stepping(known):
    """Return what makes an app of gradient steps, which states its examples before round 1 or not.

    Its replies state them in any case.
    """

    def make(load):
        app = ClientApp()

        @app.train()
        @train_step(num_examples=lambda context: load(context).num_examples if known else 1)
        def train(message, context, method):
            f, (x,) = load(context), message.content["arrays"].to_numpy_ndarrays()
            correction = method.begin([x])
            for _ in range(3):
                (g,) = correction.apply_gradients([x], [f.gradient(x)])
                x = x - RATE * g
            return reply(message, [x], f.num_examples)

        return app

    return make


def found(strategy, rounds, known=True, **options):
    grid = FakeGrid(squares(), make=stepping(known))
    history = strategy.start(grid, [np.zeros(4)], rounds, evaluate_every=0, **options).history
    return history.x[0]


def test_uploads_of_loops_are_weighted():
    """One round of FedAvg by hand; and Scaffold and FedDyn find the weighted optimum."""
    ends = []
    for f in squares():
        x = np.zeros(4)
        for _ in range(3):
            x = x - RATE * f.gradient(x)
        ends.append(x)
    mean = np.average(ends, axis=0, weights=ROWS)
    for known in (True, False):
        assert found(FedAvg(), 1, known, **WEIGHTED) == pytest.approx(mean, rel=1e-13)
    assert found(FedProx(proximal=0.0), 1) == pytest.approx(np.mean(ends, axis=0), rel=1e-13)
    optimum, plain = (FederatedProblem(squares(), weights=w).optimum.x for w in (ROWS, None))
    for strategy in (Scaffold(), FedDyn(proximal=1.0)):
        assert found(strategy, ROUNDS, **WEIGHTED) == pytest.approx(optimum, abs=1e-7)
        assert found(strategy, ROUNDS) == pytest.approx(plain, abs=1e-7)


def test_uploads_of_loops_are_weighted_without_rounds_as_well():
    """Steps that wait for everyone are rounds; others end at the weighted optimum."""
    n = len(ROWS)
    waits = Buffered(buffer=n, concurrency=n, dispatch=n)
    for known in (True, False):
        both = [found(FedAvg(participation=rule), 3, known, **WEIGHTED) for rule in (Full(), waits)]
        assert both[0].tobytes() == both[1].tobytes()
    optimum = FederatedProblem(squares(), weights=ROWS).optimum.x
    end = found(Scaffold(participation=Buffered(buffer=2)), 2 * ROUNDS, **WEIGHTED)
    assert end == pytest.approx(optimum, abs=1e-7)


@pytest.mark.parametrize(
    ("strategy", "weighting", "known", "words"),
    [
        (FedAvg(), "m", True, "weighting must be one of 'uniform', 'examples'"),
        (FedAvg(aggregation=TrimmedMean(0.3)), "examples", True, "both replace the plain mean"),
        (Scaffold(), "examples", False, r"Scaffold with .* before round 1: .* Client 0 does not"),
    ],
)
def test_what_weights_cannot_be(strategy, weighting, known, words):
    with pytest.raises(ConfigError, match=words):
        found(strategy, 1, known, weighting=weighting)


def in_loops(name):
    kind = client_class(name)
    return issubclass(kind, LocalPassClient) and kind.in_loops


def test_the_methods_that_must_know_numbers_of_examples_are_named(log):
    """On the page, in the docstring, and before nodes are waited for: those of the collection."""
    kinds = algorithms().items()
    able = sorted(kind.__name__ for name, kind in kinds if kind.needs_shares and in_loops(name))
    listed = f"{', '.join(able[:-1])} and {able[-1]}"
    page = " ".join((ROOT / "docs" / "training_loops.md").read_text("utf-8").split())
    assert f"{listed} must then know these numbers" in page
    assert f"{listed} need it, before round 1" in " ".join(train_step.__doc__.split())
    found(Scaffold(), 1, **WEIGHTED)
    assert "know every client's number of examples" in log.messages[0]
