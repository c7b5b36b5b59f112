"""A `NumPyClient` with a train loop of its own, under a `ServerAppComponents` strategy."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.client import NumPyClient
from flwr.common import parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from problems import q6, q6_objectives

from flower_fedcon import as_legacy_strategy, simulate, train_step
from flower_fedcon.errors import ConfigError
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import FedDualAvg, FedDyn, FedProx, Scaffold

LR, K, PSI = 1 / 64, 3, L1(0.1)
STEPS = {"client_lr": LR, "local_steps": K}
SOLVER = {"local_solver": GradientDescent(steps=K, lr=LR)}


class Client(NumPyClient):
    """As in Flower's older examples; two lines of it are new."""

    def __init__(self, objective, context):
        self.objective, self.context = objective, context

    @train_step
    def fit(self, parameters, config, method):
        (x, *buffers), f = parameters, self.objective
        if method.name == "FedDualAvg":
            optimizer = method.optimizer([x], config["lr"])
            for _ in range(K):
                (x,) = optimizer.step([f.gradient(x)])
        else:
            correction = method.begin([x])
            for _ in range(K):
                (g,) = correction.apply_gradients([x], [f.gradient(x)])
                x = x - config["lr"] * g
        counts = [b + int(self.context.node_config["partition-id"]) for b in buffers]
        return [x, *counts], 10, {"number": config["server-round"], "value": float(f.value(x))}

    def evaluate(self, parameters, config):
        place = int(self.context.node_config["partition-id"])
        return float(self.objective.value(parameters[0])), 1 + place, {"scale": config["scale"]}


class Proxy(ClientProxy):
    """A client in this process."""

    def __init__(self, cid, make):
        super().__init__(cid)
        self.make = make

    def fit(self, ins, timeout, group_id):
        return self.make().to_client().fit(ins)

    def evaluate(self, ins, timeout, group_id):
        return self.make().to_client().evaluate(ins)

    def get_properties(self, ins, timeout, group_id): ...
    def get_parameters(self, ins, timeout, group_id): ...
    def reconnect(self, ins, timeout, group_id): ...


def manager(kind=Client):
    found = SimpleClientManager()
    for j, objective in enumerate(q6_objectives()):
        node = {"partition-id": j, "num-partitions": 6}
        context = Context(1, j, node, RecordDict(), {})
        found.register(Proxy(f"{100 - j}", lambda o=objective, c=context: kind(o, c)))
    return found


def run(legacy, rounds, clients):
    parameters, metrics = legacy.initialize_parameters(clients), {}
    for r in range(1, rounds + 1):
        asked = legacy.configure_fit(r, parameters, clients)
        results = [(proxy, proxy.fit(ins, None, None)) for proxy, ins in asked]
        parameters, metrics = legacy.aggregate_fit(r, results, [])
    asked = legacy.configure_evaluate(rounds, parameters, clients)
    results = [(proxy, proxy.evaluate(ins, None, None)) for proxy, ins in asked]
    return (
        parameters_to_ndarrays(parameters),
        metrics,
        *legacy.aggregate_evaluate(rounds, results, []),
    )


@pytest.mark.parametrize(
    "strategy",
    [
        FedProx(proximal=2.0, **SOLVER),
        FedDyn(proximal=2.0, **SOLVER),
        Scaffold(**STEPS),
        FedDualAvg(PSI, **STEPS),
    ],
    ids=lambda s: s.name,
)
def test_the_bytes_of_the_built_in_step(strategy):
    problem = q6(0.0 if strategy.regularizer is None else PSI.weight)
    legacy = as_legacy_strategy(
        strategy,
        x0=[problem.start, np.array(3)],  # and a counter, which nobody optimises
        train_config={"lr": LR},
        evaluate_config={"scale": 2.5},
    )
    (x, counter), metrics, loss, evaluation = run(legacy, 5, manager())
    assert x.tobytes() == simulate(strategy, problem, 5).x.tobytes()
    assert counter == 14  # the mean of 0 to 5, 2.5, is added in each round: 5.5, 6; 8.5, 8; ...
    assert metrics["replies"] == 6
    assert metrics["number"] == 5
    assert evaluation["scale"] == 2.5
    values = [float(f.value(x)) for f in problem.objectives]
    assert loss == pytest.approx(np.average(values, weights=range(1, 7)))
    assert evaluation["loss/5"] == values[5]


def test_what_is_missing_is_said():
    class Bare(Client):
        def __init__(self, objective, context):
            self.objective = objective

    with pytest.raises(ConfigError, match="do not describe their model: give x0"):
        run(as_legacy_strategy(FedProx(proximal=1.0)), 1, manager())
    proxy = next(iter(manager(Bare).all().values()))
    with pytest.raises(ConfigError, match=r"client\.context = context in client_fn"):
        proxy.make().fit([], {"action": "describe", "algorithm": "fedprox"})
