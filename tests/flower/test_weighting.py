"""Clients weighted by their numbers of examples, in deployments as in process."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_fedcon import FederatedProblem, client_app, simulate, train_step
from flower_fedcon.aggregation import TrimmedMean
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import DualFL, FedAvg, FedDyn, FedFW, FedProx, Scaffold

ROWS = (5, 20, 35)
RATE, ROUNDS = 0.1, 200  # of the training loops: to 1e-9 of the optimum


def objectives():
    rng = np.random.default_rng(3)
    return [LeastSquares(rng.normal(size=(m, 4)), rng.normal(size=m)) for m in ROWS]


@on_grid
@pytest.mark.parametrize(
    "strategy",
    [
        FedFW(L1Ball(9.0), penalty=1.0),
        Scaffold(client_lr=0.02, local_steps=3),
        DualFL(strong_convexity=0.01, regularization=0.01),  # the modulus and L of scaled f_j
    ],
    ids=lambda s: s.name,
)
def test_objectives_are_scaled_as_in_process(strategy):
    weighted = FederatedProblem(objectives(), constraint=strategy.constraint, weights=ROWS)
    grid = FakeGrid(objectives(), make=client_app)
    history = strategy.start(grid, num_rounds=6, weighting="examples", evaluate_every=2).history
    same = simulate(strategy, weighted, 6, evaluate_every=2)
    assert history.x.tobytes() == same.x.tobytes()
    assert history["objective"] == pytest.approx(same["objective"], rel=1e-14)


def loop_app(load):
    """A ClientApp with a train function on arrays: gradient steps, of its own length."""
    app = ClientApp()

    def count(context):
        return load(context).num_examples if KNOWN else 1

    @app.train()
    @train_step(num_examples=count)
    def train(message, context, method):
        f = load(context)
        (x,) = message.content["arrays"].to_numpy_ndarrays()
        correction = method.begin([x])
        for _ in range(3):
            (g,) = correction.apply_gradients([x], [f.gradient(x)])
            x = x - RATE * g
        content = {"x": ArrayRecord([x]), "m": MetricRecord({"num-examples": f.num_examples})}
        return Message(RecordDict(content), reply_to=message)

    return app


KNOWN = True


def started(strategy, rounds, **options):
    grid = FakeGrid(objectives(), make=loop_app)
    start = [np.zeros(4)]
    return strategy.start(grid, start, rounds, evaluate_every=0, **options).history.x[0]


@on_grid
def test_uploads_of_loops_are_weighted():
    """One round of FedAvg by hand; and Scaffold and FedDyn find the weighted optimum."""
    ends = []
    for f in objectives():
        x = np.zeros(4)
        for _ in range(3):
            x = x - RATE * f.gradient(x)
        ends.append(x)
    found = started(FedAvg(), 1, weighting="examples")
    assert found == pytest.approx(np.average(ends, axis=0, weights=ROWS), rel=1e-13)
    assert started(FedProx(proximal=0.0), 1) == pytest.approx(np.mean(ends, axis=0), rel=1e-13)
    optimum = FederatedProblem(objectives(), weights=ROWS).optimum.x
    plain = FederatedProblem(objectives()).optimum.x
    for strategy in (Scaffold(), FedDyn(proximal=1.0)):
        assert started(strategy, ROUNDS, weighting="examples") == pytest.approx(optimum, abs=1e-7)
        assert started(strategy, ROUNDS) == pytest.approx(plain, abs=1e-7)


@on_grid
def test_what_weights_cannot_be(monkeypatch):
    with pytest.raises(ConfigError, match="weighting must be one of 'uniform', 'examples'"):
        started(FedAvg(), 1, weighting="m")
    with pytest.raises(ConfigError, match="both replace the plain mean"):
        started(FedAvg(aggregation=TrimmedMean(0.3)), 1, weighting="examples")
    monkeypatch.setitem(globals(), "KNOWN", False)
    with pytest.raises(ConfigError, match=r"Scaffold with .* before round 1, and client 0"):
        started(Scaffold(), 1, weighting="examples")
    assert np.isfinite(started(FedAvg(), 1, weighting="examples")).all()


class Boasting(FakeGrid):
    """The last client claims so many examples."""

    claims = 10**18

    def replies_to(self, message):
        found = super().replies_to(message)
        for reply in found:
            config = reply.content.config_records.get("fitres.metrics")
            if message.metadata.dst_node_id == 1000 and config and "num-examples" in config:
                config["num-examples"] = self.claims
        return found


@on_grid
def test_no_client_owns_the_model_by_a_claim_of_examples(log):
    strategy = FedAvg(client_lr=0.1, local_steps=1)
    with pytest.raises(ConfigError, match=r"client .* states 1e\+18 examples, and with weighting="):
        strategy.start(Boasting(objectives()), num_rounds=1, weighting="examples")
    grid = Boasting(objectives())
    grid.claims = 10**9
    strategy.start(grid, num_rounds=1, weighting="examples")
    assert "of the weight, by the number of examples that it states" in log.text
