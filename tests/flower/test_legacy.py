"""Flower's older interface: `as_legacy_strategy`, a `client_fn`, and what its nodes can do."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.client import ClientApp, NumPyClient
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server, ServerApp, ServerAppComponents, ServerConfig
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from problems import avg, l1ls, q6, q6_objectives

from flower_fedcon import Buffered, Sample, as_legacy_strategy, simulate, train_step
from flower_fedcon.clients import FedAvgClient, FedFWClient
from flower_fedcon.errors import ConfigError, FedConError, RoundError
from flower_fedcon.flower import legacy
from flower_fedcon.flower.virtual_nodes import run_on_virtual_nodes
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedDyn, FedFW, FedProx, FedSGM, Scaffold


class Proxy(ClientProxy):
    """A node in this process; `make` returns its client, and a test may change its answers."""

    def __init__(self, cid, make, change=lambda answer: answer):
        super().__init__(cid)
        self.make, self.change = make, change

    def fit(self, ins, timeout, group_id):
        return self.change(self.make().to_client().fit(ins))

    def evaluate(self, ins, timeout, group_id):
        return self.make().to_client().evaluate(ins)

    get_properties = get_parameters = reconnect = None


def context_of(j):
    return Context(1, j, {"partition-id": j, "num-partitions": 6}, RecordDict(), {})


def rounds(strategy, manager, number):
    """Play rounds as Flower's server does; return the parameters, and each round's metrics."""
    parameters, found = strategy.initialize_parameters(manager), []
    for server_round in range(1, number + 1):
        asks = strategy.configure_fit(server_round, parameters, manager)
        results = [(proxy, proxy.fit(ins, None, server_round)) for proxy, ins in asks]
        new, metrics = strategy.aggregate_fit(server_round, results, [])
        parameters = new or parameters
        found.append(metrics)
    return parameters, found


# --- an app of Flower's --------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.ray
def test_legacy_apps_find_the_local_iterates():
    problem, models = l1ls(4), {}
    strategy = FedFW(problem.constraint, penalty=0.1, participation=Sample(count=2))

    def client_fn(context):
        objective = problem.objectives[int(context.node_config["partition-id"])]
        return FedFWClient(objective, context=context).to_client()

    def server_fn(context):
        keep = lambda number, x: models.__setitem__(number, np.array(x))  # noqa: E731
        made = as_legacy_strategy(strategy, on_round=keep)
        return ServerAppComponents(strategy=made, config=ServerConfig(num_rounds=6))

    run_on_virtual_nodes(ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn), 4)
    assert sorted(models) == list(range(1, 7))
    for number, x in models.items():
        assert x.tobytes() == simulate(strategy, problem, number).x.tobytes()


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (FedSGM(client_lr=0.1, local_steps=1, tolerance=0.1), "two exchanges a round"),
        (FedFW(l1ls(4).constraint, penalty=0.1, schedule="nonconvex"), "depend on num_rounds"),
        (
            FedAvg(client_lr=0.1, participation=Buffered(buffer=2)),
            r"Buffered\(buffer=2\) has none: use flower_fedcon.server_app",
        ),
    ],
)
def test_methods_that_it_cannot_serve_are_refused(strategy, words):
    with pytest.raises(ConfigError, match=words):
        as_legacy_strategy(strategy)


# --- a train loop of one's own -------------------------------------------------------------------

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


class Bare(Client):
    def __init__(self, objective, context):
        self.objective = objective


def loops(kind=Client):
    found = SimpleClientManager()
    for j, objective in enumerate(q6_objectives()):
        found.register(Proxy(f"{100 - j}", partial(kind, objective, context_of(j))))
    return found


@pytest.mark.parametrize(
    "strategy",
    [FedProx(proximal=2.0, **SOLVER), FedDyn(proximal=2.0, **SOLVER), Scaffold(**STEPS),
     FedDualAvg(PSI, **STEPS)],
    ids=lambda s: s.name,
)  # fmt: skip
def test_the_bytes_of_the_built_in_step(strategy):
    problem, clients = q6(0.0 if strategy.regularizer is None else PSI.weight), loops()
    made = as_legacy_strategy(
        strategy,
        x0=[problem.start, np.array(3)],  # and a counter, which nobody optimises
        train_config={"lr": LR},
        evaluate_config={"scale": 2.5},
    )
    parameters, found = rounds(made, clients, 5)
    x, counter = parameters_to_ndarrays(parameters)
    assert x.tobytes() == simulate(strategy, problem, 5).x.tobytes()
    assert counter == 14  # the mean of 0 to 5, 2.5, is added in each round: 5.5, 6; 8.5, 8; ...
    assert (found[-1]["replies"], found[-1]["number"]) == (6, 5)
    asks = made.configure_evaluate(5, parameters, clients)
    results = [(proxy, proxy.evaluate(ins, None, None)) for proxy, ins in asks]
    loss, evaluation = made.aggregate_evaluate(5, results, [])
    assert evaluation["scale"] == 2.5
    values = [float(f.value(x)) for f in problem.objectives]
    assert loss == pytest.approx(np.average(values, weights=range(1, 7)))
    assert evaluation["loss/5"] == values[5]


def test_what_is_missing_is_said():
    with pytest.raises(ConfigError, match="do not describe their model: give x0"):
        rounds(as_legacy_strategy(FedProx(proximal=1.0)), loops(), 1)
    proxy = next(iter(loops(Bare).all().values()))
    with pytest.raises(ConfigError, match=r"client\.context = context in client_fn"):
        proxy.make().fit([], {"action": "describe", "algorithm": "fedprox"})


# --- what a node can do --------------------------------------------------------------------------


def node(cid, j, change=lambda answer: answer):
    """Return a node with one of Q6's clients."""

    def fit(ins, timeout, group_id):
        config = {"algorithm": "fedavg", **ins.config}
        arrays, examples, metrics = client.fit(parameters_to_ndarrays(ins.parameters), config)
        return change(
            FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), examples, metrics)
        )

    client, found = FedAvgClient(q6_objectives()[j], name=str(j)), Proxy(cid, None)
    found.fit = fit
    return found


