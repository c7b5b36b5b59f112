"""Flower's grid and apps, in memory: no process is started."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from harness import OpenRun
from problems import avg, q6, q6_ball, q6_objectives

from flower_fedcon import (
    FederatedProblem,
    History,
    Sample,
    client_app,
    server_app,
    simulate,
)
from flower_fedcon.clients import FedAvgClient
from flower_fedcon.core.round import Round
from flower_fedcon.engines import grid as grids
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower import messages
from flower_fedcon.flower.codec import RequestEncoder
from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedAvg, FedFW, FedNewton

HALF = {"participation": Sample(count=3)}


@on_grid
@pytest.mark.parametrize("sampled", [{}, HALF], ids=["full", "sampled"])
def test_a_grid_finds_the_same_bytes(sampled):
    problem = q6_ball()
    strategy = FedFW(problem.constraint, penalty=1.0, **sampled)
    result = strategy.start(FakeGrid(q6_objectives()), num_rounds=8, seed=3, evaluate_every=1)
    local = simulate(strategy, problem, 8, seed=3)
    assert result.history.x.tobytes() == local.x.tobytes()
    assert messages.from_record(result.arrays)[0].tobytes() == local.x.tobytes()
    for row, same in zip(result.history.rows, local.rows, strict=True):
        assert row["objective"] == pytest.approx(same["objective"], rel=1e-14)
        rest = {"seconds": 0, "objective": 0, "refused": 0}
        assert {**row, **rest} == {**same, **rest}


@on_grid
@pytest.mark.parametrize("sampled", [{}, {"participation": Sample(count=2)}])
def test_hessians_on_a_grid(sampled):
    """Uploads may be larger than the model, by as much as the method says."""
    rng = np.random.default_rng(0)
    clients = [
        LogisticRegression(rng.normal(size=(30, 40)), rng.choice([-1, 1], 30), intercept=True)
        for _ in range(3)
    ]
    problem = FederatedProblem(clients, regularizer=WithIntercept(L1(0.02)))
    strategy = FedNewton(problem.regularizer, **sampled)
    result = strategy.start(FakeGrid(clients), num_rounds=6, seed=3)
    local = simulate(strategy, problem, 6, seed=3)
    assert result.history.x.tobytes() == local.x.tobytes()
    assert result.history.rows[-1]["dropped"] == 0
    assert result.history["uplink_bytes"][-1] == local["uplink_bytes"][-1]


class Layered:
    """||a||^2/2 + ||b||^2/2 - sum b, of layers a (2, 2) and b (3,)."""

    shape = [(2, 2), (3,)]  # noqa: RUF012

    def value(self, x):
        return float(np.vdot(x[0], x[0]) + np.vdot(x[1], x[1])) / 2 - float(x[1].sum())

    def gradient(self, x):
        return [x[0], x[1] - 1]


@on_grid
def test_layers_on_a_grid():
    clients, strategy = [Layered(), Layered()], FedAvg(client_lr=0.5, local_steps=1)
    history = strategy.start(FakeGrid(clients), num_rounds=2, evaluate_every=0).history
    local = simulate(strategy, FederatedProblem(clients), 2)
    assert [a.tolist() for a in history.x] == [a.tolist() for a in local.x]
    assert history.x[1].tolist() == [0.75] * 3


@on_grid
def test_layers_are_evaluated_on_a_grid():
    clients, strategy = [Layered(), Layered()], FedAvg(client_lr=0.5, local_steps=1)
    history = strategy.start(FakeGrid(clients), num_rounds=2, evaluate_every=1).history
    assert history["objective"].tolist() == [-3 * 0.375, -3 * 0.46875]


@on_grid
def test_handshake_waits_for_all_and_sorts_by_number():
    grid = FakeGrid(q6_objectives() * 2, hidden=[1000, 993])
    engine = grids.GridEngine(avg(), grid)
    assert [info.name for info in engine.describe()] == [str(j) for j in range(12)]
    assert grid.looks > 3


@on_grid
def test_too_few_clients():
    with pytest.raises(FedConError, match=r"2 of 3 clients are online after 1e-06 s \(0, 1\)"):
        avg().start(FakeGrid(q6_objectives()[:2]), num_clients=3, timeout=1e-6)
    empty = FakeGrid(())
    with pytest.raises(FedConError, match=r"0 of 1 clients are online .*\(none\)"):
        avg().start(empty, timeout=1e-6)


@on_grid
def test_a_node_comes_back_under_another_id():
    problem = q6_ball()
    strategy, grid = FedFW(problem.constraint, penalty=1.0), FakeGrid(q6_objectives())

    def move(record):
        if record["round"] == 3:
            grid.nodes[7] = grid.nodes.pop(998)

    history = strategy.start(grid, num_rounds=6, evaluate_every=1, callbacks=[move]).history
    assert history.x.tobytes() == simulate(strategy, problem, 6).x.tobytes()
    assert grid.pushed[-1].metadata.dst_node_id in grid.nodes
    assert history.rows[-1]["dropped"] == history.rows[-1]["lost"] == 0


@on_grid
def test_clients_that_do_not_fit_are_named():
    def make(load):
        return ClientApp(lambda context: FedAvgClient(load(context), context=context).to_client())

    grid = FakeGrid(q6_objectives()[:2], make=make)
    same = avg().start(grid, num_rounds=3, evaluate_every=0).history
    two = FederatedProblem(q6_objectives()[:2])
    assert same.x.tobytes() == simulate(avg(), two, 3).x.tobytes()
    other, grid = FedFW(L1Ball(1.0), penalty=1.0), FakeGrid(q6_objectives()[:2], make=make)
    with pytest.raises(FedConError, match=r"0 of 1 .*; node 999: this client runs 'fedavg', the s"):
        other.start(grid, start_timeout=0.01)

    def broken(load):
        def fail(context):
            raise ConfigError("no file data.npz")

        return client_app(fail)

    with pytest.raises(FedConError, match=r"0 of 1 clients .*; node 1000: no file data.npz: start"):
        avg().start(FakeGrid(q6_objectives()[:1], make=broken), start_timeout=0.01)


@on_grid
def test_flowers_own_loop():
    strategy, grid = avg(), FakeGrid(q6_objectives())
    with pytest.raises(FedConError, match="no run has been started"):
        strategy.configure_train(1, None, None, grid)
    arrays = strategy.start(grid, num_rounds=0).arrays
    for server_round in (1, 2):
        sent = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
        arrays, metrics = strategy.aggregate_train(server_round, grid.send_and_receive(sent))
        assert metrics["replies"] == 6
    x = messages.from_record(arrays)[0]
    assert x.tobytes() == simulate(avg(), q6(), 2).x.tobytes()
    sent = strategy.configure_evaluate(2, arrays, ConfigRecord(), grid)
    found = strategy.aggregate_evaluate(2, grid.send_and_receive(sent))
    assert found["objective"] == pytest.approx(q6().objective(x))
    with pytest.raises(FedConError, match="round 5 was asked for after round 2"):
        strategy.configure_train(5, arrays, ConfigRecord(), grid)
    with pytest.raises(ConfigError, match="train_config and evaluate_config are for the app's own"):
        strategy.start(grid, train_config=ConfigRecord({"lr": 0.1}))


def test_a_client_without_an_app():
    """`to_client()` and plain `fit` need no context; the answers are Flower's."""
    client = FedAvgClient(q6_objectives()[0], name="first")
    assert callable(client.to_client().fit)
    arrays, examples, config = client.fit([], {"action": "describe"})
    assert (arrays, examples, config["name"], config["num-examples"]) == ([], 1, "first", 1)
    run = OpenRun(avg(), q6())
    request = Round.begin(run.server).next_request()
    named, config = RequestEncoder(run.server.info).encode(request, 0)
    arrays, _, answer = client.fit(list(named.values()), config)
    assert (answer["names"], answer["round"], answer["client"]) == ("delta", 1, 0)
    assert (
        arrays[0].tobytes()
        == run.clients[0].handle(request.only([0])).payload["delta"][0].tobytes()
    )
    config = {"layout": run.server.info.layout.to_json(), "client": 0}
    loss, examples, answer = client.evaluate([np.ones(8)], config)
    assert loss == q6_objectives()[0].value(np.ones(8))
    assert (examples, answer) == (1, {"client": 0})


