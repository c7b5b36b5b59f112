"""Flower's own privacy mods and wrappers: refused by name, or let through."""

from __future__ import annotations

from functools import partial

import flwr.client.mod as older
import flwr.clientapp.mod as newer
import flwr.server.strategy as older_strategies
import flwr.serverapp.strategy as strategies
import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.client_manager import SimpleClientManager

from flower_fedcon import as_legacy_strategy, client_app, server_app, train_step
from flower_fedcon.clients.fedavg import FedAvgClient
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower.messages import to_record
from flower_fedcon.objectives import Quadratic
from flower_fedcon.strategies import FedAvg

HARMLESS = {"arrays_size_mod"}
BOTH = [(m, n) for m in (newer, older) for n in m.__all__ if n != "make_ffn"]
WRAPPERS = [n for n in strategies.__all__ if n.startswith("DifferentialPrivacy")]
STEPS = FedAvg(client_lr=0.5, local_steps=1)
FIRST = to_record([np.zeros(2)])


def load(context):
    return Quadratic(np.eye(2), np.ones(2))


def made(module, name):
    """Return one of Flower's mods, as an app is given it."""
    mod = getattr(module, name)
    return mod(1.0, 1.0, 1.0, 0.1) if isinstance(mod, type) else mod


def wrapped(module, name, strategy):
    own = {"clipping_norm": 1.0, "num_sampled_clients": 2} if "Fixed" in name else {}
    settings = {"noise_multiplier": 1.0, "num_sampled_clients": 40} | own
    return getattr(module, name)(strategy, **settings)


@pytest.mark.parametrize(("module", "name"), BOTH)
def test_a_client_app_takes_the_mods_that_only_look(module, name):
    mod = made(module, name)
    if name in HARMLESS:
        assert isinstance(client_app(load, mods=[mod]), ClientApp)
        return
    words = rf"takes no {name}: it .* (instead|out|\w+=SecAggPlus\(\.\.\.\))$"
    for given in (mod, partial(mod)):
        with pytest.raises(ConfigError, match=words):
            client_app(load, mods=[given])


def test_every_mod_is_known():
    assert len(BOTH) == 12
    assert client_app(load, mods=[lambda message, context, call_next: call_next(message, context)])


def own_loop(load):
    """Return an app with a train function of its own."""
    app = ClientApp()

    @app.train()
    @train_step
    def train(message, context, method):
        model = message.content["arrays"].to_numpy_ndarrays()
        method.begin(model).apply_gradients(model, model)
        content = {"a": to_record(model), "m": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
        return Message(RecordDict({"m": metrics}), reply_to=message)

    return app


@on_grid
@pytest.mark.parametrize("app", [client_app, own_loop], ids=["client_app", "train_step"])
@pytest.mark.parametrize(("module", "name"), BOTH)
def test_a_node_with_such_a_mod_is_named_before_round_1(module, name, app, caplog):
    """In an app of the node's own, around one of this package's clients; and in the last error."""

    def make(load):
        inner, mod = app(load), made(module, name)
        return lambda message, context: mod(message, context, inner)

    grid = FakeGrid([load(None), load(None)], make=make)
    if name in HARMLESS:
        result = STEPS.start(grid, FIRST, num_rounds=2)
        assert len(result.history["round"]) == 1
        return
    told = {"secagg_mod": "secaggplus_mod"}
    if module is older:  # which say less
        told["adaptiveclipping_mod"] = "fixedclipping_mod"
    words = f"the node runs {told.get(name, name)}, which "
    with pytest.raises(FedConError, match=f"are online .*node 999: .*{words}"):
        STEPS.start(grid, FIRST, num_rounds=2, timeout=0.3)
    assert words in caplog.text
    assert {m.content["fitins.config"]["action"] for m in grid.pushed} == {"describe"}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_strategy_is_refused_before_round_1(name):
    """By its own start, by a server app, in Flower's loop, and with Flower's older interface."""
    assert len(WRAPPERS) == 4
    fresh = FedAvg(client_lr=0.5, local_steps=1)
    outer, grid = wrapped(strategies, name, fresh), FakeGrid([load(None), load(None)])
    inner = as_legacy_strategy(fresh, num_clients=1)
    with pytest.raises(ConfigError, match=rf"^{name} cannot wrap .*GaussianDP"):
        outer.start(grid, FIRST, num_rounds=1)
    for ask in (
        lambda: list(outer.configure_train(1, FIRST, ConfigRecord(), grid)),
        lambda: server_app(lambda: outer)(grid, next(iter(grid.nodes.values()))),
        lambda: wrapped(older_strategies, name, inner).initialize_parameters(SimpleClientManager()),
    ):
        with pytest.raises(ConfigError, match=rf"^{name} cannot wrap"):
            ask()
    assert grid.pushed == []


@on_grid
@pytest.mark.parametrize("module", [newer, older])
def test_a_client_of_a_client_fn_names_the_mod_too(module, caplog):
    """The other mods give up before they call a client."""

    def make(load):
        inner = ClientApp(lambda context: FedAvgClient(load(context), context=context).to_client())
        mod = made(module, "LocalDpMod")
        return lambda message, context: mod(message, context, inner)

    with pytest.raises(FedConError, match="are online"):
        STEPS.start(FakeGrid([load(None)], make=make), num_rounds=2, timeout=0.3)
    assert "the node runs LocalDpMod, which clips" in caplog.text