def nodes(number=6, change=lambda answer: answer):
    found = SimpleClientManager()
    for j in range(number):
        found.register(node(str(j), j, change))
    return found


@pytest.fixture
def manager(monkeypatch):
    monkeypatch.setattr(legacy.time, "sleep", lambda seconds: None)
    return nodes()


def fail(answer):
    raise RuntimeError("no file data.npz")


def malformed(answer):
    answer.metrics["num-examples"] = float("inf")
    return answer


@pytest.mark.parametrize("change", [fail, malformed], ids=lambda f: f.__name__)
def test_a_node_that_cannot_take_part_ends_nothing(change, manager, caplog):
    manager.register(node("6", 1, change))
    found, _ = rounds(as_legacy_strategy(avg(), num_clients=6), manager, 3)
    assert parameters_to_ndarrays(found)[0].tobytes() == simulate(avg(), q6(), 3).x.tobytes()
    assert "node 6 cannot take part: " in caplog.text


def test_a_second_claimant_of_a_name_is_asked_nothing(manager, caplog):
    strategy = as_legacy_strategy(avg(), num_clients=6)
    strategy.initialize_parameters(manager)
    manager.register(node("6", 1))
    asks = strategy.configure_fit(1, None, manager)
    assert sorted(proxy.cid for proxy, _ in asks) == [str(j) for j in range(6)]
    assert "node 6 cannot take part: client 1 is on another node" in caplog.text