@on_grid
def test_a_server_app_reads_its_run_configuration(tmp_path):
    config = {"num-server-rounds": 4, "seed": 9, "evaluate-every": 3, "run-dir": str(tmp_path)}
    config |= {"min-clients-to-start": 6, "start-timeout": 0, "max-retries": 0, "grace": 5.0}
    seen = []
    app = server_app(lambda: avg(**HALF), x0=np.ones(8), callbacks=[seen.append])
    app(FakeGrid(q6_objectives()), Context(1, 1, {}, RecordDict(), config))
    problem = FederatedProblem(q6_objectives(), x0=np.ones(8))
    with np.load(tmp_path / "model.npz") as model:
        assert model["x"].tobytes() == simulate(avg(**HALF), problem, 4, seed=9).x.tobytes()
    assert [record["round"] for record in seen] == [3, 4]
    assert [row["round"] for row in History.read_rows(tmp_path / "history.csv")] == [3, 4]


def test_app_refusals():
    with pytest.raises(ConfigError, match="load_objective must be a function, got 3"):
        client_app(3)
    with pytest.raises(ConfigError, match="make_strategy must be a function"):
        server_app(avg())
    app = server_app(lambda: "fedavg")
    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(ConfigError, match="returned 'fedavg', which is not a strategy"):
        app(FakeGrid(()), context)
    for key, value, wanted in (
        ("num-server-rounds", "three", "a whole number"),
        ("num-server-rounds", float("inf"), "a whole number"),
        ("checkpoint-every", 2.5, "a whole number"),
        ("timeout", "an hour", "a number"),
        ("resume", "false", "true or false"),
        ("run-dir", 3, "text"),
    ):
        context.run_config = {key: value}
        told = rf"run configuration: {key} must be {wanted}, got {value!r}"
        with pytest.raises(ConfigError, match=told):
            server_app(lambda: avg())(FakeGrid(()), context)
    context.run_config = {"round-deadline": -1}
    with pytest.raises(ConfigError, match="round_deadline must be finite and > 0, got -1"):
        server_app(lambda: avg())(FakeGrid(()), context)


