"""What a node can do to a server with Flower's older interface; no process is started."""

from __future__ import annotations

import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import ConfigRecord
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from problems import avg, q6, q6_objectives

from flower_fedcon import as_legacy_strategy, simulate
from flower_fedcon.clients import FedAvgClient
from flower_fedcon.errors import ConfigError, FedConError, RoundError
from flower_fedcon.flower import legacy
from flower_fedcon.privacy import GaussianDP

OK = Status(Code.OK, "")


class Proxy(ClientProxy):
    """A node with one of Q6's clients, whose answers a test may change."""

    def __init__(self, cid, j, change=lambda answer: answer):
        super().__init__(cid)
        self.client, self.change = FedAvgClient(q6_objectives()[j], name=str(j)), change

    def fit(self, ins, timeout, group_id):
        arrays, examples, metrics = self.client.fit(
            parameters_to_ndarrays(ins.parameters), {"algorithm": "fedavg", **ins.config}
        )
        return self.change(FitRes(OK, ndarrays_to_parameters(arrays), examples, metrics))

    get_properties = get_parameters = evaluate = reconnect = None


def fail(answer):
    raise RuntimeError("no file data.npz")


def malformed(answer):
    answer.metrics["num-examples"] = float("inf")
    return answer


def rounds(strategy, manager, number):
    parameters = strategy.initialize_parameters(manager)
    for server_round in range(1, number + 1):
        asks = strategy.configure_fit(server_round, parameters, manager)
        results = [(proxy, proxy.fit(ins, None, server_round)) for proxy, ins in asks]
        found, _ = strategy.aggregate_fit(server_round, results, [])
        parameters = found or parameters
    return parameters_to_ndarrays(parameters)[0]


@pytest.fixture
def manager(monkeypatch):
    monkeypatch.setattr(legacy.time, "sleep", lambda seconds: None)
    nodes = SimpleClientManager()
    for j in range(6):
        nodes.register(Proxy(str(j), j))
    return nodes


@pytest.mark.parametrize("change", [fail, malformed], ids=lambda f: f.__name__)
def test_a_node_that_cannot_take_part_ends_nothing(change, manager, caplog):
    manager.register(Proxy("6", 1, change))
    found = rounds(as_legacy_strategy(avg(), num_clients=6), manager, 3)
    assert found.tobytes() == simulate(avg(), q6(), 3).x.tobytes()
    assert "node 6 cannot take part: " in caplog.text


def test_a_second_claimant_of_a_name_is_asked_nothing(manager, caplog):
    strategy = as_legacy_strategy(avg(), num_clients=6)
    strategy.initialize_parameters(manager)
    manager.register(Proxy("6", 1))
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
    manager.register(Proxy("1", 1, change))
    found = rounds(as_legacy_strategy(avg(min_replies=6), num_clients=6), manager, 3)
    assert found.tobytes() == simulate(avg(), q6(), 2).x.tobytes()  # one of three rounds was void
    assert "dropped the reply of client 1: its round is inf, expected a whole number" in caplog.text


def broken_from(first):
    """Return what lets a node fail in every round from one on, as its own code does."""

    def change(answer):
        if answer.metrics.get("round", 0) >= first:
            answer.metrics["error"] = "the client failed: KeyError('lr')"
        return answer

    return change


@pytest.mark.parametrize(("first", "vain"), [(1, 1), (2, 3)])
def test_a_run_in_which_every_client_fails_does_not_finish(first, vain, manager):
    """Flower's server plays all its rounds, and says nothing in the end."""
    manager = SimpleClientManager()
    for j in range(3):
        manager.register(Proxy(str(j), j, broken_from(first)))
    strategy = as_legacy_strategy(avg(), num_clients=3)
    words = rf"round {first}: no client has given a usable reply \(clients 0, 1, 2: the client fail"
    with pytest.raises(RoundError, match=words):
        Server(client_manager=manager, strategy=strategy).fit(num_rounds=8, timeout=None)
    assert strategy._vain == vain


def test_nodes_that_fail_in_flowers_hands_are_told_too(manager):
    def crash(answer):
        return fail(answer) if "round" in answer.metrics else answer

    manager = SimpleClientManager()
    for j in range(3):
        manager.register(Proxy(str(j), j, crash))
    strategy = as_legacy_strategy(avg(), num_clients=3)
    with pytest.raises(RoundError, match=r"no client has .*no file data\.npz"):
        Server(client_manager=manager, strategy=strategy).fit(num_rounds=3, timeout=None)


def test_a_strategy_that_is_not_wrapped_is_refused_with_the_line_to_write(manager):
    with pytest.raises(ConfigError, match=r"strategy=as_legacy_strategy\(FedAvg\(\.\.\.\)\)"):
        Server(client_manager=manager, strategy=avg()).fit(num_rounds=1, timeout=None)


def test_too_few_that_can_take_part(manager):
    manager.unregister(manager.all()["1"])
    manager.register(Proxy("1", 1, fail))
    with pytest.raises(FedConError, match=r"5 of 6 clients are online after 0\.1 s"):
        as_legacy_strategy(avg(), num_clients=6, timeout=0.1).initialize_parameters(manager)


@on_grid
def test_what_privacy_has_been_spent_is_told_to_flower(manager):
    """Each round's metrics hold epsilon, with this interface and with Flower's own loop."""
    pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    noisy = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    expected = simulate(avg(privacy=noisy), q6(), 2)["epsilon"]
    strategy, found = as_legacy_strategy(avg(privacy=noisy), num_clients=6), []
    parameters = strategy.initialize_parameters(manager)
    for server_round in (1, 2):
        asks = strategy.configure_fit(server_round, parameters, manager)
        results = [(proxy, proxy.fit(ins, None, server_round)) for proxy, ins in asks]
        parameters, metrics = strategy.aggregate_fit(server_round, results, [])
        found.append(metrics["epsilon"])
    assert found == expected[-2:].tolist()
    strategy, grid = avg(privacy=noisy), FakeGrid(q6_objectives())
    arrays = strategy.start(grid, num_rounds=0).arrays
    sent = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    _, metrics = strategy.aggregate_train(1, grid.send_and_receive(sent))
    assert metrics["epsilon"] == found[0]


@on_grid
def test_no_loss_is_asked_for_in_a_private_run(manager):
    """Neither by this interface nor by Flower's own loop: no noise would cover it."""
    noisy = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    for privacy, asked in ((None, 6), (noisy, 0)):
        strategy = as_legacy_strategy(avg(privacy=privacy), num_clients=6)
        parameters = strategy.initialize_parameters(manager)
        assert len(strategy.configure_evaluate(1, parameters, manager)) == asked
        strategy, grid = avg(privacy=privacy), FakeGrid(q6_objectives())
        arrays = strategy.start(grid, num_rounds=0).arrays
        assert len(strategy.configure_evaluate(1, arrays, ConfigRecord(), grid)) == asked