def test_a_malformed_reply_is_dropped_and_asked_again_in_the_next_round(manager, caplog):
    def change(answer):
        if answer.metrics.get("round") == 1 and not hit:
            hit.append(1)
            answer.metrics["round"] = float("inf")
        return answer

    hit = []
    manager.unregister(manager.all()["1"])
    manager.register(node("1", 1, change))
    found, _ = rounds(as_legacy_strategy(avg(min_replies=6), num_clients=6), manager, 3)
    two = simulate(avg(), q6(), 2).x  # one of three rounds was void
    assert parameters_to_ndarrays(found)[0].tobytes() == two.tobytes()
    assert "dropped the reply of client 1: its round is inf, expected a whole number" in caplog.text


def broken_from(first):
    """Return what lets a node fail in every round from one on, as its own code does."""

    def change(answer):
        if answer.metrics.get("round", 0) >= first:
            answer.metrics["error"] = "the client failed: KeyError('lr')"
        return answer

    return change


def crash(answer):
    return fail(answer) if "round" in answer.metrics else answer


FAIL = r"no client has given a usable reply \(clients 0, 1, 2: the client fail"


@pytest.mark.usefixtures("manager")
@pytest.mark.parametrize(
    ("change", "words", "vain"),
    [
        (broken_from(1), f"round 1: {FAIL}", 1),
        (broken_from(2), f"round 2: {FAIL}", 3),
        (crash, r"no client has .*no file data\.npz", 1),  # in Flower's hands
    ],
    ids=["at once", "later", "crash"],
)
def test_a_run_in_which_every_client_fails_does_not_finish(change, words, vain):
    """Flower's server plays all its rounds, and says nothing in the end."""
    strategy = as_legacy_strategy(avg(), num_clients=3)
    with pytest.raises(RoundError, match=words):
        Server(client_manager=nodes(3, change), strategy=strategy).fit(num_rounds=8, timeout=None)
    assert strategy._vain == vain


def test_a_strategy_that_is_not_wrapped_is_refused_with_the_line_to_write(manager):
    with pytest.raises(ConfigError, match=r"strategy=as_legacy_strategy\(FedAvg\(\.\.\.\)\)"):
        Server(client_manager=manager, strategy=avg()).fit(num_rounds=1, timeout=None)


def test_too_few_that_can_take_part(manager):
    manager.unregister(manager.all()["1"])
    manager.register(node("1", 1, fail))
    with pytest.raises(FedConError, match=r"5 of 6 clients are online after 0\.1 s"):
        as_legacy_strategy(avg(), num_clients=6, timeout=0.1).initialize_parameters(manager)


NOISY = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)


@on_grid
def test_what_privacy_has_been_spent_is_told_to_flower(manager):
    """Each round's metrics hold epsilon, with this interface and with Flower's own loop."""
    pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    expected = simulate(avg(privacy=NOISY), q6(), 2)["epsilon"]
    _, found = rounds(as_legacy_strategy(avg(privacy=NOISY), num_clients=6), manager, 2)
    assert [metrics["epsilon"] for metrics in found] == expected[-2:].tolist()
    strategy, grid = avg(privacy=NOISY), FakeGrid(q6_objectives())
    arrays = strategy.start(grid, num_rounds=0).arrays
    sent = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    _, metrics = strategy.aggregate_train(1, grid.send_and_receive(sent))
    assert metrics["epsilon"] == found[0]["epsilon"]


@on_grid
@pytest.mark.parametrize(("privacy", "asked"), [(None, 6), (NOISY, 0)])
def test_no_loss_is_asked_for_in_a_private_run(privacy, asked, manager):
    """Neither by this interface nor by Flower's own loop: no noise would cover it."""
    strategy = as_legacy_strategy(avg(privacy=privacy), num_clients=6)
    parameters = strategy.initialize_parameters(manager)
    assert len(strategy.configure_evaluate(1, parameters, manager)) == asked
    strategy, grid = avg(privacy=privacy), FakeGrid(q6_objectives())
    arrays = strategy.start(grid, num_rounds=0).arrays
    assert len(strategy.configure_evaluate(1, arrays, ConfigRecord(), grid)) == asked
