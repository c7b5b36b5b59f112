"""A `server_fn` that returns `ServerAppComponents`, and a `client_fn`, in Flower's simulation."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.client import ClientApp
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from problems import l1ls

from flower_fedcon import Sample, as_legacy_strategy, simulate
from flower_fedcon.clients import FedFWClient
from flower_fedcon.errors import ConfigError
from flower_fedcon.flower.virtual_nodes import run_on_virtual_nodes
from flower_fedcon.registry import strategy_class
from flower_fedcon.strategies import FedFW

ROUNDS = 6


def client_fn(context):
    problem = l1ls(4)
    objective = problem.objectives[int(context.node_config["partition-id"])]
    return FedFWClient(objective, context=context).to_client()


@pytest.mark.nightly
@pytest.mark.ray
def test_legacy_apps_find_the_local_iterates():

    problem, models = l1ls(4), {}
    strategy = FedFW(problem.constraint, penalty=0.1, participation=Sample(count=2))

    def server_fn(context):
        legacy = as_legacy_strategy(
            strategy,
            on_round=lambda number, x: models.__setitem__(number, np.array(x)),
        )
        return ServerAppComponents(strategy=legacy, config=ServerConfig(num_rounds=ROUNDS))

    run_on_virtual_nodes(ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn), 4)
    assert sorted(models) == list(range(1, ROUNDS + 1))
    for number, x in models.items():
        assert x.tobytes() == simulate(strategy, problem, number).x.tobytes()


def test_two_exchanges_are_refused():
    strategy = strategy_class("FedSGM")(client_lr=0.1, local_steps=1, tolerance=0.1)
    with pytest.raises(ConfigError, match="two exchanges a round"):
        as_legacy_strategy(strategy)
    nonconvex = FedFW(l1ls(4).constraint, penalty=0.1, schedule="nonconvex")
    with pytest.raises(ConfigError, match="depend on num_rounds"):
        as_legacy_strategy(nonconvex)