@on_grid
@pytest.mark.parametrize("grace", [0.0, None])
def test_a_round_waits_for_the_rest_as_long_as_it_is_told(grace, monkeypatch):
    """One client answers at the third look only: with no grace the round goes on without it."""
    looks = []

    class Slow(FakeGrid):
        def pull_messages(self, message_ids):
            slow = [m for m in message_ids if self.slow(m)]
            looks.append(1)
            ready = [m for m in message_ids if m not in slow or len(looks) % 3 == 0]
            return super().pull_messages(ready)

        def slow(self, key):
            message = self.pushed[int(key[1:])]
            config = message.content.get("fitins.config", {})
            return config.get("action") == "train" and config.get("client") == 2

    strategy = avg(min_replies=5)
    history = strategy.start(
        Slow(q6_objectives()), num_rounds=2, grace=grace, evaluate_every=1
    ).history
    assert history["replies"].tolist() == ([6, 6] if grace is None else [5, 5])
    with pytest.raises(ConfigError, match="grace must be finite and >= 0, got -1"):
        strategy.start(Slow(q6_objectives()), num_rounds=2, grace=-1)


@on_grid
def test_a_certificate_waits_for_everyone_whatever_the_grace():
    """The grace is that of a round; a mean of some gradients is no certificate."""

    class Slow(FakeGrid):
        looks_for_replies = 0

        def pull_messages(self, message_ids):
            self.looks_for_replies += 1
            asks = [self.pushed[int(m[1:])].content.get("fitins.config", {}) for m in message_ids]
            late = [q.get("action") == "certify" and q.get("client") == 2 for q in asks]
            ready = [m for m, waits in zip(message_ids, late, strict=True)
                     if not waits or self.looks_for_replies % 3 == 0]  # fmt: skip
            return super().pull_messages(ready)

    grid, strategy = Slow(q6_objectives()), avg(min_replies=5)
    options = {"grace": 0.0, "certificates": True, "evaluate_every": 1}
    history = strategy.start(grid, num_rounds=2, **options).history
    assert len(history["kkt"]) == 2


@on_grid
def test_a_run_holds_no_messages_that_are_answered():
    """A thousand models of one megabyte would be one gigabyte."""
    alive = []

    class Grid(FakeGrid):
        def push_messages(self, messages):
            sent = super().push_messages(messages)
            alive.extend(map(weakref.ref, messages))
            self.pushed = [None] * len(self.pushed)
            return sent

    def look(record):
        gc.collect()
        assert sum(message() is not None for message in alive) == 0

    avg().start(Grid(q6_objectives()), num_rounds=3, evaluate_every=1, callbacks=[look])
    assert len(alive) > 36
